"""Tempered SMC with Hamiltonian moves, by BlackJAX: for targets with gradients, on GPUs.

The path leads from a normal distribution, fitted to draws of the reference in unbounded
coordinates, to the target, as :mod:`slotflow.smc` does without gradients. A processor evaluates a
band's gradient some hundred times more slowly than the compiled likelihood, which is why this
is no default.

JAX and BlackJAX are imported when :func:`hamiltonian_smc` is called.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from slotflow.likelihood_jax import x64

Float = NDArray[np.float64]

WIDER: Final = 1.3  # of the normal distribution than the draws
STEPS: Final = 8  # of the integrator in a move


@dataclass(frozen=True)
class HamiltonianRun:
    """One run.

    Attributes:
        x: (N, D) particles of equal weight.
        ln_z: ln of the target's integral.
        temperatures: b after each step, the last 1.
        acceptance: mean of the moves at the last temperature.
        gradients: evaluated.
    """

    x: Float
    ln_z: float
    temperatures: tuple[float, ...]
    acceptance: float
    gradients: int


def hamiltonian_smc(
    log_target: Callable[[Any], Any], draws: Float, seed: int, *, ess: float = 0.5,
    moves: int = 5, step: float = 0.35, most: int = 100,
) -> HamiltonianRun:  # fmt: skip
    """Lead particles from a normal distribution about draws to a target.

    Args:
        log_target: of one point (D,) of unbounded coordinates, a JAX scalar; not normalised.
        draws: (N, D) to which the normal distribution is fitted; as many particles.
        seed: all that is random comes from it.
        ess: share of N to which the effective sample size may fall in a step.
        moves: at each temperature.
        step: of the integrator, in widths of the normal distribution.
        most: temperatures.

    Raises:
        ValueError: no end after so many temperatures.
    """
    import blackjax
    import blackjax.smc.resampling as resampling
    import jax
    import jax.numpy as jnp
    from blackjax.smc import extend_params

    with x64():
        mean, root = draws.mean(axis=0), WIDER * np.linalg.cholesky(np.cov(draws.T))
        dimensions = draws.shape[1]
        norm = -0.5 * dimensions * np.log(2.0 * np.pi)

        def log_normal(z: Any) -> Any:
            return norm - 0.5 * jnp.sum(z**2)

        def log_ratio(z: Any) -> Any:  # in coordinates in which the normal is a unit one
            value = log_target(mean + root @ z) + np.log(np.diag(root)).sum() - log_normal(z)
            return jnp.where(jnp.isfinite(value), value, -1e10)

        parameters = extend_params({
            "step_size": step, "inverse_mass_matrix": jnp.ones(dimensions),
            "num_integration_steps": STEPS,
        })  # fmt: skip
        kernel = blackjax.adaptive_tempered_smc(
            log_normal, log_ratio, blackjax.hmc.build_kernel(), blackjax.hmc.init, parameters,
            resampling.systematic, target_ess=ess, num_mcmc_steps=moves,
        )  # fmt: skip
        key, first = jax.random.split(jax.random.key(seed))
        state = kernel.init(jax.random.normal(first, draws.shape))
        advance = jax.jit(kernel.step)
        temperatures: list[float] = []
        ln_z, acceptance = 0.0, 0.0
        while not temperatures or temperatures[-1] < 1.0:
            if len(temperatures) >= most:
                raise ValueError(f"no end after {most} temperatures")
            key, now = jax.random.split(key)
            state, info = advance(now, state)
            ln_z += float(info.log_likelihood_increment)
            acceptance = float(jnp.mean(info.update_info.acceptance_rate))
            temperatures.append(float(state.tempering_param))
        x = mean + np.asarray(state.particles) @ root.T
    gradients = len(temperatures) * moves * (STEPS + 1) * len(draws)
    return HamiltonianRun(x, ln_z, tuple(temperatures), acceptance, gradients)
