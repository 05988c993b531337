"""The exact likelihood's kernel against jaxgb, and against the response by libm's sines."""

import numpy as np
import pytest

from slotflow.config import ObservationSettings
from slotflow.exact_kernel import BLOCK, CHUNK, Kernel
from slotflow.response import frequency_basis, polarisation_coefficients
from slotflow.simulate.orbits import response_grid
from slotflow.simulate.waveforms import jaxgb_response
from tests.synthetic import random_sources

YEAR = ObservationSettings().duration
ORBITS = {
    "equal arms": ({}, (128, 512)),
    "another phase and epoch": ({"orbit_lambda1": 0.7, "orbit_m_init1": -2.1, "t0": 4.2e7}, (128,)),
    "Keplerian, other arms": ({"orbit": "keplerian", "arm_length": 2.49e9}, (128,)),
}


def _sources(number: int, fmax: float = 8e-3) -> np.ndarray:
    rng = np.random.default_rng(1)
    sources = random_sources(rng, number, 1e-3, fmax, YEAR)
    sources[:3, 4] = [0.5 * np.pi, -0.5 * np.pi, 0.0]
    sources[:, 1] *= np.maximum(1.0, sources[:, 0] / 3e-3) ** (11.0 / 3.0)
    return sources


@pytest.mark.parametrize("name", ORBITS)
def test_equals_jaxgb_at_equal_n(name: str) -> None:
    keys, sizes = ORBITS[name]
    settings = ObservationSettings(**keys)
    sources = _sources(64)
    for n in sizes:
        expected, first = jaxgb_response(sources, settings, n)
        kernel = Kernel(response_grid(settings, n))
        for seen, start in (kernel.response(sources), _by_basis(kernel, sources)):
            np.testing.assert_array_equal(start, first)
            for channel in range(2):
                scale = np.linalg.norm(expected[:, channel], axis=1)
                off = np.linalg.norm(seen[:, channel] - expected[:, channel], axis=1)
                assert (off / scale).max() < 1e-8


def _by_basis(kernel: Kernel, sources: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    basis, first = kernel.basis(sources[:, [0, 1, 3, 4]])
    return np.einsum("np,npck->nck", polarisation_coefficients(sources), basis), first


def test_sines_are_libms_up_to_the_highest_frequency() -> None:
    grid = response_grid(ObservationSettings(), 128)
    kernel = Kernel(grid)
    sources = _sources(200, 0.99 * kernel.highest)
    assert kernel.highest > 0.025
    seen, first = kernel.basis(sources[:, [0, 1, 3, 4]])
    expected, start = frequency_basis(sources[:, [0, 1, 3, 4]], grid)
    np.testing.assert_array_equal(first, start)
    scale = np.abs(expected).max(axis=(1, 2, 3), keepdims=True)
    assert (np.abs(seen - expected[:, :, :2]) / scale).max() < 1e-12


def test_a_source_does_not_depend_on_its_neighbours() -> None:
    kernel = Kernel(response_grid(ObservationSettings(), 128))
    sources = _sources(2 * CHUNK + 5)
    together, first = kernel.response(sources)
    for row in (0, CHUNK - 1, CHUNK, 2 * CHUNK + 4):
        alone, start = kernel.response(sources[row : row + 1])
        np.testing.assert_array_equal(alone[0], together[row])
        assert start[0] == first[row]
    assert kernel.response(sources[:0])[0].shape == (0, 2, 128)


def test_what_cannot_be_computed_is_refused() -> None:
    grid = response_grid(ObservationSettings(), 96)
    with pytest.raises(ValueError, match=f"multiple of {BLOCK} slow samples; got 96"):
        Kernel(grid)
    kernel = Kernel(response_grid(ObservationSettings(), 64))
    sources = _sources(4)
    with pytest.raises(ValueError, match=r"shape \(N, 8\); got \(4, 7\)"):
        kernel.response(sources[:, :7])
    for value in (np.nan, 0.03):
        sources[2, 0] = value
        with pytest.raises(ValueError, match=r"frequencies below 0\.0286"):
            kernel.response(sources)
