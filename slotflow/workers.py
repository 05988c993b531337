"""Who reads batches of bands: processes of this machine, one beside each GPU, or a cluster.

What a batch gives does not depend on who reads it, on the same kind of device. Batches come in
whatever order they are done.
"""

import multiprocessing
import socket
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from slotflow import __version__
from slotflow.bands import Tile
from slotflow.errors import InputError
from slotflow.inference import BandReader
from slotflow.parallel import Launch
from slotflow.plain import parse_json
from slotflow.processes import work_off
from slotflow.results import BandOutcome

Advance = Callable[[int], None]
Done = Generator[tuple["Batch", list[BandOutcome]]]


class Batch(NamedTuple):
    """Bands that are read one after another, and kept together."""

    number: int
    tiles: Sequence[Tile]

    @property
    def first_bins(self) -> list[int]:
        """The lowest bin of each band."""
        return [tile.first_bin for tile in self.tiles]


class Answer(NamedTuple):
    """What a worker found.

    Attributes:
        number: of the batch.
        outcomes: one a band.
        seconds: time spent on it, by part.
        version: of slotflow, there.
        host: the worker's machine.
    """

    number: int
    outcomes: list[BandOutcome]
    seconds: dict[str, float]
    version: str
    host: str


class Cluster(Protocol):
    """Workers on this machine or others; ``work`` and the jobs are pickled."""

    def run[Job, Result](
        self, work: Callable[[Job], Result], jobs: Sequence[Job]
    ) -> Iterator[Result]:
        """Yield ``work(job)`` of each job, as they are done; a lost worker's are done again.

        Raises:
            InputError: workers died, or cannot be reached.
        """


@dataclass(frozen=True)
class Way:
    """Who reads the batches; one of the three at a time, by default this process.

    Attributes:
        processes: of this machine, at most.
        gpus: of this machine, a process beside each.
        cluster: gives work to its workers.
        worth: batches for which a process is started: one takes seconds to start.
    """

    processes: int = 1
    gpus: int = 0
    cluster: Cluster | None = None
    worth: int = 1

    def check(self) -> None:
        """Raise InputError for numbers out of range, two ways at once, or GPUs that are not there.

        The GPUs are those that PyTorch sees: CUDA_VISIBLE_DEVICES is kept to.
        """
        if self.processes < 1:
            raise InputError(f"processes: expected at least 1; got {self.processes}")
        if self.worth < 1:
            raise InputError(f"worth: expected at least 1; got {self.worth}")
        if self.gpus < 0:
            raise InputError(f"gpus: expected 0 or more; got {self.gpus}")
        chosen = {
            "processes": self.processes > 1, "gpus": self.gpus > 0,
            "cluster": self.cluster is not None,
        }  # fmt: skip
        if sum(chosen.values()) > 1:
            names = " and ".join(name for name, given in chosen.items() if given)
            raise InputError(f"{names}: one of them at a time")
        Launch(gpus=self.gpus).check()

    def here(self, batches: int) -> bool:
        """Whether so many batches are read in this process."""
        return self.cluster is None and not self.gpus and len(self._devices(batches)) <= 1

    def _devices(self, batches: int) -> list[str]:
        """Return PyTorch's name of the device of each process that so many batches are worth."""
        if self.gpus:
            return [f"cuda:{i}" for i in range(min(self.gpus, batches))]
        return ["cpu"] * min(self.processes, batches // self.worth)

    def run(self, reader: BandReader, batches: Sequence[Batch], advance: Advance) -> Done:
        """Yield the batches as they are done; adds the time spent to the reader's.

        Raises:
            InputError: a process ended, or what the cluster says.
        """
        if not batches:
            return
        if self.cluster is not None:
            answers = _from_cluster(self.cluster, reader, batches)
        else:
            answers = _from_processes(reader, batches, self._devices(len(batches)))
        by_number = {batch.number: batch for batch in batches}
        with closing(answers):  # also where the caller breaks off: processes end then
            for answer in answers:
                for name, value in answer.seconds.items():
                    reader.seconds[name] += value
                advance(len(answer.outcomes))
                yield by_number[answer.number], answer.outcomes


def _from_processes(
    reader: BandReader, batches: Sequence[Batch], devices: Sequence[str]
) -> Generator[Answer]:
    """Read the batches in processes that are started for it, one on each device."""
    free = multiprocessing.get_context("spawn").SimpleQueue()  # who is first takes the first
    for device in devices:
        free.put(device)
    with closing(work_off(_work, batches, len(devices), _start, (reader, free))) as answers:
        for _, answer in answers:
            yield answer


_reader: BandReader | None = None


def _start(reader: BandReader, free: Any) -> None:
    global _reader  # one search, with its banks, for the life of the process
    torch.set_num_threads(1)
    reader.to(free.get())
    _reader = reader


def _work(batch: Batch) -> Answer:
    if _reader is None:
        raise RuntimeError("the process was not started")
    return _answer(_reader, batch)


def _answer(reader: BandReader, batch: Batch) -> Answer:
    before = dict(reader.seconds)
    outcomes = list(reader(batch.tiles))
    spent = {name: value - before[name] for name, value in reader.seconds.items()}
    return Answer(batch.number, outcomes, spent, __version__, socket.gethostname())


def _from_cluster(
    cluster: Cluster, reader: BandReader, batches: Sequence[Batch]
) -> Generator[Answer]:
    """Let the cluster's workers read the batches; all must have this version."""
    for answer in cluster.run(ClusterWork(uuid.uuid4().hex, reader), batches):
        if answer.version != __version__:
            raise InputError(
                f"{answer.host}: a worker with slotflow {answer.version}; here it is {__version__}"
            )
        yield answer


_readers: dict[str, BandReader] = {}


@dataclass(frozen=True)
class ClusterWork:
    """Reads a batch on a worker, which keeps the reader with its banks from batch to batch.

    Attributes:
        run: a name of this run's own.
        reader: arrives with every batch, and is used with the first.
    """

    run: str
    reader: BandReader

    def __call__(self, batch: Batch) -> Answer:
        """Read the batch with one thread, so that sums come out as in any process."""
        torch.set_num_threads(1)
        if self.run not in _readers:
            _readers.clear()  # of runs before: one is enough to keep
            _readers[self.run] = self.reader
        return _answer(_readers[self.run], batch)


def scheduler_address(given: str) -> str:
    """Return a scheduler's address, from itself or from the file that the scheduler wrote.

    Args:
        given: ``tcp://host:port``, or the path of a JSON file of ``dask scheduler
            --scheduler-file``.

    Raises:
        InputError: such a file is missing, or holds no address.
    """
    path = Path(given)
    if path.suffix != ".json" and not path.is_file():
        return given
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InputError(f"{given}: cannot be read ({error.strerror})") from error
    content = parse_json(text, given)
    address = content.get("address") if isinstance(content, dict) else None
    if not isinstance(address, str):
        raise InputError(f"{given}: address: expected that of a dask scheduler; got {address!r}")
    return address
