"""Orbits of the three spacecraft, from lisaorbits, as the response needs them."""

from functools import lru_cache
from typing import Any

import numpy as np

from slotflow.config import ObservationSettings
from slotflow.noise import window_samples
from slotflow.response import ResponseGrid


@lru_cache(maxsize=4)
def orbits(name: str = "equal_arm") -> Any:
    """Return the lisaorbits object of that name, at its default size and phase.

    Raises:
        ValueError: an orbit that is not known.
    """
    if name != "equal_arm":
        raise ValueError(f"expected the orbit 'equal_arm'; got {name!r}")
    from lisaorbits import EqualArmlengthOrbits  # seconds to import

    return EqualArmlengthOrbits()


@lru_cache(maxsize=8)
def response_grid(settings: ObservationSettings, n: int, *, window: bool = True) -> ResponseGrid:
    """Return the observation sampled at ``n`` times, cached.

    Args:
        settings: the observation.
        n: slow samples, even; also the bins of a response.
        window: apply the observation's Tukey window, else none.
    """
    orbit = orbits(settings.orbit)
    times = np.linspace(0.0, settings.duration, n, endpoint=False)
    # (time, spacecraft, coordinate) to (spacecraft, coordinate, time)
    positions = orbit.compute_position(settings.t0 + times, [1, 2, 3]).transpose(1, 2, 0)
    return ResponseGrid(
        duration=settings.duration,
        t0=settings.t0,
        times=times,
        positions=np.ascontiguousarray(positions, dtype=np.float64),
        arm_length=float(orbit.L),
        window=window_samples(settings.tukey, n) if window else np.ones(n),
    )
