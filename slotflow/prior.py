"""The training prior of one source as a density in its own parameters.

A target of a band is drawn with f0 uniform over the band's window of interest, fdot uniform,
the angles isotropic and the SNR by a law of its own; the amplitude is what gives that SNR.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotflow.config import PriorSettings
from slotflow.parameters import AMPLITUDE, DEC, F0, FDOT, IOTA, fdot_widening

Float = NDArray[np.float64]

_LN_ANGLES = float(np.log(2.0 * np.pi) * 2.0 + np.log(np.pi) + np.log(4.0))


class Ranges(NamedTuple):
    """Ranges of f0 (Hz) and of fdot (Hz/s) that the targets of a band have."""

    f0: tuple[float, float]
    fdot: tuple[float, float]


def ranges(first_bin: int, prior: PriorSettings, duration: float) -> Ranges:
    """Return a band's ranges; that of fdot at the upper end of that of f0.

    Args:
        first_bin: first Fourier bin of the band.
        prior: the training prior.
        duration: observation time T, s.
    """
    width = prior.window((first_bin + prior.bins // 2) / duration)
    low = first_bin + (prior.bins - width) // 2
    f0 = low / duration, (low + width) / duration
    scale = float(fdot_widening(f0[1])) / duration**2
    return Ranges(f0, (prior.fdot_t2_min * scale, prior.fdot_t2_max * scale))


_widening = fdot_widening


def log_prior(
    samples: Float, first_bin: int, prior: PriorSettings | None, duration: float
) -> Float:
    """Return ln density of the training prior of one source at its samples: (n, 8) -> (n,).

    Per Hz, Hz/s, strain and radians, both images of (psi, phi0) included. The amplitude, at
    given other parameters, is log-uniform like the SNR, ``p(A) = 1 / (A ln(snr_max / snr_min))``;
    where that range of SNR ends is not looked at. -inf outside the band's window and the range
    of fdot; NaN where the density is not known in this form: no prior given, another law of
    the SNR, a sky that is not isotropic, a range of no width.

    Args:
        samples: (n, 8) in the order of :data:`slotflow.parameters.PARAMETERS`.
        first_bin: first Fourier bin of the band that they are from.
        prior: the training prior, None where it is not known.
        duration: observation time T, s.
    """
    if prior is None or not _in_closed_form(prior):
        return np.full(len(samples), np.nan)
    low, high = ranges(first_bin, prior, duration).f0
    f0, fdot_t2 = samples[:, F0], samples[:, FDOT] * duration**2
    widening = fdot_widening(f0)
    fdot_range = (prior.fdot_t2_max - prior.fdot_t2_min) * widening / duration**2
    snr_range = np.log(prior.snr_max / prior.snr_min)
    with np.errstate(divide="ignore"):
        value = (
            -np.log(high - low)
            - np.log(fdot_range)
            - np.log(samples[:, AMPLITUDE] * snr_range)
            + np.log(np.cos(samples[:, DEC]))
            + np.log(np.sin(samples[:, IOTA]))
            - _LN_ANGLES
        )
    inside = (low <= f0) & (f0 <= high)
    inside &= prior.fdot_t2_min * widening <= fdot_t2
    inside &= fdot_t2 <= prior.fdot_t2_max * widening
    return np.where(inside, value, -np.inf)


def _in_closed_form(prior: PriorSettings) -> bool:
    wide = prior.snr_max > prior.snr_min and prior.fdot_t2_max > prior.fdot_t2_min
    return wide and prior.snr_law == "log_uniform" and prior.sky == "isotropic"
