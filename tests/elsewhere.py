"""What tests send to other processes: in a file of its own, which is quickly imported there."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def until(reached: Callable[[], bool]) -> None:
    """Wait, a minute at most."""
    deadline = time.monotonic() + 60
    while not reached() and time.monotonic() < deadline:
        time.sleep(0.02)


class Reader:
    """Stands for a BandReader: says which device it has, when as many have one as there are.

    Where a path is among the bands, ends its process once there is such a file.
    """

    def __init__(self, folder: Path, devices: int) -> None:
        self.folder, self.devices, self.device = folder, devices, "none"
        self.seconds = {"search": 0.0}

    def to(self, device: str) -> None:
        self.device = device

    def __call__(self, tiles: Sequence[Any]) -> Iterator[Any]:
        self.seconds["search"] += 1.0
        (self.folder / self.device.replace(":", "-")).touch()
        until(lambda: len(list(self.folder.iterdir())) >= self.devices)
        for tile in tiles:
            if isinstance(tile, Path):
                until(tile.exists)
                os._exit(9)
        yield from ((self.device, tile, os.environ.get("OMP_NUM_THREADS")) for tile in tiles)


@dataclass(frozen=True)
class DiesOnce:
    """Work in which the process that is the first to get batch 1 is killed."""

    work: Callable[[Any], Any]
    mark: Path

    def __call__(self, batch: Any) -> Any:
        if batch.number == 1 and not self.mark.exists():
            self.mark.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return self.work(batch)


def spawned(parent: int) -> list[int]:
    """The processes that are started for work, not multiprocessing's tracker."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            rows = dict(row.split(":", 1) for row in (place / "status").read_text().splitlines())
            if int(rows["PPid"]) == parent and b"spawn_main" in (place / "cmdline").read_bytes():
                found.append(int(place.name))
        except OSError:  # it has ended
            continue
    return found
