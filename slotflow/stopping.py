"""Being asked to stop: the signals that a batch system sends before it takes the machine."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

SIGNALS: Final = (signal.SIGTERM, signal.SIGUSR1)


class StopRequest:
    """Whether a signal came, and which; ``forward``: hand it on to this process's children."""

    def __init__(self, forward: bool = False) -> None:
        self.name, self._forward = "", forward

    def __bool__(self) -> bool:
        return bool(self.name)

    def _take(self, number: int, _: Any) -> None:
        self.name = signal.Signals(number).name
        if self._forward:
            for child in multiprocessing.active_children():
                if child.pid is not None:
                    os.kill(child.pid, number)


@contextmanager
def stop_requests(forward: bool = False) -> Iterator[StopRequest]:
    """Take note of SIGTERM and SIGUSR1 instead of ending, as long as the context lasts.

    Only a process's main thread can; in another nothing is taken note of.

    Args:
        forward: hand the signal on to this process's children.
    """
    request = StopRequest(forward)
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, request._take) for number in SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
