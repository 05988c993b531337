"""Timing two ways of doing the same thing against each other, for the scripts beside this."""

import math
import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

#: Shortest stretch that is timed, s: calls shorter than this are timed several at a time.
STRETCH = 0.01
#: Rounds beyond which more make no difference.
MOST_ROUNDS = 400


class Comparison(NamedTuple):
    """Seconds a call took in each round, ours and theirs."""

    ours: list[float]
    theirs: list[float]

    @property
    def ratios(self) -> list[float]:
        """How many times as long theirs took, round by round, rising."""
        return sorted(b / a for a, b in zip(self.ours, self.theirs, strict=True))

    @property
    def speedup(self) -> float:
        """Median of the rounds' ratios."""
        return round(median(self.ratios), 3)

    @property
    def spread(self) -> tuple[float, float]:
        """Smallest and largest of the rounds' ratios."""
        ratios = self.ratios
        return round(ratios[0], 3), round(ratios[-1], 3)

    def line(self, name: str) -> str:
        """One line for people."""
        low, high = self.spread
        return (
            f"{name}: {1e3 * median(self.ours):.3f} ms, {1e3 * median(self.theirs):.3f} ms; "
            f"ratio {self.speedup:.2f} ({low:.2f} to {high:.2f}, {len(self.ours)} rounds)"
        )


def compare(
    ours: Callable[[], object],
    theirs: Callable[[], object],
    seconds: float,
    least: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> Comparison:
    """Run the two in turn for that long, at least ``least`` rounds; who goes first alternates.

    ``clock``: ``time.process_time`` where all is done by one thread and the machine is not ours
    alone; the seconds in which another program had the processor then do not count.
    """
    calls = [(ours, _repeats(ours, clock)), (theirs, _repeats(theirs, clock))]
    spent: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + seconds
    turn = 0
    while turn < least or (time.perf_counter() < end and turn < MOST_ROUNDS):
        for which in (turn % 2, 1 - turn % 2):
            call, repeats = calls[which]
            spent[which].append(_stretch(call, repeats, clock) / repeats)
        turn += 1
    return Comparison(*spent)


def _stretch(call: Callable[[], object], repeats: int, clock: Callable[[], float]) -> float:
    begin = clock()
    for _ in range(repeats):
        call()
    return clock() - begin


def _repeats(call: Callable[[], object], clock: Callable[[], float]) -> int:
    """Warm up; return how many calls fill a stretch."""
    once = min(_stretch(call, 1, clock) for _ in range(3))
    return max(1, math.ceil(STRETCH / once))


def slope(sizes: list[int], seconds: list[float]) -> float:
    """Least-squares slope of log seconds over log size."""
    x = [math.log(size) for size in sizes]
    y = [math.log(value) for value in seconds]
    middle = sum(x) / len(x)
    norm = sum((a - middle) ** 2 for a in x)
    return round(sum((a - middle) * b for a, b in zip(x, y, strict=True)) / norm, 3)
