"""The component searches of a training set, kept beside its shards.

The components depend on the noise, so each stored band is searched under a few noise draws
and the result is cached: one file a shard, written under a temporary name and renamed, so
that an interrupted run goes on where it stopped. The files are NumPy archives without
pickles.
"""

import hashlib
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from slotflow.components import COMPONENT_DTYPE, SEARCH_VERSION, ComponentSearch, ComponentSet
from slotflow.config import ComponentSettings, ObservationSettings, PriorSettings
from slotflow.errors import InputError
from slotflow.noise import standard_psd, window_power
from slotflow.parameters import (
    AMPLITUDE,
    DEC,
    F0,
    FDOT,
    FDOT_T2_PRIOR,
    IOTA,
    PHI0,
    PSI,
    RA,
)
from slotflow.response import Float, ResponseGrid
from slotflow.store import TrainingSet
from slotflow.tokens import REFERENCE, band_tokens

GATE_BINS = 2.0  # a component further than this from a source does not stand for it


class TokenData(NamedTuple):
    """Tokens and truths of N searched bands (sample and noise draw), K sources at most.

    ``features`` (N, C, TOKEN_WIDTH) float32, ``band`` (N, 5) float32, ``reference``
    (N, C, 13), ``valid`` (N, C); ``sources`` (N, K, 8) float64 as for
    :func:`slotflow.coordinates.to_local` (padded with the band's centre), ``snr`` (N, K)
    NaN-padded, ``number`` (N,) of sources, ``component`` (N, K) int64, -1 for none,
    ``sample`` (N,) and
    ``first_bin`` (N,).
    """

    features: NDArray[np.float32]
    band: NDArray[np.float32]
    reference: Float
    valid: NDArray[np.bool_]
    sources: Float
    snr: Float
    number: NDArray[np.int64]
    component: NDArray[np.int64]
    sample: NDArray[np.int64]
    first_bin: NDArray[np.int64]

    def rows(self, index: NDArray[np.int64]) -> "TokenData":
        """Return the chosen bands."""
        chosen: list[Any] = [array[index] for array in self]
        return TokenData(*chosen)


def band_sigma(observation: ObservationSettings, first_bin: int, bins: int) -> Float:
    """Return (2,) the whitening's divisor in A and E at a band's centre, sqrt(S T mean w^2 / 2)."""
    frequency = np.array([(first_bin + 0.5 * bins) / observation.duration])
    psd = standard_psd(frequency, observation)[:2, 0]
    return np.asarray(np.sqrt(psd * 0.5 * observation.duration * window_power(observation.tukey)))


def search_hash(settings: ComponentSettings) -> str:
    """Return a short name for the search's settings and the layout of its result."""
    text = settings.model_dump_json() + repr(COMPONENT_DTYPE) + SEARCH_VERSION
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def cache_path(data: TrainingSet, shard: int, settings: ComponentSettings, draw: int) -> Path:
    """Return where a shard's components are kept; the shard's own hash is part of the name."""
    content = data.manifest.shards[shard].sha256[:12]
    return data.directory / f"components-{search_hash(settings)}-{content}-{draw}.npz"


def _search_rows(
    data: TrainingSet, search: ComponentSearch, start: int, stop: int, draw: int, path: Path
) -> None:
    bands = data.standard_bands(start, stop, draw)
    firsts = data.first_bins(start, stop)
    capacity = search.settings.max_components
    records = np.zeros((stop - start, capacity), dtype=COMPONENT_DTYPE)
    counts = np.zeros(stop - start, dtype=np.int64)
    levels = np.zeros((stop - start, 2))
    for row, (band, first) in enumerate(zip(bands, firsts, strict=True)):
        sigma = band_sigma(data.observation, int(first), band.shape[1])
        found = search(band, int(first), sigma)
        counts[row], levels[row] = len(found.components), found.level
        records[row, : counts[row]] = found.components
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    columns = {f"field_{name}": records[name] for name in COMPONENT_DTYPE.names or ()}
    with temporary.open("wb") as file:
        np.savez(file, counts=counts, levels=levels, **columns)  # type: ignore[arg-type]
    temporary.replace(path)


_worker: tuple[TrainingSet, ComponentSearch] | None = None


def _start_worker(directory: Path, grid: ResponseGrid, settings: ComponentSettings) -> None:
    global _worker  # one search, with its banks, for the life of the process
    _worker = TrainingSet(directory), ComponentSearch(grid, settings)


def _work(start: int, stop: int, draw: int, path: Path) -> Path:
    if _worker is None:
        raise RuntimeError("the worker was not started")
    _search_rows(*_worker, start, stop, draw, path)
    return path


def ensure_searched(
    data: TrainingSet,
    grid: ResponseGrid,
    settings: ComponentSettings,
    draws: int,
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Search every band of the set under ``draws`` noise realisations, unless done before.

    Args:
        data: the training set; the cache files go into its directory.
        grid: the observation, with ``settings.slow_samples`` samples.
        settings: the search.
        draws: noise draws per band.
        workers: processes.
        progress: called with (files done, files in all).
    """
    jobs = [
        (start, stop, draw, cache_path(data, shard, settings, draw))
        for draw in range(draws)
        for shard, (start, stop) in enumerate(data.shard_ranges())
    ]
    missing = [job for job in jobs if not job[3].exists()]
    done = len(jobs) - len(missing)
    if progress is not None:
        progress(done, len(jobs))
    for _ in _run(data, grid, settings, missing, workers):
        done += 1
        if progress is not None:
            progress(done, len(jobs))


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Let processes started meanwhile use one thread: NumPy's would fight for the cores.

    BLAS reads these when it is loaded, so they must stand before a worker starts.
    """
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _run(
    data: TrainingSet,
    grid: ResponseGrid,
    settings: ComponentSettings,
    jobs: list[tuple[int, int, int, Path]],
    workers: int,
) -> Iterator[Path]:
    if min(workers, len(jobs)) <= 1:
        search = ComponentSearch(grid, settings)
        for start, stop, draw, path in jobs:
            _search_rows(data, search, start, stop, draw, path)
            yield path
        return
    context = multiprocessing.get_context("spawn")
    arguments = (data.directory, grid, settings)
    with (
        _one_thread_each(),
        ProcessPoolExecutor(workers, context, _start_worker, arguments) as pool,
    ):
        for future in as_completed([pool.submit(_work, *job) for job in jobs]):
            yield future.result()


def load_tokens(data: TrainingSet, settings: ComponentSettings, draws: int) -> TokenData:
    """Return tokens and truths of every band and noise draw, draws after samples.

    Raises:
        FileNotFoundError: a search that :func:`ensure_searched` has not made.
    """
    labels = data.arrays()
    _check_fdot(data, labels.sources)
    parts = []
    for draw in range(draws):
        for shard, (start, stop) in enumerate(data.shard_ranges()):
            with np.load(cache_path(data, shard, settings, draw)) as archive:
                content = {name: archive[name] for name in archive.files}
            records = np.zeros(content["field_bin"].shape, dtype=COMPONENT_DTYPE)
            for name in COMPONENT_DTYPE.names or ():
                records[name] = content[f"field_{name}"]
            for row in range(stop - start):
                found = ComponentSet(
                    records[row, : content["counts"][row]], content["levels"][row], _NOTHING
                )
                sample = start + row
                parts.append(
                    _one(
                        found, data, sample, int(labels.first_bin[sample]), labels.sources[sample],
                        labels.snr[sample], settings,
                    )
                )  # fmt: skip
    return TokenData(*(np.stack(column) for column in zip(*parts, strict=True)))


def _check_fdot(data: TrainingSet, sources: Float) -> None:
    """Refuse targets beyond the range that the flow's coordinates can hold."""
    fdot = sources[..., FDOT] * data.observation.duration**2
    low, high = FDOT_T2_PRIOR
    slack = 1e-9
    outside = (fdot < low - slack) | (fdot > high + slack)
    if outside.any():
        sample, source = np.argwhere(outside)[0]
        raise InputError(
            f"{data.directory}: sample {sample}: fdot T^2 = {fdot[sample, source]:.4g} is outside"
            f" [{low:g}, {high:g}], the range that a model can represent"
        )


_NOTHING = np.zeros((2, 0), dtype=np.complex64)


def _one(
    found: ComponentSet,
    data: TrainingSet,
    sample: int,
    first_bin: int,
    sources: Float,
    snr: Float,
    settings: ComponentSettings,
) -> tuple[object, ...]:
    prior, duration = data.prior, data.observation.duration
    tokens = band_tokens(
        found, first_bin, prior.bins, duration, window_edges(first_bin, prior, duration),
        settings.max_components,
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


def window_edges(first_bin: int, prior: PriorSettings, duration: float) -> tuple[float, float]:
    """Return the window of interest's edges in bins from the band's first."""
    width = prior.window((first_bin + prior.bins // 2) / duration)
    return 0.5 * (prior.bins - width), 0.5 * (prior.bins + width)


def to_local_units(sources: Float, first_bin: int, duration: float) -> Float:
    """Return (n, 8) bin, fdot T^2, ln amplitude, ra, sin dec, psi, cos iota, phi0."""
    return np.stack(
        [
            sources[:, F0] * duration - first_bin,
            sources[:, FDOT] * duration**2,
            np.log(sources[:, AMPLITUDE]),
            sources[:, RA],
            np.sin(sources[:, DEC]),
            sources[:, PSI],
            np.cos(sources[:, IOTA]),
            sources[:, PHI0],
        ],
        axis=-1,
    )


def from_local_units(local: Float, first_bin: int | Float, duration: float) -> Float:
    """Invert :func:`to_local_units`: (..., 8) in the order of PARAMETERS."""
    return np.stack(
        [
            (local[..., 0] + first_bin) / duration,
            local[..., 1] / duration**2,
            np.exp(local[..., 2]),
            local[..., 3],
            np.arcsin(np.clip(local[..., 4], -1.0, 1.0)),
            local[..., 5],
            np.arccos(np.clip(local[..., 6], -1.0, 1.0)),
            local[..., 7],
        ],
        axis=-1,
    )


def standing_components(
    reference: Float, sources: Float, snr: Float, first_bin: int, duration: float
) -> NDArray[np.int64]:
    """Return which component stands for each source, -1 where none is near: (n,).

    One component stands for one source at most. The cost is how far they are in bins and on
    the sky, in the component's own widths, and in loudness; components more than
    ``GATE_BINS`` away do not come into question.
    """
    component = np.full(len(sources), -1, dtype=np.int64)
    if not len(sources) or not len(reference):
        return component
    column = {name: reference[:, i] for i, name in enumerate(REFERENCE)}
    offset = sources[:, F0, None] * duration - first_bin - column["bin"]
    cosine = np.sin(sources[:, DEC, None]) * np.sin(column["dec"]) + np.cos(
        sources[:, DEC, None]
    ) * np.cos(column["dec"]) * np.cos(sources[:, RA, None] - column["ra"])
    angle = np.arccos(np.clip(cosine, -1.0, 1.0))
    sky = np.hypot(column["sigma_east"], column["sigma_north"])
    cost = (
        np.log1p((offset / np.maximum(column["sigma_bin"], 0.1)) ** 2)
        + np.log1p((angle / np.maximum(sky, 0.1)) ** 2)
        + np.abs(np.log(column["rho"]) - np.log(snr)[:, None])
    )
    cost = np.where(np.abs(offset) <= GATE_BINS, cost, 1e3)
    for source, index in zip(*linear_sum_assignment(cost), strict=True):
        if cost[source, index] < 1e3:
            component[source] = index
    return component
