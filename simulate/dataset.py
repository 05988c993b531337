"""Training sets: simulated bands (:mod:`slotflow.simulate.sample`) in HDF5 shards.

Shards are simulated in parallel and the files do not depend on how; a run that was broken
off is taken up where it stood.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slotflow.config import Preset, first_difference
from slotflow.errors import InputError
from slotflow.manifest import (
    MANIFEST,
    SAMPLE_GROUP,
    SCHEMA_VERSION,
    Manifest,
    ShardEntry,
    file_sha256,
    read_manifest,
    shard_name,
    shard_number,
    write_manifest,
)
from slotflow.simulate.sample import (
    RESPONSE_BINS,
    simulate_band,
    simulate_group,
    window_of_interest,
)
from slotflow.store import Band, write_shard

__all__ = ["simulate_band", "simulate_dataset", "simulate_group", "window_of_interest"]

Progress = Callable[[int, int], None]


def _simulate_shard(
    settings: dict[str, Any], directory: str, seed: int, number: int, start: int, stop: int
) -> tuple[int, ShardEntry]:
    """Simulate samples start..stop-1 into a shard (in a worker process)."""
    preset = Preset.model_validate(settings)
    bands: list[Band] = []
    while start + len(bands) < stop:
        at = start + len(bands)
        bands += simulate_group(
            preset, seed, range(at, min(stop, (at // SAMPLE_GROUP + 1) * SAMPLE_GROUP))
        )
    attributes = {"seed": seed, "start": start}
    return number, write_shard(Path(directory) / shard_name(number), bands, attributes)


def _one_thread() -> None:
    """Keep a worker's compiled code on one core."""
    flags = os.environ.get("XLA_FLAGS", "")
    if "intra_op_parallelism_threads" not in flags:
        one = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        os.environ["XLA_FLAGS"] = f"{flags} {one}".strip()


def stored_settings(preset: Preset) -> dict[str, Any]:
    """Return the sections that a training set depends on."""
    return preset.model_dump(mode="json", include={"observation", "prior"})


def _identity(manifest: Manifest) -> dict[str, Any]:
    """Return what two runs of one training set have in common."""
    return {"seed": manifest.seed, "shard_size": manifest.shard_size, **manifest.settings}


def _existing(
    directory: Path, wanted: Manifest, rows: Sequence[int], force: bool
) -> dict[int, ShardEntry]:
    """Return the shards that stand and are whole; with ``force``, remove another set's.

    Raises:
        InputError: the directory holds another training set, or shards without manifest.
    """
    directory.mkdir(parents=True, exist_ok=True)
    strays = sorted(directory.glob("shard-*.h5"))
    if not (directory / MANIFEST).exists() and not strays:
        return {}
    problem = ""
    try:
        found = read_manifest(directory)
    except InputError as error:
        problem = str(error)
    else:
        differs = first_difference(_identity(found), _identity(wanted))
        if differs is not None:
            problem = f"{directory}: {differs[0]}: made with {differs[1]!r}, now {differs[2]!r}"
        elif found.samples > wanted.samples:
            problem = f"{directory}: samples: holds {found.samples}, now {wanted.samples}"
    if not problem:
        numbered = {shard_number(shard.name): shard for shard in found.shards}
        return {
            n: numbered[n]
            for n in range(len(rows))
            if n in numbered and _whole(directory, numbered[n], rows[n])
        }
    if not force:
        raise InputError(f"{problem}; give another directory, or --force")
    for path in [directory / MANIFEST, *strays]:
        path.unlink(missing_ok=True)
    return {}


def _whole(directory: Path, shard: ShardEntry, rows: int) -> bool:
    path = directory / shard.name
    return shard.rows == rows and path.is_file() and file_sha256(path) == shard.sha256


@contextmanager
def _workers(number: int) -> Iterator[ProcessPoolExecutor | None]:
    """Yield processes, or None where this one will do."""
    if number <= 1:
        yield None
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy JAX's threads' locks
    with ProcessPoolExecutor(number, mp_context=context, initializer=_one_thread) as own:
        yield own


def simulate_dataset(
    preset: Preset,
    outdir: str | Path,
    samples: int,
    seed: int,
    workers: int = 1,
    *,
    shard_size: int = 512,
    force: bool = False,
    progress: Progress | None = None,
) -> Manifest:
    """Simulate a training set; a run that was broken off is taken up where it stood.

    Args:
        preset: its sections ``observation`` and ``prior`` are used.
        outdir: made if missing; holds shards and manifest.
        samples: number of bands; more than an existing set's extends it.
        seed: of the whole set.
        workers: processes on this machine; the files do not depend on it.
        shard_size: samples in a shard.
        force: replace a training set made with other settings.
        progress: called with (samples done, samples) after each shard.

    Raises:
        InputError: numbers below one, a TDI generation that is not simulated, or an existing
            set of other settings.
    """
    for name, value in (("samples", samples), ("workers", workers), ("shard_size", shard_size)):
        if value < 1:
            raise InputError(f"{name}: expected at least 1; got {value}")
    if seed < 0:
        raise InputError(f"seed: expected 0 or more; got {seed}")
    _check_settings(preset)
    directory = Path(outdir)
    starts = range(0, samples, shard_size)
    rows = [min(shard_size, samples - start) for start in starts]
    settings = stored_settings(preset)
    manifest = Manifest(SCHEMA_VERSION, samples, seed, shard_size, settings, ())
    done = _existing(directory, manifest, rows, force)
    manifest = _record(directory, manifest, done, rows, progress)
    jobs = [
        (settings, str(directory), seed, n, start, start + rows[n])
        for n, start in enumerate(starts)
        if n not in done
    ]
    with _workers(min(workers, len(jobs))) as pool:
        for number, entry in _results(pool, jobs):
            done[number] = entry
            manifest = _record(directory, manifest, done, rows, progress)
    return manifest


def _check_settings(preset: Preset) -> None:
    """Raise InputError for settings that cannot be simulated."""
    observation, prior = preset.observation, preset.prior
    if observation.tdi_generation != "1.5":
        raise InputError("observation.tdi_generation: training sets are made in TDI 1.5")
    reach = (prior.bins // 2 + prior.margin + RESPONSE_BINS // 2 + 2) / observation.duration
    if prior.fmin <= reach:
        raise InputError(f"prior.fmin: must exceed {reach:.3g} Hz in this observation")
    nyquist = 0.5 / observation.dt
    if prior.fmax + reach >= nyquist:
        raise InputError(f"prior.fmax: must be below {nyquist - reach:.3g} Hz in this observation")


def _results(
    pool: ProcessPoolExecutor | None, jobs: Sequence[Any]
) -> Iterator[tuple[int, ShardEntry]]:
    if pool is None:
        for job in jobs:
            yield _simulate_shard(*job)
        return
    futures = [pool.submit(_simulate_shard, *job) for job in jobs]
    try:
        for future in as_completed(futures):
            yield future.result()
    finally:
        for future in futures:
            future.cancel()


def _record(
    directory: Path,
    manifest: Manifest,
    done: dict[int, ShardEntry],
    rows: Sequence[int],
    progress: Progress | None,
) -> Manifest:
    """Write the manifest with the shards that stand so far."""
    manifest = manifest._replace(shards=tuple(done[n] for n in sorted(done)))
    write_manifest(directory, manifest)
    if progress is not None:
        progress(sum(rows[n] for n in done), manifest.samples)
    return manifest
