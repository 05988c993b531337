"""How finely the exact likelihood samples: its responses against converged ones by jaxgb."""

import numpy as np
import pytest

from slotflow.config import ObservationSettings
from slotflow.exact_grid import SIZES, kernel_at, mismatch, resampled
from slotflow.exact_kernel import Kernel
from slotflow.response import ResponseGrid
from slotflow.simulate.orbits import response_grid
from slotflow.simulate.waveforms import jaxgb_response
from tests.synthetic import random_sources

SETTINGS = ObservationSettings()


def test_mismatch_to_jaxgb_with_many_samples() -> None:
    """Below 1e-8 with the chosen number of samples, above it with the next smaller one."""
    grid = response_grid(SETTINGS, 128)
    for frequency in (1e-3, 2.1e-3, 8e-3):
        rng = np.random.default_rng(int(1e6 * frequency))
        high = frequency + 1e-5
        sources = random_sources(rng, 24, frequency, high, SETTINGS.duration)
        converged = jaxgb_response(sources, SETTINGS, 4096, batch=24)[0][:, :2]
        kernel = kernel_at(grid, SETTINGS, high)
        assert mismatch(kernel.response(sources)[0], converged).max() < 1e-8
        fewer = SIZES[SIZES.index(kernel.n) - 1]
        coarse = Kernel(resampled(grid, fewer, SETTINGS.tukey))
        assert mismatch(coarse.response(sources)[0], converged).max() > 1e-8
        rough = kernel_at(grid, SETTINGS, high, 1e-6)
        assert rough.n < kernel.n
        assert mismatch(rough.response(sources)[0], converged).max() < 1e-6


@pytest.mark.parametrize("orbit", ["equal_arm", "keplerian"])
def test_other_samples_of_the_same_orbit(orbit: str) -> None:
    settings = ObservationSettings(orbit=orbit, t0=1.3e7)
    exact = response_grid(settings, 512)
    for samples, most in ((64, 50.0), (128, 1.0)):  # m; 50 are 2e-7 s of delay
        seen = resampled(response_grid(settings, samples), 512, settings.tukey)
        assert np.abs(seen.positions - exact.positions).max() < most
        np.testing.assert_allclose(seen.times, exact.times, atol=1e-6)
        np.testing.assert_allclose(seen.window, exact.window, atol=1e-12)
    assert resampled(exact, 128, settings.tukey).n == 128


def test_orbits_that_jump_are_refused() -> None:
    grid = response_grid(SETTINGS, 128)
    positions = grid.positions.copy()
    positions[1, 0, 64:] += 1e5
    broken = ResponseGrid(
        grid.duration, grid.t0, grid.times, positions, grid.arm_length, grid.window
    )
    with pytest.raises(ValueError, match="off smooth orbits"):
        resampled(broken, 512, SETTINGS.tukey)


def test_mismatch_of_a_rotated_vector() -> None:
    rng = np.random.default_rng(2)
    a = rng.normal(size=(3, 2, 8)) + 1j * rng.normal(size=(3, 2, 8))
    b = np.zeros((3, 2, 12), dtype=complex)
    b[..., 2:10] = 3.0 * a
    np.testing.assert_allclose(mismatch(a, b), 0.0, atol=1e-15)
    np.testing.assert_allclose(mismatch(b * np.exp(0.1j), a), 1.0 - np.cos(0.1), atol=1e-14)


def test_no_number_of_samples_is_an_error() -> None:
    with pytest.raises(ValueError, match="2048 samples"):
        kernel_at(response_grid(SETTINGS, 64), SETTINGS, 1e-3, 1e-16)
