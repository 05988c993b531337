"""A year of data in, a posterior for each source out.

The trained range is tiled into bands (:mod:`slotflow.bands`); each is whitened, searched for
components and read by the network, exactly as in training; each slot that holds a source
gives samples of its eight parameters. Sources that two neighbouring bands report are merged.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from slotflow.assumptions import check_level, check_orbit, noise_notes
from slotflow.bands import Spectrum, Tile, level, spectrum, tiles, trained_range, whiten
from slotflow.checkpoint import Model
from slotflow.components import ComponentSearch
from slotflow.errors import InputError, NonFiniteError
from slotflow.model import Reading, TokenBatch, distinct_slots
from slotflow.noise import standard_psd
from slotflow.parameters import AMPLITUDE, F0, PARAMETERS, other_image, wrap
from slotflow.readers import Observation
from slotflow.results import (
    PosteriorSettings,
    Psd,
    Result,
    SourcePosterior,
    TileRecord,
)
from slotflow.tokencache import band_sigma, from_local_units, window_edges
from slotflow.tokens import BandTokens, band_tokens

Float = NDArray[np.float64]
Progress = Callable[[int, int], None]

BATCH: Final = 64  # bands the network reads at a time
MARGIN_BINS: Final = 1.0  # beyond a tile's edge, where the neighbour may see the same source
MERGE_BINS: Final = 1.0
MERGE_MASS: Final = 0.99  # of each posterior, within which two must overlap to be one


class _Candidate(NamedTuple):
    source: SourcePosterior
    tile: int
    inside: bool  # its median frequency is the tile's own


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
            band, as in training; ``"model"``: the model's density as it is.
        min_probability: of existence, below which a slot is not reported.
        progress: called with (bands searched, bands in all).

    Raises:
        InputError: data that the model cannot use (an empty channel, say), frequencies outside
            the trained range, or numbers out of their range.
        NonFiniteError: a sample that is not finite.
    """
    started = time.perf_counter()
    preset = model.preset
    duration = preset.observation.duration
    lowest, highest = trained_range(preset.prior, duration)
    settings = PosteriorSettings(
        lowest if fmin is None else fmin, highest if fmax is None else fmax, samples, seed, psd,
        min_probability,
    )  # fmt: skip
    _check_numbers(settings)
    notes = check_orbit(observation, model)
    plan = tiles(settings.fmin, settings.fmax, preset.prior, duration)
    reach = (plan[-1].first_bin + preset.prior.bins) / duration
    transformed = spectrum(observation, duration, preset.observation.tukey, reach)
    searched_from = time.perf_counter()
    found = list(_search(transformed, model, plan, psd, observation.path, progress))
    measured = np.array([one.measured for one in found])
    read_from = time.perf_counter()
    candidates, records = _read(model, plan, found, settings)
    end = time.perf_counter()
    return Result(
        sources=_merge(candidates, duration),
        tiles=tuple(records),
        settings=settings,
        observation=preset.observation,
        t0=observation.t0,
        notes=(*notes, *transformed.notes, *noise_notes(observation.path, plan, measured, psd)),
        seconds={
            "transform": searched_from - started,
            "search": read_from - searched_from,
            "network": end - read_from,
        },
    )


def _check_numbers(settings: PosteriorSettings) -> None:
    if settings.samples < 1:
        raise InputError(f"samples: expected at least 1; got {settings.samples}")
    if settings.seed < 0:
        raise InputError(f"seed: expected 0 or more; got {settings.seed}")
    if settings.psd not in ("data", "model"):
        raise InputError(f"psd: expected 'data' or 'model'; got {settings.psd!r}")
    if not 0.0 <= settings.min_probability <= 1.0:
        raise InputError(f"min_probability: expected 0 to 1; got {settings.min_probability}")


class _Searched(NamedTuple):
    tokens: BandTokens
    level: Float  # (2,) by which the search went
    snr: Float  # (components,)
    measured: Float  # (2,) of A and E with all that is in them, over the model's density
    data: NDArray[np.complex64] | None  # (3, K) whitened, where the network looks at it


def _search(
    transformed: Spectrum, model: Model, plan: list[Tile], psd: Psd, path: Path,
    progress: Progress | None,
) -> Iterator[_Searched]:  # fmt: skip
    """Whiten and search each band, as the training set's were.

    Raises:
        InputError: a channel without noise, or with numbers too large.
    """
    ours, prior = model.preset.observation, model.preset.prior
    duration = ours.duration
    search = ComponentSearch(model.grid, model.preset.components)
    known = np.ones(2) if psd == "model" else None
    for done, tile in enumerate(plan):
        first = tile.first_bin
        frequency = (first + np.arange(prior.bins)) / duration
        density = standard_psd(frequency, ours)
        with np.errstate(over="ignore", invalid="ignore"):  # check_level says it better
            band = whiten(transformed.band(first, prior.bins).data, density, duration, ours.tukey)
            measured = level(band[:2])
        check_level(path, measured, frequency)
        found = search(band, first, band_sigma(ours, first, prior.bins), known)
        tokens = band_tokens(
            found, first, prior.bins, duration, window_edges(first, prior, duration),
            model.preset.components.max_components,
        )  # fmt: skip
        snr = np.sqrt(2.0 * np.maximum(found.components["f_statistic"], 0.0))
        data = band if model.network.needs_data else None
        yield _Searched(tokens, found.level, snr, measured, data)
        if progress is not None:
            progress(done + 1, len(plan))


def _read(
    model: Model, plan: list[Tile], found: list[_Searched], settings: PosteriorSettings
) -> tuple[list[_Candidate], list[TileRecord]]:
    """Let the network read the bands; sample every slot that is likely to hold a source."""
    candidates: list[_Candidate] = []
    records: list[TileRecord] = []
    for start in range(0, len(plan), BATCH):
        part = [one.tokens for one in found[start : start + BATCH]]
        columns = (torch.from_numpy(np.stack(column)) for column in zip(*part, strict=True))
        data = [one.data for one in found[start : start + BATCH] if one.data is not None]
        bands = torch.from_numpy(np.stack(data)) if data else None
        with torch.no_grad():
            reading = model.network.read(TokenBatch(*columns)._replace(data=bands))
        probability = torch.sigmoid(reading.existence.double()).numpy()
        distinct = distinct_slots(reading).numpy()
        probability = np.where(distinct, probability, 0.0)
        for row in range(len(part)):
            number = start + row
            tile, searched = plan[number], found[number]
            level_a, level_e = map(float, searched.level)
            expected = float(probability[row].sum())
            records.append(TileRecord(*tile, level_a, level_e, len(searched.snr), expected))
            likely = probability[row] >= settings.min_probability
            for slot in np.flatnonzero(likely & distinct[row]):
                if not len(searched.snr):
                    continue  # nothing to measure a source from
                source = _sample(
                    model, reading, row, int(slot), tile.first_bin, settings,
                    float(probability[row, slot]), searched.snr,
                )  # fmt: skip
                margin = MARGIN_BINS / model.preset.observation.duration
                if tile.low - margin <= source.f0 < tile.high + margin:
                    candidates.append(_Candidate(source, number, tile.low <= source.f0 < tile.high))
    return candidates, records


def _sample(
    model: Model, reading: Reading, row: int, slot: int, first_bin: int,
    settings: PosteriorSettings, probability: float, snr: Float,
) -> SourcePosterior:  # fmt: skip
    """Draw one slot's posterior with a generator of its own."""
    entropy = np.random.SeedSequence([settings.seed, first_bin, slot])
    generator = torch.Generator().manual_seed(int(entropy.generate_state(1, np.uint64)[0] >> 1))
    at = (slice(row, row + 1), slot)
    with torch.no_grad():
        local, log_q = model.network.sample(
            reading.context[at], reading.reference[at], settings.samples, generator
        )
    duration = model.preset.observation.duration
    samples = from_local_units(local[0].numpy(), first_bin, duration)
    density = log_q[0].numpy().astype(np.float64) - np.log(2.0)
    if not (np.isfinite(samples).all() and np.isfinite(density).all()):
        raise NonFiniteError(f"band from bin {first_bin}, slot {slot}: samples are not finite")
    other = torch.rand(settings.samples, generator=generator).numpy() < 0.5
    samples[other] = other_image(samples[other])
    for index, parameter in enumerate(PARAMETERS):
        if parameter.period is not None:
            samples[:, index] = wrap(samples[:, index], parameter.period)
    chosen = int(reading.choice[row, slot])
    return SourcePosterior(samples, density, probability, first_bin, slot, float(snr[chosen]))


def _merge(candidates: list[_Candidate], duration: float) -> tuple[SourcePosterior, ...]:
    """Report each source once, from the tile its frequency belongs to.

    Of two from neighbouring tiles that are the same source, the one inside its own tile stays,
    else the more probable. What lies outside its own tile stays only where the neighbour saw
    the same source and put it outside, too.
    """
    ranked = sorted(candidates, key=lambda c: (c.inside, c.source.probability), reverse=True)
    kept: list[_Candidate] = []
    for one in ranked:
        if any(_same(one, other, duration) for other in kept):
            continue
        confirmed = any(_same(one, other, duration) for other in candidates)
        if one.inside or confirmed:
            kept.append(one)
    return tuple(sorted((c.source for c in kept), key=lambda source: source.f0))


def _same(one: _Candidate, other: _Candidate, duration: float) -> bool:
    """Whether two candidates of neighbouring tiles are one source."""
    if abs(one.tile - other.tile) != 1:
        return False
    if abs(one.source.f0 - other.source.f0) * duration >= MERGE_BINS:
        return False
    a, b = one.source.interval(MERGE_MASS), other.source.interval(MERGE_MASS)
    return all(a.lower[i] <= b.upper[i] and b.lower[i] <= a.upper[i] for i in (F0, AMPLITUDE))
