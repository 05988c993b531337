"""Between this project's parameters and those of other codes.

Ours are jaxgb's: ICRS, f0 and phi0 at the observation's t0, phase
``2 pi f0 t + pi fdot t^2 - phi0``. To the LISA Data Challenges (LDC) and GBGPU: the sky in the
barycentric mean ecliptic of J2000 (astropy's ``barycentricmeanecliptic``) and the polarisation
angle counted from the ecliptic instead of the equatorial north. The LDC's initial phase has the
sign of ours (its ``GB_fdot``, fastgb and GLASS subtract it), GBGPU's has the other one.
"""

from collections.abc import Mapping
from typing import Final, Literal

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


#: Columns of :func:`to_gbgpu`: the first arguments of GBGPU's ``run_wave``.
GBGPU_COLUMNS: Final = ("A", "f0", "fdot", "fddot", "phi0", "iota", "psi", "lambda", "beta")

#: Columns of :func:`to_fastgb`, by the frame of the orbits.
FASTGB_COLUMNS: Final = {
    "ecliptic": ("f0", "fdot", "A", "beta", "lambda", "psi", "iota", "phi0"),
    "icrs": ("f0", "fdot", "A", "dec", "ra", "psi", "iota", "phi0"),
}

Frame = Literal["ecliptic", "icrs"]


def at_epoch(sources: Float, seconds: float) -> Float:
    """Return the same signals with f0 and phi0 referred to ``seconds`` later: (S, 8).

    phi0 is returned in [0, 2 pi). Precise to some 1e-16 f0 ``seconds`` turns.

    Args:
        sources: (S, 8) in the order of :data:`slotflow.parameters.PARAMETERS`.
        seconds: from the old epoch to the new one, either sign.

    Raises:
        ValueError: sources of another shape.
    """
    moved = _checked(sources).copy()
    f0, fdot = moved[:, F0].copy(), moved[:, FDOT]
    turns = np.mod(f0 * seconds, 1.0) + 0.5 * fdot * seconds**2
    moved[:, F0] = f0 + fdot * seconds
    moved[:, PHI0] = wrap(moved[:, PHI0] - 2.0 * np.pi * turns, 2.0 * np.pi)
    return moved


def rotate_sky(sources: Float, angle: float) -> Float:
    """Return sources turned about the ecliptic pole: (S, 8).

    The ecliptic longitude grows by ``angle``; psi, which counts from the equatorial north, turns
    with the direction's own north. All else stays: f0 and phi0 refer to the barycentre. ra in
    [0, 2 pi), psi in [0, pi). Volumes in (ra, sin dec, psi) are kept, so that a density over these
    stays as it is.

    Args:
        sources: (S, 8) in the order of :data:`slotflow.parameters.PARAMETERS`.
        angle: rad.

    Raises:
        ValueError: sources of another shape.
    """
    turned = _checked(sources).copy()
    if angle == 0.0:
        return turned
    sine, cosine = np.sin(angle), np.cos(angle)
    pole = np.array([[cosine, -sine, 0.0], [sine, cosine, 0.0], [0.0, 0.0, 1.0]])
    rotation = TO_ECLIPTIC.T @ pole @ TO_ECLIPTIC
    turned[:, RA], turned[:, DEC], north = _rotate(turned[:, RA], turned[:, DEC], rotation)
    turned[:, PSI] = wrap(turned[:, PSI] + north, np.pi)
    return turned


def to_ldc(sources: Float) -> dict[str, Float]:
    """Return LDC columns: (S, 8) -> {column: (S,)}, angles in radians.

    Longitude, initial phase in [0, 2 pi), polarisation in [0, pi). Frequency and initial phase
    stay at the sources' epoch, which in the LDC is time zero: :func:`at_epoch` moves it.

    Args:
        sources: (S, 8) in the order of :data:`slotflow.parameters.PARAMETERS`.

    Raises:
        ValueError: sources of another shape.
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
        "InitialPhase": wrap(s[:, PHI0], 2.0 * np.pi),
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
    sources[:, PHI0] = wrap(c["InitialPhase"], 2.0 * np.pi)
    return sources


def to_gbgpu(sources: Float, t0: float = 0.0) -> Float:
    """Return what ``GBGPU.run_wave(*to_gbgpu(sources).T)`` takes (GBGPU 1.2.4): (S, 9).

    A, f0, fdot, fddot = 0, phi0, iota, psi, lambda, beta: ecliptic, phi0 of the other sign.
    GBGPU's observation begins at time zero of its orbits (lisatools' ``EqualArmlengthOrbits``
    are lisaorbits' ones of that name, at the default phase), and f0 and phi0 refer to that
    time. phi0, lambda in [0, 2 pi), psi in [0, pi).

    Args:
        sources: (S, 8) in the order of :data:`slotflow.parameters.PARAMETERS`.
        t0: time on the clock of GBGPU's orbits to which the sources' f0 and phi0 refer, s;
            they are moved from there to time zero.

    Raises:
        ValueError: sources of another shape.
    """
    s = at_epoch(sources, -t0)
    longitude, latitude, angle = _rotate(s[:, RA], s[:, DEC], TO_ECLIPTIC)
    return np.stack(
        [
            s[:, AMPLITUDE],
            s[:, F0],
            s[:, FDOT],
            np.zeros(len(s)),
            wrap(-s[:, PHI0], 2.0 * np.pi),
            s[:, IOTA],
            wrap(s[:, PSI] + angle, np.pi),
            longitude,
            latitude,
        ],
        axis=-1,
    )


def from_gbgpu(parameters: Float, t0: float = 0.0) -> Float:
    """Return sources from GBGPU's parameters, the inverse of :func:`to_gbgpu`: (S, 8).

    ra, phi0 in [0, 2 pi), psi in [0, pi).

    Args:
        parameters: (S, 9) in the order of :data:`GBGPU_COLUMNS`.
        t0: time on GBGPU's clock at which f0 and phi0 of the sources are wanted, s.

    Raises:
        ValueError: parameters of another shape, or an fddot other than zero, which the
            sources have no place for.
    """
    p = _checked(parameters, 9)
    if (p[:, 3] != 0.0).any():
        raise ValueError(f"expected fddot = 0; got {p[p[:, 3] != 0.0, 3][0]:g} Hz/s^2")
    ra, dec, angle = _rotate(p[:, 7], p[:, 8], TO_ECLIPTIC.T)
    sources = np.empty((len(p), 8))
    sources[:, [AMPLITUDE, F0, FDOT, IOTA]] = p[:, [0, 1, 2, 5]]
    sources[:, RA] = ra
    sources[:, DEC] = dec
    sources[:, PSI] = wrap(p[:, 6] + angle, np.pi)
    sources[:, PHI0] = wrap(-p[:, 4], 2.0 * np.pi)
    return at_epoch(sources, t0)


def to_fastgb(sources: Float, frame: Frame = "ecliptic") -> Float:
    """Return what ``FastGB.get_fd_tdixyz`` takes (fastgb 0.0.2): (S, 8).

    ``"ecliptic"``, the LDC's form: f0, fdot, A, beta, lambda, psi, iota, phi0; goes with orbits
    in the ecliptic frame: the LDC's, and files of lisaorbits before version 3.
    ``"icrs"``: f0, fdot, A, dec, ra, psi, iota, phi0; goes with orbits of lisaorbits 3 and later,
    which are ICRS. fastgb does not look at the frame: the other one's parameters give
    another signal in silence. Give ``FastGB`` the epoch of the sources as ``tinit``.

    Args:
        sources: (S, 8) in the order of :data:`slotflow.parameters.PARAMETERS`.
        frame: of the orbits given to fastgb.

    Raises:
        ValueError: sources of another shape, an unknown frame.
    """
    s = _checked(sources)
    longitude, latitude, psi = s[:, RA], s[:, DEC], s[:, PSI]
    if _checked_frame(frame) == "ecliptic":
        longitude, latitude, angle = _rotate(longitude, latitude, TO_ECLIPTIC)
        psi = psi + angle
    plain = s[:, F0], s[:, FDOT], s[:, AMPLITUDE]
    sky = latitude, wrap(longitude, 2.0 * np.pi), wrap(psi, np.pi)
    return np.stack([*plain, *sky, s[:, IOTA], wrap(s[:, PHI0], 2.0 * np.pi)], axis=-1)


def from_fastgb(parameters: Float, frame: Frame = "ecliptic") -> Float:
    """Return sources from fastgb's parameters, the inverse of :func:`to_fastgb`: (S, 8).

    ra, phi0 in [0, 2 pi), psi in [0, pi); f0 and phi0 at fastgb's ``tinit``.

    Args:
        parameters: (S, 8) in the order of :data:`FASTGB_COLUMNS`.
        frame: of the orbits that go with them.

    Raises:
        ValueError: parameters of another shape, an unknown frame.
    """
    p = _checked(parameters)
    f0, fdot, amplitude, dec, ra, psi, iota, phi0 = p.T
    if _checked_frame(frame) == "ecliptic":
        ra, dec, angle = _rotate(ra, dec, TO_ECLIPTIC.T)
        psi = psi + angle
    angles = wrap(ra, 2.0 * np.pi), dec, wrap(psi, np.pi), iota, wrap(phi0, 2.0 * np.pi)
    return np.stack([f0, fdot, amplitude, *angles], axis=-1)


def _checked(sources: Float, columns: int = 8) -> Float:
    sources = np.asarray(sources, dtype=np.float64)
    if sources.ndim != 2 or sources.shape[1] != columns:
        raise ValueError(f"expected sources of shape (S, {columns}); got {sources.shape}")
    return sources


def _checked_frame(frame: Frame) -> Frame:
    if frame not in FASTGB_COLUMNS:
        raise ValueError(f"expected a frame of {sorted(FASTGB_COLUMNS)}; got {frame!r}")
    return frame


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
