"""Orbits of the three spacecraft, from lisaorbits, as the response needs them.

Equal-arm and Keplerian orbits at any phase, or a file that lisaorbits wrote. The response takes
the spacecraft's positions as they are, and one constant arm length in the delays (jaxgb's
approximation; with Keplerian arms it costs 2-4e-3 of A and E).
"""

import logging
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from slotflow.config import ObservationSettings
from slotflow.conventions import TO_ECLIPTIC
from slotflow.errors import InputError
from slotflow.hdf5 import open_checked, read_attribute, read_dataset
from slotflow.manifest import file_sha256
from slotflow.noise import window_samples
from slotflow.response import C, ResponseGrid

_FIELDS: Final = (
    "orbit", "orbit_file", "orbit_sha256", "arm_length", "orbit_lambda1", "orbit_m_init1",
)  # fmt: skip
_ICRS_SINCE: Final = 3  # major version of lisaorbits; files before are ecliptic
_MAX_POINTS: Final = 5_000_000
_GRID: Final = ("t0", "dt", "size")


def orbits(settings: ObservationSettings) -> Any:
    """Return the lisaorbits object of an observation, cached.

    Raises:
        InputError: an orbit file that cannot be used.
    """
    return _orbits(*(getattr(settings, name) for name in _FIELDS))


@lru_cache(maxsize=8)
def _orbits(
    kind: str, path: str | None, sha256: str | None, arm: float, lambda1: float, m_init1: float
) -> Any:
    logging.getLogger("lisaorbits").setLevel(logging.WARNING)
    import lisaorbits  # seconds to import

    if path is not None:
        orbit = _from_file(Path(path), sha256)
        if sha256 is not None:
            orbit.L = arm  # jaxgb takes it from there, as with the other orbits
        return orbit
    cls = {
        "equal_arm": lisaorbits.EqualArmlengthOrbits,
        "keplerian": lisaorbits.KeplerianOrbits,
    }[kind]
    return cls(L=arm, lambda1=lambda1, m_init1=m_init1)


def _from_file(path: Path, sha256: str | None) -> Any:
    """Return orbits interpolated from a file, in ICRS."""
    from lisaorbits import InterpolatedOrbits

    times, positions = read_orbit_file(path)
    if sha256 is not None and (found := file_sha256(path)) != sha256:
        raise InputError(f"{path}: SHA-256 {found[:12]}... is not that of the settings")
    return InterpolatedOrbits(times, positions, t_init=float(times[0]))


def read_orbit_file(path: Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return a lisaorbits file's times and positions: (n,) TCB s, (n, 3, 3) m, ICRS.

    Files of version 1 and 2 are in the ecliptic frame and are rotated (lisaorbits does not).

    Raises:
        InputError: naming file and field of what cannot be used.
    """
    times: NDArray[np.float64]
    positions: NDArray[np.float64]
    with open_checked(path) as file:
        major = _major_version(path, read_attribute(file, "/", "version"))
        if major == 1:
            times = read_dataset(file, "tcb/t").astype(np.float64)
            craft = [
                np.stack([read_dataset(file, f"tcb/sc_{s}", field=c) for c in "xyz"], axis=-1)
                for s in (1, 2, 3)
            ]
            positions = np.stack(craft, axis=1).astype(np.float64)
        else:
            t0, dt, size = (_number(path, name, read_attribute(file, "/", name)) for name in _GRID)
            if not (dt > 0 and 4 <= size <= _MAX_POINTS):
                raise InputError(f"{path}: attributes dt, size: {dt!r}, {size!r} cannot be used")
            times = np.asarray(t0 + dt * np.arange(int(size)), dtype=np.float64)
            positions = read_dataset(file, "tcb/x").astype(np.float64)
    if positions.shape != (times.size, 3, 3):
        raise InputError(f"{path}: tcb/x: expected {(times.size, 3, 3)}; got {positions.shape}")
    if not (np.isfinite(positions).all() and (np.diff(times) > 0).all()):
        raise InputError(f"{path}: positions not finite, or times that do not grow")
    if major < _ICRS_SINCE:
        positions = np.asarray(positions @ TO_ECLIPTIC, dtype=np.float64)
    return times, positions


def _major_version(path: Path, value: Any) -> int:
    head = str(value).split(".")[0]
    if not (head.isascii() and head.isdigit() and int(head) >= 1):
        raise InputError(f"{path}: attribute 'version': {value!r}: not a lisaorbits file")
    return int(head)


def _number(path: Path, name: str, value: Any) -> float:
    if isinstance(value, float) and np.isfinite(value):
        return float(value)
    raise InputError(f"{path}: attribute {name!r}: expected a number; got {value!r}")


def mean_arm(settings: ObservationSettings) -> float:
    """Return the mean arm length over the observation, m, by the light travel times."""
    times = settings.t0 + np.linspace(0.0, settings.duration, 256, endpoint=False)
    return float(np.mean(orbits(settings).compute_ltt(times)) * C)


@lru_cache(maxsize=8)
def response_grid(settings: ObservationSettings, n: int, *, window: bool = True) -> ResponseGrid:
    """Return the observation sampled at ``n`` times, cached.

    Args:
        settings: the observation.
        n: slow samples, even; also the bins of a response.
        window: apply the observation's Tukey window, else none.

    Raises:
        InputError: an orbit file that cannot be used, or does not cover the observation.
    """
    times = np.linspace(0.0, settings.duration, n, endpoint=False)
    # (time, spacecraft, coordinate) to (spacecraft, coordinate, time)
    positions = orbits(settings).compute_position(settings.t0 + times, [1, 2, 3])
    if not np.isfinite(positions).all():
        raise InputError(
            f"{settings.orbit_file}: does not cover {settings.t0!r} s to"
            f" {settings.t0 + settings.duration!r} s"
        )
    return ResponseGrid(
        duration=settings.duration,
        t0=settings.t0,
        times=times,
        positions=np.ascontiguousarray(positions.transpose(1, 2, 0), dtype=np.float64),
        arm_length=settings.arm_length,
        window=window_samples(settings.tukey, n) if window else np.ones(n),
    )
