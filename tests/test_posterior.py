"""slotflow.posterior and slotflow.results: from a year of data to samples of each source."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slotflow.bands import spectrum, tiles
from slotflow.checkpoint import Model
from slotflow.errors import InputError
from slotflow.model import TokenBatch
from slotflow.parameters import AMPLITUDE, F0, PARAMETERS, PHI0, PSI, RA, fold, other_image
from slotflow.posterior import _Candidate, _merge, _search, posterior
from slotflow.readers import Observation, read_truth
from slotflow.results import Result, SourcePosterior, summarise
from slotflow.tokencache import to_local_units
from tests.chain import example_observation, example_path, untrained_model

T = 524_288 * 60.0
LOW, HIGH = 1.940e-3, 1.948e-3  # three bands around AM CVn


@pytest.fixture(scope="module")
def year() -> Observation:
    return example_observation()


@pytest.fixture(scope="module")
def untrained() -> Model:
    return untrained_model()


@pytest.fixture(scope="module")
def result(year: Observation, untrained: Model) -> Result:
    return posterior(year, untrained, fmin=LOW, fmax=HIGH, samples=400)


def _source(f0: float, probability: float = 0.9, amplitude: float = 1e-22) -> SourcePosterior:
    rng = np.random.default_rng(1)
    samples = np.tile([f0, 1e-17, amplitude, 1.0, 0.2, 0.5, 1.0, 2.0], (500, 1))
    samples[:, F0] += 0.05 / T * rng.standard_normal(500)
    samples[:, AMPLITUDE] *= np.exp(0.1 * rng.standard_normal(500))
    return SourcePosterior(samples, np.zeros(500), probability, 0, 0, 20.0)


# ---- medians and intervals


@settings(deadline=None, max_examples=50)
@given(
    turn=st.floats(0.0, 20.0),
    width=st.floats(0.01, 0.8),
    period=st.sampled_from([np.pi, 2 * np.pi]),
)
def test_a_circular_summary_turns_with_the_circle(turn: float, width: float, period: float) -> None:
    values = width * period / 2 * np.random.default_rng(3).beta(2.0, 3.0, 801)
    here = summarise(values, period)
    there = summarise(np.mod(values + turn, period), period)
    for a, b in zip(here, there, strict=True):
        assert 0.0 <= b < period
        assert abs(np.mod(b - a - turn + period / 2, period) - period / 2) < 1e-9
    plain = summarise(values)  # nowhere near the seam: the plain quantiles
    np.testing.assert_allclose(here, plain, atol=1e-12)


def test_an_interval_through_zero() -> None:
    values = np.mod(np.random.default_rng(0).normal(0.01, 0.1, 20_000), 2 * np.pi)
    median, lower, upper = summarise(values, 2 * np.pi)
    assert median == pytest.approx(0.01, abs=0.005)
    assert lower == pytest.approx(2 * np.pi + 0.01 - 0.1645, abs=0.005)
    assert upper == pytest.approx(0.01 + 0.1645, abs=0.005)
    inside = (values >= lower) | (values <= upper)
    assert inside.mean() == pytest.approx(0.9, abs=0.001)


def test_both_images_have_one_summary() -> None:
    source = _source(1.5e-3)
    samples = source.samples + 0.01 * np.random.default_rng(2).standard_normal(source.samples.shape)
    half = np.random.default_rng(4).random(len(samples)) < 0.5
    mixed = samples.copy()
    mixed[half] = other_image(samples[half])
    for index in (PSI, PHI0):
        a = SourcePosterior(samples, source.log_q, 1.0, 0, 0, 1.0).summary
        b = SourcePosterior(mixed, source.log_q, 1.0, 0, 0, 1.0).summary
        for x, y in zip(a, b, strict=True):
            assert x[index] == pytest.approx(y[index], abs=1e-9)


# ---- the chain, with a network of random weights that samples around the components


def test_loud_true_sources_are_where_samples_are(result: Result) -> None:
    truth = read_truth(example_path())
    assert truth is not None
    f0 = truth.sources[:, F0]
    loud = (truth.snr > 20) & (f0 > LOW) & (f0 < HIGH)
    assert loud.any()
    found = np.array([source.f0 for source in result.sources])
    distance = np.abs(f0[loud, None] - found).min(axis=1) * T
    assert (distance < 1.0).all()


def test_samples_respect_bounds(result: Result, untrained: Model) -> None:
    prior = untrained.preset.prior
    for source in result.sources:
        assert source.samples.shape == (400, 8)
        assert source.samples.dtype == np.float64
        assert source.log_q.shape == (400,)
        for index, parameter in enumerate(PARAMETERS):
            if parameter.low is not None:
                assert (source.samples[:, index] >= parameter.low).all()
            if parameter.high is not None:
                assert (source.samples[:, index] <= parameter.high).all()
            if parameter.period is not None and parameter.high is not None:
                assert (source.samples[:, index] < parameter.high).all()
        place = source.samples[:, F0] * T - source.first_bin
        assert ((place > 0) & (place < prior.bins)).all()
        fdot = source.samples[:, 1] * T**2
        assert ((fdot >= prior.fdot_t2_min) & (fdot <= prior.fdot_t2_max)).all()


def test_half_of_the_draws_are_the_other_image(result: Result) -> None:
    second = np.concatenate([source.samples[:, PSI] >= np.pi / 2 for source in result.sources])
    assert second.mean() == pytest.approx(0.5, abs=3 * 0.5 / np.sqrt(second.size))
    turned = np.concatenate([source.samples[:, PHI0] >= np.pi for source in result.sources])
    assert turned.mean() == pytest.approx(0.5, abs=3 * 0.5 / np.sqrt(turned.size))


def test_log_q_is_half_the_density_of_the_folded_source(
    result: Result, year: Observation, untrained: Model
) -> None:
    prior = untrained.preset.prior
    plan = tiles(LOW, HIGH, prior, T)[:1]
    data = spectrum(year, T, untrained.preset.observation.tukey)
    tokens = next(_search(data, untrained, plan, "data", year.path, None)).tokens
    with torch.no_grad():
        batch = TokenBatch(*(torch.from_numpy(part[None]) for part in tokens))
        reading = untrained.network.read(batch)
    source = next(s for s in result.sources if s.first_bin == plan[0].first_bin)
    local = torch.from_numpy(to_local_units(fold(source.samples), source.first_bin, T))
    with torch.no_grad():
        density = untrained.network.log_prob(
            local,
            reading.context[:, source.slot].expand(len(local), -1),
            reading.reference[:, source.slot].expand(len(local), -1),
        )
    expected = density.sum(dim=-1).numpy() - np.log(2.0)
    np.testing.assert_allclose(source.log_q, expected, atol=0.02)
    assert np.median(np.abs(source.log_q - expected)) < 1e-3


def test_the_seed_decides(result: Result, year: Observation, untrained: Model) -> None:
    again = posterior(year, untrained, fmin=LOW, fmax=HIGH, samples=400)
    other = posterior(year, untrained, fmin=LOW, fmax=HIGH, samples=400, seed=1)
    first, same, different = (r.sources[0].samples for r in (result, again, other))
    np.testing.assert_array_equal(first, same)
    assert not np.array_equal(first, different)


def test_draws_do_not_depend_on_other_bands(
    result: Result, year: Observation, untrained: Model
) -> None:
    edge = result.tiles[0].high
    alone = posterior(year, untrained, fmin=LOW, fmax=edge, samples=400)
    assert len(alone.tiles) == 1
    assert alone.sources
    together = {(s.first_bin, s.slot): s for s in result.sources}
    for source in alone.sources:
        twin = together.get((source.first_bin, source.slot))
        if twin is None:
            assert abs(source.f0 - edge) * T < 2.0  # told apart at the edge only
            continue
        np.testing.assert_allclose(source.samples[:, F0], twin.samples[:, F0], rtol=1e-10)
        np.testing.assert_allclose(source.samples, twin.samples, rtol=1e-3, atol=1e-3)


def test_the_order_and_the_frequencies_reported(result: Result) -> None:
    f0 = [source.f0 for source in result.sources]
    assert f0 == sorted(f0)
    assert f0[0] >= LOW - 1 / T
    assert f0[-1] < HIGH + 1 / T
    edges = [(tile.low, tile.high) for tile in result.tiles]
    assert edges[0][0] == LOW
    assert edges[-1][1] == HIGH
    assert all(a[1] == b[0] for a, b in pairwise(edges))


def test_a_known_level_is_used(year: Observation, untrained: Model) -> None:
    known = posterior(year, untrained, fmin=LOW, fmax=HIGH, samples=10, psd="model")
    assert all((tile.level_a, tile.level_e) == (1.0, 1.0) for tile in known.tiles)
    assert any("psd 'model'" in note and "estimated from each band" in note for note in known.notes)
    found = posterior(year, untrained, fmin=LOW, fmax=HIGH, samples=10)
    assert not any("noise level" in note for note in found.notes)
    assert all(0.3 < tile.level_a < 3.0 and tile.level_a != 1.0 for tile in found.tiles)


def test_no_source_is_a_result(year: Observation, untrained: Model) -> None:
    doubtful = Model(untrained.preset, untrained.network, untrained.grid)
    bias = doubtful.network.exists[-1].bias
    assert isinstance(bias, torch.Tensor)
    with torch.no_grad():
        bias.sub_(40.0)
    try:
        nothing = posterior(year, doubtful, fmin=LOW, fmax=HIGH)
    finally:
        with torch.no_grad():
            bias.add_(40.0)
    assert nothing.sources == ()
    assert len(nothing.tiles) > 1


# ---- what two neighbouring bands both see


def _merged(*candidates: tuple[SourcePosterior, int, bool]) -> list[SourcePosterior]:
    return list(_merge([_Candidate(*one) for one in candidates], T))


def test_one_source_seen_twice_is_reported_once() -> None:
    less, more = _source(1.5e-3, 0.8), _source(1.5e-3 + 0.02 / T, 0.9)
    assert _merged((less, 3, True), (more, 4, True)) == [more]
    assert _merged((less, 3, True), (more, 4, False)) == [less]  # its own tile's report
    assert _merged((less, 3, False), (more, 4, False)) == [more]  # each calls it the other's
    assert _merged((less, 3, False)) == []  # the neighbour, whose it would be, sees nothing
    assert _merged((less, 3, False), (more, 3, True)) == [more]


def test_two_sources_are_not_merged() -> None:
    one = _source(1.5e-3)
    louder = _source(1.5e-3 + 0.02 / T, amplitude=5e-22)
    further = _source(1.5e-3 + 0.8 / T)
    assert len(_merged((one, 3, True), (louder, 4, True))) == 2
    assert len(_merged((one, 3, True), (further, 4, True))) == 2
    assert len(_merged((one, 3, True), (_source(1.5e-3), 3, True))) == 2  # one band told them apart
    assert len(_merged((one, 3, True), (_source(1.5e-3), 5, True))) == 2


# ---- data that the model cannot use


def test_another_orbit_is_refused(year: Observation, untrained: Model) -> None:
    for change, field in (
        ({"orbit": "keplerian"}, "orbit"),
        ({"orbit_parameters": {"m_init1": 0.5}}, "orbit_m_init1"),
        ({"t0": 86400.0}, "t0"),
    ):
        other = replace(year, **change)  # type: ignore[arg-type]
        with pytest.raises(InputError, match=field):
            posterior(other, untrained, fmin=LOW, fmax=HIGH)


def test_what_is_assumed_is_noted(year: Observation, untrained: Model) -> None:
    other = replace(year, orbit=None, orbit_parameters={}, generation_from="noise")
    notes = posterior(other, untrained, fmin=LOW, fmax=HIGH, samples=1).notes
    assert any("orbit" in note and "equal_arm" in note for note in notes)
    assert any("TDI generation" in note for note in notes)


@pytest.mark.parametrize("scale", [(0, 0, 0), (0, 1, 0), (1e30, 1e30, 1e30)])
def test_channels_without_a_noise_level(
    year: Observation, untrained: Model, scale: tuple[float, ...]
) -> None:
    """All zero, X and Z zero, or so large that their square is no number."""
    other = replace(year, tdi=year.tdi * np.array(scale)[:, None])
    with pytest.raises(InputError, match=r"channel A, 1\.93.* Hz: noise level") as error:
        posterior(other, untrained, fmin=LOW, fmax=HIGH)
    assert str(error.value).startswith(f"{year.path}: ")


def test_an_odd_noise_level_is_noted(year: Observation, untrained: Model) -> None:
    """Phase in place of fractional frequency, say: all is found, but the user is told."""
    loud = replace(year, tdi=10.0 * year.tdi)
    for psd in ("data", "model"):
        notes = posterior(loud, untrained, fmin=LOW, fmax=LOW + 1e-6, samples=1, psd=psd).notes
        note = next(note for note in notes if "the noise level is" in note)
        assert note.startswith(f"{year.path}: ")
        assert "outside 0.1 to 10 in 1 of 1 bands" in note
        assert "wrong units" in note
        assert "TDI generation" in note


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"samples": 0}, "samples"),
        ({"seed": -1}, "seed"),
        ({"psd": "both"}, "psd"),
        ({"min_probability": float("nan")}, "min_probability"),
        ({"fmin": 0.5e-3}, "fmin"),
        ({"fmin": float("nan")}, "fmin"),
        ({"fmax": 3e-3}, "fmax"),
        ({"fmin": HIGH, "fmax": LOW}, "fmin"),
    ],
)
def test_numbers_out_of_range(
    year: Observation, untrained: Model, change: dict[str, float], field: str
) -> None:
    with pytest.raises(InputError, match=field):
        posterior(year, untrained, **change)  # type: ignore[arg-type]


def test_ra_is_summarised_on_the_circle() -> None:
    source = _source(1.5e-3)
    source.samples[:, RA] = np.mod(np.random.default_rng(0).normal(0.0, 0.05, 500), 2 * np.pi)
    assert source.summary.lower[RA] > 6.0
    assert source.summary.upper[RA] < 0.3


def test_a_series_that_begins_elsewhere_than_its_t0_is_refused(year: Observation) -> None:
    """The second half of a longer file, cut out with the attributes of the whole."""
    from slotflow.assumptions import check_orbit

    moved = replace(year, start=year.t0 + 15_768_000.0)
    with pytest.raises(InputError, match=r"field 't': begins at 15768000.0 s, but attribute 't0'"):
        check_orbit(moved, untrained_model())
    check_orbit(replace(year, start=year.t0), untrained_model())


def test_no_component_is_reported_twice_whatever_the_threshold(year: Observation) -> None:
    result = posterior(
        year, untrained_model(), fmin=LOW, fmax=HIGH, samples=20, min_probability=0.0
    )
    assert result.sources
    assert all(source.probability > 0.0 for source in result.sources)
