"""The compiled response against jaxgb, and its algebra."""

import numpy as np
import pytest
from jaxgb.jaxgb import JaxGB

from slotflow.config import ObservationSettings
from slotflow.parameters import PSI, fold, other_image
from slotflow.response import (
    ResponseGrid,
    amplitudes_from_coefficients,
    frequency_basis,
    polarisation_coefficients,
    response,
    tdi2_factor,
)
from slotflow.simulate.orbits import orbits, response_grid
from slotflow.simulate.waveforms import jaxgb_response
from tests.synthetic import random_sources


@pytest.mark.parametrize("n", [128, 256])
def test_equals_jaxgb(observation: ObservationSettings, n: int) -> None:
    rng = np.random.default_rng(3)
    sources = random_sources(rng, 60, 1e-3, 8e-3, observation.duration)
    sources[0, 4], sources[1, 4] = 0.5 * np.pi, -0.5 * np.pi  # the poles
    expected, first_expected = jaxgb_response(sources, observation, n)
    got, first = response(sources, response_grid(observation, n))
    assert np.array_equal(first, first_expected)
    scale = np.abs(expected[:, :2]).max(axis=(1, 2), keepdims=True)
    assert (np.abs(got - expected)[:, :2] / scale).max() < 1e-9


def test_jaxgb_tdi2_is_our_factor(observation: ObservationSettings) -> None:
    rng = np.random.default_rng(4)
    sources = random_sources(rng, 5, 2e-3, 2.1e-3, observation.duration)
    model = JaxGB(orbits(observation), t_obs=observation.duration, n=128)
    one = np.stack(model.get_tdi(sources, tdi_generation=1.5, tdi_combination="AET"), axis=1)
    two = np.stack(model.get_tdi(sources, tdi_generation=2, tdi_combination="AET"), axis=1)
    frequency = np.asarray(model.get_frequency_grid(model.get_kmin(sources[:, 0])))
    ratio = tdi2_factor(frequency, 2.5e9)[:, None]
    assert np.allclose(two, one * ratio, rtol=1e-10, atol=0)


def test_symmetry_and_fold(observation: ObservationSettings, slow_grid: ResponseGrid) -> None:
    sources = random_sources(np.random.default_rng(5), 40, 1e-3, 2e-3, observation.duration)
    sources[:, PSI] = np.random.default_rng(6).uniform(-4, 4, 40)
    h, _ = response(sources, slow_grid)
    for same in (fold(sources), other_image(sources)):
        assert np.allclose(response(same, slow_grid)[0], h, rtol=0, atol=1e-12 * np.abs(h).max())
    assert ((fold(sources)[:, PSI] >= 0) & (fold(sources)[:, PSI] < 0.5 * np.pi)).all()


def test_coefficients_invert(observation: ObservationSettings) -> None:
    sources = random_sources(np.random.default_rng(7), 500, 1e-3, 2e-3, observation.duration)
    amplitude, psi, iota, phi0 = amplitudes_from_coefficients(polarisation_coefficients(sources)).T
    assert np.allclose(amplitude, sources[:, 2], rtol=1e-10)
    assert np.allclose(iota, sources[:, 6], atol=1e-6)
    again = sources.copy()
    again[:, 2], again[:, 5], again[:, 6], again[:, 7] = amplitude, psi, iota, phi0
    c, d = polarisation_coefficients(sources), polarisation_coefficients(again)
    assert np.allclose(c, d, rtol=0, atol=1e-10 * np.abs(c).max())


def test_circular_amplitudes(observation: ObservationSettings) -> None:
    """r = -A (1 + c)^2 exp(i (2 psi - phi0)), l = -A (1 - c)^2 exp(-i (2 psi + phi0))."""
    s = random_sources(np.random.default_rng(8), 100, 1e-3, 2e-3, observation.duration)
    plus, cross = polarisation_coefficients(s).T
    c = np.cos(s[:, 6])
    right = -s[:, 2] * (1 + c) ** 2 * np.exp(1j * (2 * s[:, 5] - s[:, 7]))
    left = -s[:, 2] * (1 - c) ** 2 * np.exp(-1j * (2 * s[:, 5] + s[:, 7]))
    assert np.allclose(plus + 1j * cross, right, atol=1e-34)
    assert np.allclose(plus - 1j * cross, left, atol=1e-34)


def test_shapes_are_checked(slow_grid: ResponseGrid) -> None:
    with pytest.raises(ValueError, match=r"expected sources of shape \(n, 4\); got \(1, 3\)"):
        frequency_basis(np.ones((1, 3)), slow_grid)
    with pytest.raises(ValueError, match="even number"):
        ResponseGrid(1.0, 0.0, np.zeros(3), np.zeros((3, 3, 3)), 1.0, np.zeros(3))
