"""The layout of Mojito L1: TDI 2 in Hz, without a time array.

``tdis/X2, Y2, Z2`` (or ``A2, E2, T2``) are divided by the root attribute ``laser_frequency``;
``tdis/sampling`` has the attributes ``t0, dt, size``; samples with ``tdis/tdi_flags`` other than
zero lie in gaps. ``orbits/sc_position_1, 2, 3`` are the spacecraft's positions (ICRS), by which
the orbit is told where no attribute names it.
"""

import math
import re
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
    read_attribute,
    read_columns,
    read_dataset,
    read_rows,
)
from slotflow.read_checks import OrbitTrack, Series, check_length

Float = NDArray[np.float64]

GROUP: Final = "tdis"
SAMPLING: Final = "tdis/sampling"
FLAGS: Final = "tdis/tdi_flags"
XYZ: Final = ("X2", "Y2", "Z2")
AET: Final = ("A2", "E2", "T2")
LASER_RANGE: Final = (1e13, 1e16)  # Hz; infrared to ultraviolet
ORBIT_POINTS: Final = 512  # of a track, at most
_FIRST: Final = re.compile(r"[XYZAET](1|15|1\.5|1_5)?")


def read_mojito(file: File) -> Series:
    """Read ``tdis`` of Mojito L1 as fractional frequency.

    Raises:
        InputError: absent or empty, incomplete, two TDI generations, no usable
            ``laser_frequency``, a sampling that contradicts the data, or a wrong shape or type.
    """
    path = Path(file.filename)
    channels = _channels(file)
    laser = _laser_frequency(file, channels)
    t0, dt, size = _sampling(file)
    tdi = np.empty((0, 0))
    for index, name in enumerate(channels):
        dataset = check_dataset(file, f"{GROUP}/{name}")
        if dataset.shape != (size,):
            raise InputError(
                f"{path}: {GROUP}/{name}: shape {dataset.shape}, but {SAMPLING} announces"
                f" {size} samples"
            )
        check_length(f"{path}: {GROUP}/{name}", size)
        if index == 0:
            tdi = np.empty((3, size))
        tdi[index] = read_columns(file, f"{GROUP}/{name}")[0]
    tdi /= laser
    x, y, z = (f"{GROUP}/{name}" for name in channels)
    return Series(
        layout="mojito",
        tdi=tdi,
        dt=dt,
        start=t0,
        labels=(x, y, z),
        places=(GROUP, "/"),
        aet=channels == AET,
        flagged=_flags(file, size),
        generation="2.0",
        attributes={"t0": t0},
        track=_track(file),
    )


def _channels(file: File) -> tuple[str, ...]:
    """Return the names of the three channels to read."""
    label = f"{file.filename}: {GROUP}"
    if find(file, GROUP) != "group":
        raise InputError(f"{label} (a group with X2, Y2, Z2; Mojito L1) is absent")
    names = group_names(file, GROUP)
    if not names:
        raise InputError(f"{label}: an empty group: X2, Y2, Z2 or A2, E2, T2 expected")
    first = [name for name in names if _FIRST.fullmatch(name)]
    second = [name for name in names if name in (*XYZ, *AET)]
    if first and second:
        raise InputError(
            f"{label}: channels of two TDI generations, {', '.join(first)} and"
            f" {', '.join(second)}: keep one"
        )
    for channels in (XYZ, AET):
        # The package's writer makes what it was not given, too, without any data
        if all(holds_data(file, f"{GROUP}/{name}") for name in channels):
            return channels
    missing = [name for name in XYZ if not holds_data(file, f"{GROUP}/{name}")]
    raise InputError(
        f"{label}: no data in {', '.join(missing)} (nor all of A2, E2, T2); it holds"
        f" {', '.join(names[:8])}"
    )


def _laser_frequency(file: File, channels: tuple[str, ...]) -> float:
    value = read_attribute(file, "/", "laser_frequency")
    if value is None:
        raise InputError(
            f"{file.filename}: no root attribute 'laser_frequency': {', '.join(channels)} are in"
            " Hz and cannot be brought to fractional frequency without it"
        )
    low, high = LASER_RANGE
    if not isinstance(value, float) or not low < value < high:
        raise InputError(
            f"{file.filename}: attribute 'laser_frequency': {value!r}; a frequency in Hz between"
            f" {low:g} and {high:g} expected"
        )
    return value


def _sampling(file: File, name: str = SAMPLING) -> tuple[float, float, int]:
    """Return t0 (s), dt (s) and the number of samples of a sampling group."""
    values = []
    for attribute in ("t0", "dt", "size"):
        value = read_attribute(file, name, attribute)
        if not isinstance(value, float) or not math.isfinite(value):
            raise InputError(
                f"{file.filename}: {name}, attribute {attribute!r}: {value!r}; a finite number"
                " expected"
            )
        values.append(value)
    t0, dt, size = values
    if not dt > 0.0:
        raise InputError(f"{file.filename}: {name}, attribute 'dt': {dt!r}; more than 0 s expected")
    if not (size.is_integer() and 0 < size < 2**53):
        raise InputError(
            f"{file.filename}: {name}, attribute 'size': {size!r}; a number of samples expected"
        )
    return t0, dt, int(size)


def _flags(file: File, size: int) -> NDArray[np.bool_] | None:
    """Return which samples are flagged, None where none is."""
    if not holds_data(file, FLAGS):
        return None
    values = check_dataset(file, FLAGS)
    if values.dtype.kind not in "iu" or values.shape != (size,):
        raise InputError(
            f"{file.filename}: {FLAGS}: {values.dtype} of shape {values.shape}; integers of shape"
            f" ({size},) expected"
        )
    flagged = np.asarray(read_dataset(file, FLAGS) != 0)
    return flagged if flagged.any() else None


def _track(file: File) -> OrbitTrack | None:
    """Return the spacecraft's positions at some hundred times, None where they are not there."""
    names = [f"orbits/sc_position_{craft}" for craft in (1, 2, 3)]
    if not all(holds_data(file, name) for name in names):
        return None
    t0, dt, size = _sampling(file, "orbits/sampling")
    for name in names:
        if (shape := check_dataset(file, name).shape) != (size, 3):
            raise InputError(f"{file.filename}: {name}: shape {shape}; ({size}, 3) expected")
    rows = np.unique(np.linspace(0, size - 1, min(size, ORBIT_POINTS)).round().astype(np.int64))
    positions = np.stack([read_rows(file, name, rows.tolist()) for name in names], axis=1)
    if positions.dtype.kind != "f" or not np.isfinite(positions).all():
        raise InputError(f"{file.filename}: {names[0]}, 2, 3: finite numbers expected")
    times = np.asarray(t0 + dt * rows, dtype=np.float64)
    return OrbitTrack(times, positions.astype(np.float64))
