"""What several commands share: progress, notes, the number of cores."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

PLAIN_SECONDS = 10.0  # between lines where no bar can be drawn

Progress = Callable[[int, int], None]


def cores() -> int:
    """Return the number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def note(text: str) -> None:
    """Tell the user something on stderr."""
    click.echo(f"slotflow: note: {text}", err=True)


def say(text: str) -> None:
    """Say what is being done, on stderr."""
    click.echo(f"slotflow: {text}", err=True)


@contextmanager
def progress(label: str, unit: str) -> Iterator[Progress]:
    """Show progress on stderr: a bar on a terminal, else a plain line now and then.

    Args:
        label: what is being done.
        unit: of what is counted, in the plural.
    """
    if sys.stderr.isatty():
        from tqdm import tqdm

        with tqdm(desc=label, unit=f" {unit}", leave=False) as bar:

            def advance(done: int, total: int) -> None:
                bar.total = total
                bar.update(done - bar.n)

            yield advance
        return
    last = time.monotonic()

    def line(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= PLAIN_SECONDS:
            last = time.monotonic()
            say(f"{label}: {done} of {total} {unit}")

    yield line
