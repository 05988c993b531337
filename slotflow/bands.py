"""From a time series to whitened bands: the same band data the simulator makes directly.

A band is ``K`` consecutive Fourier bins of ``dt rfft(w x)`` over exactly the observation time
T for which the model was trained, with ``w`` the periodic Tukey window, in TDI 1.5 and
fractional frequency x seconds. Whitened, the noise has unit variance per complex bin.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotflow.channels import aet_to_xyz, xyz_to_aet
from slotflow.config import PriorSettings
from slotflow.errors import InputError
from slotflow.noise import window_power
from slotflow.spectrum import BandSpectrum, Spectrum, spectrum

__all__ = [
    "BandSpectrum", "Spectrum", "Tile", "aet_to_xyz", "level", "spectrum", "tiles",
    "trained_range", "whiten", "xyz_to_aet",
]  # fmt: skip

Float = NDArray[np.float64]
Complex = NDArray[np.complex128]


class Tile(NamedTuple):
    """One band of a tiling, and the frequencies (Hz) whose sources are reported from it.

    A source with ``low <= f0 < high`` belongs to this tile.
    """

    first_bin: int
    low: float
    high: float


def trained_range(prior: PriorSettings, duration: float) -> tuple[float, float]:
    """Return the lowest and highest frequency (Hz) at which the prior has targets."""
    centre_low, centre_high = _centres(prior, duration)
    low = centre_low - prior.window(centre_low / duration) // 2
    high = centre_high + prior.window(centre_high / duration) // 2
    return low / duration, high / duration


def _centres(prior: PriorSettings, duration: float) -> tuple[int, int]:
    """Lowest and highest central bin of a band that the prior allows."""
    low, high = math.ceil(prior.fmin * duration), math.floor(prior.fmax * duration)
    if low > high:
        raise ValueError(f"no bin between {prior.fmin} and {prior.fmax} Hz")
    return low, high


def tiles(fmin: float, fmax: float, prior: PriorSettings, duration: float) -> list[Tile]:
    """Return bands whose central windows cover [fmin, fmax] without gap or overlap.

    Each tile's frequencies lie in the central window in which the prior puts a band's
    targets, and each band's centre within the prior's range.

    Args:
        fmin, fmax: the wanted frequencies, Hz.
        prior: the training prior.
        duration: observation time T, s.

    Raises:
        InputError: ``fmin`` not below ``fmax``, or frequencies outside the trained range.
    """
    lowest, highest = trained_range(prior, duration)
    if not fmin < fmax:
        raise InputError(f"fmin {fmin!r} Hz must be below fmax {fmax!r} Hz")
    for name, value in (("fmin", fmin), ("fmax", fmax)):
        if not lowest <= value <= highest:
            raise InputError(
                f"{name} {value!r} Hz is outside the trained range:"
                f" {lowest:.6e} to {highest:.6e} Hz"
            )
    centre_low, centre_high = _centres(prior, duration)
    result: list[Tile] = []
    edge = math.floor(fmin * duration)
    # In frequency: fmax times the duration may round to beyond the last window
    while not result or edge / duration < fmax:
        centre = min(max(_next_centre(edge, prior, duration), centre_low), centre_high)
        upper = centre + prior.window(centre / duration) // 2
        low = fmin if not result else edge / duration
        result.append(Tile(centre - prior.bins // 2, low, min(upper / duration, fmax)))
        edge = upper
    return result


def _next_centre(edge: int, prior: PriorSettings, duration: float) -> int:
    """Return the central bin of the band whose window begins at, or covers, ``edge``."""
    wide, narrow = prior.wide_window // 2, prior.narrow_window // 2
    split = math.ceil(prior.split_frequency * duration)  # the first bin that is not below it
    if edge + wide < split:
        return edge + wide
    if edge + narrow >= split:
        return edge + narrow
    # the last wide band: it also covers a little below the edge, which is not reported again
    return split - 1


def level(whitened: NDArray[np.complexfloating]) -> Float:
    """Return each channel's noise level, 1 for unit noise: (channels, K) -> (channels,).

    The median of |d|^2 over ln 2: few loud bins do not move it.
    """
    return np.asarray(np.median(np.abs(whitened) ** 2, axis=-1) / math.log(2.0), dtype=np.float64)


def whiten(
    data: Complex, psd: NDArray[np.float64], duration: float, tukey: float
) -> NDArray[np.complex64]:
    """Divide by the noise's standard deviation per complex bin, then cast: (3, K) complex64.

    ``E|n|^2 = S T / 2 mean(w^2)``. The cast comes last: |X|^2 near 1e-42 underflows in
    single precision.

    Args:
        data: (3, K) as :class:`BandSpectrum` holds it.
        psd: (3, K) one-sided density at the same bins, 1/Hz.
        duration: observation time T, s.
        tukey: tapered fraction of the window.
    """
    if data.shape != psd.shape:
        raise ValueError(f"expected a density of shape {data.shape}; got {psd.shape}")
    return (data / np.sqrt(psd * (0.5 * duration * window_power(tukey)))).astype(np.complex64)
