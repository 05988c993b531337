"""Data of another starting phase or epoch, as the same data under a turned sky.

In the ecliptic frame each spacecraft of an analytic orbit (equal-arm or Keplerian) follows from
two angles: ``m = n (t - t_init) + m_init1``, the mean anomaly of spacecraft 1, by which the
constellation turns in its own plane, and ``m + lambda1``, the longitude of its centre. Where the
data's ``m`` at their t0 is the model's at its own, the whole orbit is the model's turned about the
ecliptic pole by the difference of ``m + lambda1``, at all times since t0. The response of a
source is then that of the model to the source turned back, with the same f0 and phi0 (at the
data's own t0). Another ``m`` cannot be had by turning the sky, and is refused.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import scipy.interpolate
from numpy.typing import NDArray

from slotflow.checkpoint import Model
from slotflow.config import ObservationSettings
from slotflow.conventions import TO_ECLIPTIC
from slotflow.errors import InputError
from slotflow.hdf5 import open_checked, read_attribute
from slotflow.readers import TDI, Observation, OrbitTrack

Float = NDArray[np.float64]

EPOCH_TOLERANCE: Final = 3600.0  # s; LISA turns by a degree a day
GM_SUN: Final = 1.3271244e20  # m^3 / s^2, as lisaorbits has it
ASTRONOMICAL_UNIT: Final = 149_597_870_700.0  # m
MOTION: Final = float(np.sqrt(GM_SUN / ASTRONOMICAL_UNIT**3))  # rad / s
#: Angle (rad) by which orbits may differ, and positions relative to their size.
ORBIT_TOLERANCE: Final = MOTION * EPOCH_TOLERANCE


class OrbitMap(NamedTuple):
    """How the model's answer becomes that of the data's orbit.

    ``rotation`` (rad, in (-pi, pi]) is to be added to the ecliptic longitude of the model's
    answer (:func:`slotflow.conventions.rotate_sky`), f0 and phi0 refer to the data's t0;
    ``cause`` names the attribute that asks for it, empty where the rotation is zero;
    ``notes``: what had to be assumed, one line each.
    """

    rotation: float
    cause: str
    notes: tuple[str, ...]


def map_orbit(observation: Observation, model: Model) -> OrbitMap:
    """Return the rotation between the data's orbit and the model's.

    The data's orbit is what their attributes say, else what their spacecraft's positions
    show, else assumed to be the model's. What an attribute does not say is the model's.

    Raises:
        InputError: another orbit, or one that no rotation about the ecliptic pole brings to
            the model's; naming the attribute.
    """
    path, ours = observation.path, model.preset.observation
    # LDC files count t from the start whatever t0 is; any other first time is the start itself
    if abs(observation.start) > EPOCH_TOLERANCE and (
        abs(observation.start - observation.t0) > EPOCH_TOLERANCE
    ):
        raise InputError(
            f"{path}: field 't': begins at {observation.start!r} s, but attribute 't0' is"
            f" {observation.t0!r} s: the sky would be wrong by the orbit's advance"
        )
    notes = []
    if observation.orbit is None and observation.track is not None:
        return _by_track(observation, observation.track, model)
    if observation.orbit is None:
        notes.append(
            f"{path} names no orbit: the model's ({described(ours)}) is assumed; with another, the"
            " sky positions are wrong"
        )
    elif observation.orbit != ours.orbit:
        raise InputError(
            f"{path}: attribute 'orbit': {observation.orbit!r}; the model was trained on"
            f" {ours.orbit!r}"
        )
    if ours.orbit == "file":
        _refuse_epoch(observation, model)
        _refuse_parameters(observation, {"L": ours.arm_length}, ours)
        if observation.orbit is not None:
            notes += _check_orbit_file(path, ours)
        return OrbitMap(0.0, "", tuple(notes))
    rotation, cause = _by_parameters(observation, model)
    return OrbitMap(rotation, cause, (*notes, *_turned(path, rotation, cause)))


def described(settings: ObservationSettings) -> str:
    """Return an orbit in words."""
    if settings.orbit == "file":
        return f"{settings.orbit_file}"
    return (
        f"{settings.orbit!r}, from lisaorbits with lambda1 = {settings.orbit_lambda1:g} and"
        f" m_init1 = {settings.orbit_m_init1:g}"
    )


def _turned(path: Path, rotation: float, cause: str) -> tuple[str, ...]:
    if abs(rotation) <= ORBIT_TOLERANCE:
        return ()
    return (
        f"{path}: {cause}: the orbit is the model's turned by {np.degrees(rotation):.6g} deg about"
        " the ecliptic pole, and so is the sky of the result",
    )


def _wrapped(angle: float) -> float:
    """Return the angle in (-pi, pi]; those already there, as they are."""
    if -np.pi < angle <= np.pi:
        return angle
    return float(np.pi - np.mod(np.pi - angle, 2.0 * np.pi))


def _by_parameters(observation: Observation, model: Model) -> tuple[float, str]:
    """Compare the two angles of analytic orbits; return the rotation and its cause."""
    ours, theirs = model.preset.observation, observation.orbit_parameters
    _refuse_parameters(observation, {"L": ours.arm_length, "a": ASTRONOMICAL_UNIT}, ours)
    later = observation.t0 - model.grid.t0
    phase = theirs.get("m_init1", ours.orbit_m_init1) - ours.orbit_m_init1
    clock = -theirs.get("t_init", 0.0)
    turned = theirs.get("lambda1", ours.orbit_lambda1) - ours.orbit_lambda1
    anomaly = _wrapped(MOTION * (later + clock) + phase)
    causes = {
        f"attribute 't0': {observation.t0!r} s; the model is for {model.grid.t0!r} s": (
            later != 0.0
        ),
        _difference("m_init1", theirs, ours.orbit_m_init1): phase != 0.0,
        _difference("t_init", theirs, 0.0): clock != 0.0,
    }
    asked = [cause for cause, differs in causes.items() if differs]
    if abs(anomaly) > ORBIT_TOLERANCE:
        raise InputError(
            f"{observation.path}: {' and '.join(asked)}: the constellation is turned in its plane"
            f" by {np.degrees(anomaly):.4g} deg against the model's, which no rotation of the sky"
            " undoes (orbits that differ in lambda1, or epochs whole years apart, can be mapped)"
        )
    if abs(_wrapped(turned)) > 1e-6:
        asked.append(_difference("lambda1", theirs, ours.orbit_lambda1))
    return _wrapped(anomaly + turned), " and ".join(asked)


def _difference(name: str, theirs: Mapping[str, float], wanted: float) -> str:
    value = theirs.get(name, wanted)
    return f"attribute 'orbit_{name}': {value!r}; the model was trained on {wanted!r}"


def _refuse_parameters(
    observation: Observation, expected: dict[str, float], ours: ObservationSettings
) -> None:
    for name, wanted in expected.items():
        value = observation.orbit_parameters.get(name, wanted)
        if not np.isclose(value, wanted, rtol=1e-6, atol=1e-6):
            raise InputError(
                f"{observation.path}: attribute 'orbit_{name}': {value!r}; the model was trained on"
                f" {ours.orbit!r} with {wanted!r}"
            )


def _refuse_epoch(observation: Observation, model: Model) -> None:
    if abs(observation.t0 - model.grid.t0) > EPOCH_TOLERANCE:
        raise InputError(
            f"{observation.path}: t0 = {observation.t0!r} s: the model is for data that begin at"
            f" {model.grid.t0!r} s (the sky would be wrong by the orbit's advance)"
        )


def _check_orbit_file(path: Path, settings: ObservationSettings) -> list[str]:
    """Refuse data made with another orbit file, by its hash; return a note where there is none."""
    with open_checked(path) as file:
        values = [read_attribute(file, place, "orbit_sha256") for place in (TDI, "tdis", "/")]
    found = next((value for value in values if value is not None), None)
    if found is None:
        return [
            f"{path} does not say which orbit file it was made with: the model's"
            f" ({described(settings)}) is assumed"
        ]
    if found != settings.orbit_sha256:
        raise InputError(
            f"{path}: attribute 'orbit_sha256': {found!r}; the model was trained on"
            f" {settings.orbit_sha256!r} ({described(settings)})"
        )
    return []


def _by_track(observation: Observation, track: OrbitTrack, model: Model) -> OrbitMap:
    """Compare the spacecraft's positions with the model's, at the same times since t0."""
    path, grid = observation.path, model.grid
    times = observation.t0 + grid.times
    label = f"{path}: orbits/sc_position_1, 2, 3"
    if track.times[0] > times[0] + 1.0 or track.times[-1] < times[-1] - 1.0 or len(track.times) < 4:
        raise InputError(
            f"{label}: from {track.times[0]:.9g} to {track.times[-1]:.9g} s; the data need them"
            f" from {times[0]:.9g} to {times[-1]:.9g} s"
        )
    spline = scipy.interpolate.CubicSpline(track.times, track.positions)
    theirs = spline(times) @ TO_ECLIPTIC.T  # (time, spacecraft, coordinate)
    ours = grid.positions.transpose(2, 0, 1) @ TO_ECLIPTIC.T
    centre_theirs, centre_ours = theirs.mean(axis=1), ours.mean(axis=1)
    plane = (centre_theirs[:, 0] + 1j * centre_theirs[:, 1]) * (
        centre_ours[:, 0] - 1j * centre_ours[:, 1]
    )
    rotation = float(np.angle(plane.sum()))
    turned = ours @ about_pole(rotation).T
    centre = np.linalg.norm(centre_theirs - turned.mean(axis=1), axis=-1).max()
    arms = (theirs - theirs[:, [1, 2, 0]]) - (turned - turned[:, [1, 2, 0]])
    off_centre = float(centre / ASTRONOMICAL_UNIT)
    off_arms = float(np.linalg.norm(arms, axis=-1).max() / grid.arm_length)
    if max(off_centre, off_arms) > ORBIT_TOLERANCE:
        raise InputError(
            f"{label}: not the orbit on which the model was trained"
            f" ({described(model.preset.observation)}): turned about the ecliptic pole by"
            f" {np.degrees(rotation):.4g} deg, the centre is off by {off_centre:.2g} of its"
            f" distance and the arms by {off_arms:.2g} of their length"
            f" (at most {ORBIT_TOLERANCE:.2g}); a model trained on this orbit is needed"
        )
    if abs(rotation) <= ORBIT_TOLERANCE:
        return OrbitMap(0.0, "", ())
    cause = "orbits/sc_position_1, 2, 3"
    return OrbitMap(rotation, cause, _turned(path, rotation, cause))


def about_pole(angle: float) -> Float:
    """Return the rotation about the third axis by an angle (rad): (3, 3)."""
    sine, cosine = np.sin(angle), np.cos(angle)
    return np.array([[cosine, -sine, 0.0], [sine, cosine, 0.0], [0.0, 0.0, 1.0]])
