"""What a model takes for granted of the data: orbit, epoch, and the noise's order of magnitude.

What contradicts it is refused; what can only be assumed, or looks odd, becomes a note.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slotflow.bands import Tile
from slotflow.checkpoint import Model
from slotflow.config import ObservationSettings
from slotflow.errors import InputError
from slotflow.hdf5 import open_checked, read_attribute
from slotflow.readers import TDI, Observation
from slotflow.results import Psd

Float = NDArray[np.float64]

LEVEL_RANGE: Final = (0.1, 10.0)  # of the model's density; a level beyond it is noted
EPOCH_TOLERANCE: Final = 3600.0  # s; LISA turns by a degree a day

#: What lisaorbits' analytic orbits have in common here: the radius (m) and the time of the phase.
ORBIT_CONSTANTS: Final[Mapping[str, float]] = {"a": 149_597_870_700.0, "t_init": 0.0}


def check_orbit(observation: Observation, model: Model) -> tuple[str, ...]:
    """Refuse data of another orbit or epoch; return what had to be assumed.

    Raises:
        InputError: naming the attribute.
    """
    path, ours = observation.path, model.preset.observation
    if abs(observation.t0 - model.grid.t0) > EPOCH_TOLERANCE:
        raise InputError(
            f"{path}: t0 = {observation.t0!r} s: the model is for data that begin at"
            f" {model.grid.t0!r} s (the sky would be wrong by the orbit's advance)"
        )
    # LDC files count t from the start whatever t0 is; any other first time is the start itself
    if abs(observation.start) > EPOCH_TOLERANCE and (
        abs(observation.start - observation.t0) > EPOCH_TOLERANCE
    ):
        raise InputError(
            f"{path}: field 't': begins at {observation.start!r} s, but attribute 't0' is"
            f" {observation.t0!r} s: the sky would be wrong by the orbit's advance"
        )
    notes = []
    if observation.generation_from == "noise":
        notes.append(
            f"{path} does not say its TDI generation: the noise fits {observation.generation}"
        )
    if observation.orbit is None:
        notes.append(
            f"{path} names no orbit: the model's ({_described(ours)}) is assumed; with another, the"
            " sky positions are wrong"
        )
        return tuple(notes)
    if observation.orbit != ours.orbit:
        raise InputError(
            f"{path}: attribute 'orbit': {observation.orbit!r}; the model was trained on"
            f" {ours.orbit!r}"
        )
    expected = orbit_parameters(ours)
    for name, value in observation.orbit_parameters.items():
        wanted = expected.get(name, value)
        if not np.isclose(value, wanted, rtol=1e-6, atol=1e-6):
            raise InputError(
                f"{path}: attribute 'orbit_{name}': {value!r}; the model was trained on"
                f" {ours.orbit!r} with {wanted!r}"
            )
    if ours.orbit == "file":
        notes += _check_orbit_file(path, ours)
    return tuple(notes)


def orbit_parameters(settings: ObservationSettings) -> dict[str, float]:
    """Return the orbit's parameters of these settings, named as lisaorbits does.

    An orbit file has one alone: the mean arm ``L``.
    """
    if settings.orbit == "file":
        return {"L": settings.arm_length}
    return {
        "L": settings.arm_length,
        "lambda1": settings.orbit_lambda1,
        "m_init1": settings.orbit_m_init1,
        **ORBIT_CONSTANTS,
    }


def _described(settings: ObservationSettings) -> str:
    if settings.orbit == "file":
        return f"{settings.orbit_file}"
    return (
        f"{settings.orbit!r}, from lisaorbits with lambda1 = {settings.orbit_lambda1:g} and"
        f" m_init1 = {settings.orbit_m_init1:g}"
    )


def _check_orbit_file(path: Path, settings: ObservationSettings) -> list[str]:
    """Refuse data made with another orbit file, by its hash; return a note where there is none."""
    with open_checked(path) as file:
        values = [read_attribute(file, place, "orbit_sha256") for place in (TDI, "tdis", "/")]
    found = next((value for value in values if value is not None), None)
    if found is None:
        return [
            f"{path} does not say which orbit file it was made with: the model's"
            f" ({_described(settings)}) is assumed"
        ]
    if found != settings.orbit_sha256:
        raise InputError(
            f"{path}: attribute 'orbit_sha256': {found!r}; the model was trained on"
            f" {settings.orbit_sha256!r} ({_described(settings)})"
        )
    return []


def check_level(path: Path, measured: Float, frequency: Float) -> None:
    """Refuse a band whose noise cannot be divided out.

    Args:
        path: the file, for the message.
        measured: (2,) noise level of A and E over the model's density.
        frequency: of the band's bins, Hz.

    Raises:
        InputError: naming file, channel and frequencies.
    """
    for channel, value in zip("AE", measured.tolist(), strict=True):
        if not (np.isfinite(value) and value > 0.0):
            raise InputError(
                f"{path}: channel {channel}, {frequency[0]:.6e} to {frequency[-1]:.6e} Hz: noise"
                f" level {value:g} of the model's; a finite level above 0 expected (channels that"
                " are zero or equal to each other? wrong units?)"
            )


def noise_notes(path: Path, plan: Sequence[Tile], measured: Float, psd: Psd) -> tuple[str, ...]:
    """Return what about the noise the user should know.

    Args:
        path: the file, for the message.
        plan: the bands.
        measured: (bands, 2) noise level of A and E over the model's density.
        psd: whether the level was estimated.
    """
    notes = []
    low, high = LEVEL_RANGE
    odd = ((measured < low) | (measured > high)).any(axis=1)
    if odd.any():
        first = plan[int(np.argmax(odd))]
        notes.append(
            f"{path}: the noise level is {measured.min():.3g} to {measured.max():.3g} of the"
            f" model's density, outside {low:g} to {high:g} in {int(odd.sum())} of {len(odd)}"
            f" bands, the first from {first.low * 1e3:.4f} mHz: the likely causes are wrong units,"
            " the wrong TDI generation, or data without the Galaxy"
        )
    if psd == "model":
        notes.append(
            "psd 'model': the noise level was not estimated; the model was trained with a level"
            " estimated from each band"
        )
    return tuple(notes)
