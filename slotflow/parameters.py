"""The eight parameters of a Galactic binary: names, units, bounds, periods, transforms.

Order, units and sign conventions are those of jaxgb: f0 and phi0 refer to the
observation's t0, the sky is ICRS, and the phase is 2 pi f0 t + pi fdot t^2 - phi0.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

Float = NDArray[np.float64]


@dataclass(frozen=True)
class Parameter:
    """One source parameter.

    ``period`` is the period of an angle that has one, else None. ``low`` and ``high`` are
    the bounds that every prior and every posterior sample respects; f0 and fdot are
    bounded by the band and by the prior instead (None here).
    """

    name: str
    symbol: str
    unit: str
    low: float | None
    high: float | None
    period: float | None = None


PARAMETERS: Final = (
    Parameter("f0", r"$f_0$", "Hz", None, None),
    Parameter("fdot", r"$\dot f$", "Hz/s", None, None),
    Parameter("amplitude", r"$\mathcal{A}$", "", 0.0, None),
    Parameter("ra", r"$\alpha$", "rad", 0.0, 2.0 * np.pi, 2.0 * np.pi),
    Parameter("dec", r"$\delta$", "rad", -0.5 * np.pi, 0.5 * np.pi),
    Parameter("psi", r"$\psi$", "rad", 0.0, np.pi, np.pi),
    Parameter("iota", r"$\iota$", "rad", 0.0, np.pi),
    Parameter("phi0", r"$\phi_0$", "rad", 0.0, 2.0 * np.pi, 2.0 * np.pi),
)
NAMES: Final = tuple(p.name for p in PARAMETERS)
F0, FDOT, AMPLITUDE, RA, DEC, PSI, IOTA, PHI0 = range(8)

#: The parameters as they are scored: (name, period in units of the scaled range or None).
SCORED: Final = (
    ("f0", None),
    ("fdot", None),
    ("ln_amplitude", None),
    ("ra", 1.0),
    ("sin_dec", None),
    ("psi", None),
    ("cos_iota", None),
    ("phi0", 1.0),
)
LN_AMPLITUDE_RANGE: Final = float(np.log(100.0))  # two decades, our choice
FDOT_T2_PRIOR: Final = (-0.1, 0.3)  # fdot T^2 below 3 mHz, our choice
_WIDENING_FREQUENCY: Final = 3e-3  # Hz


def fdot_widening(f0: ArrayLike) -> Float:
    """Return the factor by which the range of fdot is wider than at low frequencies.

    1 up to 3 mHz, then growing as f0^(11/3), as the drift by gravitational waves of given masses
    does: 0.3 is that of a chirp mass of one solar mass.

    Args:
        f0: Hz.
    """
    return np.asarray(np.maximum(1.0, np.asarray(f0) / _WIDENING_FREQUENCY) ** (11.0 / 3.0))


def wrap(angle: Float, period: float) -> Float:
    """Return the angle in [0, period), also where rounding gives the period itself."""
    wrapped = np.mod(angle, period)
    return np.where(wrapped >= period, 0.0, wrapped)


def fold(sources: Float) -> Float:
    """Return the same signals with psi in [0, pi/2), phi0 and ra in [0, 2 pi): (..., 8).

    (psi + pi/2, phi0 + pi) is the same signal, so psi can be folded to a quarter turn.
    The input is not changed.
    """
    folded = np.array(sources, dtype=np.float64)
    quarter = np.floor(folded[..., PSI] / (0.5 * np.pi))
    psi = folded[..., PSI] - quarter * 0.5 * np.pi
    quarter = np.where(psi >= 0.5 * np.pi, quarter + 1.0, quarter)  # rounded up to the edge
    folded[..., PSI] = np.where(psi >= 0.5 * np.pi, 0.0, np.maximum(psi, 0.0))
    folded[..., PHI0] = np.mod(folded[..., PHI0] - quarter * np.pi, 2.0 * np.pi)
    folded[..., RA] = np.mod(folded[..., RA], 2.0 * np.pi)
    return folded


def other_image(sources: Float) -> Float:
    """Return the symmetry's other image, (psi + pi/2, phi0 + pi), psi taken modulo pi: (..., 8)."""
    image = np.array(sources, dtype=np.float64)
    image[..., PSI] = np.mod(image[..., PSI] + 0.5 * np.pi, np.pi)
    image[..., PHI0] = np.mod(image[..., PHI0] + np.pi, 2.0 * np.pi)
    return image


def to_scored(sources: Float, first_bin: Float, bins: int, duration: float) -> Float:
    """Scale the parameters to the unit ranges in which CRPS is measured: (..., 8).

    f0 by the whole band, fdot by its prior at that f0, ln amplitude by two decades (an offset is
    left, which no score sees), sin dec and cos iota by their range, psi folded by
    pi/2, ra and phi0 by their period.

    Args:
        sources: (..., 8) in this module's order.
        first_bin: the band's first Fourier bin, broadcast against ``sources[..., 0]``.
        bins: bins in the band.
        duration: observation time T, seconds.
    """
    s = fold(sources)
    low, high = FDOT_T2_PRIOR
    with np.errstate(divide="ignore"):
        ln_amplitude = np.log(s[..., AMPLITUDE])
    columns = (
        (s[..., F0] * duration - first_bin) / bins,
        (s[..., FDOT] * duration**2 / fdot_widening(s[..., F0]) - low) / (high - low),
        (ln_amplitude - np.log(1e-23)) / LN_AMPLITUDE_RANGE,
        s[..., RA] / (2.0 * np.pi),
        0.5 * (np.sin(s[..., DEC]) + 1.0),
        s[..., PSI] / (0.5 * np.pi),
        0.5 * (np.cos(s[..., IOTA]) + 1.0),
        s[..., PHI0] / (2.0 * np.pi),
    )
    return np.stack(columns, axis=-1)
