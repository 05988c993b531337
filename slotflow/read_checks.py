"""What every layout's series must be: uniform in time, finite outside gaps, not constant.

What passes for a gap is our choice: see :func:`take_gaps`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotflow.errors import InputError

Float = NDArray[np.float64]
Bool = NDArray[np.bool_]

MIN_SAMPLES: Final = 1024
MIN_GAP: Final = 2  # consecutive samples, our choice; fewer that are NaN are bad values, no gap
MAX_MISSING: Final = 0.5  # of the samples, from which on a series is refused; our choice
CHANNELS: Final = ("X", "Y", "Z")


class OrbitTrack(NamedTuple):
    """The spacecraft's positions as a file gives them.

    ``times`` (n,) s on the file's clock, growing; ``positions`` (n, 3, 3) m: spacecraft,
    ICRS coordinate.
    """

    times: Float
    positions: Float


@dataclass(frozen=True)
class Series:
    """A time series as a layout's reader finds it, before the checks that all share.

    Attributes:
        layout: ``"sangria"``, ``"spritz"``, ``"radler"`` or ``"mojito"``.
        tdi: (3, N) the file's channels in fractional frequency.
        dt: time step, s.
        start: time of the first sample on the file's clock, s.
        labels: of the three channels, for messages.
        places: the objects whose attributes speak of the data, nearest first.
        aet: the channels are A, E, T, not X, Y, Z.
        flagged: (N,) True where the file says that a sample must not be used; None where it
            says nothing.
        gaps_listed: the file lists its gaps, so that one sample alone can be one.
        generation: the TDI generation, where the layout itself says it.
        attributes: what the reader found out already, by the attribute's name.
        track: the spacecraft's positions, where the file has them.
        notes: what the user should know, one line each.
    """

    layout: str
    tdi: Float
    dt: float
    start: float
    labels: tuple[str, str, str]
    places: tuple[str, ...]
    aet: bool = False
    flagged: Bool | None = None
    gaps_listed: bool = False
    generation: str | None = None
    attributes: Mapping[str, str | float] = field(default_factory=dict)
    track: OrbitTrack | None = None
    notes: tuple[str, ...] = ()


def check_length(label: str, samples: int) -> None:
    """Refuse what is too short to be data.

    Raises:
        InputError: naming ``label``.
    """
    if samples < MIN_SAMPLES:
        raise InputError(f"{label}: {samples} samples; at least {MIN_SAMPLES} needed")


def time_step(label: str, t: Float) -> float:
    """Return the time step of uniformly sampled times.

    Args:
        label: file and field, for messages.
        t: (N,) s.

    Raises:
        InputError: times that are not finite, do not grow, jump, or are not uniform.
    """
    bad = np.flatnonzero(~np.isfinite(t))
    if bad.size:
        raise InputError(
            f"{label}: {bad.size} of {t.size} values are not finite, the first at sample"
            f" {int(bad[0])}"
        )
    steps = np.diff(t)
    bad = np.flatnonzero(steps <= 0)
    if bad.size:
        raise InputError(
            f"{label}: not increasing at sample {int(bad[0]) + 1} (t = {t[bad[0] + 1]:.9g} s)"
        )
    typical = float(np.median(steps))
    jumps = np.flatnonzero(steps > 1.5 * typical)
    if jumps.size:
        raise InputError(
            f"{label}: {jumps.size} jump{'s' if jumps.size > 1 else ''}, the first of"
            f" {steps[jumps[0]]:.9g} s after t = {t[jumps[0]]:.9g} s (time step {typical:g} s);"
            " in a gap the rows must be there, with NaN in X, Y and Z"
        )
    dt = float(t[-1] - t[0]) / (t.size - 1)
    rounded = float(f"{dt:.9g}")  # the sum of many rounded steps
    dt = rounded if abs(rounded - dt) * t.size < 1e-3 * dt else dt
    del steps
    error = np.arange(t.size) * -dt
    error += t
    error -= t[0]
    worst = int(np.argmax(np.abs(error, out=error)))
    if error[worst] > 0.01 * dt:
        raise InputError(
            f"{label}: not uniformly sampled: at sample {worst} {error[worst]:.3g} s from a"
            f" uniform step of {dt:.9g} s"
        )
    return dt


def take_gaps(path: Path, series: Series) -> Bool | None:
    """Find the gaps, and set the samples in them to zero: (N,) False in gaps, None without.

    A gap is what the file flags, and two samples or more in a row that are NaN in all three
    channels (one, where the file lists its gaps). ``series.tdi`` is changed in place.

    Raises:
        InputError: values that are not finite anywhere else, or half of the data missing.
    """
    tdi = series.tdi
    finite = [np.isfinite(row) for row in tdi]
    flagged = series.flagged
    if flagged is None and all(row.all() for row in finite):
        return None
    missing = np.zeros(tdi.shape[1], dtype=bool) if flagged is None else flagged
    common = ~(finite[0] | finite[1] | finite[2]) & ~missing
    for row, ok in zip(tdi, finite, strict=True):  # infinity is never a gap
        common &= np.isnan(row) | ok
    for label, ok in zip(series.labels, finite, strict=True):
        _refuse_values(path, series, label, ~(ok | missing | common))
    alone = _isolated(common, missing)
    if not series.gaps_listed and alone.any():
        first = int(np.argmax(alone))
        raise InputError(
            f"{path}: {series.labels[0].split(',')[0]}: {int(alone.sum())} of {alone.size} samples"
            f" are not finite in all channels, each alone, the first at t ="
            f" {series.start + first * series.dt:.9g} s; a gap has at least {MIN_GAP} in a row"
        )
    missing = missing | common
    fraction = float(missing.mean())
    if fraction >= MAX_MISSING:
        raise InputError(
            f"{path}: {series.labels[0].split(',')[0]}: {100 * fraction:.1f}% of the samples are"
            f" in gaps; less than {100 * MAX_MISSING:g}% expected"
        )
    if fraction == 0.0:
        return None
    tdi[:, missing] = 0.0
    valid: Bool = ~missing
    return valid


def _refuse_values(path: Path, series: Series, label: str, bad: Bool) -> None:
    if bad.any():
        first = int(np.argmax(bad))
        raise InputError(
            f"{path}: {label}: {int(bad.sum())} of {bad.size} values are not finite, the first at"
            f" t = {series.start + first * series.dt:.9g} s; in a gap all channels must be NaN"
        )


def _isolated(common: Bool, missing: Bool) -> Bool:
    """Return which samples of ``common`` have no neighbour that is missing, too."""
    either = np.concatenate([[False], common | missing, [False]])
    return np.asarray(common & ~either[:-2] & ~either[2:])


def check_constant(path: Path, series: Series, valid: Bool | None) -> None:
    """Refuse a channel that is constant outside gaps (T, which tells nothing, may be).

    Raises:
        InputError: naming file, channel and value.
    """
    where = True if valid is None else valid
    number = 2 if series.aet else 3
    for label, row in zip(series.labels[:number], series.tdi[:number], strict=True):
        low = float(np.min(row, where=where, initial=np.inf))
        high = float(np.max(row, where=where, initial=-np.inf))
        if low == high:
            raise InputError(f"{path}: {label}: constant ({low:g} in all samples)")
