"""A year of data in, a posterior for each source out.

The trained range is tiled into bands (:mod:`slotflow.bands`), which are read in batches
(:mod:`slotflow.inference`), in this process or by others (:mod:`slotflow.workers`). What two
neighbouring bands both report is merged (:mod:`slotflow.merging`). Batches that are done can be
kept in a folder, from which an interrupted run goes on (:mod:`slotflow.resume`).
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from slotflow.assumptions import gap_notes, map_orbit, noise_notes, outlying_notes
from slotflow.bands import Tile, spectrum, tiles, trained_range
from slotflow.checkpoint import Model
from slotflow.config import Preset
from slotflow.conventions import rotate_sky
from slotflow.errors import InputError
from slotflow.inference import BandReader
from slotflow.merging import Candidate, Comparison, merge
from slotflow.noise import ARM_LENGTH
from slotflow.noise_table import check_covers, read_noise_table
from slotflow.readers import Observation
from slotflow.refined import (
    Method,
    Refinement,
    RefineSettings,
    refine_settings,
    refinement_notes,
)
from slotflow.response import ResponseGrid
from slotflow.results import (
    PSD_NAMES,
    BandOutcome,
    BandView,
    PosteriorSettings,
    Psd,
    Result,
    SourcePosterior,
)
from slotflow.resume import Partial
from slotflow.spectrum import check_step
from slotflow.whitening import Whitening, check_psd, reach, whitening_notes
from slotflow.workers import Advance, Batch, Cluster, Done, Way

Float = NDArray[np.float64]
Progress = Callable[[int, int], None]

BATCH: Final = 16  # bands at a time: what is in memory at once, and what an interruption loses
REFINED_BATCH: Final = 1  # where each takes seconds, and not all are alike


def posterior(
    observation: Observation,
    model: Model,
    *,
    fmin: float | None = None,
    fmax: float | None = None,
    samples: int = 1000,
    seed: int = 0,
    psd: Psd = "data",
    min_probability: float = 0.5,
    processes: int = 1,
    gpus: int = 0,
    cluster: Cluster | None = None,
    worth: int = 1,
    keep_bands: bool = False,
    refine: RefineSettings | Method | None = None,
    partial: Partial | None = None,
    progress: Progress | None = None,
) -> Result:
    """Find the sources of an observation and their posteriors.

    Args:
        observation: the data.
        model: a trained model.
        fmin: lowest frequency, Hz; the lowest trained where None.
        fmax: highest frequency, Hz; the highest trained where None.
        samples: draws a source.
        seed: of the draws; those of a slot depend on the seed, its band and its index alone.
        psd: ``"data"``: the model's density times one level a channel, estimated from each
            band, as in training; ``"running"``: likewise, with the shape by a running median of
            the data; ``"model"``: the model's density as it is; else the path of a table of the
            total density, taken as it is (:class:`slotflow.whitening.Whitening`).
        min_probability: of existence, below which a slot is not reported.
        processes: that read bands; the result does not depend on it.
        gpus: of this machine, a process with the network beside each; numbers may differ in
            their last digits from those of the processor.
        cluster: whose workers read bands; the result does not depend on it.
        worth: batches (16 bands, or one that is refined) for which one of the processes is
            started.
        keep_bands: whether the result has the bands as the network saw them.
        refine: ``"importance"`` or ``"smc"``, or more settings: bring the samples to the exact
            posterior (:mod:`slotflow.refine`); seconds a band.
        partial: where batches that are done are kept, and found again. The caller removes it
            once the result is safe.
        progress: called with (bands done, bands in all).

    Raises:
        InputError: data that the model cannot use (an empty channel, say), frequencies outside
            the trained range, numbers out of their range, GPUs that are not there, or workers
            that ended or cannot be reached.
        NonFiniteError: a sample that is not finite.
    """
    started = time.perf_counter()
    way = Way(processes, gpus, cluster, worth)
    way.check()
    preset = model.preset
    duration = preset.observation.duration
    lowest, highest = trained_range(preset.prior, duration)
    settings = PosteriorSettings(
        lowest if fmin is None else fmin, highest if fmax is None else fmax, samples, seed,
        str(psd), min_probability,
    )  # fmt: skip
    check_numbers(settings)
    refining = refine_settings(refine)
    orbit = map_orbit(observation, model)
    plan = tiles(settings.fmin, settings.fmax, preset.prior, duration)
    needed = needed_frequency(observation, preset, plan, settings.psd)
    transformed = spectrum(
        observation, duration, preset.observation.tukey, needed, preset.observation.gaps
    )
    arm = observation.orbit_parameters.get("L", ARM_LENGTH)
    whitening = Whitening(
        transformed, preset, settings.psd, observation.path,
        arm if observation.generation == "2.0" else None,
    )  # fmt: skip
    reader = BandReader(model, whitening, settings, keep_bands, refining)
    read_from = time.perf_counter()
    outcomes = _read_all(reader, plan, way, partial, progress)
    merge_from = time.perf_counter()
    sources = _turned(_merged(plan, outcomes, settings, model.grid), orbit.rotation)
    measured = np.array([outcome.measured for outcome in outcomes])
    refinements = _turned_back(outcomes, orbit.rotation)
    records = tuple(outcome.record for outcome in outcomes)
    return Result(
        sources=sources,
        tiles=records,
        settings=settings,
        observation=preset.observation,
        t0=observation.t0,
        notes=(
            *orbit.notes, *transformed.notes, *gap_notes(transformed, model),
            *whitening_notes(settings.psd),
            *noise_notes(observation.path, plan, measured, settings.psd),
            *outlying_notes(records), *refinement_notes(refinements),
        ),
        seconds={
            "transform": read_from - started,
            **_shares(reader.seconds, merge_from - read_from),
            "merging": time.perf_counter() - merge_from,
        },
        q_k=np.stack([outcome.q_k for outcome in outcomes]),
        views=_views(outcomes, sources),
        rotation=orbit.rotation,
        refine=refining,
        refinements=refinements,
    )  # fmt: skip


def needed_frequency(
    observation: Observation, preset: Preset, plan: Sequence[Tile], psd: Psd
) -> float:
    """Return up to which frequency (Hz) the spectrum is needed.

    Raises:
        InputError: the data do not reach it, or a table of the noise does not hold the bands.
    """
    duration, bins = preset.observation.duration, preset.prior.bins
    first, last = plan[0].first_bin, plan[-1].first_bin + bins - 1
    needed = reach(preset, psd, (last + 1) / duration, 0.5 / observation.dt)
    check_step(observation, needed)
    if psd not in PSD_NAMES:
        rows = np.array(read_noise_table(psd))
        check_covers(first / duration, last / duration, rows, str(psd))
    return needed


def check_numbers(settings: PosteriorSettings) -> None:
    """Raise InputError for numbers out of their range."""
    if settings.samples < 1:
        raise InputError(f"samples: expected at least 1; got {settings.samples}")
    if settings.seed < 0:
        raise InputError(f"seed: expected 0 or more; got {settings.seed}")
    if not 0.0 <= settings.min_probability <= 1.0:
        raise InputError(f"min_probability: expected 0 to 1; got {settings.min_probability}")
    check_psd(settings.psd)


def _read_all(
    reader: BandReader, plan: Sequence[Tile], way: Way, partial: Partial | None,
    progress: Progress | None,
) -> list[BandOutcome]:  # fmt: skip
    """Return what all bands hold."""
    found = read_batches(reader, plan, way, partial, progress)
    return [outcome for _, outcomes in found for outcome in outcomes]


def read_batches(
    reader: BandReader, plan: Sequence[Tile], way: Way, partial: Partial | None,
    progress: Progress | None,
) -> Iterator[tuple[Batch, list[BandOutcome]]]:  # fmt: skip
    """Yield the batches of bands in their order; those of an earlier run are not read again.

    Held in memory are those that were done before their turn: a few, with several processes.

    Args:
        reader: of the bands.
        plan: the bands.
        way: who reads them.
        partial: where batches that are done are kept, and found again.
        progress: called with (bands done, bands in all).
    """
    size = BATCH if reader.refine is None else REFINED_BATCH
    batches = [Batch(i, plan[at : at + size]) for i, at in enumerate(range(0, len(plan), size))]
    standing: set[int] = set()
    if partial is not None:
        partial.open(json.dumps([size, reader.keep_bands, *_refining(reader)]))
        standing = {b.number for b in batches if partial.load(b.number, b.first_bins) is not None}
    missing = [batch for batch in batches if batch.number not in standing]
    done = len(plan) - sum(len(batch.tiles) for batch in missing)

    def advance(bands: int) -> None:
        nonlocal done
        done += bands
        if progress is not None:
            progress(done, len(plan))

    advance(0)
    run = _here if way.here(len(missing)) else way.run
    early: dict[int, list[BandOutcome]] = {}
    with closing(run(reader, missing, advance)) as results:
        for batch in batches:
            if partial is not None and batch.number in standing:
                yield batch, _kept(partial, batch)
                continue
            while batch.number not in early:
                other, outcomes = next(results)
                if partial is not None:
                    partial.save(other.number, outcomes)
                early[other.number] = outcomes
            yield batch, early.pop(batch.number)


def _refining(reader: BandReader) -> list[dict[str, Any]]:
    """What else the batches depend on: nothing where samples are not refined."""
    return [] if reader.refine is None else [asdict(reader.refine)]


def _kept(partial: Partial, batch: Batch) -> list[BandOutcome]:
    outcomes = partial.load(batch.number, batch.first_bins)
    if outcomes is None:
        raise InputError(f"{partial.folder}: a file in it was changed meanwhile: run again")
    return outcomes


def _here(reader: BandReader, batches: Sequence[Batch], advance: Advance) -> Done:
    """Read the batches one after another in this process."""
    for batch in batches:
        outcomes = []
        for outcome in reader(batch.tiles):
            outcomes.append(outcome)
            advance(1)
        yield batch, outcomes


def _shares(seconds: Mapping[str, float], wall: float) -> dict[str, float]:
    """Return the parts' time, scaled where several processes spent more than went by."""
    scale = min(1.0, wall / max(sum(seconds.values()), 1e-9))
    return {name: value * scale for name, value in seconds.items()}


def _merged(
    plan: Sequence[Tile], outcomes: Sequence[BandOutcome], settings: PosteriorSettings,
    grid: ResponseGrid,
) -> tuple[SourcePosterior, ...]:  # fmt: skip
    """Return each source once, of those whose median frequency was asked for."""
    candidates = [
        Candidate(source, number, tile.low <= source.f0 < tile.high)
        for number, (tile, outcome) in enumerate(zip(plan, outcomes, strict=True))
        for source in outcome.sources
    ]
    merged = merge(candidates, Comparison(grid))
    return tuple(source for source in merged if settings.fmin <= source.f0 <= settings.fmax)


def _turned(sources: tuple[SourcePosterior, ...], rotation: float) -> tuple[SourcePosterior, ...]:
    """Return the sources under the sky of the data's orbit; densities stay as they are."""
    if rotation == 0.0:
        return sources
    return tuple(replace(one, samples=rotate_sky(one.samples, rotation)) for one in sources)


def _turned_back(outcomes: Sequence[BandOutcome], rotation: float) -> tuple[Refinement, ...]:
    """Return how the bands were refined, the network's draws under the data's own sky."""
    found = [one.refinement for one in outcomes if one.refinement is not None]
    if rotation == 0.0:
        return tuple(found)
    turned = [rotate_sky(one.before.reshape(-1, 8), rotation) for one in found]
    return tuple(
        replace(one, before=rows.reshape(one.before.shape))
        for one, rows in zip(found, turned, strict=True)
    )


def _views(
    outcomes: Sequence[BandOutcome], sources: Sequence[SourcePosterior]
) -> dict[int, BandView]:
    """Return the bands as the network saw them, where they were kept, with their sources."""
    return {
        outcome.record.first_bin: replace(
            outcome.view,
            sources=tuple(
                i for i, s in enumerate(sources) if s.first_bin == outcome.record.first_bin
            ),
        )
        for outcome in outcomes
        if outcome.view is not None
    }
