"""A folder that becomes read-only in the middle of a run, as a disk with errors does."""

import builtins
import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


class ReadOnly:
    """From the n-th change below a folder on, the system refuses all: EROFS, from each call.

    Also from those that would change nothing: removing what is not there is refused, too. What
    C libraries write by themselves is not seen.

    Args:
        folder: below which that is so, and itself.
        after: changes that are let through.
        patch: through which the calls are replaced.
    """

    def __init__(self, folder: Path, after: int, patch: pytest.MonkeyPatch) -> None:
        self._folder, self._left, self.refused = folder.resolve(), after, 0
        for module in (io, builtins):
            patch.setattr(module, "open", self._instead(io.open, _writes))
        patch.setattr(os, "open", self._instead(os.open, _makes))
        for name in ("unlink", "remove", "replace", "rename", "rmdir"):
            patch.setattr(os, name, self._instead(getattr(os, name), lambda *_: True))
        patch.setattr(
            os, "mkdir", self._instead(os.mkdir, lambda path, *_: not Path(path).exists())
        )

    def _instead(
        self, real: Callable[..., Any], changes: Callable[..., bool]
    ) -> Callable[..., Any]:
        def call(path: Any, *rest: Any, **named: Any) -> Any:
            if self._below(path) and changes(path, *rest, *named.values()):
                if self._left <= 0:
                    self.refused += 1
                    raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
                self._left -= 1
            return real(path, *rest, **named)

        return call

    def _below(self, path: Any) -> bool:
        if not isinstance(path, str | os.PathLike):
            return False
        here = Path(os.path.abspath(path))  # noqa: PTH100
        return here == self._folder or self._folder in here.parents


def _writes(_: Any, mode: Any = "r", *__: Any) -> bool:
    return isinstance(mode, str) and any(letter in mode for letter in "wax+")


def _makes(_: Any, flags: int, *__: Any) -> bool:
    return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
