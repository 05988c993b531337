"""Reading what users bring: TDI time series in the layout of LDC2 Sangria.

``obs/tdi`` is one compound data set with the fields ``t, X, Y, Z``, of shape (N,) or (N, 1).
Files that ``slotflow simulate --observation`` writes have the same layout, say in attributes
what Sangria leaves open (TDI generation, orbit), and hold the true sources in ``truth``.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np
from numpy.typing import NDArray

from slotflow.conventions import ORBIT_PARAMETERS
from slotflow.errors import InputError
from slotflow.generation import TOLERANCE, noise_deviation
from slotflow.hdf5 import find, open_checked, read_attribute, read_dataset

Float = NDArray[np.float64]

TDI: Final = "obs/tdi"
FIELDS: Final = ("t", "X", "Y", "Z")
TRUTH: Final = "truth"
GENERATIONS: Final = {"1.5": "1.5", "2.0": "2.0", "2": "2.0"}
MIN_SAMPLES: Final = 1024


@dataclass(frozen=True)
class Observation:
    """A TDI time series, checked: finite, uniformly sampled, not constant.

    Attributes:
        tdi: (3, N) float64: X, Y, Z in fractional frequency.
        dt: time step, s.
        t0: time of the first sample, s since 2035-01-01T00:00:00 TCB (as the file says; where
            it says nothing, the file's own time of the first sample).
        generation: ``"1.5"`` or ``"2.0"``.
        generation_from: ``"attribute"`` or ``"noise"``: where the generation is from.
        path: the file.
        orbit: name of the orbit, None where the file does not say.
        orbit_parameters: the orbit's parameters as far as the file says.
        start: the file's own time of the first sample, s.
    """

    tdi: Float
    dt: float
    t0: float
    generation: str
    path: Path
    orbit: str | None = None
    start: float = 0.0
    generation_from: str = "attribute"
    orbit_parameters: Mapping[str, float] = field(default_factory=dict)

    @property
    def duration(self) -> float:
        """Length of the series, s."""
        return float(self.tdi.shape[1] * self.dt)


@dataclass(frozen=True)
class Truth:
    """The true sources that a simulated observation keeps.

    Attributes:
        names: one a source.
        sources: (S, 8) in the order of :data:`slotflow.parameters.PARAMETERS`.
        snr: (S,) against instrument and confusion.
    """

    names: tuple[str, ...]
    sources: Float
    snr: Float


def read_observation(path: str | Path) -> Observation:
    """Read and check an observation in the Sangria layout.

    The TDI generation is the attribute ``tdi_generation`` of ``obs/tdi``, ``obs`` or the file;
    where there is none, it is told from the noise level.

    Raises:
        InputError: missing, not HDF5, truncated, no TDI, wrong shape or type, not finite (how
            many and where first), gaps or non-uniform times, a constant channel, or a TDI
            generation that can neither be read nor told.
    """
    path = Path(path)
    with open_checked(path) as file:
        columns = {name: _column(file, name) for name in FIELDS}
        attributes = {
            name: _attribute(file, name)
            for name in ("tdi_generation", "t0", "orbit", *(f"orbit_{p}" for p in ORBIT_PARAMETERS))
        }
    _check_finite(path, columns)
    dt = _time_step(path, columns["t"])
    for name in FIELDS[1:]:
        if np.ptp(columns[name]) == 0.0:
            raise InputError(
                f"{path}: {TDI}, field {name!r}: constant ({columns[name][0]:g} in all samples)"
            )
    tdi = np.stack([columns[name] for name in FIELDS[1:]])
    start = float(columns["t"][0])
    generation, origin = _generation(path, attributes["tdi_generation"], tdi, dt)
    orbit = attributes["orbit"]
    return Observation(
        tdi=tdi,
        dt=dt,
        t0=_number(path, "t0", attributes["t0"], default=start),
        generation=generation,
        generation_from=origin,
        path=path,
        orbit=None if orbit is None else str(orbit),
        start=start,
        orbit_parameters={
            name: _number(path, f"orbit_{name}", value)
            for name in ORBIT_PARAMETERS
            if (value := attributes[f"orbit_{name}"]) is not None
        },
    )


def read_truth(path: str | Path) -> Truth | None:
    """Return the true sources in a simulated observation, None where it keeps none.

    Raises:
        InputError: the file cannot be read, or its tables do not fit together.
    """
    with open_checked(path) as file:
        if find(file, TRUTH) is None:
            return None
        names = read_dataset(file, f"{TRUTH}/names")
        sources = read_dataset(file, f"{TRUTH}/sources")
        snr = read_dataset(file, f"{TRUTH}/snr")
    if names.ndim != 1 or sources.shape != (len(names), 8) or snr.shape != (len(names),):
        raise InputError(
            f"{path}: {TRUTH}: shapes (S,), (S, 8), (S,) expected of names, sources, snr;"
            f" got {names.shape}, {sources.shape}, {snr.shape}"
        )
    if sources.dtype.kind != "f" or snr.dtype.kind != "f" or names.dtype.kind != "S":
        raise InputError(f"{path}: {TRUTH}: names must be text, sources and snr real numbers")
    text = tuple(name.decode("utf-8", errors="replace") for name in names.tolist())
    return Truth(text, sources.astype(np.float64), snr.astype(np.float64))


def _column(file: h5py.File, name: str) -> Float:
    """Read one field of the time series as (N,) float64."""
    if find(file, TDI) is None:
        held = ", ".join(sorted(map(str, file.keys()))[:8]) or "nothing"
        raise InputError(
            f"{file.filename}: no TDI data: {TDI} (fields t, X, Y, Z; the layout of LDC2 Sangria)"
            f" is absent; the file holds {held}"
        )
    values = read_dataset(file, TDI, field=name)
    if values.dtype.kind != "f":
        raise InputError(
            f"{file.filename}: {TDI}, field {name!r}: type {values.dtype}; floating point expected"
        )
    if not (values.ndim == 1 or (values.ndim == 2 and values.shape[1] == 1)):
        raise InputError(f"{file.filename}: {TDI}: shape {values.shape}; (N,) or (N, 1) expected")
    if len(values) < MIN_SAMPLES:
        raise InputError(
            f"{file.filename}: {TDI}: {len(values)} samples; at least {MIN_SAMPLES} needed"
        )
    return np.ascontiguousarray(values.reshape(-1), dtype=np.float64)


def _attribute(file: h5py.File, name: str) -> str | float | None:
    """Return the attribute of the time series, of its group, or of the file."""
    for place in (TDI, "obs", "/"):
        if (value := read_attribute(file, place, name)) is not None:
            return value
    return None


def _number(path: Path, name: str, value: Any, default: float = math.nan) -> float:
    if value is None:
        return default
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{path}: attribute {name!r}: {value!r}; a finite number expected")
    return number


def _check_finite(path: Path, columns: Mapping[str, Float]) -> None:
    for name, values in columns.items():
        bad = np.flatnonzero(~np.isfinite(values))
        if bad.size:
            first = int(bad[0])
            time = columns["t"][first]
            where = f"t = {time:.9g} s" if name != "t" else f"sample {first}"
            raise InputError(
                f"{path}: {TDI}, field {name!r}: {bad.size} of {values.size} values are not"
                f" finite, the first at {where}; data with gaps are not supported yet"
            )


def _time_step(path: Path, t: Float) -> float:
    """Return the time step of uniformly sampled times."""
    label = f"{path}: {TDI}, field 't'"
    steps = np.diff(t)
    bad = np.flatnonzero(steps <= 0)
    if bad.size:
        raise InputError(
            f"{label}: not increasing at sample {int(bad[0]) + 1} (t = {t[bad[0] + 1]:.9g} s)"
        )
    typical = float(np.median(steps))
    gaps = np.flatnonzero(steps > 1.5 * typical)
    if gaps.size:
        raise InputError(
            f"{label}: {gaps.size} gap{'s' if gaps.size > 1 else ''}, the first of"
            f" {steps[gaps[0]]:.9g} s after t = {t[gaps[0]]:.9g} s (time step {typical:g} s);"
            " data with gaps are not supported yet"
        )
    dt = float(t[-1] - t[0]) / (t.size - 1)
    rounded = float(f"{dt:.9g}")  # the sum of many rounded steps
    dt = rounded if abs(rounded - dt) * t.size < 1e-3 * dt else dt
    error = np.abs(t - t[0] - dt * np.arange(t.size))
    worst = int(np.argmax(error))
    if error[worst] > 0.01 * dt:
        raise InputError(
            f"{label}: not uniformly sampled: at sample {worst} {error[worst]:.3g} s from a"
            f" uniform step of {dt:.9g} s"
        )
    return dt


def _generation(path: Path, value: str | float | None, tdi: Float, dt: float) -> tuple[str, str]:
    """Return the TDI generation and where it is from."""
    if value is None:
        deviation = noise_deviation(tdi, dt)
        best = min(deviation, key=deviation.__getitem__)
        if not deviation[best] < TOLERANCE:
            found = ", ".join(f"TDI {key}: {value:.2f}" for key, value in deviation.items())
            raise InputError(
                f"{path}: {TDI}: no attribute 'tdi_generation', and the noise fits neither TDI 1.5"
                f" nor 2 (mean |ln(measured / model)| {found}; below {TOLERANCE:.2f} expected);"
                " fractional frequency is expected; set the attribute to '1.5' or '2.0'"
            )
        return best, "noise"
    text = f"{value:g}" if isinstance(value, float) else value.strip()
    if text not in GENERATIONS:
        raise InputError(f"{path}: attribute 'tdi_generation': {value!r}; '1.5' or '2.0' expected")
    return GENERATIONS[text], "attribute"
