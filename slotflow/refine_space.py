"""The coordinates in which a band's sources are refined, and the prior in them.

One source is x = (bin from the band's first, fdot T^2 over its widening, ln amplitude, ra, sin dec,
psi, cos iota, phi0), as the network's local units, with psi folded to [0, pi/2) and phi0 in
[0, 2 pi). In x the training prior is constant in a box, cut by the range of the SNR.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from slotflow.config import PriorSettings
from slotflow.parameters import FDOT_T2_PRIOR, LN_AMPLITUDE_RANGE
from slotflow.source_prior import SourcePrior
from slotflow.tokencache import from_local_units, to_local_units, window_edges

Float = NDArray[np.float64]

BIN, DRIFT, LN_A, RA, SIN_DEC, PSI, COS_IOTA, PHI0 = range(8)
QUARTER: Final = 0.5 * np.pi
TURN: Final = 2.0 * np.pi
_LN_ANGLES: Final = float(np.log(TURN * 2.0 * QUARTER * 2.0 * TURN))
_OBLIQUITY: Final = np.deg2rad(84381.448 / 3600.0)  # of J2000


def folded(x: Float) -> Float:
    """Return the same signals with ra and phi0 in [0, 2 pi) and psi in [0, pi/2): (..., 8)."""
    out = np.array(x, dtype=np.float64)
    quarters = np.floor(out[..., PSI] / QUARTER)
    out[..., PSI] = np.clip(out[..., PSI] - quarters * QUARTER, 0.0, np.nextafter(QUARTER, 0.0))
    out[..., PHI0] = np.mod(out[..., PHI0] - quarters * np.pi, TURN)
    out[..., RA] = np.mod(out[..., RA], TURN)
    return out


class Space:
    """The coordinates of one band.

    Args:
        first_bin: its first Fourier bin.
        duration: observation time T, s.
        prior: the training prior.

    Attributes:
        low, high: (8,) the prior's box; the amplitude's is bounded by the SNR alone.
        snr: (snr_min, snr_max).
        log_prior: ln density inside the box and the range of SNR, of one source.
        log_unit: ln volume of the network's unit cube in x.

    Raises:
        ValueError: a prior that is not known in closed form.
    """

    def __init__(self, first_bin: int, duration: float, prior: PriorSettings) -> None:
        known = SourcePrior(prior, first_bin, duration)
        self.first_bin, self.duration, self.bins = first_bin, duration, prior.bins
        left, right = window_edges(first_bin, prior, duration)
        drift = prior.fdot_t2_min, prior.fdot_t2_max
        self.low = np.array([left, drift[0], -np.inf, 0.0, -1.0, 0.0, -1.0, 0.0])
        self.high = np.array([right, drift[1], np.inf, TURN, 1.0, QUARTER, 1.0, TURN])
        self.snr = known.snr
        box = np.log((right - left) * (drift[1] - drift[0]) * known.ln_snr_range)
        self.log_prior = -float(box) - _LN_ANGLES
        span = FDOT_T2_PRIOR[1] - FDOT_T2_PRIOR[0]
        self.log_unit = float(np.log(prior.bins * span * LN_AMPLITUDE_RANGE)) + _LN_ANGLES

    def to_sources(self, x: Float) -> Float:
        """Return sources in the order of PARAMETERS: (..., 8) -> (..., 8)."""
        return from_local_units(x, self.first_bin, self.duration)

    def from_sources(self, sources: Float) -> Float:
        """Invert :meth:`to_sources`, folded: (n, 8) -> (n, 8)."""
        return folded(to_local_units(sources, self.first_bin, self.duration))

    def inside(self, x: Float) -> NDArray[np.bool_]:
        """Return whether x lies in the prior's box, whatever its SNR: (..., 8) -> (...)."""
        return np.asarray(((x >= self.low) & (x <= self.high)).all(axis=-1))


def traced(x: Float) -> Float:
    """Return numbers without seams, whose means and correlations make sense: (N, S, 8) -> (N, D).

    Of each source bin, drift, ln amplitude, the direction, cos iota, and the two phases that the
    signal has, 2 psi - phi0 and 2 psi + phi0, as cosine and sine.
    """
    ra, sin_dec = x[..., RA], x[..., SIN_DEC]
    cos_dec = np.sqrt(np.maximum(1.0 - sin_dec**2, 0.0))
    right, left = 2.0 * x[..., PSI] - x[..., PHI0], 2.0 * x[..., PSI] + x[..., PHI0]
    columns = (
        x[..., BIN], x[..., DRIFT], x[..., LN_A], cos_dec * np.cos(ra), cos_dec * np.sin(ra),
        sin_dec, x[..., COS_IOTA], np.cos(right), np.sin(right), np.cos(left), np.sin(left),
    )  # fmt: skip
    return np.stack(columns, axis=-1).reshape(len(x), -1)


def difference(one: Float, other: Float) -> Float:
    """Return one - other by the nearest images of the angles: (..., 8)."""
    out = one - other
    out[..., RA] = np.mod(out[..., RA] + np.pi, TURN) - np.pi
    quarters = np.rint(out[..., PSI] / QUARTER)
    out[..., PSI] -= quarters * QUARTER
    out[..., PHI0] = np.mod(out[..., PHI0] - quarters * np.pi + np.pi, TURN) - np.pi
    return out


def reflected(x: Float) -> Float:
    """Return x with the sky position reflected by the ecliptic: (..., 8); its own inverse.

    A detector in the ecliptic plane whose arms are short on the wave's scale hardly tells the two
    apart.
    """
    out = np.array(x)
    ra, sin_dec = x[..., RA], x[..., SIN_DEC]
    cos_dec = np.sqrt(np.maximum(1.0 - sin_dec**2, 0.0))
    s, c = np.sin(_OBLIQUITY), np.cos(_OBLIQUITY)
    px, py, pz = cos_dec * np.cos(ra), cos_dec * np.sin(ra), sin_dec
    height = c * pz - s * py  # over the ecliptic
    py, pz = py + 2.0 * s * height, pz - 2.0 * c * height
    out[..., RA] = np.mod(np.arctan2(py, px), TURN)
    out[..., SIN_DEC] = np.clip(pz, -1.0, 1.0)
    return out
