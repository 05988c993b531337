"""One shard of a training set: a worker's work, in whatever process and on whatever machine."""

import os
import socket
import time
from pathlib import Path
from typing import NamedTuple

import jax

from slotflow import __version__
from slotflow.config import Preset
from slotflow.errors import InputError
from slotflow.manifest import SAMPLE_GROUP, ShardEntry, shard_name
from slotflow.simulate.sample import simulate_group
from slotflow.store import Band, write_shard


class ShardJob(NamedTuple):
    """Samples start..stop-1 of a set, to be simulated into its shard of this number."""

    preset: Preset
    directory: str
    seed: int
    number: int
    start: int
    stop: int


class ShardResult(NamedTuple):
    """A shard that was written, and by whom."""

    number: int
    entry: ShardEntry
    seconds: float
    host: str
    pid: int
    device: str | None
    version: str


def simulate_shard(job: ShardJob) -> ShardResult:
    """Simulate a shard and write it, in whatever process.

    Raises:
        InputError: the folder is not there, or cannot be written to.
        NonFiniteError: a spectrum that is not finite.
    """
    started, host, directory = time.monotonic(), socket.gethostname(), Path(job.directory)
    if not directory.is_dir():
        raise InputError(
            f"{directory}: no such folder on {host}: all workers must see it under this path, on a"
            " shared file system"
        )
    bands: list[Band] = []
    while (at := job.start + len(bands)) < job.stop:
        stop = min(job.stop, (at // SAMPLE_GROUP + 1) * SAMPLE_GROUP)
        bands += simulate_group(job.preset, job.seed, range(at, stop))
    attributes = {"seed": job.seed, "start": job.start}
    entry = write_shard(directory / shard_name(job.number), bands, attributes)
    device = jax.config.jax_default_device
    return ShardResult(
        job.number, entry, round(time.monotonic() - started, 3), host, os.getpid(),
        None if device is None else str(device), __version__,
    )  # fmt: skip
