"""The folder of a training set that is being simulated: its lock, its log, what was left over."""

import json
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from slotflow.locks import held
from slotflow.manifest import MANIFEST

LOG: Final = "simulate.log"
LOCK: Final = ".lock"
#: What a process that was killed leaves under a temporary name.
_LEFTOVER: Final = re.compile(
    rf"\.(shard-\d{{5,9}}\.h5|{re.escape(MANIFEST)})\.[\w.-]+\.tmp", flags=re.ASCII
)
#: Component searches of a set (slotflow.tokencache).
_CACHE: Final = re.compile(
    r"(components|tokens)-[0-9a-f]{12}-[0-9a-f]{12}-\d+\.(npz|bin)", flags=re.ASCII
)


def locked(directory: Path) -> AbstractContextManager[None]:
    """Hold the folder for one run; the system lets go of it however the run ends.

    On a file system without locks nothing is held.

    Raises:
        InputError: another run holds it.
    """
    return held(
        directory / LOCK,
        f"{directory}: another run is simulating into it; let it end, or give another directory",
        keep=True,
    )


def remove_leftovers(directory: Path) -> None:
    """Remove what killed runs left under temporary names; the folder must be held."""
    for path in directory.iterdir():
        if _LEFTOVER.fullmatch(path.name) and not path.is_dir():
            path.unlink(missing_ok=True)


def remove_set(directory: Path) -> None:
    """Remove a training set's manifest, shards and component searches, and nothing else."""
    (directory / MANIFEST).unlink(missing_ok=True)
    for path in directory.iterdir():
        if re.fullmatch(r"shard-\d{5,9}\.h5", path.name) or _CACHE.fullmatch(path.name):
            path.unlink(missing_ok=True)


class Log:
    """Appends lines of JSON to the log: who simulated what, when and where."""

    def __init__(self, directory: Path) -> None:
        """Write into this folder."""
        self._path = directory / LOG

    def write(self, event: str, **values: Any) -> None:
        """Append an event with the time."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"event": event, "time": now} | values)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


@contextmanager
def logged(log: Log, **values: Any) -> Iterator[None]:
    """Log the start of a run, and its end or what stopped it."""
    started = time.monotonic()
    log.write("start", host=socket.gethostname(), pid=os.getpid(), **values)
    try:
        yield
    except BaseException as error:
        what = f"{type(error).__name__}: {' '.join(str(error).split())}"
        with suppress(OSError):  # a full disk: the first error tells
            log.write("stopped", error=what, seconds=round(time.monotonic() - started, 3))
        raise
    log.write("end", seconds=round(time.monotonic() - started, 3))
