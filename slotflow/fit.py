"""The local fit of one binary to a whitened band, amplitudes projected out.

In the slow (heterodyned) time domain inner products are sums over a few tens of samples, by
Parseval equal to those over Fourier bins, so a fit needs no transform. x = (bin, ra, dec,
fdot T^2); fdot under a Gaussian of its prior's mean and width.
"""

import numba
import numpy as np
import scipy.fft

from slotflow.parameters import FDOT_T2_PRIOR, fdot_widening
from slotflow.response import Complex, Float, ResponseGrid, slow_kernel
from slotflow.templates import SEARCH_FDOT_T2, Complex64

MAX_ITERATIONS = 10
#: The uniform prior's sigma, at low frequencies (:func:`slotflow.parameters.fdot_widening`).
FDOT_T2_WIDTH = (FDOT_T2_PRIOR[1] - FDOT_T2_PRIOR[0]) / 12.0**0.5


@numba.njit(cache=True)
def _basis(x, centre, duration, times, positions, arm, window, scale, work, out):  # type: ignore[no-untyped-def]
    """Whitened A, E basis (2, 2 n) at x = (bin, ra, dec, fdot T^2)."""
    slow_kernel(
        x[0] / duration, x[3] / duration**2, x[1], x[2], centre, duration, times, positions, arm,
        window, work,
    )  # fmt: skip
    n = times.size
    for p in range(2):
        for c in range(2):
            for t in range(n):
                out[p, c * n + t] = work[p, c, t] * scale[c]


@numba.njit(cache=True)
def _project(basis, data, coefficients):  # type: ignore[no-untyped-def]
    """Fill the least-squares coefficients (2,) and return F = |data|^2 - |data - fit|^2."""
    g00 = 0.0
    g11 = 0.0
    g01 = 0.0j
    b0 = 0.0j
    b1 = 0.0j
    for i in range(data.size):
        u, w, d = basis[0, i], basis[1, i], data[i]
        g00 += u.real**2 + u.imag**2
        g11 += w.real**2 + w.imag**2
        g01 += np.conj(u) * w
        b0 += np.conj(u) * d
        b1 += np.conj(w) * d
    det = g00 * g11 - (g01.real**2 + g01.imag**2)
    det = max(det, 1e-12 * g00 * g11)
    coefficients[0] = (g11 * b0 - g01 * b1) / det
    coefficients[1] = (g00 * b1 - np.conj(g01) * b0) / det
    return (np.conj(b0) * coefficients[0] + np.conj(b1) * coefficients[1]).real


@numba.njit(cache=True)
def _fdot_loss(fdot_t2, widening):  # type: ignore[no-untyped-def]
    """Minus the log of fdot's Gaussian prior."""
    return 0.5 * ((fdot_t2 - widening * SEARCH_FDOT_T2) / (widening * FDOT_T2_WIDTH)) ** 2


@numba.njit(cache=True)
def _move(x, east, north):  # type: ignore[no-untyped-def]
    """Return (ra, dec) after a step in the tangent plane at (x[1], x[2])."""
    sr, cr, sd, cd = np.sin(x[1]), np.cos(x[1]), np.sin(x[2]), np.cos(x[2])
    px = cd * cr - east * sr - north * sd * cr
    py = cd * sr + east * cr - north * sd * sr
    pz = sd + north * cd
    norm = np.sqrt(px * px + py * py + pz * pz)
    return np.mod(np.arctan2(py, px), 2.0 * np.pi), np.arcsin(min(1.0, max(-1.0, pz / norm)))


@numba.njit(cache=True)
def _hessian(x, centre, duration, times, positions, arm, window, scale, work,  # type: ignore[no-untyped-def]
             basis, data, coefficients, shifted, tangents, hessian, gradient,
             widening):  # fmt: skip
    """Gauss-Newton Hessian and gradient in (bin, east, north, fdot T^2), amplitudes projected out.

    Both are halves, as for lnL = -|r|^2 without the factor 2; fdot's prior is included.
    """
    steps = (1e-3, 1e-4, 1e-4, 1e-3)
    trial = np.empty(4)
    inner = np.empty(2, dtype=np.complex128)
    for k in range(4):
        trial[:] = x
        if k == 0 or k == 3:
            trial[k] += steps[k]
        elif k == 1:
            trial[1], trial[2] = _move(x, steps[1], 0.0)
        else:
            trial[1], trial[2] = _move(x, 0.0, steps[2])
        _basis(trial, centre, duration, times, positions, arm, window, scale, work, shifted)
        for i in range(data.size):
            tangents[k, i] = (
                (shifted[0, i] - basis[0, i]) * coefficients[0]
                + (shifted[1, i] - basis[1, i]) * coefficients[1]
            ) / steps[k]
        _project(basis, tangents[k], inner)
        for i in range(data.size):
            tangents[k, i] -= inner[0] * basis[0, i] + inner[1] * basis[1, i]
    for k in range(4):
        total = 0.0
        for i in range(data.size):
            r = data[i] - coefficients[0] * basis[0, i] - coefficients[1] * basis[1, i]
            total += (np.conj(tangents[k, i]) * r).real
        gradient[k] = total
        for m in range(k + 1):
            total = 0.0
            for i in range(data.size):
                total += (np.conj(tangents[k, i]) * tangents[m, i]).real
            hessian[k, m] = total
            hessian[m, k] = total
    width = widening * FDOT_T2_WIDTH
    gradient[3] -= 0.5 * (x[3] - widening * SEARCH_FDOT_T2) / width**2
    hessian[3, 3] += 0.5 / width**2


@numba.njit(cache=True)
def _refine(x, low, high, iterations, centre, duration, times, positions, arm, window,  # type: ignore[no-untyped-def]
            scale, data, coefficients, hessian, widening):  # fmt: skip
    """Maximise F plus fdot's log prior over x = (bin, ra, dec, fdot T^2), in place; return F."""
    n = times.size
    work = np.empty((2, 3, n), dtype=np.complex128)
    basis = np.empty((2, 2 * n), dtype=np.complex128)
    trial_basis = np.empty((2, 2 * n), dtype=np.complex128)
    shifted = np.empty((2, 2 * n), dtype=np.complex128)
    tangents = np.empty((4, 2 * n), dtype=np.complex128)
    gradient = np.empty(4)
    trial_coefficients = np.empty(2, dtype=np.complex128)
    trial = np.empty(4)
    _basis(x, centre, duration, times, positions, arm, window, scale, work, basis)
    best = _project(basis, data, coefficients) - _fdot_loss(x[3], widening)
    damping = 1e-2
    for _ in range(iterations):
        _hessian(x, centre, duration, times, positions, arm, window, scale, work,
                 basis, data, coefficients, shifted, tangents, hessian, gradient,
                 widening)  # fmt: skip
        gained = -1.0
        for _ in range(6):
            damped = hessian.copy()
            for k in range(4):
                damped[k, k] = damped[k, k] * (1.0 + damping) + 1e-12
            if not (np.all(np.isfinite(damped)) and np.all(np.isfinite(gradient))):
                break
            step = np.linalg.solve(damped, gradient)
            step[0] = min(0.5, max(-0.5, step[0]))
            size = np.sqrt(step[1] ** 2 + step[2] ** 2)
            if size > 0.35:
                step[1] *= 0.35 / size
                step[2] *= 0.35 / size
            trial[0] = min(high, max(low, x[0] + step[0]))
            trial[1], trial[2] = _move(x, step[1], step[2])
            trial[3] = x[3] + step[3]
            _basis(
                trial, centre, duration, times, positions, arm, window, scale, work,
                trial_basis,
            )  # fmt: skip
            value = _project(trial_basis, data, trial_coefficients) - _fdot_loss(trial[3], widening)
            if value > best:
                gained = value - best
                best = value
                x[:] = trial
                basis[:] = trial_basis
                coefficients[:] = trial_coefficients
                damping = max(damping / 6.0, 1e-7)
                break
            damping *= 8.0
        if gained < 1e-3:
            break
    _hessian(x, centre, duration, times, positions, arm, window, scale, work,
             basis, data, coefficients, shifted, tangents, hessian, gradient, widening)  # fmt: skip
    return best + _fdot_loss(x[3], widening)


class LocalFit:
    """Fits on one slow grid of n samples.

    Whitened bands have unit noise per bin; ``sigma`` (2,) is the divisor of A and E that
    brings strain responses to that unit.
    """

    def __init__(self, grid: ResponseGrid) -> None:
        self.grid = grid
        self._order = np.fft.ifftshift(np.arange(grid.n))
        self._arguments = (
            grid.duration, grid.times, grid.positions, grid.arm_length, grid.window,
        )  # fmt: skip

    def data(self, band: Complex64, centre: int, first_bin: int) -> Complex:
        """Return the band around ``centre`` as a slow series: (2 n,), zero beyond the band."""
        n = self.grid.n
        start = centre - n // 2 - first_bin
        cut = np.zeros((2, n), dtype=np.complex128)
        low, high = max(start, 0), min(start + n, band.shape[1])
        if high > low:
            cut[:, low - start : high - start] = band[:, low:high]
        return np.asarray(scipy.fft.ifft(cut[:, self._order], axis=1, norm="ortho")).reshape(-1)

    def run(
        self, x: Float, centre: int, data: Complex, sigma: Float, span: float,
        iterations: int = MAX_ITERATIONS,
    ) -> tuple[float, Complex, Float]:  # fmt: skip
        """Maximise F from ``x`` (4,), in place, within ``span`` bins of its start.

        Returns:
            F, the coefficients (plus, cross) and the half Hessian (4, 4) of -ln L in (bin,
            east, north, fdot T^2), all in units of the whitened noise.
        """
        coefficients = np.empty(2, dtype=np.complex128)
        hessian = np.empty((4, 4))
        f = _refine(
            x, x[0] - span, x[0] + span, iterations, float(centre), *self._arguments,
            self._scale(sigma), data, coefficients, hessian,
            float(fdot_widening(x[0] / self.grid.duration)),
        )  # fmt: skip
        return float(f), coefficients, hessian

    def model(self, x: Float, centre: int, coefficients: Complex, sigma: Float) -> Complex:
        """Return the whitened binary per bin: (2, n) from bin ``centre - n/2``."""
        n = self.grid.n
        basis = np.empty((2, 2 * n), dtype=np.complex128)
        work = np.empty((2, 3, n), dtype=np.complex128)
        _basis(x, float(centre), *self._arguments, self._scale(sigma), work, basis)
        slow = (coefficients @ basis).reshape(2, n)
        return np.asarray(scipy.fft.fftshift(scipy.fft.fft(slow, axis=1, norm="ortho"), axes=1))

    def _scale(self, sigma: Float) -> Float:
        # of the slow samples, so that a sum over time is a sum over whitened bins
        return np.asarray(0.5 * self.grid.duration / np.sqrt(self.grid.n) / sigma)
