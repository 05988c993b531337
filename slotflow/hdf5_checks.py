"""What a data set in somebody else's file must not be: checks of :mod:`slotflow.hdf5_local`."""

from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np

from slotflow.errors import InputError

#: Filters that every HDF5 build of h5py brings: deflate, shuffle, fletcher32, LZF.
FILTERS: Final = {1: "gzip", 2: "shuffle", 3: "fletcher32", 32000: "lzf"}
MAX_BYTES: Final = 2 << 30  # declared size of one data set
MAX_TABLE_BYTES: Final = 5 << 30  # of several columns: t, X, Y, Z of a year at 0.25 s
MAX_CHUNK_BYTES: Final = 256 << 20  # one chunk, unpacked
MAX_RATIO: Final = 1100  # declared to stored size; deflate cannot exceed 1032
MAX_ATTRIBUTE_BYTES: Final = 64 << 10
MAX_RANK: Final = 4
_SIGNATURE: Final = b"\x89HDF\r\n\x1a\n"


def check_signature(path: Path) -> None:
    """Refuse what is not a readable file that begins like HDF5 (with or without a user block)."""
    if not path.exists():
        raise InputError(f"{path}: no such file")
    if not path.is_file():
        raise InputError(f"{path}: not a file")
    try:
        with path.open("rb") as stream:
            size, offset = path.stat().st_size, 0
            while offset < size:
                stream.seek(offset)
                if stream.read(len(_SIGNATURE)) == _SIGNATURE:
                    return
                offset = 512 if offset == 0 else 2 * offset
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    raise InputError(f"{path}: not an HDF5 file{' (it is empty)' if size == 0 else ''}")


def reason(error: BaseException) -> str:
    """One line of an HDF5 error, short enough to show."""
    text = " ".join(str(error).split())
    return text if len(text) <= 160 else text[:157] + "..."


def check_storage(dataset: h5py.Dataset, label: str) -> None:
    """Refuse data outside the file and filters that are not on the list."""
    properties = dataset.id.get_create_plist()
    if properties.get_layout() == h5py.h5d.VIRTUAL:
        raise InputError(
            f"{label}: a virtual data set, whose data lie in other files; copy them in"
        )
    if properties.get_external_count() > 0:
        raise InputError(f"{label}: external storage, whose data lie in other files; copy them in")
    for index in range(properties.get_nfilters()):
        code = properties.get_filter(index)[0]
        if code not in FILTERS:
            allowed = ", ".join(FILTERS.values())
            raise InputError(f"{label}: filter {code} is not supported (only {allowed})")


def check_dtype(dtype: np.dtype[Any], label: str) -> None:
    """Allow real numbers, fixed-length bytes and compounds of them."""
    fields = {label: dtype}
    if dtype.fields is not None:
        fields = {f"{label}, field {key!r}": value[0] for key, value in dtype.fields.items()}
    for where, field in fields.items():
        if field.kind not in "fiuS" or field.shape != ():
            raise InputError(f"{where}: type {field} is not supported (real numbers only)")
        if field.kind == "S" and field.itemsize > 1024:
            raise InputError(f"{where}: {field.itemsize} bytes of text a row (at most 1024)")


def check_size(dataset: h5py.Dataset, label: str, max_bytes: int) -> None:
    """Refuse sizes that are too large, or that were declared but never written."""
    if dataset.shape is None:
        raise InputError(f"{label}: holds no data (null data space)")
    if len(dataset.shape) > MAX_RANK:
        raise InputError(f"{label}: {len(dataset.shape)} dimensions (at most {MAX_RANK})")
    declared = int(dataset.dtype.itemsize)
    for length in dataset.shape:
        declared *= int(length)
    if declared == 0:
        raise InputError(f"{label}: holds no data (shape {dataset.shape})")
    if declared > max_bytes:
        raise InputError(f"{label}: declares {declared} bytes (at most {max_bytes})")
    if dataset.chunks is not None:
        chunk = int(dataset.dtype.itemsize)
        for length in dataset.chunks:
            chunk *= int(length)
        if chunk > MAX_CHUNK_BYTES:
            raise InputError(f"{label}: a chunk of {chunk} bytes (at most {MAX_CHUNK_BYTES})")
        pairs = zip(dataset.shape, dataset.chunks, strict=True)
        expected = int(np.prod([-(-length // size) for length, size in pairs], dtype=object))
        written = int(dataset.id.get_num_chunks())
        if written < expected:
            raise InputError(f"{label}: {expected - written} of {expected} chunks never written")
    stored = int(dataset.id.get_storage_size())
    if declared > MAX_RATIO * max(stored, 1):
        raise InputError(f"{label}: declares {declared} bytes but stores {stored}")
