"""Reading what users bring: TDI time series in the layouts of LDC and Mojito files.

The layout is told from the content: ``obs/tdi`` (LDC2 Sangria and Spritz, and what ``slotflow
simulate --observation`` writes), ``H5LISA/PreProcess/TDIdata`` (LDC1 Radler) or ``tdis`` (Mojito
L1). Each layout's reader (:mod:`slotflow.read_ldc`, :mod:`slotflow.read_mojito`) finds the
series; the checks and what the attributes say are common.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotflow.channels import aet_to_xyz
from slotflow.conventions import ORBIT_PARAMETERS
from slotflow.errors import InputError
from slotflow.gaps import series_mask
from slotflow.generation import told_generation
from slotflow.hdf5 import File, find, group_names, open_checked, read_attribute, read_dataset
from slotflow.manifest import is_training_set
from slotflow.read_checks import (
    MIN_SAMPLES,
    Bool,
    OrbitTrack,
    Series,
    check_constant,
    take_gaps,
)
from slotflow.read_ldc import RADLER, TDI, read_ldc, read_radler
from slotflow.read_mojito import GROUP, read_mojito

__all__ = [
    "FORMS", "LAYOUTS", "MIN_SAMPLES", "TDI", "TRUTH", "Layout", "Observation", "OrbitTrack",
    "Truth", "read_observation", "read_truth", "refuse_training_set",
]  # fmt: skip

Float = NDArray[np.float64]

TRUTH: Final = "truth"
MAX_TRUTH_BYTES: Final = 256 << 20
GENERATIONS: Final = {"1.5": "1.5", "2.0": "2.0", "2": "2.0"}
TAPER: Final = 6 * 3600.0  # s, around gaps, where the generation is told from the noise
_BANDS: Final = (
    "a training set of slotflow simulate: bands, not an observation; slotflow train and slotflow"
    " posterior take"
)
_SLAB: Final = 1 << 20  # samples turned from A, E, T to X, Y, Z at a time


class Layout(NamedTuple):
    """A form: the object that its file must hold, its name in messages, what reads it."""

    place: str
    words: str
    read: Callable[[File], Series]


#: The forms by name; a file that holds an object is the first form of that object.
LAYOUTS: Final[Mapping[str, Layout]] = {
    "sangria": Layout(TDI, "LDC Sangria, Spritz", read_ldc),
    "spritz": Layout(TDI, "LDC Sangria, Spritz", read_ldc),
    "radler": Layout(RADLER, "Radler", read_radler),
    "mojito": Layout(GROUP, "Mojito L1", read_mojito),
}
#: The forms that :func:`read_observation` can be told.
FORMS: Final = tuple(LAYOUTS)


@dataclass(frozen=True)
class Observation:
    """A TDI time series, checked: finite, uniformly sampled, not constant.

    Attributes:
        tdi: (3, N) float64: X, Y, Z in fractional frequency; zero in gaps.
        dt: time step, s.
        t0: time of the first sample, s since 2035-01-01T00:00:00 TCB (as the file says; where
            it says nothing, the file's own time of the first sample).
        generation: ``"1.5"`` or ``"2.0"``.
        generation_from: ``"attribute"``, ``"layout"`` or ``"noise"``: where the generation is
            from.
        path: the file.
        orbit: name of the orbit, None where the file does not say.
        orbit_parameters: the orbit's parameters as far as the file says.
        track: the spacecraft's positions, where the file has them.
        start: the file's own time of the first sample, s.
        layout: ``"sangria"``, ``"spritz"``, ``"radler"`` or ``"mojito"``.
        valid: (N,) False in gaps; None where there are none.
        notes: what the user should know, one line each.
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
    layout: str = "sangria"
    valid: Bool | None = None
    track: OrbitTrack | None = None
    notes: tuple[str, ...] = ()

    @property
    def duration(self) -> float:
        """Length of the series, s."""
        return float(self.tdi.shape[1] * self.dt)

    @property
    def gap_fraction(self) -> float:
        """Share of the samples that lie in gaps."""
        return 0.0 if self.valid is None else float(1.0 - self.valid.mean())


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


def read_observation(path: str | Path, form: str | None = None) -> Observation:
    """Read and check an observation.

    The TDI generation is that of the layout (Mojito) or the attribute ``tdi_generation`` of the
    data set, its group or the file; where there is none, it is told from the noise level.

    Args:
        path: the file.
        form: the layout, one of :data:`FORMS`; told from the content where None. Sangria and
            Spritz are one layout.

    Raises:
        InputError: missing, not HDF5, truncated, no TDI or not in the form given, wrong shape or
            type, not finite outside gaps (how many and where first), half of the data in gaps,
            non-uniform times, a constant channel, no laser frequency (Mojito), or a TDI
            generation that can neither be read nor told, or is contradictory.
    """
    path = Path(path)
    refuse_training_set(path)
    if form is not None and form not in FORMS:
        raise InputError(f"format: {form!r}; one of {', '.join(FORMS)} expected")
    with open_checked(path) as file:
        name = form or _detected(file)
        layout = LAYOUTS[name]
        if find(file, layout.place) is None:
            raise InputError(
                f"{path}: not in the format {name!r}: {layout.place} is absent; {_held(file)}"
            )
        series = layout.read(file)
        attributes = _attributes(file, series)
        generation = _declared_generation(file, series)
    valid = take_gaps(path, series)
    check_constant(path, series, valid)
    if series.aet:
        for begin in range(0, series.tdi.shape[1], _SLAB):
            part = slice(begin, begin + _SLAB)
            series.tdi[:, part] = aet_to_xyz(series.tdi[:, part])
    found = generation or (_told_generation(path, series, valid), "noise")
    if form == "spritz" and found[0] != "2.0":
        raise InputError(f"{path}: not in the format 'spritz', which holds TDI 2: TDI {found[0]}")
    orbit = attributes.get("orbit")
    return Observation(
        tdi=series.tdi,
        dt=series.dt,
        t0=_number(path, "t0", attributes.get("t0"), default=series.start),
        generation=found[0],
        generation_from=found[1],
        path=path,
        orbit=None if orbit is None else str(orbit),
        start=series.start,
        orbit_parameters={
            name: _number(path, f"orbit_{name}", value)
            for name in ORBIT_PARAMETERS
            if (value := attributes.get(f"orbit_{name}")) is not None
        },
        layout="spritz" if form == "spritz" else series.layout,
        valid=valid,
        track=series.track,
        notes=(*series.notes, *_notes(path, found)),
    )


def refuse_training_set(path: Path) -> None:
    """Raise InputError where a folder is a training set, saying what it is for."""
    if path.is_dir() and is_training_set(path):
        raise InputError(f"{path}: {_BANDS} it")


def _detected(file: File) -> str:
    """Return the layout of a file by what it holds.

    Raises:
        InputError: none of them, or more than one.
    """
    places: dict[str, str] = {}
    for name, layout in LAYOUTS.items():
        places.setdefault(layout.place, name)
    found = [place for place in places if find(file, place) is not None]
    if len(found) > 1:
        raise InputError(
            f"{file.filename}: holds {' and '.join(found)}: say which is meant by its format,"
            f" {' or '.join(places[place] for place in found)}"
        )
    if not found and {"first_bin", "signal"} <= set(group_names(file, "/")):
        raise InputError(f"{file.filename}: a shard of {_BANDS} its folder")
    if not found:
        *rest, last = (f"{place} ({LAYOUTS[name].words})" for place, name in places.items())
        raise InputError(
            f"{file.filename}: no TDI data: {', '.join(rest)} and {last} are absent; {_held(file)}"
        )
    return places[found[0]]


def _held(file: File) -> str:
    """Say what a file holds, in few words."""
    names = group_names(file, "/", 8)
    empty = {layout.place.partition("/")[0] for layout in LAYOUTS.values()}
    held = [
        f"{name} (empty)" if name in empty and not group_names(file, name) else name
        for name in names
    ]
    return f"the file holds {', '.join(held) or 'nothing'}"


def _attributes(file: File, series: Series) -> Mapping[str, str | float]:
    """Return what the file says of t0 and orbit: the nearest attribute of each name."""
    names = ("t0", "orbit", *(f"orbit_{name}" for name in ORBIT_PARAMETERS))
    found: dict[str, str | float] = {}
    for name in names:
        for place in series.places:
            if (value := read_attribute(file, place, name)) is not None:
                found[name] = value
                break
    return {**found, **series.attributes}


def _declared_generation(file: File, series: Series) -> tuple[str, str] | None:
    """Return the TDI generation and where it is from, None where the file does not say.

    Raises:
        InputError: it is unknown, or said in two ways.
    """
    said: list[tuple[str, str]] = []
    if series.generation is not None:
        said.append((series.generation, f"the names of {', '.join(series.labels)}"))
    for place in series.places:
        value = read_attribute(file, place, "tdi_generation")
        if value is None:
            continue
        text = f"{value:g}" if isinstance(value, float) else value.strip()
        if text not in GENERATIONS:
            raise InputError(
                f"{file.filename}: attribute 'tdi_generation': {value!r}; '1.5' or '2.0' expected"
            )
        said.append((GENERATIONS[text], f"attribute 'tdi_generation' of {place}"))
    if len({generation for generation, _ in said}) > 1:
        words = " and ".join(f"TDI {generation} by {origin}" for generation, origin in said)
        raise InputError(f"{file.filename}: two TDI generations: {words}")
    if not said:
        return None
    return said[0][0], "attribute" if series.generation is None else "layout"


def _told_generation(path: Path, series: Series, valid: Bool | None) -> str:
    """Return the TDI generation that the noise fits."""
    tdi = series.tdi
    if valid is not None:  # without the taper, gaps carry high-frequency noise to the low end
        mask = series_mask(valid, series.dt, TAPER)
        tdi = tdi * (mask / np.sqrt(np.mean(np.square(mask))))
    return told_generation(f"{path}: {series.places[0]}", tdi, series.dt)


def _notes(path: Path, generation: tuple[str, str]) -> tuple[str, ...]:
    if generation[1] != "noise":
        return ()
    return (f"{path} does not say its TDI generation: the noise fits {generation[0]}",)


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


def read_truth(path: str | Path) -> Truth | None:
    """Return the true sources in a simulated observation, None where it keeps none.

    Raises:
        InputError: the file cannot be read, or its tables do not fit together.
    """
    with open_checked(path) as file:
        if find(file, TRUTH) is None:
            return None
        names, sources, snr = (
            read_dataset(file, f"{TRUTH}/{name}", MAX_TRUTH_BYTES)
            for name in ("names", "sources", "snr")
        )
    if names.ndim != 1 or sources.shape != (len(names), 8) or snr.shape != (len(names),):
        raise InputError(
            f"{path}: {TRUTH}: shapes (S,), (S, 8), (S,) expected of names, sources, snr;"
            f" got {names.shape}, {sources.shape}, {snr.shape}"
        )
    if sources.dtype.kind != "f" or snr.dtype.kind != "f" or names.dtype.kind != "S":
        raise InputError(f"{path}: {TRUTH}: names must be text, sources and snr real numbers")
    text = tuple(name.decode("utf-8", errors="replace") for name in names.tolist())
    return Truth(text, sources.astype(np.float64), snr.astype(np.float64))
