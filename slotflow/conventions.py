"""Between this project's parameters and those of other codes.

To the LISA Data Challenge (LDC) and GBGPU: the sky in the barycentric mean ecliptic of
J2000 (astropy's ``barycentricmeanecliptic``), ``phi0 -> -phi0``, and the polarisation angle
counted from the ecliptic instead of the equatorial north.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slotflow.parameters import AMPLITUDE, DEC, F0, FDOT, IOTA, PHI0, PSI, RA, wrap

Float = NDArray[np.float64]

#: Rotation from ICRS to the barycentric mean ecliptic of J2000: the frame bias of IAU 2006,
#: then the obliquity of 84381.406 arcseconds.
TO_ECLIPTIC: Final = np.array(
    [
        [0.9999999999999941, -7.078368960971556e-08, 8.056213977613186e-08],
        [3.2897004077419646e-08, 0.9174821299149584, 0.39777699944404793],
        [-1.0207044725484355e-07, -0.39777699944404304, 0.9174821299149556],
    ]
)

#: Parameters of the orbit that a simulated observation's attributes ``orbit_...`` give, named
#: as lisaorbits does.
ORBIT_PARAMETERS: Final = ("L", "a", "lambda1", "m_init1", "t_init")

#: Columns of an LDC catalogue of Galactic binaries.
LDC_COLUMNS: Final = (
    "Amplitude",
    "EclipticLatitude",
    "EclipticLongitude",
    "Frequency",
    "FrequencyDerivative",
    "Inclination",
    "InitialPhase",
    "Polarization",
)


def to_ldc(sources: Float) -> dict[str, Float]:
    """Return LDC columns: (S, 8) -> {column: (S,)}, angles in radians.

    Longitude, initial phase in [0, 2 pi), polarisation in [0, pi).

    Args:
        sources: (S, 8) in the order of :data:`slotflow.parameters.PARAMETERS`.
    """
    s = _checked(sources)
    longitude, latitude, angle = _rotate(s[:, RA], s[:, DEC], TO_ECLIPTIC)
    return {
        "Amplitude": s[:, AMPLITUDE].copy(),
        "EclipticLatitude": latitude,
        "EclipticLongitude": longitude,
        "Frequency": s[:, F0].copy(),
        "FrequencyDerivative": s[:, FDOT].copy(),
        "Inclination": s[:, IOTA].copy(),
        "InitialPhase": wrap(-s[:, PHI0], 2.0 * np.pi),
        "Polarization": wrap(s[:, PSI] + angle, np.pi),
    }


def from_ldc(columns: Mapping[str, ArrayLike]) -> Float:
    """Return sources from LDC columns, the inverse of :func:`to_ldc`: (S, 8).

    Right ascension, phi0 in [0, 2 pi), psi in [0, pi). Columns of shape (S, 1) are accepted.

    Raises:
        KeyError: a column is missing.
    """
    c = {name: np.asarray(columns[name], dtype=np.float64).reshape(-1) for name in LDC_COLUMNS}
    ra, dec, angle = _rotate(c["EclipticLongitude"], c["EclipticLatitude"], TO_ECLIPTIC.T)
    sources = np.empty((ra.size, 8))
    sources[:, F0] = c["Frequency"]
    sources[:, FDOT] = c["FrequencyDerivative"]
    sources[:, AMPLITUDE] = c["Amplitude"]
    sources[:, RA] = ra
    sources[:, DEC] = dec
    sources[:, PSI] = wrap(c["Polarization"] + angle, np.pi)
    sources[:, IOTA] = c["Inclination"]
    sources[:, PHI0] = wrap(-c["InitialPhase"], 2.0 * np.pi)
    return sources


def _checked(sources: Float) -> Float:
    sources = np.asarray(sources, dtype=np.float64)
    if sources.ndim != 2 or sources.shape[1] != 8:
        raise ValueError(f"expected sources of shape (S, 8); got {sources.shape}")
    return sources


def _rotate(longitude: Float, latitude: Float, rotation: Float) -> tuple[Float, Float, Float]:
    """Rotate directions into another frame.

    Returns:
        ``(longitude, latitude, angle)`` in the new frame; ``angle`` is the position angle of the
        old north seen from the new north, towards growing longitude: a polarisation angle
        grows by it. It is as large as pi near the poles.
    """
    sin_l, cos_l = np.sin(longitude), np.cos(longitude)
    sin_b, cos_b = np.sin(latitude), np.cos(latitude)
    direction = rotation @ np.stack([cos_b * cos_l, cos_b * sin_l, sin_b])
    old_north = rotation @ np.stack([-sin_b * cos_l, -sin_b * sin_l, cos_b])
    x, y, z = direction
    horizontal = np.hypot(x, y)  # cos(latitude), precise near the poles where arcsin is not
    new_latitude = np.arctan2(z, horizontal)
    new_longitude = np.arctan2(y, x)
    sin_l, cos_l = np.sin(new_longitude), np.cos(new_longitude)
    east = -sin_l * old_north[0] + cos_l * old_north[1]
    north = -z * (cos_l * old_north[0] + sin_l * old_north[1]) + horizontal * old_north[2]
    return wrap(new_longitude, 2.0 * np.pi), new_latitude, np.arctan2(east, north)
