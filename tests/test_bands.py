"""slotflow.bands: the transform, the tiling and the whitening."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotflow import bands
from slotflow.config import ObservationSettings, PriorSettings
from slotflow.errors import InputError
from slotflow.noise import ARM_LENGTH, C, draw_noise
from slotflow.readers import Observation

T = 4096 * 60.0
YEAR = ObservationSettings().duration
TUKEY = 0.05


def _observation(xyz: np.ndarray, dt: float = 60.0, generation: str = "1.5") -> Observation:
    return Observation(
        tdi=np.asarray(xyz, dtype=np.float64),
        dt=dt,
        t0=0.0,
        generation=generation,
        path=Path("input.h5"),
    )


def _waves(times: np.ndarray, delay: float = 0.0) -> np.ndarray:
    """A few sinusoids, different in X, Y and Z: (3, N)."""
    rng = np.random.default_rng(5)
    frequencies = rng.uniform(1e-3, 3e-3, 6)
    phases, sizes = rng.uniform(0, 2 * np.pi, (2, 3, 6))
    argument = 2 * np.pi * frequencies[:, None] * (times - delay)
    return np.einsum("cs,cst->ct", sizes, np.sin(argument[None] + phases[..., None]))


def test_channels() -> None:
    xyz = np.random.default_rng(1).standard_normal((3, 50))
    x, y, z = xyz
    expected = [(z - x) / 2**0.5, (x - 2 * y + z) / 6**0.5, (x + y + z) / 3**0.5]
    np.testing.assert_allclose(bands.xyz_to_aet(xyz), expected, atol=1e-15)
    np.testing.assert_allclose(bands.aet_to_xyz(bands.xyz_to_aet(xyz)), xyz, atol=1e-15)


def test_a_sinusoid_on_a_bin() -> None:
    """dt rfft(w x) of a cosine on bin k is T/2 mean(w) at k: dimension and phase."""
    times, k = np.arange(4096) * 60.0, 200
    wave = np.cos(2 * np.pi * k / T * times + 0.7)
    result = bands.spectrum(_observation([0 * wave, 0 * wave, wave]), T, TUKEY)
    mean = 1 - TUKEY / 2
    np.testing.assert_allclose(result.data[0, k], T / 2 * mean * np.exp(0.7j) / 2**0.5, rtol=1e-8)
    band = result.band(k - 5, 11)
    assert band.first_bin == k - 5
    assert np.argmax(np.abs(band.data[0])) == 5


def test_the_time_step_does_not_matter() -> None:
    """The same signal at 60 s and at 7.5 s: the same bins, to the aliasing of the window."""
    coarse = bands.spectrum(_observation(_waves(np.arange(4096) * 60.0)), T, 0.5, fmax=4e-3)
    fine = bands.spectrum(_observation(_waves(np.arange(32768) * 7.5), dt=7.5), T, 0.5, fmax=4e-3)
    assert coarse.data.shape == fine.data.shape == (3, int(np.ceil(4e-3 * T)) + 1)
    error = np.linalg.norm(coarse.data - fine.data) / np.linalg.norm(fine.data)
    assert error < 1e-5


def test_longer_series_are_cropped_at_the_end_and_said_so() -> None:
    xyz = _waves(np.arange(5000) * 60.0)
    whole = bands.spectrum(_observation(xyz), T, TUKEY)
    part = bands.spectrum(_observation(xyz[:, :4096]), T, TUKEY)
    np.testing.assert_array_equal(whole.data, part.data)
    assert whole.notes == ("the last 54240 s are not used: the model was trained on 245760 s",)
    assert part.notes == ()


def test_tdi2_is_brought_to_tdi15() -> None:
    """X2(t) = X(t) - X(t - 4 L / c), made in the time domain."""
    times = np.arange(4096) * 60.0
    second = _waves(times) - _waves(times, delay=4 * ARM_LENGTH / C)
    expected = bands.spectrum(_observation(_waves(times)), T, 0.5)
    result = bands.spectrum(_observation(second, generation="2.0"), T, 0.5)
    inside = slice(100, 900)
    error = np.linalg.norm((result.data - expected.data)[:, inside])
    # the window and the delay do not commute: their difference is 33 s of the slopes
    assert error < 2e-3 * np.linalg.norm(expected.data[:, inside])
    assert np.isfinite(result.data).all()
    assert "TDI 2" in result.notes[0]


def test_series_that_cannot_be_used() -> None:
    xyz = _waves(np.arange(4000) * 60.0)
    with pytest.raises(InputError, match=r"input\.h5: 4000 samples of 60 s are 240000 s.*4096"):
        bands.spectrum(_observation(xyz), T, TUKEY)
    with pytest.raises(InputError, match=r"time step 70\.0 s does not divide.*\[60\.0, 30\.0"):
        bands.spectrum(_observation(xyz, dt=70.0), T, TUKEY)
    long = _waves(np.arange(4096) * 60.0)
    with pytest.raises(InputError, match=r"reaches 8\.333 mHz only; 9 mHz is needed"):
        bands.spectrum(_observation(long), T, TUKEY, fmax=9e-3)
    with pytest.raises(ValueError, match="expected bins within"):
        bands.spectrum(_observation(long), T, TUKEY).band(2000, 100)


def _check_grid(prior: PriorSettings) -> tuple[bands.Tile, ...]:
    """Every trained frequency is answered for once, from well inside a band's window."""
    result = bands.tile_grid(prior, YEAR)
    lowest, highest = bands.trained_range(prior, YEAR)
    assert result[0].low == lowest
    assert result[-1].high == highest
    for left, right in pairwise(result):
        assert left.high == right.low
    for tile in result:
        assert tile.low < tile.high
        centre = tile.first_bin + prior.bins // 2
        assert prior.fmin <= centre / YEAR <= prior.fmax
        half = prior.window(centre / YEAR) / 2
        guard = min(bands.GUARD_BINS, half // 4)
        low = centre - half + (guard if tile is not result[0] else 0)
        high = centre + half - (guard if tile is not result[-1] else 0)
        assert low - 1e-6 <= tile.low * YEAR
        assert tile.high * YEAR <= high + 1e-6
    return result


def test_the_default_grid() -> None:
    prior = PriorSettings()
    low, high = bands.trained_range(prior, YEAR)
    np.testing.assert_allclose(low * YEAR, np.ceil(1e-3 * YEAR) - 96)
    np.testing.assert_allclose(high * YEAR, np.floor(2.1e-3 * YEAR) + 48)
    result = _check_grid(prior)
    # bins below and above 1.7 mHz by 188 and 92, and at most two more at the change and the end
    least = (1.7e-3 - low) * YEAR / 188 + (high - 1.7e-3) * YEAR / 92
    assert least <= len(result) <= least + 3


@settings(deadline=None, max_examples=200)
@given(
    split=st.floats(0.95e-3, 2.2e-3),
    wide=st.integers(1, 128),
    narrow=st.integers(1, 128),
    bottom=st.floats(1e-3, 2e-3),
    width=st.floats(1e-7, 5e-5),
)
def test_the_grid_leaves_no_gap(
    split: float, wide: int, narrow: int, bottom: float, width: float
) -> None:
    prior = PriorSettings(
        wide_window=2 * wide, narrow_window=2 * narrow, split_frequency=split,
        fmin=bottom, fmax=bottom + width,
    )  # fmt: skip
    calls = 0

    def bounded(*arguments: Any) -> int:
        nonlocal calls
        calls += 1
        assert calls <= 2000, "more bands than the range can hold"
        return next_centre(*arguments)

    next_centre = bands._next_centre
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bands, "_next_centre", bounded)
        _check_grid(prior)


@settings(deadline=None, max_examples=200)
@given(start=st.floats(0, 1), width=st.floats(1e-5, 1))
def test_the_bands_of_a_range_are_those_of_the_grid(start: float, width: float) -> None:
    prior = PriorSettings()
    low, high = bands.trained_range(prior, YEAR)
    fmin = low + start * 0.999 * (high - low)
    fmax = min(fmin + max(width * (high - fmin), 1e-9), high)
    grid = bands.tile_grid(prior, YEAR)
    result = bands.tiles(fmin, fmax, prior, YEAR)
    first = grid.index(result[0])
    assert list(grid[first : first + len(result)]) == result
    # and whatever reports a source that may be one of a band inside: two bins at most apart
    for tile in grid:
        near = tile.low - 2 / YEAR <= fmax and tile.high + 2 / YEAR > fmin
        assert (tile in result) == near


def test_the_whole_range_and_a_range_of_an_ulp() -> None:
    prior = PriorSettings()
    low, high = bands.trained_range(prior, YEAR)
    grid = list(bands.tile_grid(prior, YEAR))
    assert bands.tiles(low, high, prior, YEAR) == grid
    edge = grid[7].high
    below = float(np.nextafter(edge, 0.0))
    assert bands.tiles(below, edge, prior, YEAR) == grid[7:9]
    middle = 0.5 * (grid[7].low + edge)
    assert bands.tiles(middle, middle + 1e-9, prior, YEAR) == [grid[7]]


def test_frequencies_outside_the_trained_range() -> None:
    prior = PriorSettings()
    with pytest.raises(InputError, match=r"fmax 0\.003 Hz is outside the trained range.*9\.969"):
        bands.tiles(1e-3, 3e-3, prior, YEAR)
    with pytest.raises(InputError, match=r"fmin 0\.0005 Hz is outside"):
        bands.tiles(5e-4, 2e-3, prior, YEAR)
    with pytest.raises(InputError, match=r"fmin 0\.002 Hz must be below fmax 0\.001 Hz"):
        bands.tiles(2e-3, 1e-3, prior, YEAR)
    with pytest.raises(InputError, match="fmin nan"):
        bands.tiles(float("nan"), 2e-3, prior, YEAR)


def test_level_of_noise_and_of_few_loud_bins() -> None:
    rng = np.random.default_rng(2)
    ratio = np.array([[1.0], [0.25], [4.0]]) * np.ones((3, 40_000))
    noise = draw_noise(rng, ratio, TUKEY)
    np.testing.assert_allclose(bands.level(noise), [1.0, 0.25, 4.0], rtol=0.03)
    noise[:, ::40] += 1000.0
    np.testing.assert_allclose(bands.level(noise), [1.0, 0.25, 4.0], rtol=0.08)


def test_whitened_noise_has_unit_variance() -> None:
    """White noise in time of density S: 2 sigma^2 dt = S; far below the range of float32."""
    rng = np.random.default_rng(3)
    density = np.array([1e-42, 4e-42, 9e-43])
    aet = rng.standard_normal((3, 65536)) * np.sqrt(density / (2 * 60.0))[:, None]
    long = 65536 * 60.0
    result = bands.spectrum(_observation(bands.aet_to_xyz(aet)), long, TUKEY).band(100, 32_000)
    white = bands.whiten(result.data, density[:, None] * np.ones((3, 32_000)), long, TUKEY)
    assert white.dtype == np.complex64
    np.testing.assert_allclose(np.mean(np.abs(white) ** 2, axis=1), 1.0, atol=0.03)
    np.testing.assert_allclose(bands.level(white), 1.0, atol=0.04)
    with pytest.raises(ValueError, match="expected a density of shape"):
        bands.whiten(result.data, np.ones((3, 5)), long, TUKEY)


def test_two_lengths_of_one_observation() -> None:
    observation = _observation(_waves(np.arange(4096) * 60.0))
    assert observation.duration == T
    assert replace(observation, dt=30.0).duration == T / 2
