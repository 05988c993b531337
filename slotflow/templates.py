"""The template bank: F-statistics of a whole band over bins and sky by one matrix product.

For a sky position a binary's response is linear in two complex coefficients
(:mod:`slotflow.response`), so with two orthonormal basis responses per grid point the
statistic, maximised over the four amplitude parameters, is the sum of two squared
correlations (Jaranowski, Krolak & Schutz 1998, arXiv:gr-qc/9804014, for the general
form). A response is a few tens of bins wide and keeps its shape when moved by a few
hundred bins, so the same filters serve all bins of a block.
"""

from dataclasses import dataclass
from functools import lru_cache

import numba
import numpy as np
from numpy.typing import NDArray

from slotflow.config import ComponentSettings
from slotflow.parameters import FDOT_T2_PRIOR, fdot_widening
from slotflow.response import Complex, Float, ResponseGrid, slow_basis_at, to_frequency

Complex64 = NDArray[np.complex64]
Float32 = NDArray[np.float32]

#: fdot T^2 at which the search is made at low frequencies: the middle of the training prior.
SEARCH_FDOT_T2 = 0.5 * (FDOT_T2_PRIOR[0] + FDOT_T2_PRIOR[1])
STEPS = 2  # template offsets per bin: 0 and 1/2
DRIFT_SPACING = 4.0  # most of fdot T^2 from one template to the next


def sky_grid(points: int) -> Float:
    """Return (points, 2) ra, dec of a Fibonacci lattice: nearly equal areas."""
    index = np.arange(points) + 0.5
    golden = np.pi * (3.0 - np.sqrt(5.0))
    return np.stack([np.mod(golden * index, 2 * np.pi), np.arcsin(1 - 2 * index / points)], axis=-1)


def drift_grid(frequency: float) -> Float:
    """Return the values of fdot T^2 that templates have at a frequency (Hz): (D,).

    The middles of equal parts of the training prior's range there; one at low frequencies.
    """
    widening = float(fdot_widening(frequency))
    low, high = (widening * bound for bound in FDOT_T2_PRIOR)
    number = max(1, int(np.ceil((high - low) / DRIFT_SPACING)))
    if number == 1:
        return np.array([widening * SEARCH_FDOT_T2])
    return np.asarray(low + (high - low) * (np.arange(number) + 0.5) / number)


@dataclass(frozen=True)
class TemplateBank:
    """Filters for the bins near one block's centre.

    Attributes:
        sky: (G, 2) ra, dec of the grid, repeated for each drift.
        drift: (G,) fdot T^2.
        filters: (2 taps, STEPS * 2 * G) complex64, already conjugated: channel and tap by
            offset, polarisation and grid point.
        taps: length of a filter in bins.
    """

    sky: Float
    drift: Float
    filters: Complex64
    taps: int

    def correlate(self, band: Complex64, low: int, high: int, out: Float32) -> None:
        """Write the statistic F of positions ``low:high`` of the band to ``out``.

        Args:
            band: (2, K) whitened A, E with unit noise per bin; taken as 0 beyond its edges.
            low, high: bins of the band for which F is wanted.
            out: (K, STEPS, G); rows ``low:high`` are overwritten.
        """
        half = self.taps // 2
        padded = np.zeros((2, high - low + 2 * half), dtype=np.complex64)
        first, last = low - half, high + half
        inside = slice(max(first, 0), min(last, band.shape[1]))
        padded[:, inside.start - first : inside.stop - first] = band[:, inside]
        windows = np.lib.stride_tricks.sliding_window_view(padded, self.taps, axis=1)
        rows = np.ascontiguousarray(windows.transpose(1, 0, 2)).reshape(high - low, -1)
        product = (rows @ self.filters).reshape(high - low, STEPS, 2, -1)
        _power(product, out[low:high])


@numba.njit(cache=True, fastmath=True)
def _power(product, out):  # type: ignore[no-untyped-def]
    positions, steps, _, points = product.shape
    for i in range(positions):
        for s in range(steps):
            for g in range(points):
                p, c = product[i, s, 0, g], product[i, s, 1, g]
                out[i, s, g] = p.real**2 + p.imag**2 + c.real**2 + c.imag**2


def make_bank(centre: int, grid: ResponseGrid, points: int, taps: int) -> TemplateBank:
    """Build the bank of ``points`` sky positions for the bins near ``centre``.

    Raises:
        ValueError: the filters would be longer than the grid's responses.
    """
    if taps % 2 == 0 or taps > grid.n:
        raise ValueError(f"expected an odd number of taps up to {grid.n}; got {taps}")
    drifts = drift_grid(centre / grid.duration)
    sky, drift = np.tile(sky_grid(points), (len(drifts), 1)), np.repeat(drifts, points)
    points = len(sky)
    half = taps // 2
    window = slice(grid.n // 2 - half, grid.n // 2 + half + 1)
    filters = np.empty((STEPS, 2, points, 2, taps), dtype=np.complex64)
    for step in range(STEPS):
        intrinsic = np.empty((points, 4))
        intrinsic[:, 0] = (centre + step / STEPS) / grid.duration
        intrinsic[:, 1] = drift / grid.duration**2
        intrinsic[:, 2:] = sky
        slow = slow_basis_at(intrinsic, np.full(points, centre), grid)[:, :, :2]
        basis = to_frequency(slow, grid)[..., window].reshape(points, 2, -1)
        filters[step] = np.moveaxis(_orthonormal(basis), 1, 0).reshape(2, points, 2, taps)
    matrix = np.moveaxis(filters.conj(), (3, 4), (0, 1)).reshape(2 * taps, -1)
    return TemplateBank(sky, drift, np.ascontiguousarray(matrix), taps)


def _orthonormal(basis: Complex) -> Complex:
    """Orthonormalise each pair of vectors: (G, 2, n) -> (G, 2, n)."""
    q, _ = np.linalg.qr(np.swapaxes(basis, 1, 2))
    return np.swapaxes(q, 1, 2)


class BankSet:
    """Banks by block of bins, made when first asked for."""

    def __init__(self, grid: ResponseGrid, settings: ComponentSettings) -> None:
        self.grid = grid
        self.settings = settings
        self._bank = lru_cache(maxsize=64)(self._make)

    def _make(self, block: int) -> TemplateBank:
        centre = block * self.settings.block + self.settings.block // 2
        return make_bank(centre, self.grid, self.settings.sky_points, self.settings.taps)

    def at(self, bin_index: int) -> TemplateBank:
        """Return the bank that serves that Fourier bin."""
        return self._bank(int(bin_index) // self.settings.block)
