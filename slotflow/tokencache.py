"""The component searches of a training set and the tokens made of them, kept beside its shards.

The components depend on the noise, so each stored band is searched under a few noise draws
and the result is cached: for each shard and draw one file of components, a NumPy archive
without pickles, and one of tokens and truths (:mod:`slotflow.tokenstore`), which training
reads. Both are written under a temporary name and renamed, so that an interrupted run goes on
where it stopped; a file that is damaged is made again.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotflow.componentcache import (
    Found,
    cache_path,
    read_components,
    search_hash,
    short_hash,
    write_components,
)
from slotflow.components import COMPONENT_DTYPE, ComponentSearch, ComponentSet
from slotflow.config import ComponentSettings, ObservationSettings
from slotflow.errors import InputError
from slotflow.labels import from_local_units, standing_components, to_local_units, window_edges
from slotflow.noise import standard_psd, window_power
from slotflow.parameters import F0, FDOT, FDOT_T2_PRIOR, fdot_widening
from slotflow.processes import work_off
from slotflow.response import Float, ResponseGrid
from slotflow.store import TrainingSet
from slotflow.tokendata import TokenData
from slotflow.tokens import BAND_FEATURES, REFERENCE, TOKEN_FEATURES, band_tokens
from slotflow.tokenstore import TokenStore, is_whole, record_dtype, write_tokens

__all__ = [
    "TokenData", "band_sigma", "cache_path", "ensure_searched", "from_local_units", "load_tokens",
    "open_tokens", "search_hash", "standing_components", "to_local_units", "token_path",
    "window_edges",
]  # fmt: skip

TOKEN_VERSION = "1"  # of how tokens follow from components; part of the files' names


def band_sigma(observation: ObservationSettings, first_bin: int, bins: int) -> Float:
    """Return (2,) the whitening's divisor in A and E at a band's centre, sqrt(S T mean w^2 / 2)."""
    frequency = np.array([(first_bin + 0.5 * bins) / observation.duration])
    psd = standard_psd(frequency, observation)[:2, 0]
    return np.asarray(np.sqrt(psd * 0.5 * observation.duration * window_power(observation.tukey)))


def token_path(data: TrainingSet, shard: int, settings: ComponentSettings, draw: int) -> Path:
    """Return where a shard's tokens are kept; all that they depend on is part of the name."""
    layout = repr((TOKEN_FEATURES, BAND_FEATURES, REFERENCE)) + TOKEN_VERSION
    made_with = data.observation.model_dump_json() + data.prior.model_dump_json()
    content = data.manifest.shards[shard].sha256[:12]
    name = short_hash(search_hash(settings) + made_with + layout)
    return data.directory / f"tokens-{name}-{content}-{draw}.bin"


class _Builder:
    """Makes the token files of a set, searching for components where that is not done."""

    def __init__(self, data: TrainingSet, grid: ResponseGrid, settings: ComponentSettings) -> None:
        self.data, self.grid, self.settings = data, grid, settings

    @cached_property
    def search(self) -> ComponentSearch:
        """The search with its banks, made when it is first needed."""
        return ComponentSearch(self.grid, self.settings)

    def build(self, shard: int, draw: int) -> Path:
        """Write the tokens of a shard under a noise draw, and its components if need be."""
        start, stop = self.data.shard_ranges()[shard]
        labels = _Labels(*(self.data.column(shard, name) for name in _Labels._fields))
        _check_fdot(self.data, start, labels.sources)
        path = cache_path(self.data, shard, self.settings, draw)
        found = read_components(path, stop - start, self.settings.max_components)
        if found is None:
            found = self._search(start, stop, draw)
            write_components(path, found)
        tokens = token_path(self.data, shard, self.settings, draw)
        write_tokens(tokens, _tokens(self.data, start, labels, found))
        self.data.close()
        return tokens

    def _search(self, start: int, stop: int, draw: int) -> Found:
        bands = self.data.standard_bands(start, stop, draw)
        firsts = self.data.first_bins(start, stop)
        records = np.zeros((stop - start, self.settings.max_components), dtype=COMPONENT_DTYPE)
        counts = np.zeros(stop - start, dtype=np.int64)
        levels = np.zeros((stop - start, 2))
        for row, (band, first) in enumerate(zip(bands, firsts, strict=True)):
            sigma = band_sigma(self.data.observation, int(first), band.shape[1])
            found = self.search(band, int(first), sigma)
            counts[row], levels[row] = len(found.components), found.level
            records[row, : counts[row]] = found.components
        return Found(counts, levels, records)


class _Labels(NamedTuple):
    """The truths of a shard (:class:`slotflow.store.Band`)."""

    first_bin: NDArray[np.int64]
    sources: Float
    snr: Float


_worker: _Builder | None = None


def _start_worker(directory: Path, grid: ResponseGrid, settings: ComponentSettings) -> None:
    global _worker  # one search, with its banks, for the life of the process
    _worker = _Builder(TrainingSet(directory), grid, settings)


def _work(job: tuple[int, int]) -> Path:
    if _worker is None:
        raise RuntimeError("the worker was not started")
    return _worker.build(*job)


def ensure_searched(
    data: TrainingSet,
    grid: ResponseGrid,
    settings: ComponentSettings,
    draws: int,
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Search every band of the set under ``draws`` noise realisations, unless done before.

    Files that stand there are read through; what is damaged is made again.

    Args:
        data: the training set; the cache files go into its directory.
        grid: the observation, with ``settings.slow_samples`` samples.
        settings: the search.
        draws: noise draws per band.
        workers: processes.
        progress: called with (files done, files in all).

    Raises:
        InputError: a shard is damaged, a target is beyond what a model can represent, or the
            system refuses to write.
    """
    jobs = _jobs(data, draws)
    dtype = record_dtype(settings.max_components, data.prior.max_sources)
    rows = [entry.rows for entry in data.manifest.shards]
    missing = [
        (shard, draw)
        for shard, draw in jobs
        if not is_whole(token_path(data, shard, settings, draw), rows[shard], dtype)
    ]
    done = len(jobs) - len(missing)
    if progress is not None:
        progress(done, len(jobs))
    with closing(_run(data, grid, settings, missing, workers)) as paths:
        for _ in paths:
            done += 1
            if progress is not None:
                progress(done, len(jobs))


def _jobs(data: TrainingSet, draws: int) -> list[tuple[int, int]]:
    """Return (shard, draw) in the order of the bands."""
    return [(shard, draw) for draw in range(draws) for shard in range(len(data.manifest.shards))]


def _run(
    data: TrainingSet,
    grid: ResponseGrid,
    settings: ComponentSettings,
    jobs: Sequence[tuple[int, int]],
    workers: int,
) -> Generator[Path]:
    if min(workers, len(jobs)) <= 1:
        builder = _Builder(data, grid, settings)
        for job in jobs:
            yield builder.build(*job)
        return
    arguments = (data.directory, grid, settings)
    with closing(work_off(_work, jobs, workers, _start_worker, arguments)) as paths:
        for _, path in paths:
            yield path


def open_tokens(data: TrainingSet, settings: ComponentSettings, draws: int) -> TokenStore:
    """Return the tokens and truths of every band and noise draw, draws after samples.

    Raises:
        InputError: a file that :func:`ensure_searched` has not made, or that is damaged.
    """
    jobs = _jobs(data, draws)
    return TokenStore(
        [token_path(data, shard, settings, draw) for shard, draw in jobs],
        [data.manifest.shards[shard].rows for shard, _ in jobs],
        len(data),
        record_dtype(settings.max_components, data.prior.max_sources),
        data,
    )


def load_tokens(data: TrainingSet, settings: ComponentSettings, draws: int) -> TokenData:
    """Return all of :func:`open_tokens` in memory.

    Raises:
        InputError: a file that :func:`ensure_searched` has not made, or that is damaged.
    """
    with open_tokens(data, settings, draws) as store:
        return store.rows(np.arange(len(store)))


def _check_fdot(data: TrainingSet, start: int, sources: Float) -> None:
    """Refuse targets beyond the range that the flow's coordinates can hold."""
    widening = fdot_widening(np.nan_to_num(sources[..., F0]))
    fdot = sources[..., FDOT] * data.observation.duration**2 / widening
    low, high = FDOT_T2_PRIOR
    slack = 1e-9
    outside = (fdot < low - slack) | (fdot > high + slack)
    if outside.any():
        row, source = np.argwhere(outside)[0]
        raise InputError(
            f"{data.directory}: sample {start + row}: fdot T^2 = {fdot[row, source]:.4g} is outside"
            f" [{low:g}, {high:g}], the range that a model can represent"
        )


_NOTHING = np.zeros((2, 0), dtype=np.complex64)


def _tokens(data: TrainingSet, start: int, labels: _Labels, found: Found) -> TokenData:
    """Return the tokens and truths of a shard whose first sample is ``start``."""
    parts = []
    for row, count in enumerate(found.counts):
        components = ComponentSet(found.records[row, :count], found.levels[row], _NOTHING)
        parts.append(
            _one(
                components, data, start + row, int(labels.first_bin[row]), labels.sources[row],
                labels.snr[row], found.records.shape[1],
            )
        )  # fmt: skip
    return TokenData(*(np.stack(column) for column in zip(*parts, strict=True)))


def _one(
    found: ComponentSet,
    data: TrainingSet,
    sample: int,
    first_bin: int,
    sources: Float,
    snr: Float,
    capacity: int,
) -> tuple[object, ...]:
    prior, duration = data.prior, data.observation.duration
    tokens = band_tokens(
        found, first_bin, prior.bins, duration, window_edges(first_bin, prior, duration),
        capacity,
    )  # fmt: skip
    count = int(np.isfinite(snr).sum())
    component = np.full(prior.max_sources, -1, dtype=np.int64)
    component[:count] = standing_components(
        tokens.reference[tokens.valid], sources[:count], snr[:count], first_bin, duration
    )
    local = np.zeros((prior.max_sources, 8))
    local[:, 0] = 0.5 * prior.bins
    local[:count] = to_local_units(sources[:count], first_bin, duration)
    return (
        tokens.features, tokens.band, tokens.reference, tokens.valid, local, snr, count,
        component, sample, first_bin,
    )  # fmt: skip
