"""Training sets: simulated bands (:mod:`slotflow.simulate.sample`) in HDF5 shards.

Shards are simulated in parallel and the files do not depend on how; a run that was broken
off is taken up where it stood.
"""

import platform
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from slotflow import __version__
from slotflow.config import Preset, first_difference
from slotflow.errors import InputError
from slotflow.manifest import (
    MANIFEST,
    SCHEMA_VERSION,
    SECTIONS,
    SHARD_SIZE,
    Manifest,
    ShardEntry,
    complete_settings,
    file_sha256,
    read_manifest,
    shard_number,
    write_manifest,
)
from slotflow.simulate.distribute import Distribution, Processes
from slotflow.simulate.folder import Log, locked, logged, remove_leftovers, remove_set
from slotflow.simulate.foreground import SLOW_SAMPLES
from slotflow.simulate.inputs import pinned_preset
from slotflow.simulate.sample import (
    RESPONSE_BINS,
    simulate_band,
    simulate_group,
    window_of_interest,
)
from slotflow.simulate.shard import ShardJob, ShardResult, simulate_shard

__all__ = ["simulate_band", "simulate_dataset", "simulate_group", "window_of_interest"]

MANIFEST_SECONDS: Final = 1.0  # between rewritings: thousands of shards make it long
VISIBLE_SECONDS: Final = 15.0  # until a file that another machine wrote must be seen here

Progress = Callable[[int, int], None]


def stored_settings(preset: Preset) -> dict[str, Any]:
    """Return the sections that a training set depends on."""
    return preset.model_dump(mode="json", include=set(SECTIONS))


def _identity(manifest: Manifest, settings: dict[str, Any]) -> dict[str, Any]:
    """Return what two runs of one training set have in common."""
    return {"seed": manifest.seed, "shard_size": manifest.shard_size, **settings}


def _existing(
    directory: Path, wanted: Manifest, rows: Sequence[int], force: bool
) -> dict[int, ShardEntry]:
    """Return the shards that stand and are whole; with ``force``, remove another set's.

    A shard that the manifest does not list is made again: the last second of a killed run.

    Raises:
        InputError: the directory holds another training set, or shards without manifest.
    """
    if not (directory / MANIFEST).exists() and not any(directory.glob("shard-*.h5")):
        return {}
    problem, found = _compare(directory, wanted)
    if problem and not force:
        raise InputError(f"{problem}; give another directory, or --force")
    if problem:
        remove_set(directory)
        return {}
    numbered = {shard_number(shard.name): shard for shard in found.shards}
    return {
        n: numbered[n]
        for n in range(len(rows))
        if n in numbered and _whole(directory, numbered[n], rows[n])
    }


def _compare(directory: Path, wanted: Manifest) -> tuple[str, Manifest]:
    """Return what is in the way of adding to the set in the directory, and its manifest."""
    try:
        found = read_manifest(directory)
        settings = complete_settings(directory, found)
    except InputError as error:
        return str(error), wanted
    differs = first_difference(_identity(found, settings), _identity(wanted, wanted.settings))
    if differs is not None:
        return f"{directory}: {differs[0]}: made with {differs[1]!r}, now {differs[2]!r}", found
    if found.samples > wanted.samples:
        return f"{directory}: samples: holds {found.samples}, now {wanted.samples}", found
    return "", found


def _whole(directory: Path, shard: ShardEntry, rows: int) -> bool:
    path = directory / shard.name
    return shard.rows == rows and path.is_file() and file_sha256(path) == shard.sha256


def simulate_dataset(
    preset: Preset,
    outdir: str | Path,
    samples: int,
    seed: int,
    workers: int = 1,
    *,
    distribution: Distribution | None = None,
    shard_size: int = SHARD_SIZE,
    force: bool = False,
    progress: Progress | None = None,
) -> Manifest:
    """Simulate a training set; a run that was broken off is taken up where it stood.

    Args:
        preset: its sections ``observation``, ``prior`` and ``population`` are used.
        outdir: made if missing; holds shards, manifest and log.
        samples: number of bands; more than an existing set's extends it.
        seed: of the whole set.
        workers: processes on this machine.
        distribution: another way to run, in place of ``workers`` processes; the files do not
            depend on it.
        shard_size: samples in a shard.
        force: replace a training set made with other settings.
        progress: called with (samples done, samples) after each shard.

    Raises:
        InputError: numbers below one, settings that cannot be simulated, an existing set of
            other settings, another run in the same folder, a way to run that does not work.
    """
    for name, value in (("samples", samples), ("shard_size", shard_size)):
        if value < 1:
            raise InputError(f"{name}: expected at least 1; got {value}")
    if seed < 0:
        raise InputError(f"seed: expected 0 or more; got {seed}")
    _check_settings(preset)
    ways = Processes(workers) if distribution is None else distribution
    ways.check()
    preset = pinned_preset(preset)
    directory = Path(outdir).absolute()  # as a worker elsewhere must name it
    directory.mkdir(parents=True, exist_ok=True)
    wanted = Manifest(SCHEMA_VERSION, samples, seed, shard_size, stored_settings(preset), ())
    with locked(directory):
        return _simulate(preset, Path(outdir), wanted, ways, force, progress)


def _simulate(
    preset: Preset, directory: Path, wanted: Manifest, ways: Distribution, force: bool,
    progress: Progress | None,
) -> Manifest:  # fmt: skip
    """Simulate what is missing of a set, in a folder that is held."""
    starts = range(0, wanted.samples, wanted.shard_size)
    rows = [min(wanted.shard_size, wanted.samples - start) for start in starts]
    done = _existing(directory, wanted, rows, force)
    remove_leftovers(directory)
    path = str(directory.absolute())
    jobs = [
        ShardJob(preset, path, wanted.seed, n, start, start + rows[n])
        for n, start in enumerate(starts)
        if n not in done
    ]
    record, log = _Record(directory, wanted, done, rows, progress), Log(directory)
    run: dict[str, Any] = {"slotflow": __version__, "python": platform.python_version()}
    run |= {name: version(name) for name in ("numpy", "numba", "jax", "h5py")}
    run |= {"samples": wanted.samples, "seed": wanted.seed, "shard_size": wanted.shard_size}
    run |= {"shards": len(rows), "standing": len(done)} | ways.describe()
    with logged(log, **run), record:
        for result in ways.run(simulate_shard, jobs) if jobs else ():
            _check_result(directory, result, ways.remote)
            values = result._asdict() | {"entry": None, "name": result.entry.name}
            log.write("shard", **{k: v for k, v in values.items() if v is not None})
            record.add(result.number, result.entry)
    return record.manifest


def _check_result(directory: Path, result: ShardResult, remote: bool) -> None:
    """Raise InputError for a shard that other code wrote, or that cannot be seen from here."""
    if result.version != __version__:
        raise InputError(
            f"{result.host}: a worker with slotflow {result.version}; here it is {__version__}"
        )
    deadline = time.monotonic() + VISIBLE_SECONDS
    while remote and not _whole(directory, result.entry, result.entry.rows):
        if time.monotonic() > deadline:
            raise InputError(
                f"{directory / result.entry.name}: written on {result.host}, but missing or another"
                " file here: all workers must see the folder, on a shared file system"
            )
        time.sleep(0.2)


class _Record:
    """The manifest of a set in the making; as a context, it is written however that ends."""

    def __init__(
        self, directory: Path, manifest: Manifest, done: dict[int, ShardEntry],
        rows: Sequence[int], progress: Progress | None,
    ) -> None:  # fmt: skip
        self.manifest = manifest
        self._directory, self._done, self._rows = directory, done, rows
        self._progress, self._written = progress, 0.0

    def write(self) -> None:
        """Write the manifest with the shards that stand, and tell of them."""
        shards = tuple(self._done[n] for n in sorted(self._done))
        self.manifest = self.manifest._replace(shards=shards)
        write_manifest(self._directory, self.manifest)
        self._written = time.monotonic()

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(sum(self._rows[n] for n in self._done), self.manifest.samples)

    def __enter__(self) -> "_Record":
        self.write()
        self._tell()
        return self

    def add(self, number: int, entry: ShardEntry) -> None:
        """Take in a shard; the manifest follows at most once in MANIFEST_SECONDS."""
        self._done[number] = entry
        if time.monotonic() - self._written >= MANIFEST_SECONDS:
            self.write()
        self._tell()

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.write()
        else:
            with suppress(OSError):  # the first error tells
                self.write()


def _check_settings(preset: Preset) -> None:
    """Raise InputError for settings that cannot be simulated."""
    observation, prior = preset.observation, preset.prior
    reach = (prior.bins // 2 + prior.margin + RESPONSE_BINS // 2 + 2) / observation.duration
    if prior.fmin <= reach:
        raise InputError(f"prior.fmin: must exceed {reach:.3g} Hz in this observation")
    nyquist = 0.5 / observation.dt
    if prior.fmax + reach >= nyquist:
        raise InputError(f"prior.fmax: must be below {nyquist - reach:.3g} Hz in this observation")
    highest = SLOW_SAMPLES[-1][0]
    if prior.fmax + reach > highest:
        raise InputError(f"prior.fmax: must be below {highest - reach:.3g} Hz: the foreground's")
