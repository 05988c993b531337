"""Files that are either whole or as they were: a temporary name, then a rename."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
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
        temporary.unlink(missing_ok=True)
