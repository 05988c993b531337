"""The components of a shard of a training set, cached in a file beside it."""

import hashlib
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotflow.atomic import written
from slotflow.components import COMPONENT_DTYPE, SEARCH_VERSION
from slotflow.config import ComponentSettings
from slotflow.response import Float
from slotflow.store import TrainingSet


class Found(NamedTuple):
    """The components of a shard: ``counts`` (N,), ``levels`` (N, 2), ``records`` (N, C)."""

    counts: NDArray[np.int64]
    levels: Float
    records: NDArray[np.void]


def search_hash(settings: ComponentSettings) -> str:
    """Return a short name for the search's settings and the layout of its result."""
    text = settings.model_dump_json() + repr(COMPONENT_DTYPE) + SEARCH_VERSION
    return short_hash(text)


def short_hash(text: str) -> str:
    """Return 12 hexadecimal digits that stand for a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def cache_path(data: TrainingSet, shard: int, settings: ComponentSettings, draw: int) -> Path:
    """Return where a shard's components are kept; the shard's own hash is part of the name."""
    content = data.manifest.shards[shard].sha256[:12]
    return data.directory / f"components-{search_hash(settings)}-{content}-{draw}.npz"


def write_components(path: Path, found: Found) -> None:
    """Write the components of a shard as a NumPy archive.

    Raises:
        InputError: the system refuses to write.
    """
    columns = {f"field_{name}": found.records[name] for name in COMPONENT_DTYPE.names or ()}
    with written(path) as temporary, temporary.open("wb") as file:
        np.savez(
            file, counts=found.counts, levels=found.levels, **columns  # type: ignore[arg-type]
        )  # fmt: skip


def read_components(path: Path, rows: int, capacity: int) -> Found | None:
    """Return the components of a shard, or None where the file is missing or damaged."""
    records = np.zeros((rows, capacity), dtype=COMPONENT_DTYPE)
    try:
        # opened here: NumPy leaves the file open where it is not an archive
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            for name in COMPONENT_DTYPE.names or ():
                records[name] = archive[f"field_{name}"]
            counts, levels = archive["counts"], archive["levels"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        return None
    fits = counts.shape == (rows,) and levels.shape == (rows, 2)
    return Found(counts, levels, records) if fits else None
