"""Processes that are started: their environment, their work, and their end."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import wait
from typing import Any, Final

from slotflow.errors import InputError

#: BLAS and numba read these when they are loaded: their threads would fight for the cores.
ONE_THREAD: Final = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Let processes that are started meanwhile have these variables from their start on."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def end_with_parent() -> None:
    """Let this process end when the one that started it does, whatever ends that."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)  # nobody would read the result, and a lock that the parent held is gone


def work_off[Job, Result](
    work: Callable[[Job], Result], jobs: Iterable[Job], workers: int,
    begin: Callable[..., None], arguments: tuple[Any, ...] = (),
) -> Generator[tuple[int, Result]]:  # fmt: skip
    """Yield (number of the job, ``work(job)``) in processes of their own, as they are done.

    The processes have one thread each, end with this one, and leave Ctrl-C to it. Where the
    caller breaks off, or a job raises, they are ended at once: what they were at is lost, and
    nobody waits for it.

    Args:
        work: and the jobs are pickled.
        jobs: what there is to do.
        workers: processes.
        begin: called in each with ``arguments`` before its first job.
        arguments: likewise pickled.

    Raises:
        InputError: a process ended.
    """
    context = multiprocessing.get_context("spawn")
    before = set(multiprocessing.active_children())
    with (
        environment(ONE_THREAD),
        ProcessPoolExecutor(workers, context, partial(_begin, begin), arguments) as pool,
    ):
        try:
            with _without_interruptions():  # processes are started here, and keep to it
                futures = [
                    pool.submit(_numbered, work, number, job) for number, job in enumerate(jobs)
                ]
            finished = as_completed(futures)
            del futures  # the list would hold on to every result
            for future in finished:
                yield future.result()
        except BrokenProcessPool as error:
            raise InputError(
                "a worker process ended (killed, or out of memory?); what is done stands: run"
                " again to go on"
            ) from error
        except BaseException:  # an interruption, too, and a caller who has seen enough
            for child in set(multiprocessing.active_children()) - before:
                child.terminate()
            raise


def _begin(begin: Callable[..., None], *arguments: Any) -> None:
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    begin(*arguments)


def _numbered[Job, Result](
    work: Callable[[Job], Result], number: int, job: Job
) -> tuple[int, Result]:
    return number, work(job)


@contextmanager
def _without_interruptions() -> Iterator[None]:
    """Block SIGINT, also in processes that are started meanwhile; one that came is not lost."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
