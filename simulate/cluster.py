"""Shards made by dask workers: those of a running scheduler, or of SLURM jobs.

dask is the optional extra ``cluster``. The workers write the shards themselves, so they must
see the folder under the same path; each must have one thread.
"""

import asyncio
import importlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Final

from slotflow.errors import InputError
from slotflow.simulate.distribute import one_thread

CONNECT_SECONDS: Final = 20
#: Until the thread of the event loop runs. distributed gives up after 10 s, by an assertion,
#: which a machine with too much to do has been seen to reach.
LOOP_SECONDS: Final = 120
#: Options of SLURMCluster that are lists; each may be given several times.
LISTS: Final = ("job_extra_directives", "job_script_prologue", "job_directives_skip",
                "worker_extra_args")  # fmt: skip
_NUMBERS: Final = ("cores", "processes", "job_cpu", "death_timeout")
_JOB: Final[dict[str, Any]] = {"cores": 1, "processes": 1, "memory": "4GB"}


@dataclass(frozen=True)
class Scheduler:
    """The workers of a dask scheduler that runs already."""

    address: str
    remote = True

    def check(self) -> None:
        """Raise InputError without the package."""
        _package("distributed", "--scheduler")

    def describe(self) -> dict[str, Any]:
        """Return what goes into the log."""
        return {"by": "dask", "scheduler": self.address}

    def run[Job, Result](
        self, work: Callable[[Job], Result], jobs: Sequence[Job]
    ) -> Iterator[Result]:
        """Yield the results as they are done; a job whose worker dies is given to another."""
        with _client(self.address, self.address) as client:
            yield from _gather(client, work, jobs)


@dataclass(frozen=True)
class Slurm:
    """Dask workers in SLURM jobs, submitted from here and ended at the end."""

    jobs: int
    options: Mapping[str, Any] = field(default_factory=dict)
    remote = True

    def check(self) -> None:
        """Raise InputError without the packages or SLURM, or for bad options."""
        if self.jobs < 1:
            raise InputError(f"workers: expected at least 1; got {self.jobs}")
        _package("dask_jobqueue", "--slurm")
        if self._job()["cores"] != self._job()["processes"]:
            raise InputError("--slurm-option: cores and processes must be equal: one thread each")
        if shutil.which("sbatch") is None:
            raise InputError("--slurm: no sbatch here: run it where jobs are submitted")

    def describe(self) -> dict[str, Any]:
        """Return what goes into the log."""
        return {"by": "slurm", "jobs": self.jobs, "options": dict(self.options)}

    def _job(self) -> dict[str, Any]:
        return _JOB | dict(self.options)

    @contextmanager
    def cluster(self) -> Iterator[Any]:
        """Start the scheduler, in a thread of this process; no job is submitted yet.

        Raises:
            InputError: an option that SLURMCluster does not know.
        """
        package = _package("dask_jobqueue", "--slurm")
        quiet = {"dashboard_address": ":0"}
        own: dict[str, Any] = {"scheduler_options": quiet, "loop": _event_loop()}
        try:
            cluster = package.SLURMCluster(**own | self._job())
        except (TypeError, ValueError, OSError) as error:
            raise InputError(f"--slurm-option: {' '.join(str(error).split())}") from error
        with cluster:
            yield cluster

    def run[Job, Result](
        self, work: Callable[[Job], Result], jobs: Sequence[Job]
    ) -> Iterator[Result]:
        """Submit the jobs, and yield the results as they are done."""
        with self.cluster() as cluster:
            cluster.scale(jobs=min(self.jobs, max(1, len(jobs))))
            with _client(cluster, "the cluster's scheduler") as client:
                yield from _gather(client, work, jobs)


def slurm_options(given: Sequence[str]) -> dict[str, Any]:
    """Return options for SLURMCluster from ``KEY=VALUE`` each.

    Raises:
        InputError: no ``=``, a number that is none, or one value too many.
    """
    options: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        key = key.strip().replace("-", "_")
        if not (equals and key.isidentifier()):
            raise InputError(f"--slurm-option: expected KEY=VALUE; got {text!r}")
        if key in LISTS:
            options.setdefault(key, []).append(value)
            continue
        if key in options:
            raise InputError(f"--slurm-option: {key} is given twice")
        if key in _NUMBERS and not (value.isascii() and value.isdigit()):
            raise InputError(f"--slurm-option: {key}: expected a number; got {value!r}")
        options[key] = int(value) if key in _NUMBERS else value
    return options


def _package(name: str, option: str) -> Any:
    """Import a package of the extra.

    Raises:
        InputError: it is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(
            f"{option} needs the package {name.replace('_', '-')}, of the extra 'cluster':"
            " pip install 'slotflow-gw[cluster]'"
        ) from error


@cache
def _event_loop() -> Any:
    """Return the event loop of dask's clients and schedulers here: a thread of its own runs it.

    It is never closed: clients that failed are still to be collected, and need it then.

    Raises:
        InputError: it does not run after ``LOOP_SECONDS``.
    """
    tornado = _package("tornado.ioloop", "--scheduler")
    runs, loops = threading.Event(), []

    async def wait() -> None:
        loops.append(tornado.IOLoop.current())
        runs.set()
        await asyncio.Event().wait()

    threading.Thread(target=asyncio.run, args=(wait(),), name="dask loop", daemon=True).start()
    if not runs.wait(LOOP_SECONDS):
        raise InputError(f"dask: its event loop does not run after {LOOP_SECONDS} s: too busy?")
    return loops[0]


@contextmanager
def _client(scheduler: Any, name: str) -> Iterator[Any]:
    distributed = _package("distributed", "--scheduler")
    try:
        client = distributed.Client(
            scheduler, timeout=CONNECT_SECONDS, set_as_default=False, direct_to_workers=False,
            loop=_event_loop(),
        )  # fmt: skip
    except (OSError, ValueError, TypeError) as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{name}: no dask scheduler answers there: {text}") from error
    with client:
        yield client


def _gather[Job, Result](
    client: Any, work: Callable[[Job], Result], jobs: Sequence[Job]
) -> Iterator[Result]:
    distributed = _package("distributed", "--scheduler")
    workers = client.scheduler_info(n_workers=-1)["workers"]
    threaded = [name for name, worker in workers.items() if worker["nthreads"] != 1]
    if threaded:
        raise InputError(
            f"{threaded[0]}: a dask worker of several threads: start workers with --nthreads 1"
        )
    futures = client.map(partial(_with_one_thread, work), jobs, pure=False)
    try:
        for future in distributed.as_completed(futures, loop=client.loop):
            yield future.result()
    except distributed.KilledWorker as error:
        raise InputError(
            "dask gave a job up after several workers died on it (out of memory?); what is done"
            " stands: run again to go on"
        ) from error
    except (CancelledError, distributed.comm.CommClosedError) as error:
        raise InputError(
            "the dask scheduler went away; what is done stands: run again to go on"
        ) from error
    finally:
        if client.status == "running":
            client.cancel(futures)


def _with_one_thread[Job, Result](work: Callable[[Job], Result], job: Job) -> Result:
    """Do the work in a dask worker, whose environment somebody else made."""
    os.environ.update(one_thread())  # in time: JAX reads it at the first computation
    return work(job)
