"""Resident memory while training on a set that is larger than that, and the price in speed.

    ./run python benchmarks/memory.py [--quick]

Writes a training set of random bands (shards of 4 GB; 0.4 GB with ``--quick``) and component
files as the search would leave them, without simulating or searching. One process then does
what ``slotflow train`` does once a set is simulated and searched (tokens written, checked,
standardised and read as batches are drawn, steps of the preset ``small``, validation,
checkpoint): its peak is the figure. Another holds all tokens in memory beside and takes steps
both ways in turn, for the speed. The last line is a JSON object.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    import numpy as np

    from slotflow.componentcache import Found
    from slotflow.config import Preset
    from slotflow.store import Band
    from slotflow.train import Trainer

SHARD_BYTES = 7.304e6  # of 512 bands
SET_BYTES = {True: 0.4e9, False: 4e9}
SECONDS = {True: 3.0, False: 120.0}  # of steps for the peak
ROUNDS = {True: 2, False: 20}  # of the comparison
STRETCH = 1.5  # s, each way in a round


def random_shard(rng: "np.random.Generator", rows: int) -> list["Band"]:
    """Return bands of noise and invented sources."""
    import numpy as np

    from slotflow.config import Preset
    from slotflow.store import Band

    prior, duration = Preset().prior, Preset().observation.duration
    bands = []
    for _ in range(rows):
        first = int(rng.uniform(prior.fmin, prior.fmax) * duration) - prior.bins // 2
        count = int(rng.integers(0, prior.max_sources + 1))
        sources = np.full((prior.max_sources, 8), np.nan)
        bins = np.sort(rng.uniform(64, 192, count))
        low, high = [0, -0.1, -52, 0, -1, 0, -1, 0], [0, 0.3, -50, 6.28, 1, 1.57, 1, 6.28]
        u = rng.uniform(low, high, (count, 8))
        sources[:count] = np.stack(
            [(first + bins) / duration, u[:, 1] / duration**2, np.exp(u[:, 2]), u[:, 3],
             np.arcsin(u[:, 4]), u[:, 5], np.arccos(u[:, 6]), u[:, 7]], axis=-1,
        )  # fmt: skip
        snr = np.where(np.isnan(sources[:, 0]), np.nan, rng.uniform(5, 100, prior.max_sources))
        spectra = rng.standard_normal((2, 3, 2 * prior.bins), dtype=np.float32)
        signal, foreground = spectra.view(np.complex64)
        outside = np.full((prior.max_outside, 8), np.nan)
        bands.append(Band(first, signal, foreground, sources, snr, count, outside, 0, 1.0, 0, 0))
    return bands


def random_components(rng: "np.random.Generator", bands: list["Band"], capacity: int) -> "Found":
    """Return components near the sources of the bands, and others."""
    import numpy as np

    from slotflow.componentcache import Found
    from slotflow.components import COMPONENT_DTYPE
    from slotflow.config import Preset

    duration, shape = Preset().observation.duration, (len(bands), capacity)
    c = np.zeros(shape, dtype=COMPONENT_DTYPE)
    c["bin"], c["ra"] = rng.uniform(32, 224, shape), rng.uniform(0, 6.28, shape)
    c["dec"] = np.arcsin(rng.uniform(-1, 1, shape))
    for name in ("plus", "cross"):
        c[name] = 1e-22 * (rng.normal(size=shape) + 1j * rng.normal(size=shape))
    c["f_statistic"] = rng.uniform(11, 2000, shape)
    c["covariance"] = np.diag([0.03, 0.02, 0.02, 0.05]) ** 2
    c["second_ra"], c["second_loss"] = 1.0, rng.exponential(30, shape)
    c["patch"] = rng.exponential(1, c["patch"].shape)
    counts = np.array([min(capacity, band.count + int(rng.integers(0, 3))) for band in bands])
    for row, band in enumerate(bands):
        near, n = c[row, : band.count], band.count
        near["bin"] = band.sources[:n, 0] * duration - band.first_bin + rng.normal(size=n) * 0.03
        near["ra"], near["dec"] = band.sources[:n, 3], band.sources[:n, 4]
        c[row, counts[row] :] = 0
    return Found(counts, 1.0 + 0.1 * rng.normal(size=(len(bands), 2)), c)


def write_set(folder: Path, shards: int) -> None:
    """Write shards, manifest and components."""
    import numpy as np

    from slotflow.componentcache import cache_path, write_components
    from slotflow.manifest import SCHEMA_VERSION, SECTIONS, Manifest, shard_name, write_manifest
    from slotflow.store import TrainingSet, write_shard

    preset, rows = _preset(), 512
    capacity, entries, found = preset.components.max_components, [], []
    for number in range(shards):
        rng = np.random.default_rng([1, number])
        bands = random_shard(rng, rows)
        entries.append(write_shard(folder / shard_name(number), bands, {}))
        found.append(random_components(rng, bands, capacity))
        if len(found) == 16 or number == shards - 1:  # a manifest tells the components' names
            settings = {name: getattr(preset, name).model_dump(mode="json") for name in SECTIONS}
            write_manifest(
                folder,
                Manifest(SCHEMA_VERSION, rows * len(entries), 1, rows, settings, tuple(entries)),
            )
            data = TrainingSet(folder)
            for shard, one in enumerate(found, number + 1 - len(found)):
                write_components(cache_path(data, shard, preset.components, 0), one)
            found.clear()


def _preset() -> "Preset":
    from slotflow.config import load_preset

    preset = load_preset("small")
    train = {"noise_draws": 1, "passes": 10**9, "checkpoint_seconds": 20.0}
    return preset.model_copy(update={"train": preset.train.model_copy(update=train)})


def train(folder: Path, seconds: float, rounds: int) -> dict[str, Any]:
    """Train for some seconds as ``slotflow train`` does; return what it took.

    With ``rounds``, another trainer with all tokens in memory takes turns.
    """
    import torch

    from slotflow.simulate.orbits import response_grid
    from slotflow.store import TrainingSet
    from slotflow.tokencache import ensure_searched, load_tokens, open_tokens
    from slotflow.train import Trainer

    torch.set_num_threads(1)
    preset, data = _preset(), TrainingSet(folder)
    grid = response_grid(preset.observation, preset.components.slow_samples)
    times = [time.monotonic()]
    with tempfile.TemporaryDirectory() as run, tempfile.TemporaryDirectory() as other:
        ensure_searched(data, grid, preset.components, 1)
        times.append(time.monotonic())
        trainer = Trainer(preset, open_tokens(data, preset.components, 1), grid, Path(run))
        times.append(time.monotonic())
        before = _peak()
        if rounds:
            trainers = [
                trainer,
                Trainer(preset, load_tokens(data, preset.components, 1), grid, Path(other)),
            ]
            return _turns(trainers, rounds) | {"peak_memory_mb": _peak()}
        trainer.run(stop_after=seconds)
        trainer.validate()
    return {
        "steps": trainer.step,
        "samples_per_s": round(trainer.step * trainer.batch / trainer.seconds, 1),
        "peak_memory_mb": _peak(),
        "peak_before_steps_mb": before,
        "tokens_ready_s": round(times[1] - times[0], 1),
        "trainer_ready_s": round(times[2] - times[1], 1),
    }


def _turns(trainers: list["Trainer"], rounds: int) -> dict[str, Any]:
    """Let both train in turn; return the medians of samples/s, and of the rounds' ratios."""
    rates: list[list[float]] = []
    for trainer in trainers:
        trainer.run(stop_after=0.0)  # what is slow once
    for _ in range(rounds):
        row = []
        for trainer in trainers:
            step, seconds = trainer.step, trainer.seconds
            trainer.run(stop_after=STRETCH)
            row.append((trainer.step - step) * trainer.batch / (trainer.seconds - seconds))
        rates.append(row)
    streamed, memory = zip(*rates, strict=True)
    return {
        "samples_per_s": round(median(streamed), 1),
        "samples_per_s_in_memory": round(median(memory), 1),
        "ratio": round(median(a / b for a, b in rates), 3),
    }


def _peak() -> int:
    """Return this process's peak resident memory, MB."""
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit // 10**6


def _child(folder: Path, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--folder", str(folder), *arguments]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    result: dict[str, Any] = json.loads(out.splitlines()[-1])
    return result


def compare(folder: Path, quick: bool) -> dict[str, Any]:
    """Write the set, train on it in both ways in turn, and return the figures."""
    shards = round(SET_BYTES[quick] / SHARD_BYTES)
    begin = time.monotonic()
    _child(folder, "--write", str(shards))
    size = sum(path.stat().st_size for path in folder.glob("shard-*"))
    click.echo(f"{512 * shards} bands, {size / 1e9:.2f} GB written in"
               f" {time.monotonic() - begin:.0f} s")  # fmt: skip
    alone = _child(folder, "--train", str(SECONDS[quick]))
    click.echo(f"streamed: {alone}")
    turns = _child(folder, "--rounds", str(ROUNDS[quick]))
    click.echo(f"streamed and in memory, in turn: {turns}")
    return {
        "set_bytes": size,
        "token_bytes": sum(path.stat().st_size for path in folder.glob("tokens-*")),
        "bands": 512 * shards,
        "peak_memory_mb": alone["peak_memory_mb"],
        "peak_memory_mb_in_memory": turns["peak_memory_mb"],
        "samples_per_s": turns["samples_per_s"],
        "samples_per_s_in_memory": turns["samples_per_s_in_memory"],
        "ratio": turns["ratio"],
    }


@contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    """Make a folder for the set that is removed in the end, in ``given`` or the system's."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given, prefix="slotflow-memory-") as folder:
        yield Path(folder)


@click.command()
@click.option("--folder", type=click.Path(path_type=Path), default=None,
              help="Where the set is written for the time: needs twice its size.")  # fmt: skip
@click.option("--quick", is_flag=True, help="A tenth of the set, a few seconds each.")
@click.option("--write", type=int, default=None, hidden=True)
@click.option("--train", "seconds", default=0.0, hidden=True)
@click.option("--rounds", default=0, hidden=True)
def main(folder: Path | None, quick: bool, write: int | None, seconds: float, rounds: int) -> None:
    """Measure peak memory and speed of training on a large set."""
    if folder is not None and write is not None:
        write_set(folder, write)
        click.echo("{}")
    elif folder is not None and (seconds or rounds):
        click.echo(json.dumps(train(folder, seconds, rounds)))
    else:
        with _folder(folder) as own:
            click.echo(json.dumps(compare(own, quick)))


if __name__ == "__main__":
    main()
