"""The process that reads HDF5 files for another: what may crash or hang does so here.

It imports NumPy and h5py alone, takes requests as lines of JSON on its standard input, and answers
on its standard output in frames: a letter, the length, the content. It has limits of memory and,
anew for every step, of the processor's time, and ends when its input does. The other side is
:mod:`slotflow.hdf5_process`.
"""

import contextlib
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import h5py
import numpy as np
from numpy.typing import NDArray

from slotflow import hdf5_local as local
from slotflow.errors import InputError
from slotflow.hdf5_checks import MAX_BYTES, check_size, check_storage
from slotflow.hdf5_process import ARRAY, BROKEN, ERROR, HEADER, PART, VALUE

Frame = tuple[bytes, Any]


def serve() -> None:
    """Answer requests until there are no more; the only thing that this process does.

    ``sys.argv[1]`` is JSON: ``memory`` (bytes of address space), ``seconds`` (of the processor, for
    one step) and ``idle`` (s without an open file, after which the process ends).
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # the other process is asked to end, and ends this
    limits = json.loads(sys.argv[1])
    out = os.dup(1)
    os.dup2(2, 1)  # what libraries print is no answer
    with contextlib.suppress(ValueError, OSError):  # where the system has no such limit
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (limits["memory"], limits["memory"]))
    files = Files()
    waiting = b""
    while True:
        if not files.open and not select.select([0], [], [], limits["idle"])[0]:
            return
        data = os.read(0, 1 << 16)
        if not data:
            return
        *requests, waiting = (waiting + data).split(b"\n")
        for request in requests:
            _more_time(limits["seconds"])
            for kind, content in files.answer(json.loads(request)):
                view = memoryview(content)
                _write(out, HEADER.pack(kind, view.nbytes))
                _write(out, view)
                _more_time(limits["seconds"])


def _more_time(seconds: int) -> None:
    """Let the process run so much longer, of the processor's time: what hangs is ended."""
    limit = int(time.process_time()) + 1 + seconds
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    if hard == resource.RLIM_INFINITY or limit < hard:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, hard))


def _write(handle: int, content: Any) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(handle, view) :]


class Files:
    """What is asked of files, one open at a time."""

    def __init__(self) -> None:
        self._file: h5py.File | None = None

    @property
    def open(self) -> bool:
        """Whether a file is open."""
        return self._file is not None

    def answer(self, request: Mapping[str, Any]) -> Iterator[Frame]:
        """Yield the frames of an answer, the last of which is a value or an error."""
        values = dict(request)
        try:
            yield from ANSWERS[values.pop("do")](self, **values)
        except InputError as error:
            yield ERROR, _words(str(error), error.__cause__ is not None)
        except MemoryError:
            name = "" if self._file is None else f"{self._file.filename}: "
            yield ERROR, _words(f"{name}needs more memory than there is", True)
        except Exception:  # ours to mend, and to be seen by whoever asked
            yield BROKEN, _words(traceback.format_exc())

    def _open(self, path: str, folder: str | None) -> Iterator[Frame]:
        if folder is not None:
            os.chdir(folder)  # so that names in messages are those that were given
        self._file = local.opened(path)
        yield _value(None)

    def _close(self) -> Iterator[Frame]:
        if self._file is not None:
            self._file.close()
            self._file = None
        yield _value(None)

    def _find(self, name: str) -> Iterator[Frame]:
        found = local.find(self._file, name)
        kinds = {h5py.Group: "group", h5py.Dataset: "dataset"}
        yield _value(next((kind for cls, kind in kinds.items() if isinstance(found, cls)), None))

    def _check(self, name: str, max_bytes: int) -> Iterator[Frame]:
        dataset = local.check_dataset(self._file, name, max_bytes)
        yield _value({"shape": dataset.shape, "dtype": type_words(dataset.dtype)})

    def _names(self, name: str, most: int) -> Iterator[Frame]:
        yield _value(local.group_names(self._file, name, most))

    def _holds(self, name: str) -> Iterator[Frame]:
        yield _value(local.holds_data(self._file, name))

    def _attribute(self, name: str, attribute: str) -> Iterator[Frame]:
        yield _value(local.read_attribute(self._file, name, attribute))

    def _dataset(self, name: str, max_bytes: int, field: str | None) -> Iterator[Frame]:
        return _frames(local.dataset_parts(self._file, name, max_bytes, field))

    def _columns(self, name: str, fields: Sequence[str] | None, max_bytes: int) -> Iterator[Frame]:
        return _frames(local.column_parts(self._file, name, fields, max_bytes))

    def _rows(self, name: str, rows: Sequence[int], max_bytes: int) -> Iterator[Frame]:
        found = local.read_rows(self._file, name, rows, max_bytes)
        return _frames(local.Parts(found.shape, found.dtype, iter([found])))

    def _trial(self, names: Sequence[str], attributes: Sequence[str]) -> Iterator[Frame]:
        """Read and forget: whoever asked will read it again, and say what is wrong with it."""
        assert self._file is not None
        last: Exception | None = None
        for name in attributes:
            try:
                self._file.attrs.get(name)
            except local.DAMAGED as error:
                last = error
        for name in names:
            try:
                _read_through(self._file, name)
            except InputError as error:
                last = error if error.__cause__ is not None else last
            except local.DAMAGED as error:
                last = error
        if last is not None:
            raise InputError(f"{self._file.filename}: damaged ({last})") from last
        yield _value(None)


def _read_through(file: h5py.File, name: str) -> None:
    """Read a data set of any type, unless its size or storage are refused."""
    dataset = local.find(file, name)
    if isinstance(dataset, h5py.Dataset):
        check_storage(dataset, name)
        check_size(dataset, name, MAX_BYTES)
        for rows in local.slabs(dataset):
            dataset[rows]


ANSWERS: Final[Mapping[str, Callable[..., Iterator[Frame]]]] = {
    "open": Files._open,
    "close": Files._close,
    "find": Files._find,
    "check": Files._check,
    "names": Files._names,
    "holds": Files._holds,
    "attribute": Files._attribute,
    "dataset": Files._dataset,
    "columns": Files._columns,
    "rows": Files._rows,
    "trial": Files._trial,
}


def type_words(dtype: np.dtype[Any]) -> Any:
    """Return a type of numbers, or of fields of them, as JSON; np.dtype() takes it."""
    if dtype.fields is None:
        return dtype.str
    kinds = [dtype.fields[name] for name in dtype.names or ()]
    return {
        "names": dtype.names,
        "formats": [kind[0].str for kind in kinds],
        "offsets": [kind[1] for kind in kinds],
        "itemsize": dtype.itemsize,
    }


def _frames(found: local.Parts) -> Iterator[Frame]:
    head = {"shape": found.shape, "dtype": type_words(found.dtype)}
    yield ARRAY, json.dumps(head).encode()
    for part in found.parts:
        yield PART, _bytes(part)
    yield _value(None)


def _bytes(part: NDArray[Any]) -> Any:
    return np.ascontiguousarray(part).reshape(-1).view(np.uint8).data


def _value(value: Any) -> Frame:
    return VALUE, json.dumps(value).encode()


def _words(message: str, complaint: bool = False) -> bytes:
    return json.dumps({"message": message, "complaint": complaint}).encode()
