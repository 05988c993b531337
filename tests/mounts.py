"""Small and read-only file systems in a process that sees them alone.

A process that called :func:`enter` may mount; nothing of it is seen outside, and all is gone when
the process ends. Root need not be asked where the system has user namespaces.
"""

import ctypes
import json
import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from tests.elsewhere import ROOT

READ_ONLY, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 32, 4096, 16384, 1 << 18  # of Linux


def enter() -> None:
    """Leave the mounts of all other processes; before any thread is started.

    Raises:
        OSError: the system refuses.
    """
    user, group = os.geteuid(), os.getegid()
    os.unshare(os.CLONE_NEWNS | (os.CLONE_NEWUSER if user else 0))
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    _mount("none", "/", None, RECURSIVE | PRIVATE)


def small(folder: Path, kilobytes: int) -> None:
    """Put a file system of this size over a folder, made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    _mount("none", str(folder), "tmpfs", 0, f"size={kilobytes}k")


def resize(folder: Path, kilobytes: int) -> None:
    """Give a file system of :func:`small` another size."""
    _mount("none", str(folder), "tmpfs", REMOUNT, f"size={kilobytes}k")


def read_only(folder: Path, on: bool = True) -> None:
    """Make a file system of :func:`small` read-only, or no longer."""
    _mount("none", str(folder), "tmpfs", REMOUNT | (READ_ONLY if on else 0))


def _mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    words = (source.encode(), target.encode(), None if kind is None else kind.encode())
    if libc.mount(*words, ctypes.c_ulong(flags), data.encode() or None):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


@lru_cache(maxsize=1)
def possible() -> bool:
    """Whether this system lets a process of ours mount."""
    if not sys.platform.startswith("linux"):
        return False
    code = (
        "import tempfile; from pathlib import Path; from tests import mounts; mounts.enter();"
        "mounts.small(Path(tempfile.gettempdir()), 100)"
    )
    return not subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False
    ).returncode


def apart(module: str, place: Path) -> list[dict[str, Any]]:
    """Run a module of the tests in a process of its own, on a folder; return what it told."""
    done = subprocess.run(
        [sys.executable, "-m", module, str(place)], cwd=ROOT, capture_output=True, text=True,
        timeout=300, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
