"""jaxgb's responses against our compiled ones, and the sum into a band."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotflow.config import ObservationSettings
from slotflow.response import response, tdi2_factor
from slotflow.simulate.orbits import response_grid
from slotflow.simulate.waveforms import accumulate, jaxgb_response

YEAR = ObservationSettings()


def draw(number: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack(
        [
            rng.uniform(1e-3, 4e-3, number),
            rng.uniform(-0.1, 0.3, number) / YEAR.duration**2,
            10 ** rng.uniform(-23, -21, number),
            rng.uniform(0, 2 * np.pi, number),
            np.arcsin(rng.uniform(-1, 1, number)),
            rng.uniform(0, np.pi, number),
            np.arccos(rng.uniform(-1, 1, number)),
            rng.uniform(0, 2 * np.pi, number),
        ],
        axis=-1,
    )


def test_jaxgb_and_the_compiled_response_agree() -> None:
    sources = draw(50)
    ours, first = response(sources, response_grid(YEAR, 256))
    theirs, theirs_first = jaxgb_response(sources, YEAR)
    np.testing.assert_array_equal(first, theirs_first)
    error = np.abs(ours - theirs)[:, :2].max(axis=(1, 2)) / np.abs(theirs).max(axis=(1, 2))
    assert error.max() < 1e-8
    np.testing.assert_array_equal(theirs[:, 2], 0.0)  # T carries no signal


def test_256_slow_samples_are_enough() -> None:
    sources = draw(20, 1)
    sources[:, 0] = (66_000 + np.linspace(-40, 40, 20)) / YEAR.duration
    bands = []
    for n in (256, 1024):
        h, first = response(sources, response_grid(YEAR, n))
        bands.append(accumulate(h[:, :2], first, 66_000 - 128, 256))
    assert np.linalg.norm(bands[0] - bands[1]) < 1e-3 * np.linalg.norm(bands[1])


def test_a_source_does_not_depend_on_its_neighbours() -> None:
    sources = draw(70, 2)
    together, _ = jaxgb_response(sources, YEAR)
    for rows in ([0], [69], [5, 64, 3], list(range(69, -1, -1))):
        alone, _ = jaxgb_response(sources[rows], YEAR)
        np.testing.assert_array_equal(alone, together[rows])


def test_no_sources() -> None:
    h, first = jaxgb_response(np.empty((0, 8)), YEAR)
    assert h.shape == (0, 3, 256)
    assert first.shape == (0,)
    np.testing.assert_array_equal(accumulate(h, first, 10, 20), np.zeros((3, 20)))


def test_wrong_shape_is_named() -> None:
    with pytest.raises(ValueError, match=r"\(S, 8\)"):
        jaxgb_response(np.ones((3, 7)), YEAR)


def test_second_generation_is_the_complex_factor() -> None:
    sources = draw(5, 3)
    one, first = jaxgb_response(sources, YEAR, batch=8)
    two, _ = jaxgb_response(sources, YEAR.model_copy(update={"tdi_generation": "2.0"}), batch=8)
    f = (first[:, None] + np.arange(256)) / YEAR.duration
    factor = tdi2_factor(f, 2.5e9)[:, None]
    assert np.abs(two - one * factor).max() < 1e-9 * np.abs(two).max()


def test_responses_are_linear_in_amplitude() -> None:
    sources = draw(4, 4)
    louder = sources.copy()
    louder[:, 2] *= 37.0
    one, _ = jaxgb_response(sources, YEAR)
    more, _ = jaxgb_response(louder, YEAR)
    assert np.abs(more - 37.0 * one).max() < 1e-13 * np.abs(more).max()


@given(
    st.lists(st.integers(-30, 50), min_size=0, max_size=12),
    st.integers(1, 40),
    st.integers(0, 2**32 - 1),
)
@settings(deadline=None)
def test_accumulate_cuts_at_both_sides(firsts: list[int], bins: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, start = 16, 5
    h = rng.standard_normal((len(firsts), 3, n)) + 1j * rng.standard_normal((len(firsts), 3, n))
    long = np.zeros((3, 200), dtype=complex)  # all that falls anywhere
    for one, first in zip(h, firsts, strict=True):
        long[:, 60 + first : 60 + first + n] += one
    expected = long[:, 60 + start : 60 + start + bins]
    seen = accumulate(h, np.array(firsts, dtype=np.int64), start, bins)
    np.testing.assert_allclose(seen, expected, atol=1e-12)


def test_grid_holds_an_equilateral_constellation_at_one_au() -> None:
    grid = response_grid(YEAR, 128)
    arms = np.linalg.norm(grid.positions - np.roll(grid.positions, 1, axis=0), axis=1)
    np.testing.assert_allclose(arms, grid.arm_length, rtol=0.02)  # to first order in eccentricity
    centre = np.linalg.norm(grid.positions.mean(axis=0), axis=0)
    np.testing.assert_allclose(centre, 1.495978707e11, rtol=0.02)
    assert grid.window[0] == 0.0
    assert (response_grid(YEAR, 128, window=False).window == 1.0).all()
