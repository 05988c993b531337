"""One run at a time in a folder: locks that the system lets go of however a run ends."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from slotflow.errors import InputError

_NO_LOCKS: Final = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)


@contextmanager
def held(path: Path, refusal: str, *, keep: bool = False) -> Iterator[None]:
    """Hold a lock on a file, made if need be.

    A process that is killed holds nothing: what it leaves is a file that nobody has locked. On a
    file system without locks nothing is held.

    Args:
        path: of the file, in a folder that exists.
        refusal: what to say where another process holds it.
        keep: leave the file; else it is removed at the end.

    Raises:
        InputError: another process holds it, or the file cannot be made.
    """
    handle = _locked(path, refusal)
    try:
        yield
    finally:
        if not keep:
            with suppress(OSError):  # read-only by now: a file that nobody has locked is left
                path.unlink(missing_ok=True)  # before it is let go of
        os.close(handle)


def _locked(path: Path, refusal: str) -> int:
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if isinstance(error, BlockingIOError):
                os.close(handle)
                raise InputError(refusal) from error
            if error.errno not in _NO_LOCKS:
                os.close(handle)
                raise InputError(f"{path}: cannot be locked: {error.strerror}") from error
        if _is_there(path, handle):
            return handle
        os.close(handle)  # whoever held it removed it meanwhile: it guards nothing


def _is_there(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
