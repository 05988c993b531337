"""Which calibration tests catch which fault: a model whose posterior is known in closed form.

    ./run python benchmarks/calibration_power.py [--quick]

Three parameters with a Gaussian prior, seen through a matrix with Gaussian noise, and an angle of
period 1, uniform, seen with Gaussian noise: the exact posterior is Gaussian and wrapped normal.
Each row of the table spoils it in one way; each number is the share of seeds in which a test's
p-value is below 5%. One thread. The last line is one JSON object.
"""

import json
import math
import time
from typing import NamedTuple

import click
import numpy as np
from numpy.typing import NDArray

from slotflow.c2st import c2st
from slotflow.sbc import density_coverage, parameter_tests
from slotflow.tarp import tarp

Float = NDArray[np.float64]

PERIODS = (None, None, None, 1.0)
NAMES = ("a", "b", "c", "angle")
ANGLE_NOISE = 0.1
LEVEL = 0.05

_MATRIX = np.array([[1.0, 0.5, 0.0], [0.0, 0.7, 0.3], [0.2, 0.0, 0.4]])
_NOISE = 0.5
_COVARIANCE = np.linalg.inv(np.eye(3) + _MATRIX.T @ _MATRIX / _NOISE**2)
_ROOT = np.linalg.cholesky(_COVARIANCE)
_SPREAD = np.append(np.sqrt(np.diag(_COVARIANCE)), ANGLE_NOISE)


class Sample(NamedTuple):
    """Draws (n, m, 4), truths (n, 4), what was seen (n, 5), and ln q of draws and truths."""

    draws: Float
    truths: Float
    seen: Float
    draw_log_q: Float
    truth_log_q: Float


class Posterior(NamedTuple):
    """``mean`` (n, 4), and ``width`` (n, 1) times ``root`` (4, 4) times numbers of unit spread."""

    fault: str
    mean: Float
    width: Float
    root: Float

    def draw(self, m: int, rng: np.random.Generator) -> Float:
        """Return m draws a source, (n, m, 4)."""
        n = len(self.mean)
        unit = rng.normal(size=(n, m, 4))
        if self.fault == "two-peaked":  # the same mean and covariance
            unit = 0.8 * np.sign(unit) + 0.6 * rng.normal(size=unit.shape)
        draws = self.mean[:, None] + self.width[:, None] * (unit @ self.root.T)
        if self.fault == "prior":
            draws = np.concatenate((rng.normal(size=(n, m, 3)), rng.random((n, m, 1))), axis=2)
        draws[..., 3] = np.mod(draws[..., 3], 1.0)
        return draws

    def log_q(self, points: Float) -> Float:
        """Return ln q of points (n, k, 4), but for a constant of each source."""
        if self.fault == "prior":
            return np.asarray(-0.5 * (points[..., :3] ** 2).sum(-1))
        offset = points - self.mean[:, None]
        offset[..., 3] -= np.rint(offset[..., 3])
        u = (offset @ np.linalg.inv(self.root).T) / self.width[:, None]
        if self.fault == "two-peaked":
            peaks = np.logaddexp(-((u - 0.8) ** 2) / 0.72, -((u + 0.8) ** 2) / 0.72)
            return np.asarray(peaks.sum(-1))
        turns = np.arange(-2, 3) / (ANGLE_NOISE * self.width[:, None])
        angle = np.logaddexp.reduce(-0.5 * (u[..., 3:] + turns) ** 2, axis=-1)
        return np.asarray(angle - 0.5 * (u[..., :3] ** 2).sum(-1))


def spoiled(fault: str, mean: Float, seen: Float) -> Posterior:
    """Return the exact posterior about ``mean`` with that fault ("none": without)."""
    width, root = np.ones((len(mean), 1)), np.zeros((4, 4))
    root[:3, :3], root[3, 3] = _ROOT, ANGLE_NOISE
    if fault == "narrow":
        width[:] = 0.8
    elif fault == "wide":
        width[:] = 1.25
    elif fault == "shifted":
        mean = mean + 0.3 * _SPREAD
    elif fault == "narrow or wide":
        width = np.where(seen[:, :1] > 0.0, 0.8, 1.25)
    elif fault == "uncorrelated":
        root = np.diag(_SPREAD)
    return Posterior(fault, mean, width, root)


def simulate(fault: str, n: int, m: int, rng: np.random.Generator) -> Sample:
    """Return n sources with m draws each of a posterior with that fault."""
    truths = np.concatenate((rng.normal(size=(n, 3)), rng.random((n, 1))), axis=1)
    x = truths[:, :3] @ _MATRIX.T + _NOISE * rng.normal(size=(n, 3))
    angle = truths[:, 3:] + ANGLE_NOISE * rng.normal(size=(n, 1))
    mean = np.concatenate((x @ _MATRIX @ _COVARIANCE / _NOISE**2, angle), axis=1)
    seen = np.concatenate((x, np.cos(2.0 * np.pi * angle), np.sin(2.0 * np.pi * angle)), axis=1)
    posterior = spoiled(fault, mean, seen)
    draws = posterior.draw(m, rng)
    of_truths = posterior.log_q(truths[:, None])[:, 0]
    return Sample(draws, truths, seen, posterior.log_q(draws), of_truths)


def p_values(sample: Sample, rng: np.random.Generator) -> dict[str, float]:
    """Return every test's p-value; those of one parameter under its name."""
    found = {}
    for test in parameter_tests(sample.draws, sample.truths, PERIODS, NAMES):
        found[f"chi2 {test.name}"] = test.histogram.p_value
        found[f"pit {test.name}"] = test.pit.p_value
        found[f"coverage {test.name}"] = test.coverage.p_value
    found["density"] = density_coverage(sample.draw_log_q, sample.truth_log_q).p_value
    found["tarp"] = tarp(sample.draws, sample.truths, PERIODS, rng).p_value
    found["tarp uniform"] = tarp(sample.draws, sample.truths, PERIODS, rng, "uniform").p_value
    found["c2st"] = c2st(sample.draws, sample.truths, PERIODS, rng, sample.seen).p_value
    found["c2st blind"] = c2st(sample.draws, sample.truths, PERIODS, rng).p_value
    return found


def rates(fault: str, seeds: int, n: int, m: int) -> dict[str, float]:
    """Return the share of seeds in which each test's p-value is below 5%."""
    caught: dict[str, int] = {}
    for seed in range(seeds):
        rng = np.random.default_rng([seed, n, m, FAULTS.index(fault)])
        for name, p in p_values(simulate(fault, n, m, rng), rng).items():
            caught[name] = caught.get(name, 0) + (p < LEVEL)
    return {name: number / seeds for name, number in caught.items()}


FAULTS = (
    "none", "narrow", "wide", "shifted", "narrow or wide", "uncorrelated", "two-peaked", "prior",
)  # fmt: skip
#: Which tests must catch a fault in 95% of the seeds.
SENSITIVE = {
    "narrow": ("chi2", "pit", "coverage", "density", "tarp", "tarp uniform", "c2st"),
    "shifted": ("chi2", "pit", "c2st"),
}
JOINT = ("density", "tarp", "tarp uniform", "c2st", "c2st blind")


def failures(fault: str, found: dict[str, float], margin: float = 0.03) -> list[str]:
    """Return the tests that do not do what is asked of them."""
    if fault == "none":
        return [name for name, rate in found.items() if not abs(rate - LEVEL) <= margin]
    kinds = SENSITIVE.get(fault, ())
    return [
        name
        for name, rate in found.items()
        if (name if name in JOINT else name.split()[0]) in kinds and rate < 0.95
    ]


def columns(found: dict[str, float]) -> list[str]:
    """The table's cells: of the parameters the smallest and largest rate, then the joint tests."""
    cells = []
    for kind in ("chi2", "pit", "coverage"):
        some = [100.0 * found[f"{kind} {name}"] for name in NAMES]
        low, high = f"{min(some):.3g}", f"{max(some):.3g}"
        cells.append(low if low == high else f"{low}-{high}")
    return cells + [f"{100.0 * found[name]:.3g}" for name in JOINT]


@click.command()
@click.option("--quick", is_flag=True, help="A tenth of the seeds.")
@click.option("--sources", default=1000, show_default=True, help="Simulations a seed.")
@click.option("--draws", default=99, show_default=True, help="Draws a simulation.")
def main(quick: bool, sources: int, draws: int) -> None:
    """Print the table."""
    start = time.process_time()
    share = 10 if quick else 1
    head = ["fault", "seeds", "SBC chi2", "PIT", "coverage", "density", *JOINT[1:]]
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    result, bad = {}, {}
    for fault in FAULTS:
        seeds = (400 if fault == "none" else 100) // share
        result[fault] = rates(fault, seeds, sources, draws)
        # ten times fewer seeds: the margin that 5% then needs
        bad[fault] = failures(fault, result[fault], 0.03 * math.sqrt(share))
        print("| " + " | ".join([fault, str(seeds), *columns(result[fault])]) + " |", flush=True)
    seconds = round(time.process_time() - start, 1)
    print(json.dumps({"seconds": seconds, "failed": bad, "rates": result}))


if __name__ == "__main__":
    main()
