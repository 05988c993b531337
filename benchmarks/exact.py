"""The refined posterior against a long chain of another sampler, emcee and dynesty.

    ./run python benchmarks/exact.py [--quick] [--case NAME]...

Bands of one or two sources in white noise at 1.5 mHz, read by the model that ships. One thread on
one core. Each is refined by SMC as ``slotflow posterior --refine smc`` does (two runs, one source
more and less included), and compared with a long run of the same moves from a reference that
knows the truth and not the network, thinned, by the Jensen-Shannon divergence of
:mod:`slotflow.refine_divergence` (its bias taken off). emcee gets the same likelihood in batches,
starts from draws of the posterior and so has no burn-in; its default moves, and differential
evolution, which suits it better here; its effective sample size is that of the slowest
of the coordinates that the refinement is judged by. dynesty's evidence is of the same
prior and likelihood (:mod:`exact_nested`). The last line is one JSON object.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

if __name__ == "__main__":  # else that is the caller's to say
    for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = "1"
    os.environ["JAX_PLATFORMS"] = "cpu"

import click
import numpy as np
import torch
from exact_nested import by_dynesty

from slotflow import refine as refine_module
from slotflow.bands import Tile
from slotflow.checkpoint import Model, load_model
from slotflow.inference import BandReader
from slotflow.likelihood import BandLikelihood, training_sigma
from slotflow.model import Reading
from slotflow.noise import standard_psd
from slotflow.refine_divergence import by_parameter
from slotflow.refine_input import RefineBand, band_to_refine
from slotflow.refine_moves import SourceMoves
from slotflow.refine_sample import by_smc
from slotflow.refine_space import BIN, COS_IOTA, DRIFT, LN_A, PHI0, PSI, Space, folded, traced
from slotflow.refined import Refinement, RefineSettings
from slotflow.results import PosteriorSettings, SourcePosterior
from slotflow.smc import SmcSettings, run
from slotflow.tokencache import band_sigma
from slotflow.whitening import WhiteBand

Float = np.ndarray[Any, np.dtype[np.float64]]

FIRST_BIN = 47058  # the band's centre is at 1.5 mHz
FIRST = np.array([126.3, 0.08, -50.0, 1.9, 0.35, 0.4, 0.45, 2.2])
OTHER = np.array([0.0, 0.15, -50.0, 2.3, -0.2, 1.2, -0.6, 0.7])
#: Offsets in bins and SNRs of the sources, by name.
CASES: dict[str, tuple[tuple[float, float], ...]] = {
    "one source, SNR 10": ((0.0, 10.0),),
    "one source, SNR 20": ((0.0, 20.0),),
    "one source, SNR 50": ((0.0, 50.0),),
    "two sources 1.5 bins apart, SNR 20": ((0.0, 20.0), (1.5, 20.0)),
    "two sources 4 bins apart, SNR 20": ((0.0, 20.0), (4.0, 20.0)),
}
QUICK = ("one source, SNR 20", "two sources 4 bins apart, SNR 20")
SAMPLES = 1000
EFFECTIVE = 2000  # draws, where effective ones a second are compared
LIVE = 500  # points of dynesty's


@dataclass(frozen=True)
class Case:
    """A band with known sources.

    ``white`` as the search takes it, ``x`` (S, 8) the sources in the coordinates of ``space``.
    """

    name: str
    model: Model
    white: WhiteBand
    space: Space
    x: Float


class OneBand:
    """Gives a reader the one band."""

    def __init__(self, white: WhiteBand) -> None:
        self.white = white

    def of(self, tile: Tile) -> WhiteBand:
        """Return the band."""
        return self.white

    def key(self, tile: Tile) -> tuple[int, ...]:
        """Return the band's first bin."""
        return (tile.first_bin,)


class Keeping(BandReader):
    """A reader that keeps the last band as a refinement takes it."""

    kept: RefineBand

    def _refined(
        self, one: Any, row: int, reading: Reading, sources: tuple[SourcePosterior, ...]
    ) -> tuple[tuple[SourcePosterior, ...], Refinement | None]:
        self.kept = band_to_refine(one.tile.first_bin, one.white, one.found, reading, row, sources)
        return sources, None


def simulated(name: str, model: Model) -> Case:
    """Simulate a case's band."""
    observation, prior = model.preset.observation, model.preset.prior
    sigma = training_sigma(observation, FIRST_BIN, prior.bins, prior)
    rng = np.random.default_rng(20)
    noise = np.sqrt(0.5) * rng.standard_normal((3, prior.bins, 2)).view(np.complex128)[..., 0]
    empty = BandLikelihood(noise[:2], FIRST_BIN, np.ones(2), sigma, model.grid, observation, prior)
    space = Space(FIRST_BIN, observation.duration, prior)
    rows = []
    for (offset, snr), row in zip(CASES[name], (FIRST, OTHER), strict=False):
        one = row.copy()
        one[BIN] = FIRST[BIN] + offset
        one[LN_A] += np.log(snr / empty.snr(space.to_sources(one[None]))[0])
        rows.append(one)
    x = np.array(rows)
    noise[:2] += empty.model(space.to_sources(x)).sum(axis=0)
    frequency = (FIRST_BIN + np.arange(prior.bins)) / observation.duration
    density = standard_psd(frequency, observation)
    centre = band_sigma(observation, FIRST_BIN, prior.bins)
    white = WhiteBand(noise.astype(np.complex64), density, None, 1.0, np.ones(2), centre)
    return Case(name, model, white, space, x)


@dataclass(frozen=True)
class Answer:
    """What slotflow says: draws of each source (S, n, 8) as x, before and after; its record.

    ``seconds`` of the processor, search and network included; ``sampling`` those of SMC alone.
    """

    before: Float
    x: Float
    record: Refinement
    level: Float
    seconds: float
    sampling: float


def answered(case: Case, refine: RefineSettings, samples: int = SAMPLES) -> Answer:
    """Read and refine a band."""
    duration = case.model.preset.observation.duration
    settings = PosteriorSettings(1e-3, 2e-3, samples, 1, "data", 0.3)
    reader = BandReader(case.model, OneBand(case.white), settings, False, refine)
    bins = case.model.preset.prior.bins
    tile = Tile(FIRST_BIN, FIRST_BIN / duration, (FIRST_BIN + bins) / duration)
    sampling = 0.0

    def timed(*arguments: Any) -> Any:
        nonlocal sampling
        begun = time.process_time()
        found = by_smc(*arguments)
        sampling += time.process_time() - begun
        return found

    started = time.process_time()
    with patch.object(refine_module, "by_smc", timed):
        (outcome,) = reader([tile])
    spent = time.process_time() - started
    record = outcome.refinement
    assert record is not None
    x = np.array([case.space.from_sources(one.samples) for one in outcome.sources])
    before = np.array([case.space.from_sources(draws) for draws in record.before])
    level = np.array([outcome.record.level_a, outcome.record.level_e])
    return Answer(before, x, record, level, spent, sampling)


def target_of(case: Case, level: Float) -> BandLikelihood:
    """Return the likelihood that the refinement has."""
    observation, prior = case.model.preset.observation, case.model.preset.prior
    sigma = training_sigma(observation, FIRST_BIN, prior.bins, prior)
    return BandLikelihood(
        case.white.data[:2], FIRST_BIN, level, sigma, case.model.grid, observation, prior,
        mismatch=1e-6,
    )  # fmt: skip


@dataclass(frozen=True)
class AboutTruth:
    """A reference that knows where the truth is, wider than any posterior here."""

    mean: Float
    width: Float

    _NORMAL: ClassVar = [BIN, LN_A, 3, 4]
    _UNIFORM: ClassVar = ((DRIFT, -0.1, 0.3), (PSI, 0.0, np.pi / 2), (COS_IOTA, -1.0, 1.0),
                (PHI0, 0.0, 2 * np.pi))  # fmt: skip

    def draw(self, number: int, rng: np.random.Generator) -> tuple[Float, Float]:
        """Return draws, (number, 8), and ln density there."""
        x = np.empty((number, 8))
        x[:, self._NORMAL] = self.mean + rng.standard_normal((number, 4)) * self.width
        for column, low, high in self._UNIFORM:
            x[:, column] = rng.uniform(low, high, number)
        return x, self.log_density(x)

    def log_density(self, x: Float) -> Float:
        """Return ln density: (n, 8) -> (n,)."""
        z = (x[:, self._NORMAL] - self.mean) / self.width
        spans = sum(np.log(high - low) for _, low, high in self._UNIFORM)
        return np.asarray(
            -0.5 * (z**2).sum(axis=1) - np.log(self.width).sum() - 2 * np.log(2 * np.pi) - spans
        )


def problem_of(case: Case, likelihood: BandLikelihood) -> SourceMoves:
    """Return the problem without the network."""
    width = np.array([0.3, 0.4, 0.4, 0.3])
    references = [AboutTruth(row[AboutTruth._NORMAL], width) for row in case.x]
    return SourceMoves(likelihood, case.space, references, np.random.default_rng(0))


def long_run(case: Case, likelihood: BandLikelihood, sweeps: int) -> tuple[Float, float]:
    """Return thinned draws (n, S, 8) of a long run, and ln Z by it."""
    problem, rng = problem_of(case, likelihood), np.random.default_rng(77)
    settings = SmcSettings(400, 4000, max_sweeps=8, max_sweeps_last=40, loss=0.01)
    found = run(problem, settings, rng)
    state, kept = found.state, []
    for number in range(sweeps):
        state = problem.sweep(state, 1.0, rng).state
        if number % 5 == 4:
            kept.append(state.x)
    return np.concatenate(kept), found.ln_z


def by_emcee(
    case: Case, likelihood: BandLikelihood, start: Float, steps: int, moves: Any
) -> tuple[float, int]:
    """Return effective samples a second of emcee, and how many it had; None: its own moves."""
    import emcee

    problem, number = problem_of(case, likelihood), len(case.x)
    rng = np.random.default_rng(5)
    walkers = start[rng.choice(len(start), 32 * number, replace=False)].reshape(32 * number, -1)

    def ln_p(flat: Float) -> Float:
        return problem.log_target_at(folded(flat.reshape(len(flat), number, 8)))

    sampler = emcee.EnsembleSampler(*walkers.shape, ln_p, moves=moves, vectorize=True)
    sampler.random_state = np.random.RandomState(3).get_state()
    started = time.process_time()
    sampler.run_mcmc(walkers, steps)
    seconds = time.process_time() - started
    chain = folded(sampler.get_chain().reshape(-1, number, 8))
    traces = traced(chain).reshape(steps, len(walkers), -1)
    tau = float(np.max(emcee.autocorr.integrated_time(traces, quiet=True)))
    ess = steps * len(walkers) / tau
    return ess / seconds, int(ess)


def matched(answer: Answer, reference: Float) -> tuple[Float, Float]:
    """Return divergences of the refined and of the network's draws from the long run: (S, 8)."""
    order = np.argsort([np.median(x[:, BIN]) for x in answer.x])
    rng = np.random.default_rng(9)
    refined = [by_parameter(answer.x[s], reference[:, i], rng) for i, s in enumerate(order)]
    network = [by_parameter(answer.before[s], reference[:, i], rng) for i, s in enumerate(order)]
    return np.array(refined), np.array(network)


def measure(case: Case, quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure one case."""
    answered(case, RefineSettings("smc", 1, evidence=False, noise="white"))  # compiles
    answer = answered(case, RefineSettings(noise="white"))
    record = answer.record
    row: dict[str, Any] = {
        "case": case.name, "seconds": answer.seconds, "found": len(answer.x),
        "efficiency": record.efficiency, "evaluations": record.evaluations,
        "ln_z": record.ln_z.value, "ln_z_error": record.ln_z.error, "ess": record.ess,
        "warnings": list(record.warnings),
    }  # fmt: skip
    if len(answer.x) != len(case.x):
        say(f"{case.name}: the network reports {len(answer.x)} sources: nothing to compare")
        return row
    plain = answered(case, RefineSettings(evidence=False, noise="white"), EFFECTIVE)
    likelihood = target_of(case, answer.level)
    reference, ln_z = long_run(case, likelihood, 60 if quick else 150)
    refined, network = matched(answer, reference)
    row |= {
        "js_median": float(np.median(refined)), "js_worst": float(refined.max()),
        "js_network_median": float(np.median(network)), "js_network_worst": float(network.max()),
        "ln_z_long_run": ln_z,
    }  # fmt: skip
    row["ess_per_s"] = plain.record.ess / plain.sampling
    import emcee

    differences = [(emcee.moves.DEMove(), 0.8), (emcee.moves.DESnookerMove(), 0.2)]
    for key, moves in (("emcee", None), ("emcee_de", differences)):
        rate, count = by_emcee(case, likelihood, reference, 1000 if quick else 3000, moves)
        row |= {f"{key}_ess_per_s": rate, f"{key}_ess": count}
        row[f"speedup_{key}"] = row["ess_per_s"] / rate
    if not quick:
        draws = case.space.to_sources(reference.reshape(-1, 8)).reshape(reference.shape)
        row["ln_z_dynesty"], row["ln_z_dynesty_error"] = by_dynesty(likelihood, draws, LIVE)
    say(", ".join(f"{k} {v:.5g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()))
    return row


@click.command()
@click.option("--quick", is_flag=True, help="Two cases, a shorter chain, no dynesty.")
@click.option("--case", "names", type=click.Choice(list(CASES)), multiple=True)
@click.option("--kernel/--no-kernel", default=True, help="Also the kernel's figures.")
def main(quick: bool, names: tuple[str, ...], kernel: bool) -> None:
    """Measure and print; the last line is JSON."""
    torch.set_num_threads(1)
    model = load_model(Path(str(resources.files("slotflow.data") / "model.safetensors")))
    chosen = names or (QUICK if quick else tuple(CASES))
    rows = [measure(simulated(name, model), quick, click.echo) for name in chosen]
    compared = [row for row in rows if "js_median" in row]

    def most(word: str) -> float | None:
        return max((r["seconds"] for r in rows if r["case"].startswith(word)), default=None)

    content: dict[str, Any] = {"kernel_speedup": None, "kernel_error": None}
    if kernel:
        from exact_kernel import kernel_figures

        figures = kernel_figures(10.0 if quick else 40.0)
        content = {name: figures[name] for name in content}
    content |= {
        "seconds_one_source": most("one"),
        "seconds_two_sources": most("two"),
        "ess_speedup_vs_emcee": min((r["speedup_emcee"] for r in compared), default=None),
        "ess_speedup_vs_emcee_de": min((r["speedup_emcee_de"] for r in compared), default=None),
        "js_median": max((r["js_median"] for r in compared), default=None),
        "js_worst": max((r["js_worst"] for r in compared), default=None),
        "cases": rows,
    }
    click.echo(json.dumps(content))


if __name__ == "__main__":
    main()
