"""The exact posterior of a band by Hamiltonian moves (:mod:`slotflow.smc_jax`): for GPUs.

In coordinates without bounds: drift, sin dec and cos iota by the inverse hyperbolic tangent of
their place in the prior, angles as offsets from the mean of the network's draws, within half a
period. One normal distribution about the draws of all sources together starts the path, so that
far modes that it does not reach are missed; :mod:`slotflow.refine_moves` has no such limit.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from slotflow.likelihood_jax import BandJax
from slotflow.refine_moves import SourceMoves
from slotflow.refine_sample import Found
from slotflow.refine_space import (
    BIN,
    COS_IOTA,
    DRIFT,
    LN_A,
    PHI0,
    PSI,
    QUARTER,
    RA,
    SIN_DEC,
    TURN,
    Space,
    difference,
    folded,
)
from slotflow.refined import Evidence
from slotflow.smc_jax import hamiltonian_smc

Float = NDArray[np.float64]

PARTICLES: Final = 500
_BOUNDED: Final = [DRIFT, SIN_DEC, COS_IOTA]
_ANGLES: Final = [RA, PSI, PHI0]
_HALVES: Final = np.array([np.pi, 0.5 * QUARTER, np.pi])  # of the angles' periods


class Unbounded:
    """Coordinates without bounds of S sources, flat: (8 S,).

    Args:
        space: the band's coordinates.
        centre: (S, 8) from which angles are measured.
    """

    def __init__(self, space: Space, centre: Float) -> None:
        self.space, self.centre = space, centre
        low, high = space.low[_BOUNDED], space.high[_BOUNDED]
        self.middle = 0.5 * (low + high)
        self.half = 0.5 * (high - low)

    def of(self, x: Float) -> Float:
        """Return the coordinates of particles: (N, S, 8) -> (N, 8 S)."""
        y = difference(x, np.broadcast_to(self.centre, x.shape))
        y[..., [BIN, LN_A]] = x[..., [BIN, LN_A]]
        place = (x[..., _BOUNDED] - self.middle) / self.half
        y[..., _BOUNDED] = np.arctanh(np.clip(place, -1.0 + 1e-9, 1.0 - 1e-9))
        return y.reshape(len(x), -1)

    def back(self, y: Float) -> Float:
        """Invert :meth:`of`."""
        x = y.reshape(len(y), -1, 8).copy()
        x[..., _ANGLES] += self.centre[:, _ANGLES]
        x[..., _BOUNDED] = self.middle + self.half * np.tanh(x[..., _BOUNDED])
        return folded(x)

    def log_target(self, band: BandJax) -> Any:
        """Return ln of prior times likelihood over noise's as a function of (8 S,), in JAX."""
        import jax.numpy as jnp

        space, number, noise = self.space, len(self.centre), band.band.log_noise
        constant = number * float(np.log(2.0) - 3.0 * np.log(space.duration)) - noise
        constant += number * float(np.log(self.half).sum())

        def value(y: Any) -> Any:
            z = y.reshape(number, 8)
            tanh = jnp.tanh(z[:, np.array(_BOUNDED)])
            drift, sin_dec, cos_iota = (self.middle + self.half * tanh).T
            angle = z[:, np.array(_ANGLES)]
            ra, psi, phi0 = (angle + self.centre[:, _ANGLES]).T
            f0 = (z[:, BIN] + space.first_bin) / space.duration
            widening = jnp.maximum(1.0, f0 / 3e-3) ** (11.0 / 3.0)
            amplitude = jnp.exp(z[:, LN_A])
            columns = (
                f0, drift * widening / space.duration**2, amplitude, jnp.mod(ra, TURN),
                jnp.arcsin(sin_dec), psi, jnp.arccos(cos_iota), phi0,
            )  # fmt: skip
            prior, ln_l = band.log_prior_and_likelihood(jnp.stack(columns, axis=1))
            jacobian = jnp.log(amplitude * widening / jnp.sqrt(1 - sin_dec**2))
            jacobian -= 0.5 * jnp.log(1 - cos_iota**2)
            jacobian = jnp.sum(jacobian) + jnp.sum(jnp.log1p(-(tanh**2)))
            inside = jnp.all(jnp.abs(angle) <= _HALVES)
            return jnp.where(inside, prior + ln_l + jacobian + constant, -jnp.inf)

        return value


def by_hamiltonian(problem: SourceMoves, samples: int, rng: np.random.Generator) -> Found:
    """Lead a cloud to a band's posterior by Hamiltonian moves.

    Sources are taken in the order of the references; ln S! is added to ln Z.
    """
    draws = problem.draw(max(PARTICLES, samples), rng)
    inside = draws.x[np.isfinite(draws.log_target)]
    if len(inside) < 20:
        raise ValueError("no draw of the network lies in the prior")
    best = draws.x[int(np.argmax(draws.log_target))]
    space = Unbounded(problem.space, best)
    some = inside[rng.integers(len(inside), size=len(draws.x))]
    target = space.log_target(BandJax(problem.likelihood))
    seed = int(rng.integers(2**31))
    found = hamiltonian_smc(target, space.of(some), seed)
    x = space.back(found.x)[:samples]
    nan = float("nan")
    ln_z = found.ln_z + float(np.log(np.arange(1, problem.number + 1)).sum())
    return Found(
        x, problem.log_target_at(x), Evidence(ln_z, nan), nan, float(samples), nan, nan,
        found.temperatures, found.acceptance, found.gradients, (),
    )  # fmt: skip
