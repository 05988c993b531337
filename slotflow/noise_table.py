"""A user's table of the instrument's noise density, in place of the model."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slotflow.errors import InputError

Float = NDArray[np.float64]


def interpolated_density(f: Float, rows: Float, origin: str) -> Float:
    """Interpolate a table linearly in the logarithms: (3, n) of A, E, T.

    Args:
        f: (n,) frequencies, Hz.
        rows: (rows, 4), as :func:`read_noise_table` gives them.
        origin: what to call the table in a message.

    Raises:
        InputError: a frequency outside the table.
    """
    if f.size:
        check_covers(float(f.min()), float(f.max()), rows, origin)
    x, known = np.log(f), np.log(rows[:, 0])
    return np.stack([np.exp(np.interp(x, known, np.log(rows[:, c]))) for c in (1, 2, 3)])


def check_covers(low: float, high: float, rows: Float, origin: str) -> None:
    """Raise InputError where a table does not hold the frequencies from ``low`` to ``high``, Hz."""
    if low < rows[0, 0] or high > rows[-1, 0]:
        raise InputError(
            f"{origin}: column 1: covers {rows[0, 0]:.6g} to {rows[-1, 0]:.6g} Hz;"
            f" {low:.6g} to {high:.6g} Hz needed"
        )


def read_noise_table(path: str | Path) -> tuple[tuple[float, ...], ...]:
    """Read a table of the instrument's density: rows of f, S_A, S_E, S_T.

    A text file of numbers in 2 to 4 columns, split by blanks or commas, lines that begin with
    ``#`` left out: f (Hz, growing), S_A, S_E (default: S_A) and S_T (default: S_A; it is a noise
    monitor alone), one-sided, 1/Hz, TDI fractional frequency in the observation's generation.

    Raises:
        InputError: naming file, row, column and value of what cannot be used.
    """
    path = Path(path)
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not text in UTF-8 ({error})") from error
    rows: list[tuple[float, ...]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        rows.append(_table_row(path, number, line.replace(",", " ").split()))
        if len(rows) > 1 and rows[-1][0] <= rows[-2][0]:
            raise InputError(f"{path}: row {number}, column 1: {rows[-1][0]:g} Hz does not grow")
    if len(rows) < 2:
        raise InputError(f"{path}: {len(rows)} rows of numbers; at least 2 expected")
    return tuple(rows)


def _table_row(path: Path, number: int, cells: list[str]) -> tuple[float, ...]:
    if not 2 <= len(cells) <= 4:
        raise InputError(f"{path}: row {number}: {len(cells)} columns; 2 to 4 expected")
    values = []
    for column, cell in enumerate(cells, start=1):
        try:
            value = float(cell)
        except ValueError:
            value = float("nan")
        if not (np.isfinite(value) and value > 0):
            raise InputError(
                f"{path}: row {number}, column {column}: {cell!r} is not a positive number"
            )
        values.append(value)
    return (*values, *([values[1]] * (4 - len(values))))
