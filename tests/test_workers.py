"""slotflow.workers: who reads, on which device, and what is refused."""

import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import torch

from slotflow import __version__, workers
from slotflow.cli import common
from slotflow.cli.main import run
from slotflow.cli.posterior import _way
from slotflow.components import COMPONENT_DTYPE, ComponentSet
from slotflow.config import load_preset
from slotflow.errors import InputError
from slotflow.inference import _moved
from slotflow.model import SlotFlow, TokenBatch
from slotflow.simulate import cluster
from slotflow.tokens import band_tokens
from slotflow.workers import Batch, ClusterWork, Way, scheduler_address
from tests.elsewhere import ROOT, Reader


def batches(number: int) -> list[Batch]:
    return [Batch(i, (i,)) for i in range(number)]  # type: ignore[arg-type]


def test_devices() -> None:
    """PyTorch numbers those of CUDA_VISIBLE_DEVICES."""
    assert Way()._devices(9) == ["cpu"]
    assert Way(processes=3)._devices(9) == ["cpu"] * 3
    assert Way(processes=3)._devices(2) == ["cpu"] * 2
    assert Way(gpus=2)._devices(9) == ["cuda:0", "cuda:1"]
    assert Way(gpus=2)._devices(1) == ["cuda:0"]
    assert [Way(processes=3).here(number) for number in (0, 1, 2)] == [True, True, False]
    assert not Way(gpus=1).here(1)


def test_few_batches_are_not_worth_a_process() -> None:
    way = Way(processes=3, worth=4)
    assert [len(way._devices(number)) for number in (0, 3, 4, 8, 11, 12, 99)] == [
        0,
        0,
        1,
        2,
        2,
        3,
        3,
    ]
    assert [way.here(number) for number in (0, 7, 8)] == [True, True, False]


def test_limits_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control groups (Linux, version 2) hold a process below what its machine has."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setattr(common, "GROUP", tmp_path)
    monkeypatch.setattr(common, "MEMORY", tmp_path / "meminfo")
    assert (common.cores(), common.memory_left()) == (16, math.inf)
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    4000 kB\n")
    for quota, number in (("max 100000", 16), ("250000 100000", 2), ("50000 100000", 1),
                          ("3200000 100000", 16), ("", 16)):  # fmt: skip
        (tmp_path / "cpu.max").write_text(quota)
        assert common.cores() == number, quota
    assert common.memory_left() == 4_096_000.0
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.stat").write_text("anon 300\ninactive_file 600\nactive_file 100\n")
    assert common.memory_left() == 4_096_000.0
    (tmp_path / "memory.max").write_text("2000000\n")
    assert common.memory_left() == 1_999_600.0


def test_as_many_workers_as_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for few bands, and unless a number is given; refining takes seconds a band."""
    context = click.Context(click.Command("posterior"))
    monkeypatch.setattr("slotflow.cli.posterior.memory_left", lambda: 4e9)
    monkeypatch.setattr("slotflow.cli.posterior.cores", lambda: 64)
    assert _way(context, None, None, None, False) == {"processes": 3, "worth": 4}
    monkeypatch.setattr("slotflow.cli.posterior.memory_left", lambda: 1e8)
    assert _way(context, None, None, None, False) == {"processes": 1, "worth": 4}
    monkeypatch.setattr("slotflow.cli.posterior.memory_left", lambda: 64e9)
    for present, used in ((1, 1), (6, 6), (64, 8)):
        monkeypatch.setattr("slotflow.cli.posterior.cores", lambda: present)  # noqa: B023
        assert _way(context, None, None, None, False) == {"processes": used, "worth": 4}
        assert _way(context, None, None, None, True) == {"processes": used, "worth": 1}
        assert _way(context, 12, None, None, False) == {"processes": 12}


@pytest.mark.slow
def test_each_process_has_a_device_of_its_own_and_its_end_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.syspath_prepend(ROOT)
    (tmp_path / "devices").mkdir()
    reader: Any = Reader(tmp_path / "devices", 2)
    now, bands = tmp_path / "now", list[int]()
    found: list[tuple[Any, ...]] = []

    def advance(number: int) -> None:
        bands.append(number)
        if len(bands) == 4:
            now.touch()

    last = Batch(4, (now,))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"a worker process ended .*: run again to go on"):
        found.extend(
            (batch.number, *outcome)  # type: ignore[misc]
            for batch, [outcome] in Way(gpus=2).run(reader, [*batches(4), last], advance)
        )
    assert sorted((number, tile) for number, _, tile, _ in found) == [(n, n) for n in range(4)]
    assert {device for _, device, _, _ in found} <= {"cuda:0", "cuda:1"}
    assert {threads for *_, threads in found} == {"1"}
    assert bands == [1] * 4
    assert {path.name for path in (tmp_path / "devices").iterdir()} == {"cuda-0", "cuda-1"}
    assert os.environ["OMP_NUM_THREADS"] == "3"
    assert reader.seconds == {"search": 4.0}


def test_the_network_leaves_nothing_on_the_processor() -> None:
    """PyTorch's device without numbers refuses tensors of another one, as a GPU does."""
    preset, meta, draws = load_preset("shipped"), torch.device("meta"), 5
    bins, capacity = preset.prior.bins, preset.components.max_components
    network = SlotFlow(preset.model, bins).eval().to(meta)
    nothing = ComponentSet(np.zeros(0, COMPONENT_DTYPE), np.ones(2), np.zeros((2, bins)))
    empty = band_tokens(nothing, 0, bins, 1.0, (0.0, float(bins)), capacity)
    batch = TokenBatch(*(torch.from_numpy(np.stack([column])) for column in empty))
    with torch.no_grad():
        reading = network.read(_moved(batch, meta))
        context, reference = reading.context[:, 0], reading.reference[:, 0]
        generator = torch.Generator().manual_seed(0)  # the processor's: the same draws anywhere
        sources, log_q = network.sample(context, reference, draws, generator)
        density = network.log_prob(
            sources[0], context.expand(draws, -1), reference.expand(draws, -1)
        )
    assert {part.device for part in reading if part is not None} == {meta}
    assert sources.device == log_q.device == density.device == meta
    assert tuple(sources.shape) == (1, draws, 8)


# ---- clusters


class Here:
    """A cluster whose worker is this process, with another version of slotflow."""

    def __init__(self, version: str) -> None:
        self.version = version

    def run(self, work: Any, jobs: Sequence[Any]) -> Iterator[Any]:
        return (work(job)._replace(version=self.version, host="node7") for job in jobs)


def test_a_worker_of_another_version_is_refused(tmp_path: Path) -> None:
    reader: Any = Reader(tmp_path, 1)
    way = Way(cluster=Here("0.0.1"))
    with pytest.raises(InputError, match=rf"node7: .* slotflow 0\.0\.1; here it is {__version__}"):
        list(way.run(reader, batches(2), lambda _: None))
    way = Way(cluster=Here(__version__))
    assert len(list(way.run(reader, batches(2), lambda _: None))) == 2


def test_a_worker_keeps_the_reader_of_a_run(tmp_path: Path) -> None:
    """Each batch brings one, as it was at the start: without its banks."""
    first, second, other = (Reader(tmp_path, 1) for _ in range(3))
    for name, reader in (("a", first), ("a", second), ("b", other)):
        ClusterWork(name, reader)(batches(1)[0])  # type: ignore[arg-type]
    counts = [reader.seconds["search"] for reader in (first, second, other)]
    assert counts == [2.0, 0.0, 1.0]
    assert list(workers._readers) == ["b"]


def test_the_address_of_a_scheduler(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.json"
    assert scheduler_address("tcp://head:8786") == "tcp://head:8786"
    file.write_text(json.dumps({"type": "Scheduler", "address": "tcp://10.0.0.1:8786"}))
    assert scheduler_address(str(file)) == "tcp://10.0.0.1:8786"
    for content, words in [("{}", "address: "), ("[1]", "address: "), ("{", "not JSON")]:
        file.write_text(content)
        with pytest.raises(InputError, match=rf"scheduler\.json: {words}"):
            scheduler_address(str(file))
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not JSON"):
        scheduler_address(str(file))
    with pytest.raises(InputError, match=r"none\.json: cannot be read \(No such file"):
        scheduler_address(str(tmp_path / "none.json"))


# ---- what is refused, in one line and before any work


@pytest.mark.parametrize(
    ("way", "words"),
    [
        (Way(processes=0), "processes: expected at least 1; got 0"),
        (Way(gpus=-1), "gpus: expected 0 or more; got -1"),
        (Way(worth=0), "worth: expected at least 1; got 0"),
        (Way(processes=2, gpus=1), "processes and gpus: one of them at a time"),
        (Way(gpus=1, cluster=Here("")), "gpus and cluster: one of them at a time"),
        (Way(gpus=99), "--gpus 99: GPUs that PyTorch sees: "),
    ],
)
def test_ways_that_cannot_be_gone(way: Way, words: str) -> None:
    with pytest.raises(InputError, match=words):
        way.check()


def refused(arguments: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Run the command; return the one line."""
    assert run(["posterior", "-o", str(folder / "out"), *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("slotflow: error: ")
    assert not (folder / "out").exists()
    return err.removeprefix("slotflow: error: ")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--gpus", "99"], "--gpus 99: GPUs that PyTorch sees: "),
        (["--gpus", "0"], "--gpus"),
        (["--gpus", "1", "--workers", "2"], "--gpus does not go with --workers"),
        (["--scheduler", "x:1", "--workers", "2"], "--scheduler does not go with --workers"),
        (["--scheduler", "x:1", "--gpus", "1"], "--scheduler does not go with --gpus"),
        (["--scheduler", "none.json"], "none.json: cannot be read"),
    ],
)
def test_refused(
    options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refused(options, tmp_path, capsys)


def test_without_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert "'slotflow-gw[cluster]'" in refused(["--scheduler", "x:1"], tmp_path, capsys)


def test_no_scheduler_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 1)
    options = ["--fmin", "1.9e-3", "--fmax", "1.901e-3"]
    error = refused([*options, "--scheduler", "tcp://127.0.0.1:9"], tmp_path, capsys)
    assert error.startswith("tcp://127.0.0.1:9: no dask scheduler answers there")
