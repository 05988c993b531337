"""From a time series to whitened bands: the same band data the simulator makes directly.

A band is ``K`` consecutive Fourier bins of ``dt rfft(w x)`` over exactly the observation time
T for which the model was trained, with ``w`` the periodic Tukey window, in TDI 1.5 and
fractional frequency x seconds. Whitened, the noise has unit variance per complex bin.
"""

import math
import sys
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotflow.channels import aet_to_xyz, xyz_to_aet
from slotflow.config import PriorSettings
from slotflow.errors import InputError
from slotflow.noise import window_power
from slotflow.spectrum import BandSpectrum, Spectrum, spectrum

__all__ = [
    "BandSpectrum", "Spectrum", "Tile", "aet_to_xyz", "level", "spectrum", "tile_grid", "tiles",
    "trained_range", "whiten", "xyz_to_aet",
]  # fmt: skip

Float = NDArray[np.float64]
Complex = NDArray[np.complex128]


GUARD_BINS: Final = 2  # at a window's edges, left to the neighbour, who sees them further inside
MARGIN_BINS: Final = 1.0  # beyond a tile's edge, where it and its neighbour may see one source
NEAR_BINS: Final = 2.0  # two reports further apart are two sources


class Tile(NamedTuple):
    """One band of the tiling, and the frequencies (Hz) that it answers for.

    A source with ``low <= f0 < high`` belongs to this tile. ``number`` is its place among all
    bands that could be read.
    """

    first_bin: int
    low: float
    high: float
    number: int = 0


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
    """Return the bands of the fixed tiling whose sources may lie in [fmin, fmax].

    Which bands there are depends on the model alone (:func:`tile_grid`), so that a source is
    read from the same band whatever the range. Those that answer for frequencies within
    ``NEAR_BINS`` of the range are among them: what they report may be what a band inside it does.

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
    margin = NEAR_BINS / duration
    return [
        tile
        for tile in tile_grid(prior, duration)
        if tile.high + margin > fmin and tile.low - margin <= fmax
    ]


@lru_cache(maxsize=16)
def tile_grid(prior: PriorSettings, duration: float) -> tuple[Tile, ...]:
    """Return the bands that cover the trained range, whose own frequencies neither leave gaps nor
    overlap.

    Each tile's frequencies lie in the central window in which the prior puts a band's targets,
    ``GUARD_BINS`` inside its edges except at the ends of the range, and each band's centre lies
    within the prior's range.
    """
    centre_low, centre_high = _centres(prior, duration)
    result: list[Tile] = []
    edge = centre_low - prior.window(centre_low / duration) // 2
    highest = centre_high + prior.window(centre_high / duration) // 2
    while edge < highest:
        centre = min(max(_next_centre(edge, prior, duration), centre_low), centre_high)
        # a band of a wide window may see beyond the end of the narrow one that comes last
        upper = min(centre + _own(prior.window(centre / duration)), highest)
        if centre == centre_high:
            upper = highest
        own = edge / duration, upper / duration
        result.append(Tile(centre - prior.bins // 2, *own, len(result)))
        edge = upper
    return tuple(result)


def _own(window: int) -> int:
    """Return how far from its centre a band answers for sources, in bins."""
    half = window // 2
    return half - min(GUARD_BINS, half // 4)


def _next_centre(edge: int, prior: PriorSettings, duration: float) -> int:
    """Return the central bin of the band whose own frequencies begin at, or cover, ``edge``."""
    kinds = prior.windows
    # of each kind of window the first bin that is above its frequencies
    ends = [*(math.ceil(start * duration) for start, _ in kinds[1:]), sys.maxsize]
    begin = -1
    for (_, window), end in zip(kinds, ends, strict=True):
        centre = edge + _own(window)
        if centre < begin:
            # the last band of the kind before: it also covers a little below the edge, which is
            # not reported again
            return begin - 1
        if centre < end:
            return centre
        begin = end
    raise AssertionError("the last kind of window has no end")


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
