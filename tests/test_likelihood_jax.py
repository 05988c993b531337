"""The likelihood in JAX against the compiled one, and its gradients against differences."""

import subprocess
import sys
from typing import NamedTuple

import jax
import numpy as np
import pytest

from slotflow.exact_modulation import Modulation
from slotflow.likelihood import BandLikelihood
from slotflow.likelihood_jax import BandJax, x64
from tests.exact_band import OBSERVATION, PRIOR, band

FIRST = (47_000, 251_000)  # 1.5 and 8 mHz


class Seen(NamedTuple):
    """Of four particles, one of them cut by the band's edge: values and gradients."""

    band: BandLikelihood
    particles: np.ndarray
    ln_level: np.ndarray
    log_prior: np.ndarray
    log_likelihood: np.ndarray
    gradient: np.ndarray


@pytest.fixture(scope="module", params=FIRST)
def seen(request: pytest.FixtureRequest) -> Seen:
    likelihood = band(request.param)
    particles = likelihood.draw_prior(np.random.default_rng(6), 8).reshape(4, 2, 8)
    particles[3, 1, 0] = (likelihood.first_bin - 2.3) / likelihood.duration
    ln_level = np.random.default_rng(7).normal(size=(4, 2)) * 0.1
    ours = BandJax(likelihood)
    with x64():
        slopes = jax.value_and_grad(ours.log_likelihood)
        value, gradient = jax.jit(jax.vmap(slopes))(particles, ln_level)
        prior, same = jax.jit(jax.vmap(ours.log_prior_and_likelihood))(particles, ln_level)
    np.testing.assert_allclose(same, value, rtol=1e-12)
    return Seen(likelihood, particles, ln_level, *map(np.asarray, (prior, value, gradient)))


def test_equals_the_compiled_one(seen: Seen) -> None:
    likelihood, particles, ln_level = seen[:3]
    expected = likelihood.log_likelihood(particles, ln_level)
    np.testing.assert_allclose(seen.log_likelihood, expected, rtol=1e-10)
    prior = likelihood.log_prior(particles)
    assert np.isfinite(prior[:3]).all()
    assert prior[3] == -np.inf
    np.testing.assert_allclose(
        seen.log_prior, prior + likelihood.log_level_prior(ln_level), rtol=1e-10
    )


def test_gradients_are_differences(seen: Seen) -> None:
    """Of ln L, in all parameters of both sources, by fourth-order differences."""
    likelihood, particles, ln_level = seen[:3]
    year = likelihood.duration
    steps = np.array([1e-3 / year, 1e-2 / year**2, 0.0, 1e-4, 1e-4, 1e-3, 1e-3, 1e-3])
    for source in range(2):
        for column in range(8):
            step = np.where(column == 2, 1e-3 * particles[:, source, 2], steps[column])
            total = np.zeros(4)
            for k, weight in ((1, 8.0), (2, -1.0)):
                for sign in (1.0, -1.0):
                    moved = particles.copy()
                    moved[:, source, column] += sign * k * step
                    total += sign * weight * likelihood.log_likelihood(moved, ln_level)
            got = seen.gradient[:, source, column]
            # where ln L is nearly level in a parameter, rounding is all that differences see
            np.testing.assert_allclose(
                got, total / (12.0 * step), rtol=1e-5, atol=1e-5 * np.abs(got).max()
            )


def test_the_priors_gradient() -> None:
    """Inside its ends the density depends on A, dec and iota alone."""
    likelihood = band()
    sources = likelihood.draw_prior(np.random.default_rng(8), 2)
    with x64():
        seen = np.asarray(jax.jit(jax.grad(BandJax(likelihood).log_prior))(sources))
    expected = np.zeros((2, 8))
    expected[:, 2] = -1.0 / sources[:, 2]
    expected[:, 4] = -np.tan(sources[:, 4])
    expected[:, 6] = 1.0 / np.tan(sources[:, 6])
    np.testing.assert_allclose(seen, expected, rtol=1e-9)


def test_noise_that_changes_over_the_year() -> None:
    series = np.zeros((2, 2, 5), dtype=np.complex128)
    series[0, 0] = series[1, 1] = [-0.25, 0.1j, 1.0, -0.1j, -0.25]
    series[0, 1] = [0.0, 0.0, 0.05, 0.0, 0.0]
    series[1, 0] = series[0, 1].conj()
    plain = band()
    profile = np.linspace(0.8, 1.2, plain.bins) * np.ones((2, 1))
    likelihood = BandLikelihood(
        plain.data, plain.first_bin, plain.level, plain.sigma, plain.kernel.grid, OBSERVATION,
        PRIOR, 1e-6, Modulation(series), profile,
    )  # fmt: skip
    sources = likelihood.draw_prior(np.random.default_rng(9), 4).reshape(2, 2, 8)
    with x64():
        prior, ln_l = jax.jit(jax.vmap(BandJax(likelihood).log_prior_and_likelihood))(sources)
    np.testing.assert_allclose(ln_l, likelihood.log_likelihood(sources), rtol=1e-10)
    np.testing.assert_allclose(prior, likelihood.log_prior(sources), rtol=1e-10)
    assert not np.allclose(ln_l, plain.log_likelihood(sources), rtol=1e-3)


def test_32_bits_are_refused() -> None:
    with pytest.raises(TypeError, match="64 bits"):
        BandJax(band()).log_likelihood(np.zeros((1, 8), dtype=np.float32))


def test_jax_is_imported_when_it_is_used_and_not_switched() -> None:
    code = (
        "import sys; from slotflow.likelihood_jax import x64; assert 'jax' not in sys.modules\n"
        "with x64():\n import jax.numpy as jnp; print(jnp.zeros(()).dtype)\n"
        "print(jnp.zeros(()).dtype)"
    )
    seen = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout
    assert seen.split() == ["float64", "float32"]
