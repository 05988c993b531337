"""Noise whose power varies over the observation, and what it does to responses.

Unresolved binaries are seen through the detector's changing response: their noise is uncorrelated
from one time to another, with a power and a correlation of A and E that change over the year. In
the frequency domain that is a covariance with lags, the same at all bins of a band,

    <n_k conj(n_(k-l))> = c_l,    C(t) = sum over l of c_l exp(2 pi i l t / T),

each a matrix of the channels. So it is inverted time by time: data and signals are multiplied by
``C(t)^(-1/2)``, after which the noise is white.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slotflow.exact_kernel import CHUNK, Kernel
from slotflow.response import ResponseGrid

Float = NDArray[np.float64]
Complex = NDArray[np.complex128]
Int = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Modulation:
    """The noise's covariance in A and E over the observation, relative to its level.

    Attributes:
        series: (2, 2, 2 L + 1) the coefficients c_l of ``C(t)``, l = -L..L.
    """

    series: Complex

    def covariance(self, samples: int) -> Complex:
        """Return C(t) at as many equidistant times, from the start on: (samples, 2, 2).

        Raises:
            ValueError: fewer samples than coefficients.
        """
        most = self.series.shape[2] // 2
        if samples < self.series.shape[2]:
            raise ValueError(f"expected at least {self.series.shape[2]} samples; got {samples}")
        spectrum = np.zeros((2, 2, samples), dtype=np.complex128)
        spectrum[..., np.arange(-most, most + 1) % samples] = self.series
        return np.asarray(np.moveaxis(np.fft.ifft(spectrum, axis=-1) * samples, -1, 0))

    def whitener(self, samples: int) -> Complex:
        """Return ``C(t)^(-1/2)``, Hermitian: (samples, 2, 2).

        Raises:
            ValueError: a covariance that is not positive.
        """
        values, vectors = np.linalg.eigh(self.covariance(samples))
        if not (values > 0.0).all():
            raise ValueError("expected a covariance that is positive at all times")
        root = vectors / np.sqrt(values)[:, None, :]
        return np.asarray(root @ np.swapaxes(vectors.conj(), 1, 2))

    def log_det(self, samples: int) -> float:
        """Return the sum over times of ln det C(t)."""
        return float(np.linalg.slogdet(self.covariance(samples))[1].sum())

    def filtered(self, spectrum: Complex) -> Complex:
        """Return spectra (..., 2, K) times ``C(t)^(-1/2)`` in time, on their own circle."""
        white = _applied(self.whitener(spectrum.shape[-1]), np.fft.ifft(spectrum, axis=-1))
        return np.asarray(np.fft.fft(white, axis=-1))


def _applied(matrix: Complex, series: Complex) -> Complex:
    """Return ``matrix`` (n, 2, 2) times the channels of series (..., 2, n)."""
    a, e = series[..., 0, :], series[..., 1, :]
    rows = (matrix[:, i, 0] * a + matrix[:, i, 1] * e for i in range(2))
    return np.stack(tuple(rows), axis=-2)


class ModulatedKernel(Kernel):
    """Responses multiplied by the whitener of a modulation, in time.

    Args:
        grid: as :class:`slotflow.exact_kernel.Kernel` has it.
        modulation: of the noise.
    """

    def __init__(self, grid: ResponseGrid, modulation: Modulation) -> None:
        super().__init__(grid)
        self.matrix = modulation.whitener(grid.n)

    def _transformed(self, slow: Complex, centre: Float) -> tuple[Complex, Int]:
        return super()._transformed(_applied(self.matrix, slow), centre)

    def bases_and_grams(self, intrinsic: Float) -> Iterator[tuple[slice, Complex, Int, Complex]]:
        """As :meth:`bases`, and the Gram matrices of the responses as they were.

        The last: (rows, 2 channels, 2, 2), sums of ``conj(u_i) u_j`` over all bins.
        """
        slow = np.empty((CHUNK, 2, 2, self.n), dtype=np.complex128)
        for rows, centre in self._slow_bases(intrinsic, slow):
            some = slow[: rows.stop - rows.start]
            grams = self.n * np.einsum("nict,njct->ncij", some.conj(), some)
            yield rows, *self._transformed(some, centre), grams
