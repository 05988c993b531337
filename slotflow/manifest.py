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

SCHEMA_VERSION: Final = 2
SAMPLE_GROUP: Final = 64  # consecutive samples that share a pool of foreground responses
SHARD_SIZE: Final = 512  # samples in a shard, unless asked for otherwise
MANIFEST: Final = "manifest.json"
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
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"{directory}: not a training set: no {MANIFEST}") from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    version = content.get("schema_version") if isinstance(content, dict) else None
    if version != SCHEMA_VERSION:
        raise InputError(f"{path}: schema_version: expected {SCHEMA_VERSION}; got {version!r}")
    try:
        shards = tuple(
            ShardEntry(str(s["name"]), int(s["rows"]), str(s["sha256"])) for s in content["shards"]
        )
        manifest = Manifest(
            SCHEMA_VERSION, int(content["samples"]), int(content["seed"]),
            int(content["shard_size"]), dict(content["settings"]), shards,
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: field missing or wrong: {error}") from error
    for shard in shards:  # a name that is a path could lead out of the directory
        if shard_number(shard.name) is None:
            raise InputError(
                f"{path}: shards: expected a name as shard-00000.h5; got {shard.name!r}"
            )
    return manifest
