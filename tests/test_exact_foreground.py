"""The Galaxy's noise over the year against bands that were simulated binary by binary."""

from dataclasses import replace

import numpy as np
import pytest

from slotflow.config import PopulationSettings, Preset
from slotflow.exact_foreground import LAGS, _places, galactic_noise, with_share
from slotflow.simulate.orbits import response_grid
from slotflow.simulate.population import draw_members
from slotflow.simulate.sample import simulate_band

PRESET = Preset()


def _series(frequency: float = 1.5e-3) -> np.ndarray:
    grid = response_grid(PRESET.observation, 128)
    return galactic_noise(grid, PRESET.observation, PRESET.prior, PRESET.population, frequency)


def test_lags_of_simulated_foregrounds() -> None:
    series = _series()
    lags = []
    for group in range(24):
        fore = simulate_band(PRESET, 5, 64 * group).foreground[:2].astype(np.complex128)
        fore /= np.sqrt((np.abs(fore) ** 2).mean())
        lags.append([
            [np.einsum("ik,jk->ij", fore[:, n:], fore[:, : 256 - n].conj()) / (256 - n)]
            for n in range(4)
        ])  # fmt: skip
    seen = np.array(lags)[:, :, 0]
    mean, error = seen.mean(axis=0), seen.std(axis=0) / np.sqrt(len(seen))
    for lag in range(4):
        assert np.abs(mean[lag] - series[..., LAGS + lag]).max() < 4.0 * error[lag].max()
    assert abs(series[0, 0, LAGS + 2]) > 0.2
    assert error.max() < 0.05  # so that it could have failed


def test_it_is_a_covariance_of_unit_mean() -> None:
    series = _series()
    np.testing.assert_allclose(series, np.swapaxes(series[..., ::-1], 0, 1).conj(), atol=1e-12)
    assert 0.5 * (series[0, 0, LAGS] + series[1, 1, LAGS]) == pytest.approx(1.0)
    for share in (0.0, 0.5, 0.97):
        covariance = with_share(series, share).covariance(256)
        assert (np.linalg.eigvalsh(covariance) > 0.0).all()
        trace = np.einsum("tii->t", covariance).real
        assert trace.mean() == pytest.approx(2.0)
        if not share:
            np.testing.assert_allclose(covariance, np.broadcast_to(np.eye(2), covariance.shape),
                                       atol=1e-14)  # fmt: skip


def test_binaries_are_where_the_simulation_has_them() -> None:
    ra, dec, distance = _places(np.random.default_rng(1), 20_000, PopulationSettings())
    other = draw_members(np.random.default_rng(2), 20_000)

    def directions(a: np.ndarray, d: np.ndarray) -> np.ndarray:
        return np.stack([np.cos(d) * np.cos(a), np.cos(d) * np.sin(a), np.sin(d)])

    ours, theirs = directions(ra, dec), directions(other.ra, other.dec)
    np.testing.assert_allclose(ours.mean(axis=1), theirs.mean(axis=1), atol=0.02)
    np.testing.assert_allclose(ours @ ours.T / 20_000, theirs @ theirs.T / 20_000, atol=0.02)
    levels = [0.05, 0.25, 0.5, 0.75, 0.95]
    np.testing.assert_allclose(
        np.quantile(distance, levels), np.quantile(other.distance, levels), rtol=0.03
    )


def test_a_later_epoch_turns_it() -> None:
    """Half a year later the year is seen from its middle on: lag l turns by (-1)^l."""
    grid = response_grid(PRESET.observation, 128)
    half = replace(grid, positions=np.roll(grid.positions, 64, axis=2))
    turned = galactic_noise(half, PRESET.observation, PRESET.prior, PRESET.population, 1.5e-3)
    sign = (-1.0) ** np.arange(-LAGS, LAGS + 1)
    np.testing.assert_allclose(turned, _series() * sign, atol=0.01)
