"""A problem for :mod:`slotflow.smc` given by functions, moved by differential evolution.

The moves need no gradient and no scale of their own: a particle goes along the difference of two
others (ter Braak 2006), the one half of the cloud by differences of the other half, so that each
is a Metropolis step of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slotflow.smc import Moved

Float = NDArray[np.float64]
Density = Callable[[Float], Float]

WANTED: Final = 0.25  # accepted share that the step is led to
JUMP: Final = 0.1  # share of moves by the whole difference, which lead from mode to mode
_GAIN: Final = 1.0  # by how much ln step follows the accepted share


@dataclass(frozen=True, eq=False)
class Points:
    """Particles in R^D with their densities."""

    x: Float
    log_target: Float
    log_reference: Float

    def take(self, index: NDArray[np.int64]) -> "Points":
        """Return the particles of these indices."""
        return Points(self.x[index], self.log_target[index], self.log_reference[index])

    def join(self, other: "Points") -> "Points":
        """Return these particles and others."""
        pairs_ = zip(vars(self).values(), vars(other).values(), strict=True)
        return Points(*(np.concatenate(pair) for pair in pairs_))

    def coordinates(self) -> Float:
        """Return the particles, (N, D)."""
        return self.x


class FunctionProblem:
    """Sampling of a density over R^D.

    Args:
        draw: returns (n, D) draws of the reference.
        log_reference: its normalised density, (n, D) -> (n,).
        log_target: of the target, -inf outside; (n, D) -> (n,).

    Attributes:
        scale: of the moves' differences, led to an accepted share of a quarter.
    """

    def __init__(
        self,
        draw: Callable[[int, np.random.Generator], Float],
        log_reference: Density,
        log_target: Density,
    ) -> None:
        self._draw, self._log_reference, self._log_target = draw, log_reference, log_target
        self.scale = 1.0

    def draw(self, number: int, rng: np.random.Generator) -> Points:
        """Return particles drawn from the reference."""
        return self._at(self._draw(number, rng))

    def settle(self, state: Points, temperature: float) -> Points:
        """Return the cloud as it is; the scale goes on from the last temperature."""
        return state

    def sweep(self, state: Points, temperature: float, rng: np.random.Generator) -> Moved[Points]:
        """Move each particle once."""
        order = rng.permutation(len(state.x))
        half = len(order) // 2
        accepted = 0
        for mine, others in ((order[:half], order[half:]), (order[half:], order[:half])):
            trial = self._at(self._proposed(state.x, mine, others, rng))
            here = state.take(mine)
            gain = _tempered(trial, temperature) - _tempered(here, temperature)
            taken = np.log(rng.random(len(mine))) < gain
            accepted += int(taken.sum())
            state = _replaced(state, mine[taken], trial.take(np.flatnonzero(taken)))
        share = accepted / len(order)
        self.scale *= float(np.exp(_GAIN * (share - WANTED)))
        return Moved(state, share, len(order))

    def _at(self, x: Float) -> Points:
        return Points(x, self._log_target(x), self._log_reference(x))

    def _proposed(
        self, x: Float, mine: NDArray[np.int64], others: NDArray[np.int64],
        rng: np.random.Generator,
    ) -> Float:  # fmt: skip
        n, dimensions = len(mine), x.shape[1]
        one, other = others[pairs(len(others), n, rng)]
        step = self.scale * 1.68 / np.sqrt(dimensions) * np.exp(0.5 * rng.standard_normal(n))
        step = np.where(rng.random(n) < JUMP, 1.0, step)
        noise = 1e-3 * x[others].std(axis=0) * rng.standard_normal((n, dimensions))
        return np.asarray(x[mine] + step[:, None] * (x[one] - x[other]) + noise)


def pairs(count: int, number: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return (2, number) indices below ``count``, the two of a column distinct."""
    one = rng.integers(count, size=number)
    other = (one + rng.integers(1, count, size=number)) % count
    return np.stack([one, other])


def _tempered(points: Points, temperature: float) -> Float:
    target = np.where(np.isneginf(points.log_target), -np.inf, temperature * points.log_target)
    if temperature == 1.0:
        return target
    return np.asarray(target + (1.0 - temperature) * points.log_reference)


def _replaced(state: Points, index: NDArray[np.int64], new: Points) -> Points:
    x, target, reference = state.x.copy(), state.log_target.copy(), state.log_reference.copy()
    x[index], target[index], reference[index] = new.x, new.log_target, new.log_reference
    return replace(state, x=x, log_target=target, log_reference=reference)
