"""slotflow.whitening: the densities by which bands are whitened."""

from pathlib import Path

import numpy as np
import pytest

from slotflow.bands import Spectrum, tile_grid
from slotflow.config import GapSettings, Preset
from slotflow.errors import InputError
from slotflow.noise import draw_noise, standard_psd, window_power
from slotflow.response import tdi2_factor
from slotflow.tokencache import band_sigma
from slotflow.whitening import WINDOW_BINS, Whitening, reach, running_density, whitening_notes

PRESET = Preset()
OURS = PRESET.observation
T = OURS.duration
POWER = window_power(OURS.tukey)
BINS = 72_000  # up to 2.29 mHz
FIRST = tile_grid(PRESET.prior, T)[40].first_bin
CENTRE = FIRST + 128


def _tilt(frequency: np.ndarray) -> np.ndarray:
    """The true noise over the model's: levels and slopes of its own, (3, n)."""
    x = frequency / 1.5e-3
    return np.stack([1.5 * x**2, 0.7 * x**-1, 2.0 * x])


@pytest.fixture(scope="module")
def tilted() -> Spectrum:
    """Noise of ``_tilt`` times the model's density, with loud lines every 500 bins."""
    rng = np.random.default_rng(1)
    frequency = np.arange(1, BINS) / T
    model = standard_psd(frequency, OURS)
    white = draw_noise(rng, _tilt(frequency), OURS.tukey)
    data = np.zeros((3, BINS), dtype=np.complex128)
    data[:, 1:] = white * np.sqrt(model * 0.5 * T * POWER)
    for line in range(500, BINS - 20, 500):
        data[:2, line : line + 20] *= 30.0
    return Spectrum(data, T, POWER)


def _frequency(first: int = FIRST) -> np.ndarray:
    return (first + np.arange(256)) / T


def test_the_running_median_is_the_density_whatever_the_lines(tilted: Spectrum) -> None:
    knots, density = running_density(tilted.data, T, POWER, 30_000, 60_000)
    frequency = knots / T
    ratio = density / (standard_psd(frequency, OURS) * _tilt(frequency))
    # 2049 exponentials have a median known to 1 / sqrt(2049) / ln 2 = 3.2%
    assert np.std(ratio[2]) < 0.04
    assert np.mean(ratio[2]) == pytest.approx(1.0, abs=0.02)
    # 4% of A's and E's bins are lines: the median is that of the others at 0.5 / 0.96
    shifted = -np.log(1.0 - 0.5 / 0.96) / np.log(2.0)
    assert np.mean(ratio[:2]) == pytest.approx(shifted, abs=0.02)


def test_the_running_median_does_not_depend_on_the_range(tilted: Spectrum) -> None:
    wide = running_density(tilted.data, T, POWER, 30_000, 60_000)
    part = running_density(tilted.data, T, POWER, 41_111, 42_222)
    chosen = np.isin(wide[0], part[0])
    assert chosen.sum() == part[0].size > 10
    np.testing.assert_array_equal(wide[1][:, chosen], part[1])


def test_each_density_whitens_by_what_it_says(tilted: Spectrum, tmp_path: Path) -> None:
    frequency = _frequency()
    model = standard_psd(frequency, OURS)
    table = tmp_path / "psd.txt"
    rows = np.linspace(0.9e-3, 2.3e-3, 3000)
    np.savetxt(table, np.stack([rows, *(standard_psd(rows, OURS) * _tilt(rows))], axis=-1))
    raw = tilted.band(FIRST, 256).data
    for psd in ("data", "running", "model", str(table)):
        white = Whitening(tilted, PRESET, psd, Path("x.h5")).band(FIRST)
        # data and density belong together
        back = white.data * np.sqrt(white.density * 0.5 * T * POWER)
        np.testing.assert_allclose(back, raw, rtol=1e-5, atol=1e-6 * np.abs(raw).max())
        # at the centre it is the model's, by which the search scales its amplitudes
        np.testing.assert_allclose(white.density[:, 128], model[:, 128], rtol=1e-12)
        np.testing.assert_array_equal(white.sigma, band_sigma(OURS, FIRST, 256))
        if psd in ("data", "model"):
            np.testing.assert_array_equal(white.density, model)
        else:
            shape = _tilt(frequency) / _tilt(frequency[128:129])
            tolerance = 0.06 if psd == "running" else 1e-4
            np.testing.assert_allclose(white.density / model, shape, rtol=tolerance)
        if psd in ("data", "running"):
            assert white.known is None  # the search estimates it
        else:
            expected = np.ones(2) if psd == "model" else _tilt(frequency[128:129])[:2, 0]
            assert white.known is not None
            np.testing.assert_allclose(white.known, expected, rtol=1e-5)
    assert white.level_t == pytest.approx(float(_tilt(frequency[128:129])[2, 0]), rel=1e-4)


def test_a_table_of_tdi_2(tilted: Spectrum, tmp_path: Path) -> None:
    """The table is of the data's own generation: |1 - exp(-4 i x)|^2 times that of TDI 1.5."""
    rows = np.linspace(0.9e-3, 2.3e-3, 3000)
    density = standard_psd(rows, OURS)
    np.savetxt(tmp_path / "1.txt", np.stack([rows, *density], axis=-1))
    factor = np.abs(tdi2_factor(rows, OURS.arm_length)) ** 2
    np.savetxt(tmp_path / "2.txt", np.stack([rows, *(density * factor)], axis=-1))
    first = Whitening(tilted, PRESET, str(tmp_path / "1.txt"), Path("x.h5")).band(FIRST)
    second = Whitening(tilted, PRESET, str(tmp_path / "2.txt"), Path("x.h5"), OURS.arm_length).band(
        FIRST
    )
    np.testing.assert_allclose(second.density, first.density, rtol=1e-5)
    assert first.known is not None
    assert second.known is not None
    np.testing.assert_allclose(second.known, first.known, rtol=1e-5)
    np.testing.assert_allclose(first.known, 1.0, rtol=1e-5)


def test_tables_that_cannot_be_used(tilted: Spectrum, tmp_path: Path) -> None:
    table = tmp_path / "psd.txt"
    table.write_text("1e-3 1e-40\n1.1e-3 1e-40\n")
    with pytest.raises(InputError, match=r"psd\.txt: column 1: covers 0\.001 to 0\.0011 Hz"):
        Whitening(tilted, PRESET, str(table), Path("x.h5")).band(FIRST)
    table.write_text("1e-3 1e-40\n1.1e-3 -1\n")
    with pytest.raises(InputError, match=r"psd\.txt: row 2, column 2"):
        Whitening(tilted, PRESET, str(table), Path("x.h5"))
    assert "level was taken from the table" in whitening_notes(str(table))[0]
    assert whitening_notes("running") == ()


def test_gaps_take_their_share(tilted: Spectrum) -> None:
    """A spectrum with 20% of its power masked: noise is white again, signals are scaled back."""
    masked = Spectrum(np.sqrt(0.8) * tilted.data, T, 0.8 * POWER, 0.2)
    plain = Whitening(tilted, PRESET, "data", Path("x.h5")).band(FIRST)
    white = Whitening(masked, PRESET, "data", Path("x.h5")).band(FIRST)
    np.testing.assert_allclose(white.data, plain.data, rtol=1e-6)
    np.testing.assert_allclose(white.sigma, plain.sigma / np.sqrt(0.8))
    gaps = OURS.model_copy(update={"gaps": GapSettings(planned_interval=14.0)})
    trained = PRESET.model_copy(update={"observation": gaps})
    white = Whitening(masked, trained, "data", Path("x.h5")).band(FIRST)
    np.testing.assert_allclose(white.sigma, plain.sigma)


def test_a_channel_without_noise(tilted: Spectrum) -> None:
    data = tilted.data.copy()
    data[1] = 0.0
    for psd in ("data", "running"):
        with pytest.raises(InputError, match=r"x\.h5: channel E, .* noise level 0"):
            Whitening(Spectrum(data, T, POWER), PRESET, psd, Path("x.h5")).band(FIRST)


def test_how_far_the_spectrum_is_needed() -> None:
    """The running median needs its window beyond the last band, whichever bands are read."""
    last = tile_grid(PRESET.prior, T)[-1]
    assert reach(PRESET, "data", 1.5e-3, 8e-3) == 1.5e-3
    whole = reach(PRESET, "running", 1.5e-3, 8e-3)
    assert whole == reach(PRESET, "running", (last.first_bin + 256) / T, 8e-3)
    assert whole * T >= last.first_bin + 256 + WINDOW_BINS // 2
    assert reach(PRESET, "running", 1.5e-3, 2e-3) == 2e-3  # what there is
    assert reach(PRESET, "running", 1.5e-3, 1e-3) == 1.5e-3  # too coarse: refused later
