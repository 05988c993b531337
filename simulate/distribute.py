"""Where shards are made: in this process, in others, one beside each GPU, or on a cluster.

Each way has a method ``run`` that does the same work on a list of jobs and yields the results
as they come, in any order. What a job gives depends on the job alone, so that the files do not
depend on the way.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from slotflow.errors import InputError
from slotflow.processes import end_with_parent, environment

Platform = str  # JAX's name of it: "cuda", "cpu"


class Distribution(Protocol):
    """A way to work on jobs."""

    @property
    def remote(self) -> bool:
        """Whether other machines write the files, so that they must be looked for here."""

    def check(self) -> None:
        """Raise InputError if this way cannot be gone on this machine."""

    def describe(self) -> dict[str, Any]:
        """Return what goes into the log."""

    def run[Job, Result](
        self, work: Callable[[Job], Result], jobs: Sequence[Job]
    ) -> Iterator[Result]:
        """Yield ``work(job)`` of each job, as they are done.

        Raises:
            InputError: workers died, or cannot be reached.
        """


@dataclass(frozen=True)
class Processes:
    """Processes on this machine; one is this process itself."""

    workers: int = 1
    remote = False

    def check(self) -> None:
        """Raise InputError for a number below one."""
        if self.workers < 1:
            raise InputError(f"workers: expected at least 1; got {self.workers}")

    def describe(self) -> dict[str, Any]:
        """Return what goes into the log."""
        return {"by": "processes", "workers": self.workers}

    def run[Job, Result](
        self, work: Callable[[Job], Result], jobs: Sequence[Job]
    ) -> Iterator[Result]:
        """Yield the results as they are done."""
        number = min(self.workers, len(jobs))
        if number <= 1:
            return map(work, jobs)
        return run_in_places(work, jobs, [Place()] * number)


@dataclass(frozen=True)
class Devices:
    """One process for each GPU of this machine, which sees no other.

    With ``platform="cpu"`` it is one for each of JAX's CPU devices, for tests without a GPU.
    """

    number: int
    platform: Platform = "cuda"
    remote = False

    def check(self) -> None:
        """Raise InputError where there are fewer devices."""
        if self.number < 1:
            raise InputError(f"gpus: expected at least 1; got {self.number}")
        present = next(run_in_places(_count_devices, [self.platform], [Place(_SPARING)]))
        if present < self.number:
            what = "GPUs that JAX can use" if self.platform == "cuda" else "devices"
            raise InputError(f"gpus: {self.number} asked for; {what} on this machine: {present}")

    def describe(self) -> dict[str, Any]:
        """Return what goes into the log."""
        return {"by": "devices", "platform": self.platform, "workers": self.number}

    def places(self) -> list["Place"]:
        """Return where each process runs."""
        if self.platform != "cuda":
            return [Place({}, self.platform, n) for n in range(self.number)]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = visible.split(",") if visible else [str(n) for n in range(self.number)]
        return [Place({"CUDA_VISIBLE_DEVICES": name}, "cuda", 0) for name in names[: self.number]]

    def run[Job, Result](
        self, work: Callable[[Job], Result], jobs: Sequence[Job]
    ) -> Iterator[Result]:
        """Yield the results as they are done."""
        return run_in_places(work, jobs, self.places()[: max(1, len(jobs))])


class Place(NamedTuple):
    """Where a process runs: its environment from its start on, and its device."""

    variables: Mapping[str, str] = {}
    platform: Platform | None = None
    device: int = 0


_SPARING = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # counting must not fill a GPU's memory


def one_thread() -> dict[str, str]:
    """Return the environment that keeps compiled code on one core."""
    flags = os.environ.get("XLA_FLAGS", "")
    if "intra_op_parallelism_threads" not in flags:
        one = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        flags = f"{flags} {one}".strip()
    return {"XLA_FLAGS": flags, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def run_in_places[Job, Result](
    work: Callable[[Job], Result], jobs: Sequence[Job], places: Sequence[Place]
) -> Iterator[Result]:
    """Yield the results of one process in each place, as they are done.

    Raises:
        InputError: a process was killed.
    """
    context = multiprocessing.get_context("spawn")  # a fork would copy JAX's threads' locks
    waiting = iter(jobs)
    busy: dict[Future[Result], ProcessPoolExecutor] = {}
    with ExitStack() as stack:
        for place, job in zip(places, waiting, strict=False):
            pool = ProcessPoolExecutor(1, context, _begin, (place.platform, place.device))
            stack.enter_context(pool)
            with environment(one_thread() | dict(place.variables)):
                busy[pool.submit(work, job)] = pool  # starts the process
        while busy:
            for future in wait(busy, return_when=FIRST_COMPLETED).done:
                pool = busy.pop(future)
                try:
                    result = future.result()
                    for job in waiting:
                        busy[pool.submit(work, job)] = pool
                        break
                except BrokenProcessPool as error:
                    raise InputError(
                        "a worker process ended (killed, or out of memory?); what is done stands:"
                        " run again to go on"
                    ) from error
                yield result


def _begin(platform: Platform | None, device: int) -> None:
    """Prepare a process: end with the parent, whatever ends that, and use the device alone."""
    end_with_parent()
    if platform is not None:
        import jax

        jax.config.update("jax_default_device", jax.devices(platform)[device])  # type: ignore[no-untyped-call]


def _count_devices(platform: Platform) -> int:
    import jax

    try:
        return len(jax.devices(platform))
    except RuntimeError:
        return 0
