"""Catalogues of sources as CSV files."""

import csv
import math
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotflow.errors import InputError
from slotflow.parameters import NAMES

Float = NDArray[np.float64]

_DEGREE: Final = math.pi / 180.0

#: For each parameter the accepted column names and the factor to its own unit.
COLUMNS: Final[dict[str, dict[str, float]]] = {
    "f0": {"f0": 1.0, "f0_Hz": 1.0},
    "fdot": {"fdot": 1.0, "fdot_Hz_s": 1.0},
    "amplitude": {"amplitude": 1.0},
    "ra": {"ra": 1.0, "ra_rad": 1.0, "ra_deg": _DEGREE},
    "dec": {"dec": 1.0, "dec_rad": 1.0, "dec_deg": _DEGREE},
    "psi": {"psi": 1.0, "psi_rad": 1.0, "psi_deg": _DEGREE},
    "iota": {"iota": 1.0, "iota_rad": 1.0, "iota_deg": _DEGREE},
    "phi0": {"phi0": 1.0, "phi0_rad": 1.0, "phi0_deg": _DEGREE},
}
#: Allowed values in the parameter's own unit, and how they are called in a message.
_ALLOWED: Final = {
    "f0": (0.0, 1.0, "a frequency in Hz between 0 and 1"),
    "amplitude": (0.0, 1e-15, "a strain amplitude between 0 and 1e-15"),
    "dec": (-0.5 * math.pi - 1e-9, 0.5 * math.pi + 1e-9, "a declination of -90 to 90 deg"),
    "iota": (-1e-9, math.pi + 1e-9, "an inclination of 0 to 180 deg"),
}


class Catalogue(NamedTuple):
    """Named sources: ``sources`` is (S, 8) in the order of slotflow.parameters."""

    names: tuple[str, ...]
    sources: Float


def read_catalogue(path: str | Path) -> Catalogue:
    """Read sources from a CSV file with a header row.

    Needed are one column for each parameter: f0 (Hz), fdot (Hz/s), amplitude, ra, dec, psi,
    iota, phi0 (rad), or with the unit in the name: f0_Hz, fdot_Hz_s, ra_deg, psi_rad, ... The
    sky is ICRS, and f0 and phi0 refer to the observation's t0. ``name`` is optional; other columns
    are ignored.

    Raises:
        InputError: naming file, row, column and value of what cannot be used.
    """
    path = Path(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream, strict=True)
            rows = [(reader.line_num, row) for row in reader if row]
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: not a CSV file in UTF-8 ({error})") from error
    if not rows:
        raise InputError(f"{path}: empty; a header row is expected")
    header = [cell.strip() for cell in rows[0][1]]
    columns = _columns(path, header)
    if len(rows) == 1:
        raise InputError(f"{path}: no sources below the header row")
    names: list[str] = []
    sources: list[list[float]] = []
    for line, row in rows[1:]:
        if len(row) != len(header):
            raise InputError(f"{path}: row {line}: {len(row)} values for {len(header)} columns")
        label = row[header.index("name")].strip() if "name" in header else ""
        names.append(label or f"source {len(names) + 1}")
        sources.append([_value(path, line, row, header, *columns[name]) for name in NAMES])
    return Catalogue(tuple(names), np.array(sources))


def _columns(path: Path, header: list[str]) -> dict[str, tuple[str, str, float]]:
    """Return for each parameter itself, its column and the factor to its unit."""
    found = {}
    for parameter, aliases in COLUMNS.items():
        present = [(name, aliases[name]) for name in header if name in aliases]
        if not present:
            accepted = ", ".join(aliases)
            raise InputError(f"{path}: no column for {parameter} (one of {accepted})")
        if len(present) > 1:
            twice = ", ".join(name for name, _ in present)
            raise InputError(f"{path}: more than one column for {parameter}: {twice}")
        found[parameter] = (parameter, *present[0])
    return found


def _value(
    path: Path,
    line: int,
    row: list[str],
    header: list[str],
    parameter: str,
    column: str,
    unit: float,
) -> float:
    """Return one number in the parameter's own unit."""
    text = row[header.index(column)].strip()
    where = f"{path}: row {line}, column {column!r}: {text!r}"
    try:
        value = float(text) * unit
    except ValueError:
        raise InputError(f"{where} is not a number") from None
    if not math.isfinite(value):
        raise InputError(f"{where} is not finite")
    if parameter in _ALLOWED:
        low, high, meaning = _ALLOWED[parameter]
        if not low < value < high:
            raise InputError(f"{where} is not {meaning}")
    return value % (2.0 * math.pi) if parameter in ("ra", "phi0") else value
