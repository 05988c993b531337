"""Processes that are started: their environment, and their end."""

import multiprocessing
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import wait


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
