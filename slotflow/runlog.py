"""The log of a training run: a CSV file, and TensorBoard's events."""

import csv
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from slotflow.atomic import written
from slotflow.errors import InputError

LOG_FILE: Final = "log.csv"
EVENTS: Final = "tensorboard"


class RunLog:
    """Rows of numbers by step, in a folder.

    Args:
        folder: of the run.
        tensorboard: also write events for TensorBoard.
    """

    def __init__(self, folder: Path, tensorboard: bool = False) -> None:
        self.path = folder / LOG_FILE
        self._writer: Any = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            if not isinstance(threading.excepthook, _Quiet):
                threading.excepthook = _Quiet(threading.excepthook)
            try:
                self._writer = SummaryWriter(str(folder / EVENTS))
            except OSError as error:
                raise self._refused(error) from error

    def add(self, row: dict[str, float]) -> None:
        """Append a row, which has its ``step``.

        Raises:
            InputError: the system refuses to write.
        """
        new = not self.path.exists()
        try:
            with self.path.open("a", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, list(row))
                if new:
                    writer.writeheader()
                writer.writerow(row)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written: {error.strerror}") from error
        if self._writer is None:
            return
        try:
            for name, value in row.items():
                group, _, term = name.partition("_")
                tag = f"{group}/{term}" if term else name
                self._writer.add_scalar(tag, value, int(row["step"]))
            self._writer.flush()
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> InputError:
        folder = self.path.parent / EVENTS
        return InputError(f"{folder}: cannot be written: {error.strerror or error}")

    def forget_after(self, step: int) -> None:
        """Drop what was written after a checkpoint at ``step``: it will be made again.

        TensorBoard's events stay in their file, and it is told to leave them out.
        """
        if self._writer is not None:
            from tensorboard.compat.proto.event_pb2 import Event, SessionLog

            begun = SessionLog(status=SessionLog.START)
            for event in (Event(file_version="brain.Event:2"), Event(session_log=begun)):
                self._writer.file_writer.add_event(event, step=step + 1)
        if not self.path.exists():
            return
        try:
            with self.path.open(newline="", encoding="utf-8") as file:
                reader = csv.DictReader(file)
                names = reader.fieldnames or ()
                whole = (row for row in reader if None not in row and None not in row.values())
                rows = [row for row in whole if int(row["step"]) <= step]  # none that is cut off
        except (csv.Error, ValueError, KeyError):  # cut off in its head, or not a log: begun anew
            self.path.unlink()
            return
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read: {error.strerror}") from error
        with (
            written(self.path) as temporary,
            temporary.open("w", newline="", encoding="utf-8") as file,
        ):
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(rows)


class _Quiet:
    """Of what ends threads, keeps back errors of TensorBoard's writer: the next call has them."""

    def __init__(self, before: Callable[[threading.ExceptHookArgs], object]) -> None:
        self._before = before

    def __call__(self, of: threading.ExceptHookArgs, /) -> None:
        ours = type(of.thread).__module__.startswith("tensorboard.")
        if not (ours and isinstance(of.exc_value, OSError)):
            self._before(of)
