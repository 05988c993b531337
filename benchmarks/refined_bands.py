"""Refined posteriors of held-out bands with the foreground: calibration, and a long reference.

    slotflow simulate --preset shipped --samples 1536 --seed 20261130 -o held-out
    ./run python benchmarks/refined_bands.py held-out --work DIR [--noise white] [--reference]
        [--emcee] [--more]
    ./run python benchmarks/refined_bands.py --noise-only 100 --work DIR

Every EVERY-th band of a set in which the model reports one to three sources in the window is
refined by SMC as ``slotflow posterior --refine smc`` does. With ``--reference`` each is also
sampled by a long run that does not know the network: the same likelihood and prior, from a wide
reference about the true sources (the reported ones where there is none), 250 particles, thinned;
``--emcee``: where one source is reported, by emcee too, from a ball about the truth. A band is a
file of DIR: a run that was broken off goes on. ``--noise-only``: ln B of one source to none in
bands of white noise of the total density, and in how many the model reports something.

The last line is one JSON object: of all files that are there.
"""

import json
import os
import time
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":
    for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = "1"

import click
import numpy as np
import torch
from exact import AboutTruth, Keeping, OneBand
from refined_figures import summary
from scipy.optimize import linear_sum_assignment

from slotflow.bands import Tile
from slotflow.checkpoint import Model, load_model
from slotflow.noise import draw_noise, standard_psd
from slotflow.parameters import to_scored
from slotflow.refine import Prepared, Refined, Refiner
from slotflow.refine_band import Cloud
from slotflow.refine_evidence import one_more
from slotflow.refine_input import RefineBand, place_of
from slotflow.refine_moves import SourceMoves
from slotflow.refine_space import BIN, folded
from slotflow.refined import RefineSettings
from slotflow.results import PosteriorSettings
from slotflow.smc import SmcSettings, run
from slotflow.store import TrainingSet
from slotflow.stored import StoredBands
from slotflow.tokencache import band_sigma, to_local_units
from slotflow.whitening import WhiteBand

Float = np.ndarray[Any, np.dtype[np.float64]]

SAMPLES = 1000
MOST_REPORTS = 3
GATE_BINS = 1.0  # within which a report is of a true source
WIDTH = np.array([0.3, 0.4, 0.4, 0.3])  # of the long run's reference
LONG = SmcSettings(250, 2500, max_sweeps=8, max_sweeps_last=40, loss=0.01)
SWEEPS, THIN = 40, 4


def long_run(prepared: Prepared, centres: Float, seed: int) -> Float:
    """Return thinned draws (n, S, 8) of a long run from a wide reference about the centres."""
    references = [AboutTruth(row[AboutTruth._NORMAL], WIDTH) for row in centres]
    rng = np.random.default_rng([seed, 77])
    problem = SourceMoves(prepared.likelihood, prepared.space, references, rng)
    state: Cloud = run(problem, LONG, rng).state
    kept = [state.x]
    for number in range(SWEEPS):
        state = problem.sweep(state, 1.0, rng).state
        if number % THIN == THIN - 1:
            kept.append(state.x)
    return np.concatenate(kept)


def emcee_run(prepared: Prepared, centres: Float, seed: int, steps: int = 2500) -> Float:
    """Return draws (n, S, 8) of emcee's differential evolution, its first half left out."""
    import emcee

    number, rng = len(centres), np.random.default_rng([seed, 78])
    problem = SourceMoves(
        prepared.likelihood, prepared.space,
        [AboutTruth(row[AboutTruth._NORMAL], WIDTH) for row in centres], rng,
    )  # fmt: skip
    ball = np.array([0.05, 0.05, 0.1, 0.05, 0.05, 0.3, 0.2, 0.5])
    start = folded(centres + ball * rng.standard_normal((4000, number, 8)))
    allowed = start[np.isfinite(problem.log_target_at(start))]
    walkers = allowed[: 40 * number].reshape(-1, 8 * number)

    def ln_p(flat: Float) -> Float:
        return problem.log_target_at(folded(flat.reshape(len(flat), number, 8)))

    moves = [(emcee.moves.DEMove(), 0.8), (emcee.moves.DESnookerMove(), 0.2)]
    sampler = emcee.EnsembleSampler(*walkers.shape, ln_p, moves=moves, vectorize=True)
    sampler.random_state = np.random.RandomState(3).get_state()
    sampler.run_mcmc(walkers, steps)
    chain = sampler.get_chain(discard=steps // 2, thin=20)
    return folded(np.asarray(chain).reshape(-1, number, 8))


def matched(reported: Float, truths: Float) -> tuple[list[int], list[int]]:
    """Return which report (by place in bins) is of which true source, within GATE_BINS."""
    if not len(reported) or not len(truths):
        return [], []
    off = np.abs(reported[:, None] - truths[None])
    rows, columns = linear_sum_assignment(np.where(off <= GATE_BINS, off, 1e3))
    some = [(r, c) for r, c in zip(rows.tolist(), columns.tolist(), strict=True)
            if off[r, c] <= GATE_BINS]  # fmt: skip
    return [r for r, _ in some], [c for _, c in some]


class Held:
    """Held-out bands, read by the model one at a time."""

    def __init__(self, model: Model, directory: Path, samples: int = SAMPLES) -> None:
        self.model = model
        self.data = TrainingSet(directory)
        self.stored = StoredBands(directory, self.data, 0, len(self.data))
        settings = PosteriorSettings(1e-3, 2.1e-3, samples, 1, "data", 0.3)
        self.reader = Keeping(model, self.stored, settings, False)
        self.tiles = self.stored.tiles(model.preset)

    def read(self, sample: int) -> tuple[RefineBand, Float]:
        """Return a band to refine, and its true sources as local units (n, 8)."""
        list(self.reader([self.tiles[sample]]))
        band = self.reader.kept
        truths = self.data.sources(sample)
        local = to_local_units(truths, band.first_bin, self.model.preset.observation.duration)
        return band, folded(local)


def scored(x: Float, prepared: Prepared) -> Float:
    """Return draws (..., 8) in unit ranges."""
    space = prepared.space
    return to_scored(
        space.to_sources(x), np.array(float(space.first_bin)), space.bins, space.duration
    )


class Wanted(NamedTuple):
    """What is measured beside the refinement, and in which bands."""

    reference: bool
    emcee: bool
    more: bool
    most_reports: int


def measure(
    held: Held, refiner: Refiner, sample: int, wanted: Wanted
) -> dict[str, Any] | None:  # fmt: skip
    """Measure one band; None where the model reports none or too many."""
    band, truths = held.read(sample)
    prepared = refiner.prepared(band)
    slots, space = prepared.slots, prepared.space
    if not 1 <= len(slots) <= wanted.most_reports:
        return None
    started = time.process_time()
    found: Refined = refiner(band, np.random.default_rng([sample, 5]))
    seconds = time.process_time() - started
    places = np.array([place_of(slot, space) for slot in slots])
    rows, columns = matched(places, truths[:, BIN])
    refined = space.from_sources(found.samples.reshape(-1, 8)).reshape(found.samples.shape)
    before = np.array([space.from_sources(draws) for draws in found.record.before])
    content: dict[str, Any] = {
        "truths": scored(truths[columns], prepared), "missed": len(truths) - len(columns),
        "reports": len(slots), "warnings": len(found.record.warnings), "seconds": seconds,
        "share": prepared.noise.share, "level": prepared.noise.level, "search_level": band.level,
        "snr": prepared.likelihood.snr(space.to_sources(truths[columns])) if columns
        else np.empty(0),
        "first_bin": band.first_bin, "ln_z": found.record.ln_z,
        "refined": scored(refined[rows], prepared).astype(np.float32),
        "network": scored(before[rows], prepared).astype(np.float32),
    }  # fmt: skip
    if wanted.reference:
        centres = np.median(refined, axis=1)
        centres[rows] = truths[columns]
        content |= by_reference(prepared, centres, rows, sample, wanted.emcee)
    if wanted.more:
        rng = np.random.default_rng([sample, 6])
        problem = SourceMoves(prepared.likelihood, space, [], rng)
        cloud = np.ascontiguousarray(refined.transpose(1, 0, 2)[::10])
        residual = np.tile(problem.data, (len(cloud), 1, 1))
        for s in range(len(slots)):
            x = np.ascontiguousarray(cloud[:, s])
            problem.subtract(residual, problem.place(x, residual, np.arange(len(x))), x)
        bank = refiner.banks.at(band.first_bin + space.bins // 2)
        value, _ = one_more(problem, residual, bank, rng)
        content["more"] = value.value + float(np.log(len(slots) + 1.0))
    return content


def by_reference(
    prepared: Prepared, centres: Float, rows: list[int], sample: int, emcee: bool
) -> dict[str, Any]:
    """Return draws of the long run, and of emcee where there is one source and it is wanted."""
    started = time.process_time()
    chain = long_run(prepared, centres, sample)
    content: dict[str, Any] = {"reference_seconds": time.process_time() - started}
    content["reference"] = scored(chain.transpose(1, 0, 2)[rows], prepared).astype(np.float32)
    if emcee and len(centres) == 1:
        started = time.process_time()
        chain = emcee_run(prepared, centres, sample)
        content["emcee_seconds"] = time.process_time() - started
        content["emcee"] = scored(chain.transpose(1, 0, 2)[rows], prepared).astype(np.float32)
    return content


def noise_only(model: Model, refiner: Refiner, seed: int) -> dict[str, Any]:
    """Return ln B of one source to none in a band of white noise, and how many are reported."""
    observation, prior = model.preset.observation, model.preset.prior
    rng = np.random.default_rng([seed, 20261130])
    window = prior.window(1.5e-3)
    low, high = (f * observation.duration for f in (prior.fmin, prior.fmax))
    first = int(rng.uniform(low, high)) - prior.bins // 2
    noise = draw_noise(rng, np.ones((3, prior.bins)), observation.tukey)
    frequency = (first + np.arange(prior.bins)) / observation.duration
    white = WhiteBand(
        noise, standard_psd(frequency, observation), None, 1.0, np.ones(2),
        band_sigma(observation, first, prior.bins),
    )  # fmt: skip
    settings = PosteriorSettings(1e-3, 2.1e-3, SAMPLES, 1, "data", 0.3)
    reader = Keeping(model, OneBand(white), settings, False)
    tile = Tile(first, first / observation.duration, (first + prior.bins) / observation.duration)
    list(reader([tile]))
    band = reader.kept._replace(slots=())
    reported = len(refiner.prepared(reader.kept).slots)
    started = time.process_time()
    record = refiner(band, rng).record
    return {
        "more": record.more.value, "error": record.more.error, "reports": reported,
        "share": record.foreground, "window": window, "seconds": time.process_time() - started,
    }  # fmt: skip


def stored(path: Path) -> dict[str, Any]:
    """Read a band's file."""
    with np.load(path) as file:
        return {name: file[name][()] for name in file.files}


@click.command()
@click.argument("directory", required=False, type=click.Path(path_type=Path))
@click.option("--work", required=True, type=click.Path(path_type=Path), help="Files of bands.")
@click.option("--bands", default=100, help="Bands to measure, files that are there counted.")
@click.option("--every", default=10, help="Stride in the set: neighbours share a foreground.")
@click.option("--noise", type=click.Choice(["foreground", "white"]), default="foreground")
@click.option("--reference", is_flag=True, help="Also the long run.")
@click.option("--emcee", is_flag=True, help="And emcee, where one source is reported.")
@click.option("--most-reports", default=MOST_REPORTS, help="Of a band that is measured.")
@click.option("--samples", default=SAMPLES, help="Draws of a source.")
@click.option("--more", is_flag=True, help="Also ln B of one source more.")
@click.option("--noise-only", default=0, help="So many bands of white noise instead.")
@click.option("--minutes", default=1e9, help="Stop after so much processor time.")
@click.option("--quick", is_flag=True, help="Four bands.")
def main(
    directory: Path | None, work: Path, bands: int, every: int, noise: str, reference: bool,
    emcee: bool, most_reports: int, samples: int, more: bool, noise_only: int, minutes: float,
    quick: bool,
) -> None:  # fmt: skip
    """Measure and print; the last line is JSON."""
    torch.set_num_threads(1)
    model = load_model(Path(str(resources.files("slotflow.data") / "model.safetensors")))
    work.mkdir(parents=True, exist_ok=True)
    if noise_only:
        _noise_bands(model, work, noise_only, minutes)
        return
    if directory is None:
        raise click.UsageError("expected a set of bands, or --noise-only")
    held, bands = Held(model, directory, samples), 4 if quick else bands
    wanted = Wanted(reference, emcee, more, most_reports)
    settings = RefineSettings("smc", evidence=False, noise=noise)  # type: ignore[arg-type]
    refiner = Refiner(model, held.reader.search.banks, settings, samples)
    rows: list[dict[str, Any]] = []
    for sample in range(0, len(held.data), every):
        if len(rows) >= bands or time.process_time() > 60.0 * minutes:
            break
        path, skipped = work / f"{sample:06d}.npz", work / f"{sample:06d}.not{most_reports}"
        if skipped.exists():
            continue
        if not path.exists():
            try:
                content = measure(held, refiner, sample, wanted)
            except np.linalg.LinAlgError as error:
                click.echo(f"band {sample}: the search failed: {error}")
                content = None
            if content is None:
                skipped.touch()
                continue
            part = path.with_suffix(".part.npz")
            np.savez_compressed(part, **content)
            part.replace(path)
            click.echo(f"band {sample}: {content['reports']} reports, "
                       f"{time.process_time():.0f} s so far")  # fmt: skip
        rows.append(stored(path))
    click.echo(json.dumps(summary(rows)))


def _noise_bands(model: Model, work: Path, number: int, minutes: float) -> None:
    """Measure bands of white noise."""
    from slotflow.templates import BankSet

    banks = BankSet(model.grid.thinned(2), model.preset.components)
    refiner = Refiner(model, banks, RefineSettings(), SAMPLES)
    rows = []
    for seed in range(number):
        path = work / f"noise-{seed:04d}.npz"
        if not path.exists():
            if time.process_time() > 60.0 * minutes:
                break
            np.savez(path, **noise_only(model, refiner, seed))
        rows.append(stored(path))
    value = np.array([row["more"] for row in rows])
    share = np.array([row["share"] for row in rows])
    click.echo(json.dumps({
        "noise_bands": len(rows), "ln_b_below_0": int((value < 0).sum()),
        "ln_b_largest": float(value.max()), "ln_b_median": float(np.median(value)),
        "reported": int(sum(row["reports"] > 0 for row in rows)),
        "share_mean": float(share.mean()), "share_0": float(np.mean(share == 0.0)),
        "seconds_per_band": float(np.mean([row["seconds"] for row in rows])),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
