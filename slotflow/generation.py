"""Telling TDI 1.5 from TDI 2 by the noise, for files that do not say.

Where the instrument dominates, the densities of the two differ by 4 sin^2 2x, x = 2 pi f L / c:
by 4e-4 to 4e-3 between 0.1 and 0.3 mHz, and in slope above 3.5 mHz. The confusion's range in
between is not looked at.
"""

import math
from itertools import pairwise
from typing import Final

import numpy as np
import scipy.signal
from numpy.typing import NDArray

from slotflow.errors import InputError
from slotflow.noise import total_psd

Float = NDArray[np.float64]

LOW: Final = (1.0e-4, 3.0e-4)  # Hz
HIGH: Final = (3.5e-3, 12.0e-3)  # Hz, as far as the sampling allows
BANDS: Final = 5  # in each of the two ranges
SEGMENT: Final = 500_000.0  # s
TOLERANCE: Final = math.log(4.0)  # mean |ln(measured / model)| of a fit


def noise_deviation(tdi: Float, dt: float) -> dict[str, float]:
    """Return the mean |ln(measured / model density)| for each TDI generation.

    From the median periodogram of A = (Z - X) / sqrt 2, which short loud signals do not move,
    against instrument (SciRDv1) plus confusion. Infinite where the series is too short or
    too coarsely sampled to tell.

    Args:
        tdi: (3, N) X, Y, Z in fractional frequency.
        dt: time step, s.
    """
    unknown = {"1.5": math.inf, "2.0": math.inf}
    segment = min(round(SEGMENT / dt), tdi.shape[1] // 8)
    if segment < 16:
        return unknown
    frequency, measured = scipy.signal.welch(
        (tdi[2] - tdi[0]) / math.sqrt(2.0), 1.0 / dt, nperseg=segment, average="median"
    )
    high = min(HIGH[1], 0.4 / dt)
    if frequency[1] > 0.1 * LOW[0] or high < 1.2 * HIGH[0]:
        return unknown
    edges = (np.geomspace(*LOW, BANDS + 1), np.geomspace(HIGH[0], high, BANDS + 1))
    result = {}
    for generation in unknown:
        model = total_psd(frequency[1:], tdi_generation=generation)[0]
        with np.errstate(divide="ignore"):
            deviation = np.log(measured[1:] / model)
        bands = [
            abs(float(np.median(deviation[(frequency[1:] >= a) & (frequency[1:] < b)])))
            for edge in edges
            for a, b in pairwise(edge)
        ]
        result[generation] = float(np.mean(bands))
    return result


def told_generation(label: str, tdi: Float, dt: float) -> str:
    """Return the TDI generation that the noise fits, ``"1.5"`` or ``"2.0"``.

    Args:
        label: file and data set, for the message.
        tdi: (3, N) X, Y, Z in fractional frequency.
        dt: time step, s.

    Raises:
        InputError: it fits neither.
    """
    deviation = noise_deviation(tdi, dt)
    best = min(deviation, key=deviation.__getitem__)
    if not deviation[best] < TOLERANCE:
        found = ", ".join(f"TDI {key}: {value:.2f}" for key, value in deviation.items())
        raise InputError(
            f"{label}: no attribute 'tdi_generation', and the noise fits"
            f" neither TDI 1.5 nor 2 (mean |ln(measured / model)| {found}; below {TOLERANCE:.2f}"
            " expected); fractional frequency is expected; set the attribute to '1.5' or '2.0'"
        )
    return best
