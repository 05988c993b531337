"""Whether a training set on disk is whole: every shard against the manifest, and its values.

Shards are read one after the other, some rows at a time, so that memory stays small however
large the set is. Nothing is changed.
"""

import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from slotflow.config import PriorSettings
from slotflow.errors import InputError
from slotflow.hdf5_local import DAMAGED, SLAB_BYTES, opened
from slotflow.manifest import (
    MANIFEST,
    SHARD_SIZE,
    Manifest,
    ShardEntry,
    complete_settings,
    file_sha256,
    read_manifest,
    shard_name,
    shard_number,
)
from slotflow.store import Band, check_layout, try_shard

Bools = NDArray[np.bool_]

#: Arrays padded with NaN, and what counts the rows in use.
_PADDED: Final = {"sources": "count", "snr": "count", "outside": "outside_count"}


class ShardReport(NamedTuple):
    """What was found of one shard.

    Attributes:
        name: its file.
        rows: samples that it should hold.
        problem: what is wrong with it; empty where it is whole.
        kept: a rerun of the simulation would take it for whole (its SHA-256 is the
            manifest's) or stumble over it, so that it must be deleted first.
    """

    name: str
    rows: int
    problem: str = ""
    kept: bool = False


def checked_manifest(directory: str | Path) -> Manifest:
    """Return the manifest of a training set that can be checked.

    Raises:
        InputError: no folder, no or bad manifest, settings that no training set can have, or
            a list of shards that cannot be this set's; the message says how to make it again.
    """
    directory = Path(directory)
    if not directory.is_dir():
        problem = "not a folder" if directory.exists() else "no such folder"
        raise InputError(f"{directory}: {problem}")
    path = directory / MANIFEST
    anew = f"make the whole set again: `slotflow simulate -o {shlex.quote(str(directory))} --force`"
    try:
        manifest = read_manifest(directory)
    except InputError as error:
        if not path.exists() and not any(directory.glob("shard-*.h5")):
            raise  # somebody else's folder: no advice to write into it
        raise InputError(f"{error}; {anew}") from error
    try:
        complete_settings(directory, manifest)
    except InputError as error:
        raise InputError(f"{error}; {anew}") from error
    if min(manifest.samples, manifest.shard_size) < 1 or manifest.seed < 0:
        raise InputError(f"{path}: samples, shard_size or seed: out of range; {anew}")
    numbers = [shard_number(shard.name) for shard in manifest.shards]
    own = [n for n in numbers if n is not None and n < shard_count(manifest)]
    names = [shard.name for shard in manifest.shards]
    if names != [shard_name(n) for n in sorted(set(own))]:
        raise InputError(
            f"{path}: shards: some are listed twice, out of order, or beyond the"
            f" {manifest.samples} samples; {anew}"
        )
    return manifest


def shard_count(manifest: Manifest) -> int:
    """Return the number of shards that the set should have."""
    return -(-manifest.samples // manifest.shard_size)


def check_shards(directory: str | Path, manifest: Manifest) -> Iterator[ShardReport]:
    """Check every shard that the set should have, in order, as the reports are asked for.

    Args:
        directory: the training set.
        manifest: from :func:`checked_manifest`.
    """
    prior = PriorSettings(**complete_settings(Path(directory), manifest)["prior"])
    listed = {shard.name: shard for shard in manifest.shards}
    for number in range(shard_count(manifest)):
        name, start = shard_name(number), number * manifest.shard_size
        rows = min(manifest.shard_size, manifest.samples - start)
        path, attributes = Path(directory) / name, {"seed": manifest.seed, "start": start}
        yield ShardReport(name, rows, *_examine(path, rows, listed.get(name), attributes, prior))


def remedy(directory: str | Path, manifest: Manifest, bad: list[ShardReport]) -> str:
    """Return how to make the shards again that did not pass, in a sentence."""
    command = f"slotflow simulate -o {shlex.quote(str(directory))}"
    call = f"`{command} --samples {manifest.samples} --seed {manifest.seed}`"
    if manifest.shard_size != SHARD_SIZE:
        call = (
            f"simulate_dataset(preset, {str(directory)!r}, {manifest.samples}, {manifest.seed},"
            f" shard_size={manifest.shard_size})"
        )
    text = f"{call} with the same preset remakes {'it' if len(bad) == 1 else 'them'}"
    kept = [report.name for report in bad if report.kept]
    if kept:
        more = f" and {len(kept) - 3} more, marked above," if len(kept) > 3 else ""
        text = f"delete {', '.join(kept[:3])}{more} first (kept otherwise), then {text}"
    return text


def _examine(
    path: Path, rows: int, entry: ShardEntry | None, attributes: dict[str, int],
    prior: PriorSettings,
) -> tuple[str, bool]:  # fmt: skip
    """Return what is wrong with a shard, and whether a rerun would leave it as it is."""
    if path.exists() and not path.is_file():
        return "not a file", True
    if not path.is_file():
        return "missing", False
    if entry is None:
        return f"not listed in {MANIFEST}: the simulation did not finish", False
    problems = []
    if entry.rows != rows:
        problems.append(f"rows: {MANIFEST} lists {entry.rows} where {rows} belong")
    try:
        if file_sha256(path) != entry.sha256:
            problems.append(f"SHA-256 differs from {MANIFEST}'s")
    except OSError as error:  # a rerun cannot compare the checksum either
        return f"cannot be read ({error.strerror or error})", True
    replaced = bool(problems)
    problems += _content(path, rows, attributes, prior)
    return "; ".join(problems), bool(problems) and not replaced


def _content(path: Path, rows: int, attributes: dict[str, int], prior: PriorSettings) -> list[str]:
    """Return what is wrong inside a shard: layout, attributes, values."""
    try:
        try_shard(path)
        with opened(path) as file:
            check_layout(file, path, rows, prior)
            found = {name: file.attrs.get(name) for name in attributes}
            wrong = [
                f"{name}: expected {value}; got {found[name]}"
                for name, value in attributes.items()
                if np.shape(found[name]) != () or found[name] != value
            ]
            return wrong + _bad_values(file, path, rows, prior)
    except InputError as error:
        problem = str(error)
    except DAMAGED as error:
        problem = f"damaged: {error}"
    return [" ".join(problem.removeprefix(f"{path}: ").split())]  # the report names the file


def _bad_values(file: h5py.File, path: Path, rows: int, prior: PriorSettings) -> list[str]:
    """Return which values cannot be, with the number of samples and the first of them."""
    number: Counter[str] = Counter()
    first: dict[str, int] = {}
    step = max(1, SLAB_BYTES // (48 * prior.bins))  # signal and foreground of a sample
    for begin in range(0, rows, step):
        columns = _read_rows(file, path, slice(begin, begin + step))
        for problem, bad in _tests(columns, prior.max_sources).items():
            if bad.any():
                number[problem] += int(bad.sum())
                first.setdefault(problem, begin + int(np.flatnonzero(bad)[0]))
    return [
        f"{problem} in {count} of {rows} samples (first: sample {first[problem]} of the shard)"
        for problem, count in number.items()
    ]


def _read_rows(file: h5py.File, path: Path, rows: slice) -> dict[str, NDArray[Any]]:
    columns = {}
    for name in (field.name for field in fields(Band)):
        try:
            columns[name] = np.asarray(file[name][rows])
        except DAMAGED as error:
            raise InputError(f"{path}: {name}: damaged: {error}") from error
    return columns


def _tests(columns: dict[str, NDArray[Any]], most: int) -> dict[str, Bools]:
    """Return for each thing that must not be the samples where it is: (rows,) each.

    A number per sample is a positive factor, or a count that is not negative, by its type in
    Band; an array is padded with NaN, or all its values are finite.
    """
    tests: dict[str, Bools] = {}
    for field in fields(Band):
        name, values = field.name, columns[field.name]
        if field.type is float:
            tests[f"{name} not finite and positive"] = ~(np.isfinite(values) & (values > 0))
        elif field.type is int:
            tests[f"{name} negative or not finite"] = ~(np.isfinite(values) & (values >= 0))
        elif name not in _PADDED:
            axes = tuple(range(1, values.ndim))
            tests[f"{name} not finite"] = ~np.isfinite(values).all(axis=axes)
    tests[f"count beyond {most}"] = columns["count"] > most
    for name, counter in _PADDED.items():
        tests |= _padding(name, columns[name], counter, columns[counter])
    tests["snr not positive"] = (columns["snr"] <= 0).any(axis=1)  # NaN passes: seen to above
    return tests


def _padding(name: str, values: NDArray[Any], counter: str, count: Any) -> dict[str, Bools]:
    """Return where the first ``count`` rows of an array are not numbers, or the others not NaN."""
    rows = values.reshape(*values.shape[:2], -1)
    used = np.arange(values.shape[1]) < count[:, None]  # no more are stored than there is room
    finite, blank = np.isfinite(rows).all(axis=2), np.isnan(rows).all(axis=2)
    return {
        f"{name} not finite": (used & ~finite).any(axis=1),
        f"{name} beyond {counter}": (~used & ~blank).any(axis=1),
    }
