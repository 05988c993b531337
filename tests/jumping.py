"""A wall clock that is set anew at every look: back to 1970, on to 2100, and by hours."""

import datetime as dates
import time
from typing import Final

import pytest

TIMES: Final = (1.8e9, 0.0, 4.1e9, 1.8e9 - 7200.0, 1.8e9 + 7200.0, 1.0)
#: Modules that write down when something was made.
STAMPING: Final = ("slotflow.simulate.folder", "slotflow.report.make")


class Jumping:
    """The clock; ``looks`` counts how often it was asked."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.looks = 0
        clock = self

        class Date(dates.datetime):
            @classmethod
            def now(cls, tz: dates.tzinfo | None = None) -> "Date":
                return cls.fromtimestamp(clock(), tz)

        patch.setattr(time, "time", self)
        patch.setattr(time, "time_ns", lambda: int(1e9 * self()))
        patch.setattr("tqdm.std.time", self)
        for name in STAMPING:
            patch.setattr(f"{name}.datetime", Date)

    def __call__(self) -> float:
        self.looks += 1
        return TIMES[self.looks % len(TIMES)]
