"""Draws of a band's exact posterior: by weights, or by tempered SMC run a few times."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slotflow.importance import complaints, systematic, weigh
from slotflow.refine_band import Cloud
from slotflow.refine_moves import SourceMoves
from slotflow.refined import Evidence
from slotflow.smc import SmcRun, SmcSettings, run
from slotflow.smc_pool import pool

Float = NDArray[np.float64]

DRAWS: Final = 4000  # of the references, that importance weights are given
MOST_PARTICLES: Final = 2000  # of one run; more draws are taken from further sweeps
LEAST_PARTICLES: Final = 400
FIRST: Final = 2  # draws of the references for each particle, at first
FIRST_MOST: Final = 20  # and at most
FURTHER_SWEEPS: Final = 5  # between clouds, where one does not hold draws enough

#: When draws are not to be relied on.
MOST_SPREAD: Final = 1.0  # of ln Z between runs
MOST_DISAGREEMENT: Final = 0.4  # of means between runs, in widths of the posterior


@dataclass(frozen=True, eq=False)
class Found:
    """Draws of the exact posterior, and how they came about.

    Attributes:
        x: (n, S, 8), all of equal weight.
        log_target: (n,).
        ln_z: of the target's integral.
        efficiency, ess, pareto_k, largest, temperatures, acceptance, evaluations, warnings: as
            :class:`slotflow.refined.Refinement` has them.
    """

    x: Float
    log_target: Float
    ln_z: Evidence
    efficiency: float
    ess: float
    pareto_k: float
    largest: float
    temperatures: tuple[float, ...]
    acceptance: float
    evaluations: int
    warnings: tuple[str, ...]


def by_importance(problem: SourceMoves, samples: int, rng: np.random.Generator) -> Found:
    """Weigh draws of the references, and resample them."""
    cloud = problem.draw(max(DRAWS, samples), rng)
    ratio = np.where(np.isneginf(cloud.log_target), -np.inf, cloud.log_target - cloud.log_reference)
    weighted = weigh(ratio)
    if weighted.ess == 0.0:
        raise ValueError("no draw of the network lies in the prior")
    chosen = systematic(weighted.weights, samples, rng)
    return Found(
        cloud.x[chosen], cloud.log_target[chosen], Evidence(weighted.ln_z, weighted.ln_z_error),
        weighted.efficiency, min(weighted.ess, float(samples)), weighted.k, weighted.largest, (),
        float("nan"), len(ratio) * problem.number, complaints(weighted),
    )  # fmt: skip


def smc_settings(particles: int) -> SmcSettings:
    """Return how a cloud of so many particles is led."""
    return SmcSettings(
        particles, FIRST * particles, FIRST_MOST * particles, max_sweeps=12, max_sweeps_last=60
    )


def by_smc(problem: SourceMoves, samples: int, repeats: int, rng: np.random.Generator) -> Found:
    """Lead draws of the references to the target, a few times independently."""
    share = -(-samples // repeats)
    particles = int(np.clip(share, LEAST_PARTICLES, MOST_PARTICLES))
    runs, clouds = [], []
    for one_rng in rng.spawn(repeats):
        one = run(problem, smc_settings(particles), one_rng)
        runs.append(one)
        clouds.append(_enough(problem, one.state, share, one_rng))
    pooled = pool(runs)
    weights = np.concatenate([
        np.full(len(x), weight / len(x))
        for (x, _), weight in zip(clouds, pooled.weights, strict=True)
    ])  # fmt: skip
    chosen = systematic(weights, samples, rng)
    x, target = (np.concatenate(parts)[chosen] for parts in zip(*clouds, strict=True))
    each = float(np.mean([one.ess for one in runs])) / particles * samples
    ess = each / (repeats * float(np.sum(pooled.weights**2)))
    first = [one.first_ess for one in runs]
    return Found(
        x, target, Evidence(pooled.ln_z, pooled.ln_z_error), float(np.mean(first)), ess,
        float("nan"), float("nan"), runs[0].temperatures,
        float(np.mean([one.acceptance for one in runs])), sum(one.evaluations for one in runs),
        _run_warnings(runs, pooled.spread, pooled.disagreement),
    )  # fmt: skip


def _enough(
    problem: SourceMoves, state: Cloud, number: int, rng: np.random.Generator
) -> tuple[Float, Float]:
    """Return particles and their ln target: of the cloud, and of it moved on where it is small."""
    parts = [(state.x, state.log_target)]
    while sum(len(x) for x, _ in parts) < number:
        for _ in range(FURTHER_SWEEPS):
            state = problem.sweep(state, 1.0, rng).state
        parts.append((state.x, state.log_target))
    x, target = (np.concatenate(part) for part in zip(*parts, strict=True))
    return x, target


def _run_warnings(
    runs: Sequence[SmcRun[Cloud]], spread: float, disagreement: float
) -> tuple[str, ...]:
    found = []
    if not all(one.forgot for one in runs):
        worst = max(one.correlation for one in runs)
        found.append(f"the draws still correlate with their start ({worst:.2f})")
    if spread > MOST_SPREAD:
        found.append(f"ln Z of independent runs differs by {spread:.1f}")
    if disagreement > MOST_DISAGREEMENT:
        found.append(f"independent runs differ by {disagreement:.1f} widths of the posterior")
    return tuple(found)
