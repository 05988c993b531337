"""Tokens and truths on disk: files of fixed-size records, of which only the asked are read.

A file holds a header of 32 bytes and one record a band (:func:`record_dtype`), each with its
own CRC-32. Records are read by their position, not mapped, so that a training run holds no
more than its batches.
"""

import hashlib
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from slotflow.atomic import written
from slotflow.errors import InputError
from slotflow.store import TrainingSet
from slotflow.tokendata import Int, TokenData
from slotflow.tokens import BAND_WIDTH, REFERENCE, TOKEN_WIDTH

MAGIC: Final = b"slotflow-tokens1"
_HEADER: Final = np.dtype([("magic", "S16"), ("rows", "<u8"), ("itemsize", "<u8")])
_OPEN_FILES: Final = 64  # at a time
_CHUNK: Final = 1024  # records read at once when a file is checked


def record_dtype(capacity: int, most: int) -> np.dtype[np.void]:
    """Return the layout of one band: C = ``capacity`` tokens, K = ``most`` sources."""
    return np.dtype(
        [
            ("features", "<f4", (capacity, TOKEN_WIDTH)),
            ("band", "<f4", (BAND_WIDTH,)),
            ("reference", "<f8", (capacity, len(REFERENCE))),
            ("valid", "?", (capacity,)),
            ("sources", "<f8", (most, 8)),
            ("snr", "<f8", (most,)),
            ("number", "<i8"),
            ("component", "<i8", (most,)),
            ("first_bin", "<i8"),
            ("crc", "<u4"),
        ]
    )


def _bytes(records: NDArray[np.void]) -> memoryview:
    """Return the memory of contiguous records."""
    return memoryview(records.view(np.uint8))


def _checksums(records: NDArray[np.void]) -> NDArray[np.uint32]:
    """Return the CRC-32 of each record's other fields, which precede it."""
    size = records.dtype.itemsize
    view = _bytes(records)
    kept = size - records.dtype["crc"].itemsize
    sums = (zlib.crc32(view[at : at + kept]) for at in range(0, len(view), size))
    return np.fromiter(sums, dtype=np.uint32, count=len(records))


def write_tokens(path: Path, data: TokenData) -> None:
    """Write bands as a file of records; ``sample`` is not kept, it follows from the position.

    Raises:
        InputError: the system refuses to write.
    """
    dtype = record_dtype(data.valid.shape[1], data.snr.shape[1])
    records = np.zeros(len(data.number), dtype=dtype)
    for name in dtype.names or ():
        if name != "crc":
            records[name] = getattr(data, name)
    records["crc"] = _checksums(records)
    header = np.array([(MAGIC, len(records), dtype.itemsize)], dtype=_HEADER)
    with written(path) as temporary, temporary.open("wb") as file:
        file.write(header.tobytes())
        file.write(_bytes(records))


def check_file(path: Path, rows: int, dtype: np.dtype[np.void]) -> None:
    """Check a file's header and length.

    Raises:
        InputError: naming the file and what is not as it must be.
    """
    expected = _HEADER.itemsize + rows * dtype.itemsize
    try:
        with path.open("rb") as file:
            head = file.read(_HEADER.itemsize)
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file: the search of components is not done") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    if head != np.array([(MAGIC, rows, dtype.itemsize)], dtype=_HEADER).tobytes():
        raise InputError(f"{path}: damaged: its header is not that of {rows} bands' tokens")
    if size != expected:
        raise InputError(f"{path}: damaged: expected {expected} bytes; got {size}")


def is_whole(path: Path, rows: int, dtype: np.dtype[np.void]) -> bool:
    """Whether a file is there and every record of it is as it was written."""
    try:
        with TokenStore([path], [rows], rows, dtype) as store:
            for start in range(0, rows, _CHUNK):
                store.records(np.arange(start, min(start + _CHUNK, rows)))
    except InputError:
        return False
    return True


class TokenStore:
    """The tokens of a training set, on disk; holds nothing but some open files.

    May be sent to other processes, and used after a fork: reads do not depend on the
    position in a file.

    Args:
        paths: the files in order, noise draws after samples.
        rows: bands of each.
        samples: of the training set; band i belongs to sample i modulo ``samples``.
        dtype: of a record.
        data: the training set, for the bands themselves.

    Raises:
        InputError: a file is missing, or its header or length is not as it must be.
    """

    def __init__(
        self, paths: Sequence[Path], rows: Sequence[int], samples: int, dtype: np.dtype[np.void],
        data: TrainingSet | None = None,
    ) -> None:  # fmt: skip
        self.paths, self.samples, self.dtype, self.data = list(paths), samples, dtype, data
        self._starts = np.concatenate([[0], np.cumsum(rows, dtype=np.int64)])
        self._files: dict[int, int] = {}
        for path, count in zip(paths, rows, strict=True):
            check_file(path, count, dtype)

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def sample(self) -> Int:
        """The sample that each band belongs to: (N,)."""
        return np.arange(len(self)) % self.samples

    def fingerprint(self) -> str:
        """Return what tells these bands from others: the files' names carry their content."""
        names = "/".join(path.name for path in self.paths)
        return hashlib.sha256(names.encode()).hexdigest()

    def rows(self, index: Int) -> TokenData:
        """Read the chosen bands, in this order.

        Raises:
            IndexError: no such band.
            InputError: a file that is damaged, or went away.
        """
        index = np.asarray(index, dtype=np.int64)
        wanted, place = np.unique(index, return_inverse=True)
        records = self.records(wanted)
        columns: dict[str, Any] = {
            name: records[name][place] for name in records.dtype.names or () if name != "crc"
        }
        return TokenData(**columns, sample=index % self.samples)

    def bands(self, index: Int) -> NDArray[np.complex64]:
        """Read the bands themselves, each with the noise of its draw: (n, 3, bins).

        Raises:
            ValueError: the store was opened without its training set.
        """
        if self.data is None:
            raise ValueError("expected the training set for the stream 'spectrum'; got None")
        places = zip((index % self.samples).tolist(), (index // self.samples).tolist(), strict=True)
        return np.concatenate([self.data.standard_bands(i, i + 1, draw) for i, draw in places])

    def records(self, wanted: Int) -> NDArray[np.void]:
        """Read and check records, ``wanted`` in increasing order; neighbours in one read."""
        if len(wanted) and not 0 <= wanted[0] <= wanted[-1] < len(self):
            raise IndexError(f"expected bands of 0..{len(self) - 1}; got {wanted[[0, -1]]}")
        records = np.empty(len(wanted), dtype=self.dtype)
        number = np.searchsorted(self._starts, wanted, side="right") - 1
        ends = np.flatnonzero((np.diff(wanted) != 1) | (np.diff(number) != 0)) + 1
        for run in np.split(np.arange(len(wanted)), ends):
            if len(run):
                file = int(number[run[0]])
                row = int(wanted[run[0]] - self._starts[file])
                self._read(file, row, records[run[0] : run[-1] + 1])
        bad = np.flatnonzero(_checksums(records) != records["crc"])
        if len(bad):
            file = int(number[bad[0]])
            row = int(wanted[bad[0]] - self._starts[file])
            raise InputError(f"{self.paths[file]}: damaged: record {row} is not as it was written")
        return records

    def _read(self, number: int, row: int, records: NDArray[np.void]) -> None:
        """Fill ``records`` from a file."""
        view = _bytes(records)
        at, done = _HEADER.itemsize + row * self.dtype.itemsize, 0
        try:
            file = self._open(number)
            while done < len(view):
                part = os.pread(file, len(view) - done, at + done)
                if not part:
                    raise InputError(f"{self.paths[number]}: damaged: shorter than it was")
                view[done : done + len(part)] = part
                done += len(part)
        except OSError as error:
            raise InputError(f"{self.paths[number]}: cannot be read: {error.strerror}") from error

    def _open(self, number: int) -> int:
        """Return the descriptor of a file; the one that was opened first makes room."""
        if number not in self._files:
            if len(self._files) >= _OPEN_FILES:
                os.close(self._files.pop(next(iter(self._files))))
            self._files[number] = os.open(self.paths[number], os.O_RDONLY | os.O_CLOEXEC)
        return self._files[number]

    def close(self) -> None:
        """Close the files that are open; a later read opens them again."""
        while self._files:
            os.close(self._files.popitem()[1])

    def __enter__(self) -> "TokenStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_files"):
            self.close()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_files": {}}
