"""slotflow.posterior by several processes and by dask workers: the same numbers."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotflow import posterior as module
from slotflow.errors import InputError
from slotflow.posterior import posterior
from slotflow.results import Result
from slotflow.resume import Partial
from slotflow.simulate.cluster import Scheduler
from slotflow.workers import scheduler_address
from tests.chain import example_observation, untrained_model
from tests.elsewhere import ROOT, DiesOnce

LOW, HIGH = 1.940e-3, 1.944e-3
BANDS = 2


@pytest.fixture(autouse=True)
def one_band_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH", 1)


def read(**options: Any) -> Result:
    options = {"fmin": LOW, "fmax": HIGH, "samples": 50} | options
    return posterior(example_observation(), untrained_model(), **options)


@pytest.fixture(scope="module")
def here() -> Result:
    """By this process alone."""
    result = read()
    assert len(result.tiles) == BANDS
    assert len(result.sources) > 0
    return result


def assert_same(result: Result, expected: Result) -> None:
    """Every bit of the sources and the bands."""
    assert result.tiles == expected.tiles
    assert len(result.sources) == len(expected.sources)
    for a, b in zip(result.sources, expected.sources, strict=True):
        np.testing.assert_array_equal(a.samples, b.samples)
        np.testing.assert_array_equal(a.log_q, b.log_q)
    assert result.q_k is not None
    assert expected.q_k is not None
    np.testing.assert_array_equal(result.q_k, expected.q_k)


@pytest.mark.slow
def test_processes_change_no_bit(here: Result) -> None:
    seen: list[tuple[int, int]] = []
    several = read(processes=2, progress=lambda done, total: seen.append((done, total)))
    assert_same(several, here)
    assert seen[0] == (0, BANDS)
    assert seen[-1] == (BANDS, BANDS)
    assert several.seconds["search"] > 0.0


def test_more_gpus_than_there_are() -> None:
    with pytest.raises(InputError, match="--gpus 99: GPUs that PyTorch sees: "):
        read(gpus=99)


# ---- dask


@dataclass(frozen=True)
class Mortal:
    """Workers of a scheduler, one of which dies."""

    scheduler: Scheduler
    mark: Path

    def run[Job, Answer](
        self, work: Callable[[Job], Answer], jobs: Sequence[Job]
    ) -> Iterator[Answer]:
        return self.scheduler.run(DiesOnce(work, self.mark), jobs)


@pytest.mark.slow
def test_dask_workers_change_no_bit_though_one_is_killed(
    here: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT)
    distributed = pytest.importorskip("distributed")
    partial, mark, seen = Partial(tmp_path / "partial", "run"), tmp_path / "killed", []
    file = tmp_path / "scheduler.json"
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as running:
        file.write_text(json.dumps(running.scheduler.identity(), default=str))
        scheduler = Scheduler(scheduler_address(str(file)))
        assert scheduler.address == running.scheduler_address
        result = read(
            cluster=Mortal(scheduler, mark), partial=partial,
            progress=lambda done, total: seen.append((done, total)),
        )  # fmt: skip
    assert int(mark.read_text()) != os.getpid()
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)
    assert_same(result, here)
    assert seen == [(n, BANDS) for n in range(BANDS + 1)]
    assert partial.bands == BANDS
    assert result.seconds["search"] > 0.0
    assert_same(read(cluster=Absent(), partial=partial), here)  # all of it is there


class Absent:
    """A cluster that must not be asked."""

    def run(self, work: Any, jobs: Sequence[Any]) -> Iterator[Any]:
        raise AssertionError(jobs)
