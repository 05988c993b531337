"""The moves of a cloud of sources: one source of each particle at a time, the others held.

Each is a Metropolis step for ``p_b ~ q^(1-b) t^b``; proposals along differences of other particles
take those of the other half of the cloud.

- *mapped*: frequency, drift and sky go along the difference of two particles, and the amplitude
  parameters follow so that their distance from the best fit at each place, whitened by the
  Gram matrix, stays: ln L then changes by the F-statistic alone. As good as with amplitudes
  integrated out, with the physical prior, and exact.
- *reflected*: likewise, to the other side of the ecliptic.
- *whole*: all eight parameters along a difference (while the reference still counts).
- *fresh*: an independent draw of the source's own reference.
- *walk*: amplitude parameters alone, many steps for the price of none (at b = 1).
"""

from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slotflow.refine_band import BandProblem, Cloud, Placed, measured, symmetrised
from slotflow.refine_kernels import mapped, walk
from slotflow.refine_space import BIN, DRIFT, RA, SIN_DEC, difference, folded, reflected
from slotflow.smc import Moved
from slotflow.smc_moves import JUMP, WANTED, pairs

Float = NDArray[np.float64]
Complex = NDArray[np.complex128]
Int = NDArray[np.int64]

WALK_STEPS: Final = 24
FRESH_EVERY: Final = 3  # sweeps at the last temperature between independent draws
LEAST_FRESH: Final = 0.02  # accepted share below which they are no longer tried
SCATTER: Final = 0.3  # of ln step between particles
_PLACE: Final = [BIN, DRIFT, RA, SIN_DEC]


class _Tally:
    """Evaluations and accepted shares of one sweep."""

    def __init__(self) -> None:
        self.evaluations, self.tried, self.taken = 0, 0, 0

    def add(self, tried: int, taken: int) -> None:
        self.tried, self.taken = self.tried + tried, self.taken + taken


class SourceMoves(BandProblem):
    """A band's problem with its moves.

    Attributes:
        scales: of the differences, by kind of move, led to an accepted share of a quarter.
        sweeps: so far at the last temperature.
        fresh: accepted share of the last independent draws, by source.
    """

    scales: dict[str, float]

    def settle(self, state: Cloud, temperature: float) -> Cloud:
        """Return the cloud with responses and residuals; scales go on from before."""
        if not hasattr(self, "scales"):
            self.scales = {"mapped": 1.0, "whole": 1.0}
        self.sweeps, self.fresh = 0, [1.0] * self.number
        return super().settle(state, temperature)

    def sweep(self, state: Cloud, temperature: float, rng: np.random.Generator) -> Moved[Cloud]:
        """Move every source of every particle by a few kinds of moves."""
        assert state.placed is not None
        assert state.residual is not None
        kinds = self._kinds(temperature, rng)
        x, densities = state.x.copy(), state.densities.copy()
        residual, tally = state.residual.copy(), _Tally()
        for s in rng.permutation(self.number).tolist():
            one = state.placed[s]
            work = _Work(self, s, one, x, densities, residual, temperature, tally)
            work.begin()
            for kind in kinds:
                self._moves(kind, work, rng)
            if temperature == 1.0:
                work.walk(rng)
            work.end()
        self.sweeps += 1
        target = self.log_target_of(residual)
        moved = replace(state, x=x, log_target=target, densities=densities, residual=residual)
        return Moved(moved, tally.taken / max(tally.tried, 1), tally.evaluations)

    def _kinds(self, temperature: float, rng: np.random.Generator) -> list[str]:
        if temperature < 1.0:
            return ["mapped", "whole", "mapped", "reflected" if rng.random() < 0.2 else "whole"]
        kinds = ["mapped", "mapped", "reflected" if self.sweeps % 4 == 3 else "mapped"]
        return (["fresh"] if self.sweeps % FRESH_EVERY == FRESH_EVERY - 1 else []) + kinds

    def _moves(self, kind: str, work: "_Work", rng: np.random.Generator) -> None:
        if kind == "fresh":
            if self.fresh[work.s] >= LEAST_FRESH:
                self.fresh[work.s] = work.fresh(rng)
            return
        order = rng.permutation(len(work.x))
        half = len(order) // 2
        taken = 0
        for mine, others in ((order[:half], order[half:]), (order[half:], order[:half])):
            taken += work.along(kind, np.sort(mine), others, self.scales.get(kind, 1.0), rng)
        if kind in self.scales:
            change = np.exp(taken / len(order) - WANTED)
            self.scales[kind] = float(np.clip(self.scales[kind] * change, 1e-2, 1e1))


class _Work:
    """One source of each particle while it is moved; arrays are changed in place."""

    def __init__(
        self, problem: BandProblem, s: int, one: Placed, x: Float, densities: Float,
        residual: Complex, temperature: float, tally: _Tally,
    ) -> None:  # fmt: skip
        self.problem, self.s, self.one, self.tally = problem, s, one, tally
        self.all, self.densities, self.residual = x, densities, residual
        self.temperature = temperature
        self.x = np.ascontiguousarray(x[:, s])

    def begin(self) -> None:
        """Put the source's signal back into the residuals."""
        self.problem.subtract(self.residual, self.one, self.x, 1.0)
        self.problem.project(self.one, self.residual, np.arange(len(self.x)))
        self.gain = measured(self.one, self.x)[0]

    def end(self) -> None:
        """Take it out again."""
        self.problem.subtract(self.residual, self.one, self.x)
        self.all[:, self.s] = self.x

    def walk(self, rng: np.random.Generator) -> None:
        """Let the amplitude parameters go their own way."""
        one = self.one
        snr = self.problem.space.snr
        walk(rng, self.x, one.product, one.gram, one.snr_gram, *snr, WALK_STEPS)
        self.gain = measured(one, self.x)[0]

    def fresh(self, rng: np.random.Generator) -> float:
        """Try independent draws of the source's reference; return the accepted share."""
        reference = self.problem.references[self.s]
        new, density = reference.draw(len(self.x), rng)
        rows = np.flatnonzero(self.problem.space.inside(new))
        ratio = reference.log_density(self.x[rows]) - density[rows]
        here = np.ascontiguousarray(new[rows])
        place = self.problem.place(here, self.residual, rows)
        return self._settled(rows, here, place, ratio, rng, len(self.x)) / len(self.x)

    def along(
        self, kind: str, mine: Int, others: Int, scale: float, rng: np.random.Generator
    ) -> int:
        """Try moves of these particles; return the number accepted."""
        new = self.x[mine]
        if kind == "reflected":
            new = reflected(new)
        else:
            one, other = pairs(len(others), len(mine), rng)
            step = difference(self.x[others[one]], self.x[others[other]])
            dimensions = 4 if kind == "mapped" else 8
            size = (
                scale
                * 1.68
                / np.sqrt(dimensions)
                * np.exp(SCATTER * rng.standard_normal(len(mine)))
            )
            size = np.where(rng.random(len(mine)) < JUMP, 1.0, size)
            if kind == "mapped":
                new[:, _PLACE] += size[:, None] * step[:, _PLACE]
            else:
                new += size[:, None] * step
            new = folded(new)
        rows = np.flatnonzero(self.problem.space.inside(new))
        mine, new = mine[rows], np.ascontiguousarray(new[rows])
        place = self.problem.place(new, self.residual, mine)
        ratio = np.zeros(len(mine))
        if kind != "whole":
            before = self.one.product[mine], self.one.gram[mine]
            mapped(before, (place.product, place.gram), self.x[mine], new, ratio)
        return self._settled(mine, new, place, ratio, rng, len(rows))

    def _settled(
        self, rows: Int, new: Float, place: Placed, ratio: Float, rng: np.random.Generator,
        tried: int,
    ) -> int:  # fmt: skip
        """Accept or not; ``ratio`` is ln of what multiplies the densities' ratio."""
        gain, snr2 = measured(place, new)
        b = self.temperature
        change = ratio + b * (gain - self.gain[rows])
        columns = None
        if b < 1.0:
            trial = self.densities[rows]
            columns = self.problem.densities_at(self.s, new)
            trial[:, :, self.s] = columns
            change += (1.0 - b) * (symmetrised(trial) - symmetrised(self.densities[rows]))
        change = np.where(self.problem.allowed(new, snr2), change, -np.inf)
        with np.errstate(invalid="ignore"):
            taken = np.log(rng.random(len(rows))) < change
        chosen, at = rows[taken], np.flatnonzero(taken)
        self.x[chosen], self.gain[chosen] = new[at], gain[at]
        for name in ("spectra", "first", "product", "gram", "snr_gram"):
            getattr(self.one, name)[chosen] = getattr(place, name)[at]
        if columns is not None:
            self.densities[chosen, :, self.s] = columns[at]
        self.tally.evaluations += len(rows)
        self.tally.add(tried, len(at))
        return len(at)
