"""slotflow.outlying: distances of closed form, p values, and what is kept of a score."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from slotflow.outlying import Outlying, Part, from_json, shapes
from slotflow.outlying_features import CONDITIONS, KINDS, VERSION, BandVectors
from slotflow.outlying_fit import fit_part
from tests.outlying_example import SEVERAL, WIDTHS, example_score, gaussian_bands


def test_gaussian_vectors_are_as_far_as_chi_square_says() -> None:
    kinds = {name: WIDTHS[name] for name in ("level", "shape", "peaks")}
    bands, fresh = gaussian_bands(3, 3000, kinds), gaussian_bands(4, 1500, kinds)
    for name in kinds:
        part = fit_part(name, bands)
        far = [part.distances(one.vectors[name], one.conditions)[0] for one in fresh]
        assert stats.kstest(far, stats.chi2(WIDTHS[name]).cdf).pvalue > 0.001
        # without the conditions the mean would be wrong, and all too far
        zero = np.zeros(CONDITIONS)
        away = [part.distances(one.vectors[name], zero)[0] for one in fresh]
        assert np.mean(away) > 1.2 * WIDTHS[name]


def test_units_do_not_matter() -> None:
    """A feature in other units, or features that are mixed, leave distances as they are."""
    bands, fresh = gaussian_bands(5, 2000, {"level": 2}), gaussian_bands(6, 50, {"level": 2})
    mix = np.array([[1e-5, 0.0], [2e-5, 1e-5]])
    changed = [
        BandVectors(one.conditions, {"level": one.vectors["level"] @ mix.T * 1e3}) for one in bands
    ]
    plain, other = fit_part("level", bands), fit_part("level", changed)
    for one in fresh:
        there = BandVectors(one.conditions, {"level": one.vectors["level"] @ mix.T * 1e3})
        # shrinkage is towards no correlation, so that mixing is felt by a little
        np.testing.assert_allclose(plain.farthest(one), other.farthest(there), atol=0.05)


def test_the_farthest_vector_counts_and_their_order_does_not() -> None:
    score = example_score()
    part = score.parts[KINDS.index("components")]
    band = next(one for one in gaussian_bands(7, 50) if len(one.vectors["components"]) > 2)
    rows = band.vectors["components"]
    turned = BandVectors(band.conditions, band.vectors | {"components": rows[::-1]})
    assert score(turned).value == pytest.approx(score(band).value, rel=1e-9)
    each = [part.farthest(BandVectors(band.conditions, {"components": row[None]})) for row in rows]
    assert part.farthest(band) == pytest.approx(max(each), rel=1e-9)
    none = {name: np.empty((0, WIDTHS[name])) for name in SEVERAL}
    nothing = BandVectors(band.conditions, band.vectors | none)
    assert np.isfinite(score(nothing).value)
    assert part.farthest(nothing) == -np.inf


@pytest.mark.parametrize("name", KINDS)
def test_what_is_far_in_one_kind_is_outside(name: str) -> None:
    score = example_score()
    band = next(one for one in gaussian_bands(8, 50) if all(len(v) for v in one.vectors.values()))
    assert not score(band).outside
    odd = band.vectors | {name: band.vectors[name] + 60.0}
    found = score(BandVectors(band.conditions, odd))
    assert found.outside
    assert found.kind == name
    assert found.p_value == pytest.approx(1.0 / (score.calibrated + 1.0))


def test_p_values_fall_with_the_score_and_agree_with_the_threshold() -> None:
    score = example_score()
    values = np.linspace(-2.0, 5.0, 200)
    p = np.array([score.p_value(value) for value in values])
    assert (np.diff(p) <= 0.0).all()
    assert p[0] == score.levels[0]
    assert p[-1] == pytest.approx(1.0 / (score.calibrated + 1.0))
    assert score.p_value(1.0) == pytest.approx(0.01, rel=1e-6)  # the threshold is kept, too
    fresh = [score(one).p_value for one in gaussian_bands(9, 1000)]
    for level in (0.05, 0.1, 0.3):  # the threshold's own scatter and that of the fresh ones
        error = np.sqrt(level * (1 - level) * (1 / 1000 + 1 / score.calibrated))
        assert abs(np.mean(np.array(fresh) <= level) - level) < 4 * error


def test_it_comes_back_from_json_and_arrays() -> None:
    score = example_score()
    again = from_json(score.to_json(), score.arrays())
    for one in gaussian_bands(10, 20):
        assert again(one) == score(one)
    assert {name: array.shape for name, array in score.arrays().items()} == shapes(WIDTHS)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": VERSION + 1}, "version"),
        ({"parts": list(KINDS[:-1])}, "parts"),
        ({"parts": None}, "parts"),
        ({"centre": [0.0]}, "centre and spread"),
        ({"centre": [float("nan")] * len(KINDS)}, "not finite"),
        ({"spread": [0.0] * len(KINDS)}, "above 0"),
        ({"threshold": 0.0}, "above 0"),
        ({"threshold": float("nan")}, "above 0"),
        ({"levels": [0.5, 0.6], "values": [1.0, 2.0]}, "falling levels"),
        ({"levels": [0.5, 0.1], "values": [2.0, 1.0]}, "falling levels"),
        ({"levels": [0.5], "values": [1.0, 2.0]}, "as many levels"),
        ({"levels": [], "values": []}, "as many levels"),
        ({"levels": [0.5], "values": [float("inf")]}, "not finite"),
        ({"fitted": 0}, "numbers of bands"),
        ({"calibrated": -3}, "numbers of bands"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, object], said: str) -> None:
    score = example_score()
    with pytest.raises(ValueError, match=said):
        from_json(score.to_json() | change, score.arrays())


def test_arrays_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"level: expected \(Q, F\) and \(F, F\)"):
        Part("level", np.zeros((4, 2)), np.eye(3))
    with pytest.raises(ValueError, match="level: numbers that are not finite"):
        Part("level", np.full((4, 2), np.nan), np.eye(2))
    one = example_score()
    with pytest.raises(ValueError, match="parts"):
        replace(one, parts=one.parts[:2])
    assert isinstance(one, Outlying)


def test_arrays_of_a_stranger_give_a_finite_score() -> None:
    one = example_score()
    wild = [Part(part.name, part.slope, part.whiten * 1e300) for part in one.parts]
    for band in gaussian_bands(11, 5):
        found = replace(one, parts=tuple(wild))(band)
        assert np.isfinite(found.value)
        assert found.outside
