"""Reading HDF5 files that somebody else made, in a process of its own.

Damaged bytes can crash libhdf5 or let it run for ever. So a user's file is opened in another
process, with limits of time and memory (:mod:`slotflow.hdf5_process`), which checks what it reads
(:mod:`slotflow.hdf5_local`) and sends it here. Everything that is read from a user's file goes
through here; each refusal is an InputError that names the file, the object and the value, and a
crash there is one here. Training sets, of which single rows are read again and again, are read
once in that process and then in this one: :func:`trial`.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from slotflow import hdf5_process
from slotflow.errors import InputError
from slotflow.hdf5_checks import MAX_BYTES, MAX_TABLE_BYTES, check_dtype, check_signature
from slotflow.hdf5_process import ARRAY, BROKEN, ERROR, PART, VALUE, CrashedError, EndedError

_MOST_TRIED: Final = 1 << 16

Take = Callable[[int], list[memoryview]]


@dataclass(frozen=True)
class Dataset:
    """What a data set is: its shape and type."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)


class File:
    """An HDF5 file that is open in another process.

    Attributes:
        filename: as it was given.
    """

    def __init__(self, path: Path) -> None:
        """Open a file.

        Raises:
            InputError: not readable, not HDF5, or truncated.
            CrashedError: opening it ended the process.
        """
        self.filename = str(path)
        self._sound = False
        folder = None
        with suppress(OSError):
            folder = str(Path.cwd())
        request = {"do": "open", "path": self.filename, "folder": folder}
        try:
            self._process, head = hdf5_process.started(request)
            self._sound = True
            try:
                self._answer(head)
            except BaseException:
                self._process.end()
                raise
        except EndedError as error:
            raise CrashedError(f"{path}: {error}") from error

    def ask(self, do: str, take: Callable[[Any], Take] | None = None, /, **values: Any) -> Any:
        """Ask for something in the file.

        Args:
            do: a name of :data:`slotflow.hdf5_server.ANSWERS`.
            take: makes, of what is said of an array, what gives places for its parts.
            values: what the question is about.

        Raises:
            InputError: the refusal of the other process.
            CrashedError: it ended.
        """
        try:
            self._process.send({"do": do, **values})
            return self._answer(self._process.frame(), take)
        except EndedError as error:
            self._sound = False
            raise CrashedError(f"{self.filename}: {error}") from error

    def close(self) -> None:
        """Close the file, and keep the process for the next one unless libhdf5 complained.

        Raises:
            CrashedError: closing it ended the process.
        """
        try:
            self.ask("close")
        finally:
            if self._sound:
                hdf5_process.keep(self._process)
            else:
                self._process.end()

    def abandon(self) -> None:
        """Close the file after an error, which shall not give way to another one."""
        with suppress(InputError):
            self.close()

    def _answer(self, head: tuple[bytes, int], take: Callable[[Any], Take] | None = None) -> Any:
        place: Take | None = None
        while True:
            kind, size = head
            if kind == PART:
                assert place is not None
                for view in place(size):
                    self._process.fill(view)
            else:
                content = bytearray(size)
                self._process.fill(memoryview(content))
                value = json.loads(bytes(content))
                if kind == VALUE:
                    return value
                if kind == ERROR:
                    self._sound &= not value["complaint"]
                    raise InputError(value["message"])
                if kind == BROKEN:
                    self._sound = False
                    raise RuntimeError(value["message"])
                assert kind == ARRAY
                assert take is not None
                place = take(value)
            head = self._process.frame()


@contextmanager
def open_checked(path: str | Path) -> Iterator[File]:
    """Open an HDF5 file for reading, in another process.

    Raises:
        InputError: missing, not a file, not readable, not HDF5, truncated, or damaged in a way
            that ends the process.
    """
    path = Path(path)
    check_signature(path)
    file = File(path)
    try:
        yield file
    except BaseException:
        file.abandon()
        raise
    file.close()


def find(file: File, name: str) -> Literal["group", "dataset"] | None:
    """Return what the object called ``name`` is, following hard links alone; None where absent.

    Raises:
        InputError: a component is a soft, external or user-defined link, is no group, or
            cannot be read.
    """
    found: Literal["group", "dataset"] | None = file.ask("find", name=name)
    return found


def check_dataset(file: File, name: str, max_bytes: int = MAX_BYTES) -> Dataset:
    """Return shape and type of a data set once its layout, size, filters and type pass.

    Raises:
        InputError: absent, not a data set, or refused for one of the module's reasons.
    """
    return _described(file, name, file.ask("check", name=name, max_bytes=max_bytes))


def read_dataset(
    file: File, name: str, max_bytes: int = MAX_BYTES, field: str | None = None
) -> NDArray[Any]:
    """Read a data set (one field of it where ``field`` is given) after all the checks.

    Raises:
        InputError: as :func:`check_dataset`; no such field; or a part that cannot be read
            (a checksum that does not match, a truncated chunk).
    """
    return _whole(file, name, "dataset", max_bytes=max_bytes, field=field)


def read_rows(
    file: File, name: str, rows: Sequence[int], max_bytes: int = MAX_BYTES
) -> NDArray[Any]:
    """Read single rows of a data set that is itself too long to be read.

    Args:
        file: from :func:`open_checked`.
        name: the data set.
        rows: indices along the first axis, within it.
        max_bytes: largest declared size.

    Raises:
        InputError: as :func:`read_dataset`.
    """
    return _whole(file, name, "rows", rows=list(rows), max_bytes=max_bytes)


def read_columns(
    file: File,
    name: str,
    fields: Sequence[str] | None = None,
    max_bytes: int = MAX_TABLE_BYTES,
) -> NDArray[np.float64]:
    """Read columns of real numbers in one pass, each contiguous: (columns, N) float64.

    Args:
        file: from :func:`open_checked`.
        name: a compound data set of shape (N,) or (N, 1), a plain one of shape (N, columns) or,
            for one column, (N,).
        fields: of a compound data set; None for a plain one.
        max_bytes: largest declared size.

    Raises:
        InputError: as :func:`read_dataset`; another shape; or a column that is not floating
            point.
    """
    out: NDArray[np.float64] = np.empty((0, 0))
    at = 0

    def begin(head: Any) -> Take:
        nonlocal out
        out = np.empty(_described(file, name, head).shape)
        return place

    def place(size: int) -> list[memoryview]:
        nonlocal at
        rows = size // (8 * len(out))
        views = [memoryview(column[at : at + rows]).cast("B") for column in out]
        at += rows
        return views

    file.ask("columns", begin, name=name, fields=fields, max_bytes=max_bytes)
    return out


def _whole(file: File, name: str, do: str, **values: Any) -> NDArray[Any]:
    """Read what the other process sends as it lies in memory."""
    out: NDArray[Any] = np.empty(0)
    at = 0

    def begin(head: Any) -> Take:
        nonlocal out
        found = _described(file, name, head)
        out = np.empty(found.shape, found.dtype)
        return place

    def place(size: int) -> list[memoryview]:
        nonlocal at
        view = memoryview(out.reshape(-1).view(np.uint8))[at : at + size]
        at += size
        return [view]

    file.ask(do, begin, name=name, **values)
    return out


def _described(file: File, name: str, words: Any) -> Dataset:
    kind = words["dtype"]
    dtype = np.dtype(kind)
    check_dtype(dtype, f"{file.filename}: {name}")  # nothing but numbers comes from there
    return Dataset(tuple(words["shape"]), dtype)


def group_names(file: File, name: str, most: int = 64) -> tuple[str, ...]:
    """Return the names in a group, at most so many, sorted; none where there is no such group.

    Raises:
        InputError: the object is refused by :func:`find`, or the group cannot be listed.
    """
    return tuple(file.ask("names", name=name, most=most))


def holds_data(file: File, name: str) -> bool:
    """Whether there is a data set of that name in which something was written.

    Raises:
        InputError: the object is refused by :func:`find`.
    """
    return bool(file.ask("holds", name=name))


def read_attribute(file: File, name: str, attribute: str) -> str | float | None:
    """Return a scalar attribute of the object ``name`` as text or number; None where absent.

    Raises:
        InputError: the object is refused by :func:`find`, or the attribute is large, has
            more than one value, or is neither text nor a real number.
    """
    value: str | float | None = file.ask("attribute", name=name, attribute=attribute)
    return value


_tried: set[tuple[Any, ...]] = set()


def trial(path: Path, names: Sequence[str], attributes: Sequence[str] = ()) -> None:
    """Read data sets and attributes of the root once, in another process, and forget them.

    For files that this process reads itself afterwards, some rows at a time: what would end this
    process ends that one. A file is tried once, as long as it is not changed. Errors that libhdf5
    reports are left to whoever reads.

    Raises:
        CrashedError: the file ended the process.
    """
    try:
        found = path.stat()
    except OSError:
        return
    key = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, *names)
    if key in _tried:
        return
    try:
        with open_checked(path) as file:
            file.ask("trial", names=list(names), attributes=list(attributes))
    except CrashedError:
        raise
    except InputError:  # said again, in the words of whoever reads
        return
    if len(_tried) >= _MOST_TRIED:
        _tried.clear()
    _tried.add(key)
