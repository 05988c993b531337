"""How a band's noise is measured: its level without bias, and the Galaxy's share of it."""

import numpy as np
import pytest

from slotflow.config import Preset
from slotflow.exact_foreground import galactic_noise, with_share
from slotflow.refine_noise import band_noise, galactic_share
from slotflow.simulate.orbits import response_grid

Complex = np.typing.NDArray[np.complex128]
PRESET = Preset()
BINS, TUKEY = 256, 0.05
NOTHING = np.empty((0, 2, BINS), dtype=np.complex128)
FAINT = np.full((2, BINS), 0.07)  # the instrument below the Galaxy
KEPT = np.array([0.93, 1.08])


def _galaxy() -> Complex:
    grid = response_grid(PRESET.observation, 128)
    return galactic_noise(grid, PRESET.observation, PRESET.prior, PRESET.population, 1.5e-3)


def _white(seed: int, number: int) -> Complex:
    rng = np.random.default_rng(seed)
    white = rng.standard_normal((number, 2, BINS, 2)).view(np.complex128)[..., 0]
    return np.asarray(white * np.sqrt(0.5))


def _coloured(seed: int, number: int, share: float) -> Complex:
    root = np.linalg.inv(with_share(_galaxy(), share).whitener(BINS))
    times = np.fft.ifft(_white(seed, number), axis=-1)
    return np.asarray(np.fft.fft(np.einsum("tij,njt->nit", root, times), axis=-1))


def test_white_noise_has_no_share_and_its_level() -> None:
    shares, levels = [], []
    for noise in _white(1, 60):
        found = band_noise(noise, NOTHING, KEPT, FAINT, _galaxy(), TUKEY)
        shares.append(found.share)
        levels.append(1.0 if found.modulation is None else found.level.mean())
        assert (found.modulation is None) == (found.share == 0.0)
    assert np.mean(np.array(shares) == 0.0) > 0.9
    assert np.mean(levels) == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_the_share_is_found(share: float) -> None:
    found = [
        band_noise(noise, NOTHING, KEPT, FAINT, _galaxy(), TUKEY)
        for noise in _coloured(2, 40, share)
    ]
    assert np.mean([one.share for one in found]) == pytest.approx(share, abs=0.05)
    level = np.array([one.level for one in found])
    # a power that was measured around each bin and divided by takes a few percent with it
    assert level.mean() == pytest.approx(1.0, abs=0.05)


def test_where_the_instrument_is_all_nothing_is_done() -> None:
    for noise in _coloured(3, 3, 0.9):
        found = band_noise(noise, NOTHING, KEPT, np.ones((2, BINS)) * 1.3, _galaxy(), TUKEY)
        assert found.share == 0.0
        assert found.profile is None
        np.testing.assert_array_equal(found.level, KEPT)
    assert galactic_share(_coloured(3, 1, 0.9)[0], _galaxy(), 0.4, TUKEY) <= 0.4


def test_what_fits_took_is_counted() -> None:
    """Of each of 12 fits four complex numbers: a tenth of the noise."""
    rng = np.random.default_rng(4)
    levels = []
    for noise in _coloured(5, 40, 0.9):
        signals: list[Complex] = []
        for _ in range(12):
            at = int(rng.integers(0, BINS - 12))
            some = np.zeros((2, BINS, 4), dtype=np.complex128)
            some[:, at : at + 12] = rng.standard_normal((2, 12, 4))
            base, _ = np.linalg.qr(some.reshape(-1, 4))
            rest = noise.reshape(-1) - sum(s.reshape(-1) for s in signals)
            signals.append((base @ (base.conj().T @ rest)).reshape(2, BINS))
        loud = np.array(signals)
        levels.append(band_noise(noise, loud, KEPT, FAINT, _galaxy(), TUKEY).level.mean())
    assert np.mean(levels) == pytest.approx(1.0, abs=0.06)


def test_a_louder_stretch_counts_by_half_its_excess() -> None:
    noise = _coloured(6, 1, 0.9)[0]
    noise[:, 100:140] *= np.sqrt(3.0)
    found = band_noise(noise, NOTHING, KEPT, FAINT, _galaxy(), TUKEY)
    assert found.profile is not None
    assert found.profile.mean() == pytest.approx(1.0)
    ratio = found.profile[0, 115:125].mean() / found.profile[0, 180:240].mean()
    assert ratio == pytest.approx(3.0 ** (0.5 * found.share), rel=0.25)
