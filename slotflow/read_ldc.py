"""The layouts of the LISA Data Challenges: Sangria and Spritz (LDC2), Radler (LDC1).

Sangria and Spritz: ``obs/tdi`` is one compound data set with the fields ``t, X, Y, Z``, of shape
(N,) or (N, 1). Spritz has gaps, NaN in X, Y and Z, and more series beside the observed one.
Files that ``slotflow simulate --observation`` writes have the same layout, say in attributes
what Sangria leaves open (TDI generation, orbit), list their gaps in ``obs/gaps``, and hold the
true sources in ``truth``. Radler: ``H5LISA/PreProcess/TDIdata`` is a plain array (N, 4) with
the columns t, X, Y, Z in that order.
"""

import math
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slotflow.errors import InputError
from slotflow.hdf5 import (
    File,
    check_dataset,
    find,
    group_names,
    holds_data,
    read_columns,
    read_dataset,
)
from slotflow.read_checks import CHANNELS, Series, check_length, time_step

Float = NDArray[np.float64]

TDI: Final = "obs/tdi"
GAPS: Final = "obs/gaps"
FIELDS: Final = ("t", *CHANNELS)
RADLER: Final = "H5LISA/PreProcess/TDIdata"
RADLER_SOURCES: Final = "H5LISA/GWSources"
_SPRITZ: Final = ("clean/tdi", "noisefree/tdi", "gal/tdi", "sky/tdi")
_SECOND: Final = ("X2", "Y2", "Z2")


def ldc_layout(file: File) -> str:
    """Return ``"spritz"`` where the series that Spritz has beside ``obs/tdi`` are there."""
    return "spritz" if any(_stands(file, name) for name in _SPRITZ) else "sangria"


def _stands(file: File, name: str) -> bool:
    try:
        return holds_data(file, name)
    except InputError:  # a link, say: it is not read
        return False


def read_ldc(file: File) -> Series:
    """Read ``obs/tdi`` of Sangria or Spritz.

    Raises:
        InputError: absent, a wrong shape or type, two TDI generations, too short, or times that
            are not uniform.
    """
    path = Path(file.filename)
    if find(file, TDI) is None:
        raise InputError(f"{path}: {TDI} (fields t, X, Y, Z; LDC2 Sangria and Spritz) is absent")
    names = check_dataset(file, TDI).dtype.names or ()
    if set(names) & set(CHANNELS) and (second := set(names) & set(_SECOND)):
        raise InputError(
            f"{path}: {TDI}: fields of two TDI generations, {', '.join(CHANNELS)} and"
            f" {', '.join(sorted(second))}: keep one"
        )
    columns = read_columns(file, TDI, FIELDS)
    check_length(f"{path}: {TDI}", columns.shape[1])
    dt = time_step(f"{path}: {TDI}, field 't'", columns[0])
    x, y, z = (f"{TDI}, field {name!r}" for name in CHANNELS)
    return Series(
        layout=ldc_layout(file),
        tdi=columns[1:],
        dt=dt,
        start=float(columns[0, 0]),
        labels=(x, y, z),
        places=(TDI, "obs", "/"),
        gaps_listed=holds_data(file, GAPS),
    )


def read_radler(file: File) -> Series:
    """Read ``H5LISA/PreProcess/TDIdata`` of Radler.

    Raises:
        InputError: absent, a wrong shape or type, a first column that is no time, too short,
            or a ``Cadence`` that is not the times' step.
    """
    path = Path(file.filename)
    label = f"{path}: {RADLER}"
    if find(file, RADLER) is None:
        raise InputError(f"{label} (columns t, X, Y, Z; LDC1 Radler) is absent")
    dataset = check_dataset(file, RADLER)
    named = dataset.dtype.names is not None
    if not named and (len(dataset.shape) != 2 or dataset.shape[1] != len(FIELDS)):
        raise InputError(f"{label}: shape {dataset.shape}; (N, 4) expected: t, X, Y, Z")
    columns = read_columns(file, RADLER, FIELDS if named else None)
    check_length(label, columns.shape[1])
    if not named:
        _check_first_column(label, columns)
    dt = time_step(f"{label}, column 0 (t)", columns[0])
    _check_cadence(file, dt)
    x, y, z = (f"{RADLER}, column {i} ({name})" for i, name in enumerate(CHANNELS, 1))
    return Series(
        layout="radler",
        tdi=columns[1:],
        dt=dt,
        start=float(columns[0, 0]),
        labels=(x, y, z),
        places=(RADLER, "H5LISA/PreProcess", "H5LISA", "/"),
    )


def _check_first_column(label: str, columns: Float) -> None:
    """Refuse columns in another order, as far as that can be seen: time is the one that grows."""
    head = columns[:, :1024]
    growing = [bool(np.isfinite(row).all() and (np.diff(row) > 0).all()) for row in head]
    if not growing[0] and any(growing):
        raise InputError(
            f"{label}: column 0 is not a time, column {growing.index(True)} is: the columns must be"
            " t, X, Y, Z in that order"
        )


def _check_cadence(file: File, dt: float) -> None:
    """Refuse a file whose scalar ``Cadence`` contradicts its times."""
    groups = [f"{RADLER_SOURCES}/{name}" for name in group_names(file, RADLER_SOURCES)]
    for group in ("H5LISA/PreProcess", "H5LISA", RADLER_SOURCES, *groups):
        name = f"{group}/Cadence"
        if find(file, group) != "group" or not holds_data(file, name):
            continue
        values = read_dataset(file, name, 4096)
        if values.size != 1 or values.dtype.kind not in "fiu":
            raise InputError(f"{file.filename}: {name}: {values.dtype} of shape {values.shape};"
                             " one number expected")  # fmt: skip
        value = float(values.reshape(-1)[0])
        if not math.isclose(value, dt, rel_tol=1e-6):
            raise InputError(
                f"{file.filename}: {name}: {value!r} s, but the times of {RADLER} have a step of"
                f" {dt!r} s"
            )
