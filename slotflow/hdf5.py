"""Reading HDF5 files that somebody else made, without trusting them.

A crafted or damaged HDF5 file can point at other files on this machine (external links,
external storage, virtual data sets), declare petabytes, unpack a small chunk into a large
one, return fill values for parts that were never written, or loop. Everything that is read
from a user's file goes through here; each refusal is an InputError that names the file, the
object and the value.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np
from numpy.typing import NDArray

from slotflow.errors import InputError

#: Filters that every HDF5 build of h5py brings: deflate, shuffle, fletcher32, LZF.
FILTERS: Final = {1: "gzip", 2: "shuffle", 3: "fletcher32", 32000: "lzf"}
MAX_BYTES: Final = 2 << 30  # declared size of one data set
MAX_CHUNK_BYTES: Final = 256 << 20  # one chunk, unpacked
MAX_RATIO: Final = 1100  # declared to stored size; deflate cannot exceed 1032
MAX_ATTRIBUTE_BYTES: Final = 64 << 10
MAX_RANK: Final = 4
SLAB_BYTES: Final = 16 << 20  # read at a time
_SIGNATURE: Final = b"\x89HDF\r\n\x1a\n"


@contextmanager
def open_checked(path: str | Path) -> Iterator[h5py.File]:
    """Open an HDF5 file for reading, without a lock.

    Raises:
        InputError: missing, not a file, not readable, not HDF5, or truncated.
    """
    path = Path(path)
    _check_signature(path)
    try:
        file = h5py.File(path, "r", locking=False)
    except (OSError, RuntimeError, ValueError) as error:
        if "truncated" in str(error):
            raise InputError(f"{path}: truncated HDF5 file ({_reason(error)})") from error
        raise InputError(f"{path}: damaged HDF5 file ({_reason(error)})") from error
    with file:
        yield file


def _check_signature(path: Path) -> None:
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


def _reason(error: BaseException) -> str:
    """One line of an HDF5 error, short enough to show."""
    text = " ".join(str(error).split())
    return text if len(text) <= 160 else text[:157] + "..."


def find(file: h5py.File, name: str) -> h5py.Group | h5py.Dataset | None:
    """Return the object called ``name``, following hard links alone; None where absent.

    Raises:
        InputError: a component is a soft, external or user-defined link, is no group, or
            cannot be read.
    """
    try:
        here: Any = file["/"]
    except (OSError, RuntimeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file.filename}: damaged root group ({_reason(error)})") from error
    parts = [part for part in name.split("/") if part]
    for depth, part in enumerate(parts):
        where = "/".join(parts[: depth + 1])
        if not isinstance(here, h5py.Group):
            raise InputError(f"{file.filename}: {where}: its parent is not a group")
        try:
            key = part.encode("utf-8")
            if not here.id.links.exists(key):
                return None
            kind = here.id.links.get_info(key).type
            if kind != h5py.h5l.TYPE_HARD:
                label = {h5py.h5l.TYPE_SOFT: "a soft", h5py.h5l.TYPE_EXTERNAL: "an external"}
                raise InputError(
                    f"{file.filename}: {where} is {label.get(kind, 'a user-defined')} link;"
                    " only objects stored in the file itself are read"
                )
            here = here[part]
        except (OSError, RuntimeError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{file.filename}: {where}: damaged ({_reason(error)})") from error
    if not isinstance(here, h5py.Group | h5py.Dataset):
        raise InputError(f"{file.filename}: {name}: neither a group nor a data set")
    return here


def check_dataset(file: h5py.File, name: str, max_bytes: int = MAX_BYTES) -> h5py.Dataset:
    """Return the data set called ``name`` once its layout, size, filters and type pass.

    Raises:
        InputError: absent, not a data set, or refused for one of the module's reasons.
    """
    dataset = find(file, name)
    label = f"{file.filename}: {name}"
    if dataset is None:
        raise InputError(f"{label}: no such data set")
    if not isinstance(dataset, h5py.Dataset):
        raise InputError(f"{label}: a group where a data set is expected")
    try:
        _check_storage(dataset, label)
        _check_dtype(dataset.dtype, label)
        _check_size(dataset, label, max_bytes)
    except (OSError, RuntimeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{label}: damaged or of a type unknown here ({_reason(error)})"
        ) from error
    return dataset


def _check_storage(dataset: h5py.Dataset, label: str) -> None:
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


def _check_dtype(dtype: np.dtype[Any], label: str) -> None:
    """Allow real numbers, fixed-length bytes and compounds of them."""
    fields = {label: dtype}
    if dtype.fields is not None:
        fields = {f"{label}, field {key!r}": value[0] for key, value in dtype.fields.items()}
    for where, field in fields.items():
        if field.kind not in "fiuS" or field.shape != ():
            raise InputError(f"{where}: type {field} is not supported (real numbers only)")
        if field.kind == "S" and field.itemsize > 1024:
            raise InputError(f"{where}: {field.itemsize} bytes of text a row (at most 1024)")


def _check_size(dataset: h5py.Dataset, label: str, max_bytes: int) -> None:
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


def read_dataset(
    file: h5py.File, name: str, max_bytes: int = MAX_BYTES, field: str | None = None
) -> NDArray[Any]:
    """Read a data set (one field of it where ``field`` is given) after all the checks.

    Read in slabs along the first axis, so that what is unpacked at once stays small.

    Raises:
        InputError: as :func:`check_dataset`; no such field; or a slab that cannot be read
            (a checksum that does not match, a truncated chunk).
    """
    dataset = check_dataset(file, name, max_bytes)
    label = f"{file.filename}: {name}"
    dtype = dataset.dtype
    if field is not None:
        if dtype.fields is None or field not in dtype.fields:
            known = ", ".join(dtype.names or ()) or "none: not a compound type"
            raise InputError(f"{label}: no field {field!r} (fields: {known})")
        dtype = dtype.fields[field][0]
    source = dataset if field is None else dataset.fields(field)
    if dataset.shape == ():
        return np.asarray(_read(source, (), label), dtype=dtype)
    out = np.empty(dataset.shape, dtype=dtype)
    row_bytes = dataset.dtype.itemsize * int(np.prod(dataset.shape[1:], dtype=np.int64))
    rows = max(1, SLAB_BYTES // max(row_bytes, 1))
    if dataset.chunks is not None:  # whole chunks, or each would be unpacked more than once
        rows = max(rows // dataset.chunks[0], 1) * dataset.chunks[0]
    for begin in range(0, dataset.shape[0], rows):
        out[begin : begin + rows] = _read(source, slice(begin, begin + rows), label)
    return out


def _read(source: Any, selection: Any, label: str) -> Any:
    try:
        return source[selection]
    except (OSError, RuntimeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{label}: cannot be read: truncated or damaged ({_reason(error)})"
        ) from error


def read_attribute(file: h5py.File, name: str, attribute: str) -> str | float | None:
    """Return a scalar attribute of the object ``name`` as text or number; None where absent.

    Raises:
        InputError: the object is refused by :func:`find`, or the attribute is large, has
            more than one value, or is neither text nor a real number.
    """
    target = find(file, name)
    if target is None:
        return None
    label = f"{file.filename}: {name or '/'}, attribute {attribute!r}"
    try:
        if attribute not in target.attrs:
            return None
        low = target.attrs.get_id(attribute)
        size = int(np.prod(low.shape, dtype=object)) if low.shape else 1
        text = h5py.check_string_dtype(low.dtype) is not None
        if size != 1 or low.get_storage_size() > MAX_ATTRIBUTE_BYTES:
            raise InputError(f"{label}: {size} values (a single one of moderate size expected)")
        if not text and low.dtype.kind not in "fiuS":
            raise InputError(f"{label}: type {low.dtype} is not supported (text or a real number)")
        value = target.attrs[attribute]
    except (OSError, RuntimeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{label}: damaged ({_reason(error)})") from error
    value = np.asarray(value).reshape(-1).tolist()[0]
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    return value if isinstance(value, str) else float(value)
