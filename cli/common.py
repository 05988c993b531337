"""What several commands share: progress, notes, the number of cores, checks of folders."""

import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import click

from slotflow.errors import InputError

GROUP = Path("/sys/fs/cgroup")  # the limits of this container, where it has any
MEMORY = Path("/proc/meminfo")
PLAIN_SECONDS = 10.0  # between lines where no bar can be drawn


class Progress(Protocol):
    """What a shown progress is told: done, of how many, and what else there is to say."""

    def __call__(self, done: int, total: int, text: str = "") -> None: ...


def cores() -> int:
    """Return the number of cores this process may use: its affinity's, or its container's quota."""
    if hasattr(os, "sched_getaffinity"):
        present = len(os.sched_getaffinity(0))
    else:
        present = os.cpu_count() or 1
    try:
        quota, period = (GROUP / "cpu.max").read_text("ascii").split()
        return max(1, min(present, int(quota) // int(period)))
    except (OSError, ValueError):  # no control groups, or "max"
        return present


def memory_left() -> float:
    """Return the bytes of memory that are left, infinite where nothing says so."""
    left = [math.inf]
    with suppress(OSError, ValueError):
        rows = dict(row.split(":") for row in MEMORY.read_text("ascii").splitlines())
        left += [1024.0 * int(rows["MemAvailable"].split()[0])] if "MemAvailable" in rows else []
    with suppress(OSError, ValueError):  # no control groups, or "max"
        limit, used = ((GROUP / f"memory.{name}").read_text("ascii") for name in ("max", "current"))
        rows = dict(row.split() for row in (GROUP / "memory.stat").read_text("ascii").splitlines())
        # files that were read count as used, and go when memory is wanted
        left.append(float(int(limit) - int(used) + int(rows.get("inactive_file", 0))))
    return max(min(left), 0.0)


def note(text: str) -> None:
    """Tell the user something on stderr."""
    click.echo(f"slotflow: note: {text}", err=True)


def say(text: str) -> None:
    """Say what is being done, on stderr."""
    click.echo(f"slotflow: {text}", err=True)


def error_line(error: BaseException) -> str:
    """Return an error as the one line that is shown of it."""
    message = str(error)
    if isinstance(error, OSError):  # a full disk, a permission
        where = f"{error.filename}: " if error.filename is not None else ""
        message = f"{where}{error.strerror or error}"
    return f"slotflow: error: {' '.join(message.split())}"


def check_folder(folder: Path, what: str) -> None:
    """Find out before any work whether files can be written to a folder, made if need be.

    Args:
        folder: the folder.
        what: will be in it, for the message.

    Raises:
        InputError: a file stands there or above it, or it cannot be written to.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: a file stands where the folder of {what} should be")
    here = folder.absolute()
    while not here.exists():
        here = here.parent
    if not (here.is_dir() and os.access(here, os.W_OK | os.X_OK)):
        raise InputError(
            f"{folder}: {what} cannot be written there ({here} is"
            f" {'not writable' if here.is_dir() else 'a file'}); give another folder"
        )


@contextmanager
def held_folder(folder: Path, lock: str, what: str, refusal: str) -> Iterator[None]:
    """Hold a folder of results, made if need be, for this process alone.

    Nothing is left of it but what was written: neither the lock nor, if nothing was, the folder.

    Args:
        folder: of the results.
        lock: name of the file that is locked in it.
        what: will be in it, for the message.
        refusal: what to say where another process holds it.

    Raises:
        InputError: another process holds it, or the folder cannot be written to.
    """
    from slotflow.locks import held

    check_folder(folder, what)
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with held(folder / lock, refusal):
            yield
    finally:
        if new:
            with suppress(OSError):  # there is something in it, as there should be
                folder.rmdir()


def _run_by_a_steady_clock(bar: object) -> None:
    """Let a bar tell times by a clock that nobody sets; its own is the wall's."""
    now = time.monotonic()
    for name, value in (("_time", time.monotonic), ("start_t", now), ("last_print_t", now)):
        setattr(bar, name, value)


@contextmanager
def progress(label: str, unit: str) -> Iterator[Progress]:
    """Show progress on stderr: a bar on a terminal, else a plain line now and then.

    Args:
        label: what is being done.
        unit: of what is counted, in the plural.
    """
    if sys.stderr.isatty():
        from tqdm import tqdm

        tqdm.monitor_interval = 0  # a thread that looks at the wall clock
        with tqdm(desc=label, unit=f" {unit}", leave=False) as bar:
            _run_by_a_steady_clock(bar)

            def advance(done: int, total: int, text: str = "") -> None:
                bar.total = total
                bar.set_postfix_str(text, refresh=False)
                bar.update(done - bar.n)

            yield advance
        return
    last = time.monotonic()

    def line(done: int, total: int, text: str = "") -> None:
        nonlocal last
        if time.monotonic() - last >= PLAIN_SECONDS:
            last = time.monotonic()
            say(f"{label}: {done} of {total} {unit}{', ' if text else ''}{text}")

    yield line
