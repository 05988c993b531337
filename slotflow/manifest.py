"""The manifest of a training set: what it was made with, and its shards' checksums."""

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from slotflow.config import ObservationSettings, PopulationSettings, PriorSettings, Settings
from slotflow.errors import InputError
from slotflow.plain import parse_json, shortened

SCHEMA_VERSION: Final = 2
SAMPLE_GROUP: Final = 64  # consecutive samples that share a pool of foreground responses
SHARD_SIZE: Final = 512  # samples in a shard, unless asked for otherwise
MANIFEST: Final = "manifest.json"
_MOST: Final = {"seed": 2**128, "samples": 10**10, "shard_size": 10**10}
#: The sections of the settings that a training set depends on.
SECTIONS: Final[dict[str, type[Settings]]] = {
    "observation": ObservationSettings,
    "prior": PriorSettings,
    "population": PopulationSettings,
}


class ShardEntry(NamedTuple):
    """One line of the manifest."""

    name: str
    rows: int
    sha256: str


class Manifest(NamedTuple):
    """What a training set is: everything needed to simulate it again."""

    schema_version: int
    samples: int
    seed: int
    shard_size: int
    settings: dict[str, Any]
    shards: tuple[ShardEntry, ...]


def shard_name(index: int) -> str:
    """Return the file name of a shard."""
    return f"shard-{index:05d}.h5"


def shard_number(name: str) -> int | None:
    """Return the number in a shard's file name, or None if it is not one."""
    match = re.fullmatch(r"shard-(\d{5,9})\.h5", name, flags=re.ASCII)
    return int(match[1]) if match else None


def is_training_set(path: Path) -> bool:
    """Whether a path is the folder of a training set, or one of its shards in it."""
    if path.is_dir():
        return (path / MANIFEST).is_file()
    return shard_number(path.name) is not None and (path.parent / MANIFEST).is_file()


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def replace(path: Path, temporary: Path) -> None:
    """Put a complete temporary file in its place, durably."""
    with temporary.open("rb+") as file:
        os.fsync(file.fileno())
    temporary.replace(path)


def complete_settings(directory: Path, manifest: Manifest) -> dict[str, Any]:
    """Return the stored settings, validated; what an older manifest lacks is its default.

    Raises:
        InputError: naming the manifest and each setting that cannot be.
    """
    path, settings = directory / MANIFEST, manifest.settings
    for name in [n for n in settings if n not in SECTIONS]:
        raise InputError(f"{path}: settings: {name}: no such section")
    complete = {}
    for name, section in SECTIONS.items():
        try:
            complete[name] = section.model_validate(settings.get(name, {})).model_dump(mode="json")
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(str(part) for part in (name, *e['loc']))}: {e['msg']}"
                f" (got {e['input']!r:.80})"
                for e in error.errors()
            )
            raise InputError(f"{path}: settings: {problems}") from error
    return complete


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write the manifest under a temporary name, then rename it."""
    content = manifest._asdict()
    content["shards"] = [shard._asdict() for shard in manifest.shards]
    temporary = directory / f".{MANIFEST}.{os.getpid()}.tmp"
    temporary.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", "utf-8")
    replace(directory / MANIFEST, temporary)


def read_manifest(directory: Path) -> Manifest:
    """Read and check a manifest.

    Raises:
        InputError: no manifest, not JSON, a field missing or wrong, or another schema.
    """
    path = directory / MANIFEST
    try:
        content = parse_json(path.read_bytes(), f"{path}: cannot be read")
    except FileNotFoundError as error:
        raise InputError(f"{directory}: not a training set: no {MANIFEST}") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    version = content.get("schema_version") if isinstance(content, dict) else None
    if version != SCHEMA_VERSION:
        raise InputError(f"{path}: schema_version: expected {SCHEMA_VERSION}; got {version!r:.80}")
    try:
        shards = tuple(
            ShardEntry(str(s["name"]), int(s["rows"]), str(s["sha256"])) for s in content["shards"]
        )
        manifest = Manifest(
            SCHEMA_VERSION, int(content["samples"]), int(content["seed"]),
            int(content["shard_size"]), dict(content["settings"]), shards,
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{path}: field missing or wrong: {shortened(error)}") from error
    _check_numbers(path, manifest)
    for shard in shards:  # a name that is a path could lead out of the directory
        if shard_number(shard.name) is None:
            raise InputError(
                f"{path}: shards: expected a name as shard-00000.h5; got {shard.name!r:.80}"
            )
    return manifest


def _check_numbers(path: Path, manifest: Manifest) -> None:
    """Refuse numbers that no simulation has, before anything is computed with them."""
    for name, most in _MOST.items():
        value, least = getattr(manifest, name), int(name != "seed")
        if not least <= value < most:
            raise InputError(f"{path}: {name}: out of range: {value}")
    for shard in manifest.shards:
        if not 1 <= shard.rows < _MOST["samples"]:
            raise InputError(f"{path}: shards: rows of {shard.name!r:.80}: {shard.rows}")
