"""Reading HDF5 files without trusting them, in the process that calls.

A crafted or damaged HDF5 file can point at other files on this machine (external links,
external storage, virtual data sets), declare petabytes, unpack a small chunk into a large
one, return fill values for parts that were never written, or loop. Each refusal is an InputError
that names the file, the object and the value. Bytes that end the process inside libhdf5 itself
end whoever calls: :mod:`slotflow.hdf5` calls from a process of its own.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from slotflow.errors import InputError
from slotflow.hdf5_checks import (
    MAX_ATTRIBUTE_BYTES,
    MAX_BYTES,
    MAX_TABLE_BYTES,
    check_dtype,
    check_signature,
    check_size,
    check_storage,
    reason,
)

SLAB_BYTES: Final = 16 << 20  # read at a time
#: What HDF5 and h5py raise on files that are damaged.
DAMAGED: Final = (OSError, RuntimeError, KeyError, TypeError, ValueError)


class Parts(NamedTuple):
    """What is to be read: the shape and type of the whole, and its parts in order."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    parts: Iterator[NDArray[Any]]


def opened(path: str | Path) -> h5py.File:
    """Open an HDF5 file for reading, without a lock.

    Raises:
        InputError: missing, not a file, not readable, not HDF5, or truncated.
    """
    path = Path(path)
    check_signature(path)
    try:
        return h5py.File(path, "r", locking=False)
    except DAMAGED as error:
        if "truncated" in str(error):
            raise InputError(f"{path}: truncated HDF5 file ({reason(error)})") from error
        raise InputError(f"{path}: damaged HDF5 file ({reason(error)})") from error


def find(file: h5py.File, name: str) -> h5py.Group | h5py.Dataset | None:
    """Return the object called ``name``, following hard links alone; None where absent.

    Raises:
        InputError: a component is a soft, external or user-defined link, is no group, or
            cannot be read.
    """
    try:
        here: Any = file["/"]
    except DAMAGED as error:
        raise InputError(f"{file.filename}: damaged root group ({reason(error)})") from error
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
        except DAMAGED as error:
            raise InputError(f"{file.filename}: {where}: damaged ({reason(error)})") from error
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
        check_storage(dataset, label)
        check_dtype(dataset.dtype, label)
        check_size(dataset, label, max_bytes)
    except DAMAGED as error:
        raise InputError(f"{label}: damaged or of a type unknown here ({reason(error)})") from error
    return dataset


def dataset_parts(
    file: h5py.File, name: str, max_bytes: int = MAX_BYTES, field: str | None = None
) -> Parts:
    """Check a data set (one field of it where ``field`` is given), and give it part by part.

    Parts are slabs along the first axis, so that what is unpacked at once stays small.

    Raises:
        InputError: as :func:`check_dataset`; no such field; and, once the parts are read, a slab
            that cannot be (a checksum that does not match, a truncated chunk).
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
    selections: Iterable[Any] = [()] if dataset.shape == () else slabs(dataset)
    parts = (np.asarray(_read(source, rows, label), dtype=dtype) for rows in selections)
    return Parts(dataset.shape, dtype, parts)


def slabs(dataset: h5py.Dataset) -> Iterator[slice]:
    """Yield parts of the first axis that are small enough to be unpacked at once."""
    row_bytes = dataset.dtype.itemsize * int(np.prod(dataset.shape[1:], dtype=np.int64))
    rows = max(1, SLAB_BYTES // max(row_bytes, 1))
    if dataset.chunks is not None:  # whole chunks, or each would be unpacked more than once
        rows = max(rows // dataset.chunks[0], 1) * dataset.chunks[0]
    for begin in range(0, dataset.shape[0], rows):
        yield slice(begin, min(begin + rows, dataset.shape[0]))


def column_parts(
    file: h5py.File,
    name: str,
    fields: Sequence[str] | None = None,
    max_bytes: int = MAX_TABLE_BYTES,
) -> Parts:
    """Check columns of real numbers and give them part by part, (columns, rows) float64 each.

    Args:
        file: from :func:`opened`.
        name: a compound data set of shape (N,) or (N, 1), a plain one of shape (N, columns) or,
            for one column, (N,).
        fields: of a compound data set; None for a plain one.
        max_bytes: largest declared size.

    Raises:
        InputError: as :func:`dataset_parts`; another shape; or a column that is not floating
            point.
    """
    dataset = check_dataset(file, name, max_bytes)
    label = f"{file.filename}: {name}"
    shape, known = dataset.shape, dataset.dtype.names or ()
    for field in fields or ():
        if field not in known:
            have = ", ".join(known) or "none: not a compound type"
            raise InputError(f"{label}: no field {field!r} (fields: {have})")
        if (kind := dataset.dtype[field]).kind != "f":
            raise InputError(f"{label}, field {field!r}: type {kind}; floating point expected")
    if fields is None and dataset.dtype.kind != "f":
        raise InputError(f"{label}: type {dataset.dtype}; floating point expected")
    if fields is not None and not (len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)):
        raise InputError(f"{label}: shape {shape}; (N,) or (N, 1) expected")
    if fields is None and len(shape) not in (1, 2):
        raise InputError(f"{label}: shape {shape}; (N,) or (N, columns) expected")
    columns = len(fields) if fields is not None else (*shape, 1)[1]
    parts = (_columns(_read(dataset, rows, label), fields, columns) for rows in slabs(dataset))
    return Parts((columns, shape[0]), np.dtype(np.float64), parts)


def _columns(slab: NDArray[Any], fields: Sequence[str] | None, columns: int) -> NDArray[Any]:
    """Turn rows into columns: (columns, rows) float64, contiguous."""
    out = np.empty((columns, len(slab)))
    if fields is None:
        out[:] = slab.reshape(len(slab), columns).T
    else:
        for column, field in zip(out, fields, strict=True):
            column[:] = slab[field].reshape(-1)
    return out


def read_rows(
    file: h5py.File, name: str, rows: Sequence[int], max_bytes: int = MAX_BYTES
) -> NDArray[Any]:
    """Read single rows of a data set that is itself too long to be read.

    Args:
        file: from :func:`opened`.
        name: the data set.
        rows: indices along the first axis, within it.
        max_bytes: largest declared size.

    Raises:
        InputError: as :func:`dataset_parts`.
    """
    dataset = check_dataset(file, name, max_bytes)
    label = f"{file.filename}: {name}"
    return np.stack([np.asarray(_read(dataset, int(row), label)) for row in rows])


def group_names(file: h5py.File, name: str, most: int = 64) -> tuple[str, ...]:
    """Return the names in a group, at most so many, sorted; none where there is no such group.

    Raises:
        InputError: the object is refused by :func:`find`, or the group cannot be listed.
    """
    group = find(file, name)
    if not isinstance(group, h5py.Group):
        return ()
    try:
        return tuple(sorted(str(key) for key in islice(group, most)))
    except DAMAGED as error:
        raise InputError(f"{file.filename}: {name}: damaged ({reason(error)})") from error


def holds_data(file: h5py.File, name: str) -> bool:
    """Whether there is a data set of that name in which something was written.

    Raises:
        InputError: the object is refused by :func:`find`.
    """
    target = find(file, name)
    if not isinstance(target, h5py.Dataset):
        return False
    try:
        return int(target.id.get_storage_size()) > 0
    except (OSError, RuntimeError) as error:
        raise InputError(f"{file.filename}: {name}: damaged ({reason(error)})") from error


def _read(source: Any, selection: Any, label: str) -> Any:
    try:
        return source[selection]
    except DAMAGED as error:
        raise InputError(
            f"{label}: cannot be read: truncated or damaged ({reason(error)})"
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
    except DAMAGED as error:
        raise InputError(f"{label}: damaged ({reason(error)})") from error
    value = np.asarray(value).reshape(-1).tolist()[0]
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    return value if isinstance(value, str) else float(value)
