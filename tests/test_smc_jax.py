"""Tempered SMC with Hamiltonian moves on targets with closed forms, and on a band."""

from typing import Any

import numpy as np
import pytest

from slotflow.likelihood_jax import BandJax, x64
from slotflow.refine_jax import Unbounded
from slotflow.smc_jax import hamiltonian_smc
from tests.refine_example import TRUTH, band, problem, space

Float = np.typing.NDArray[np.float64]


def test_a_normal_target_from_draws_that_are_off() -> None:
    import jax.numpy as jnp

    covariance = np.array([[1.0, 0.6, 0.0], [0.6, 2.0, 0.3], [0.0, 0.3, 0.5]])
    mean, precision = np.array([1.0, -2.0, 0.5]), np.linalg.inv(covariance)

    def log_target(x: Any) -> Any:
        offset = x - mean
        return -0.5 * offset @ jnp.asarray(precision) @ offset

    draws = np.random.default_rng(3).normal(0.0, 1.0, (600, 3))  # up to two sigma away
    found = hamiltonian_smc(log_target, draws, 1)
    exact = 1.5 * np.log(2.0 * np.pi) + 0.5 * np.linalg.slogdet(covariance)[1]
    assert found.ln_z == pytest.approx(exact, abs=0.4)
    offset = (found.x.mean(axis=0) - mean) / np.sqrt(np.diag(covariance))
    assert offset == pytest.approx(0.0, abs=0.25)
    scale = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
    assert (np.cov(found.x.T) - covariance) / scale == pytest.approx(0.0, abs=0.3)
    assert found.temperatures[-1] == 1.0
    assert found.acceptance > 0.6


def test_the_target_without_bounds_is_that_of_the_band() -> None:
    import jax

    likelihood, x = band([TRUTH], [15.0])
    here = problem(likelihood, list(x))
    cloud = here.draw(60, np.random.default_rng(1))
    inside = np.isfinite(cloud.log_target)
    coordinates = Unbounded(space(), x)
    y = coordinates.of(cloud.x[inside])
    back = coordinates.back(y)
    assert np.abs(np.sin(back - cloud.x[inside])).max() < 1e-6
    with x64():
        found = np.array(jax.vmap(coordinates.log_target(BandJax(likelihood)))(y))
    # less the Jacobian of the three bounded coordinates
    z = y.reshape(-1, 1, 8)[:, :, [1, 4, 6]]
    jacobian = (np.log1p(-(np.tanh(z) ** 2)) + np.log(coordinates.half)).sum(axis=(1, 2))
    assert found - jacobian == pytest.approx(cloud.log_target[inside], abs=1e-6)
