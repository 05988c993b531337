"""A file for HDF5 to write to, in which a full disk is an error and not the process's end.

HDF5 does not survive that what it wrote is refused: closing such a file can end the process. Here
a refused write is remembered and taken for done, until the writer asks.
"""

import io
from collections.abc import Buffer
from pathlib import Path
from typing import Final

_SLAB: Final = 1 << 22  # bytes written at a time


def check_room(path: Path, size: int) -> None:
    """Write so many zeros to a file, to find out whether there is room for them.

    For what writes HDF5 by itself and could not be given a :class:`Sink`.

    Raises:
        OSError: there is none; what is left of the file is the caller's to remove.
    """
    with path.open("wb", buffering=0) as file:
        left = size
        while left > 0:
            left -= file.write(bytes(min(left, _SLAB)))


class Sink(io.RawIOBase):
    """A new file that is written and read at any place.

    Args:
        path: of the file.

    Attributes:
        refused: what the system said of the first write that it refused; None while all is well.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("w+b", buffering=0)
        self.refused: OSError | None = None

    def check(self) -> None:
        """Raise what the system said of a write that it refused."""
        if self.refused is not None:
            raise self.refused

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: Buffer, /) -> int:
        """Read; where a write was refused there may be nothing, which reads as zeros."""
        view = memoryview(buffer).cast("B")
        done = self._file.readinto(view) or 0
        if self.refused is not None and done < len(view):
            view[done:] = bytes(len(view) - done)
            done = len(view)
        return done

    def write(self, data: Buffer, /) -> int:
        """Write all of it, or remember why not."""
        view, done = memoryview(data).cast("B"), 0
        if self.refused is None:
            try:
                while done < len(view):
                    done += self._file.write(view[done:])
            except OSError as error:
                self.refused = error
        return len(view)

    def truncate(self, size: int | None = None, /) -> int:
        """Set the length, or remember why not."""
        try:
            return self._file.truncate(size)
        except OSError as error:
            self.refused = self.refused or error
            return size or 0

    def close(self) -> None:
        # an object whose file could not be made is closed, too, when it goes
        if not self.closed and hasattr(self, "_file"):
            self._file.close()
        super().close()
