"""Processes that read HDF5 files for this one: started, limited, kept for the next file, ended.

What they do is :mod:`slotflow.hdf5_server`'s, which this process does not import.
"""

import atexit
import contextlib
import fcntl
import json
import os
import select
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any, Final

from slotflow.errors import InputError

HEADER: Final = struct.Struct("<cQ")  # of a frame: letter, length
#: Letters of frames. A value or an error ends an answer.
VALUE: Final = b"V"  # JSON
ERROR: Final = b"E"  # JSON: the message, and whether libhdf5 itself complained
BROKEN: Final = b"X"  # JSON: a traceback
ARRAY: Final = b"A"  # JSON: shape and type of what the parts make up
PART: Final = b"P"  # bytes
MEMORY: Final = 2 << 30  # bytes of address space, libraries included
SECONDS: Final = 20  # of the processor, for one step (at most a slab of 16 MiB or a chunk)
SILENT: Final = 600.0  # s without an answer, on a file system that does not come back, say
IDLE: Final = 30.0  # s that a process is kept without a file
FILES: Final = 200  # that one process reads
_PIPE: Final = 1 << 20  # bytes
_CODE: Final = """
import json, sys
sys.path += [p for p in json.loads(sys.argv[2]) if p not in sys.path]
from slotflow.hdf5_server import serve
serve()
"""


class CrashedError(InputError):
    """A file ended the process that read it."""


class EndedError(Exception):
    """The process ended, or was ended, before it answered; says how."""

    def __init__(self, words: str, code: int | None = None) -> None:
        super().__init__(words)
        self.code = code


class Process:
    """A process that reads files."""

    def __init__(self) -> None:
        """Start it.

        Raises:
            EndedError: it cannot be started.
        """
        limits = json.dumps({"memory": MEMORY, "seconds": SECONDS, "idle": IDLE})
        alone = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _CODE, limits, json.dumps(sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                env=os.environ | alone,
            )
        except OSError as error:
            raise EndedError(f"the process for it cannot be started ({error.strerror})") from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with contextlib.suppress(OSError):
                fcntl.fcntl(self._from, fcntl.F_SETPIPE_SZ, _PIPE)
        self.files = 0

    def send(self, request: Mapping[str, Any]) -> None:
        """Ask for something.

        Raises:
            EndedError: the process has ended.
        """
        try:
            self._to.write(json.dumps(request).encode() + b"\n")
        except OSError as error:
            raise self._ended() from error

    def frame(self) -> tuple[bytes, int]:
        """Return the letter and the length of the answer's next frame.

        Raises:
            EndedError: the process has ended.
        """
        head = bytearray(HEADER.size)
        self.fill(memoryview(head))
        kind, size = HEADER.unpack(head)
        return kind, size

    def fill(self, view: memoryview) -> None:
        """Take so much of the frame's content.

        Raises:
            EndedError: the process has ended, or does not answer.
        """
        handle = self._from.fileno()
        waiting = select.poll()
        waiting.register(handle, select.POLLIN)
        while view:
            if not waiting.poll(1e3 * SILENT):
                self._process.kill()
                self._process.wait()
                raise EndedError(f"not read within {SILENT:.0f} s")
            got = os.readv(handle, [view])
            if got == 0:
                raise self._ended()
            view = view[got:]

    def _ended(self) -> EndedError:
        """Say how it ended: it has closed its end of the pipe."""
        try:
            code = self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        if code == -signal.SIGXCPU:
            words = f"libhdf5 came to no end on it within {SECONDS} s of the processor: damaged"
        elif code == -signal.SIGKILL:
            words = "the process that read it was killed (no memory left?)"
        elif code < 0:
            words = f"libhdf5 crashed on it ({_signal(-code)}): damaged"
        else:
            words = f"the process that reads it ended with code {code}"
        return EndedError(words, code)

    def end(self) -> None:
        """Close the pipes, at which it ends, and see that it does."""
        for stream in (self._to, self._from):
            with contextlib.suppress(OSError):
                stream.close()
        try:
            self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def forget(self) -> None:
        """In a forked process: the other one's pipes are none of ours."""
        for stream in (self._to, self._from):
            with contextlib.suppress(OSError):
                stream.close()
        self._process.returncode = 0  # not our child, so that nobody waits for it


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class _Kept:
    """The process that waits for the next file, if there is one; safe among threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: Process | None = None

    def take(self) -> Process | None:
        with self._lock:
            found, self._process = self._process, None
        return found

    def keep(self, process: Process) -> None:
        with self._lock:
            if self._process is None and process.files < FILES:
                self._process = process
                return
        process.end()

    def end(self) -> None:
        if (process := self.take()) is not None:
            process.end()

    def after_fork(self) -> None:
        self._lock = threading.Lock()
        if (process := self.take()) is not None:
            process.forget()


_kept: Final = _Kept()
atexit.register(_kept.end)
os.register_at_fork(after_in_child=_kept.after_fork)


def started(request: Mapping[str, Any]) -> tuple[Process, tuple[bytes, int]]:
    """Send a request to the process that waits, or to a new one.

    Returns:
        The process, and the letter and length of its answer's first frame.

    Raises:
        EndedError: none can be started, or it ended of the request.
    """
    if (process := _kept.take()) is not None:
        try:
            return process, _asked(process, request)
        except EndedError as error:
            process.end()
            if error.code != 0:
                raise
            # else it had waited for too long: it was about to end before it was asked
    process = Process()
    try:
        return process, _asked(process, request)
    except EndedError:
        process.end()
        raise


def _asked(process: Process, request: Mapping[str, Any]) -> tuple[bytes, int]:
    process.send(request)
    process.files += 1
    return process.frame()


def keep(process: Process) -> None:
    """Let a process wait for the next file."""
    _kept.keep(process)
