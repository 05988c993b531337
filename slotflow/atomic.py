"""Files that are either whole or as they were: a temporary name, then a rename."""

import glob
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from slotflow.errors import InputError
from slotflow.manifest import replace


@contextmanager
def written(path: Path) -> Iterator[Path]:
    """Give a temporary name to write to; once that is done, put the file in its place, durably.

    However the writing ends, nothing stays under the temporary name; unless it ends well, what
    stood at ``path`` stays.

    Raises:
        InputError: the system refuses to write (a full disk, say); it names the file.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        replace(path, temporary)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):  # read-only by now, with nothing of ours: the first error tells
            temporary.unlink(missing_ok=True)


def remove_leftovers(folder: Path, names: Iterable[str]) -> None:
    """Remove what killed processes left of files of these names; the folder must be held.

    Args:
        folder: where :func:`written` put them; it need not be there.
        names: of the files.
    """
    for name in names:
        for path in folder.glob(f".{glob.escape(name)}.*.tmp"):
            if path.name[len(name) + 2 : -4].isdecimal():
                path.unlink(missing_ok=True)
