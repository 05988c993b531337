"""The component search: a band explained by a few binaries, loudest first.

Take the largest F-statistic over bins and sky (:mod:`slotflow.templates`), refine
frequency, sky and fdot with the true response (Levenberg-Marquardt with the amplitudes
projected out; fdot under a Gaussian of its prior's mean and width), subtract the best fit,
repeat until 2F falls below a threshold; then refit every component against the residual of
the others. Nothing here is learned. The components are the network's tokens.
"""

from dataclasses import dataclass

import numba
import numpy as np
import scipy.fft
from numpy.typing import NDArray

from slotflow.bands import level as noise_power
from slotflow.config import ComponentSettings
from slotflow.parameters import FDOT_T2_PRIOR
from slotflow.response import Complex, Float, ResponseGrid, _slow_basis
from slotflow.templates import SEARCH_FDOT_T2, STEPS, BankSet, Complex64

MAX_ITERATIONS = 10
SWEEPS = 2  # joint refits of all components at the end
SECOND_MODE_ANGLE = np.deg2rad(25.0)  # a second sky maximum lies at least this far away
FDOT_T2_WIDTH = (FDOT_T2_PRIOR[1] - FDOT_T2_PRIOR[0]) / 12.0**0.5  # the uniform prior's sigma
LEVEL_HEIGHT = 60.0  # 2F above which a component counts as a source for the noise level
REACH = 12  # bins from its carrier over which a subtracted component is felt
PATCH = 8  # residual power is reported over 2 PATCH + 1 bins

#: Fields of one component: see :data:`COMPONENT_DTYPE`'s comments.
COMPONENT_DTYPE = np.dtype(
    [
        ("bin", "f8"),  # frequency in bins from the band's first bin
        ("ra", "f8"),
        ("dec", "f8"),
        ("fdot_t2", "f8"),  # fdot T^2
        ("plus", "c16"),  # exp(-i phi0) d_plus, strain
        ("cross", "c16"),
        ("f_statistic", "f8"),  # F in units of the noise level
        ("covariance", "f8", (4, 4)),  # of (bin, cos dec * ra, dec, fdot T^2), from the Hessian
        ("second_ra", "f8"),  # the best other sky mode
        ("second_dec", "f8"),
        ("second_loss", "f8"),  # F lost there, in units of the noise level
        ("patch", "f4", (2 * PATCH + 1,)),  # mean A, E power of the residual around it
    ]
)


@dataclass(frozen=True)
class ComponentSet:
    """What a band was found to hold.

    Attributes:
        components: (C,) of :data:`COMPONENT_DTYPE`, in the order found.
        level: (2,) noise power per bin of the residual in A and E, relative to the PSD
            by which the band was whitened.
        residual: (2, K) complex64, the whitened band less all components.
    """

    components: NDArray[np.void]
    level: Float
    residual: Complex64


@numba.njit(cache=True)
def _basis(x, centre, duration, times, positions, arm, window, scale, work, out):  # type: ignore[no-untyped-def]
    """Whitened A, E basis (2, 2 n) at x = (bin, ra, dec, fdot T^2)."""
    _slow_basis(
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
def _fdot_loss(fdot_t2):  # type: ignore[no-untyped-def]
    """Minus the log of fdot's Gaussian prior."""
    return 0.5 * ((fdot_t2 - SEARCH_FDOT_T2) / FDOT_T2_WIDTH) ** 2


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
             basis, data, coefficients, shifted, tangents, hessian, gradient):  # fmt: skip
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
    gradient[3] -= 0.5 * (x[3] - SEARCH_FDOT_T2) / FDOT_T2_WIDTH**2
    hessian[3, 3] += 0.5 / FDOT_T2_WIDTH**2


@numba.njit(cache=True)
def _refine(x, low, high, iterations, centre, duration, times, positions, arm, window,  # type: ignore[no-untyped-def]
            scale, data, coefficients, hessian):  # fmt: skip
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
    best = _project(basis, data, coefficients) - _fdot_loss(x[3])
    damping = 1e-2
    for _ in range(iterations):
        _hessian(x, centre, duration, times, positions, arm, window, scale, work,
                 basis, data, coefficients, shifted, tangents, hessian, gradient)  # fmt: skip
        gained = -1.0
        for _ in range(6):
            damped = hessian.copy()
            for k in range(4):
                damped[k, k] = damped[k, k] * (1.0 + damping) + 1e-12
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
            value = _project(trial_basis, data, trial_coefficients) - _fdot_loss(trial[3])
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
             basis, data, coefficients, shifted, tangents, hessian, gradient)  # fmt: skip
    return best + _fdot_loss(x[3])


@dataclass
class _Found:
    """One component during the search: x = (bin, ra, dec, fdot T^2) in absolute bins."""

    x: Float
    centre: int
    coefficients: Complex
    hessian: Float
    f: float
    model: Complex
    second: Float
    second_f: float


class ComponentSearch:
    """Finds the components of bands of one observation.

    Args:
        grid: the observation's slow grid (``settings.slow_samples`` samples).
        settings: the search's settings.
    """

    def __init__(self, grid: ResponseGrid, settings: ComponentSettings) -> None:
        if grid.n != settings.slow_samples:
            raise ValueError(f"expected {settings.slow_samples} slow samples; got {grid.n}")
        self.grid = grid
        self.settings = settings
        self.banks = BankSet(grid, settings)
        self._order = np.fft.ifftshift(np.arange(grid.n))

    def __call__(
        self, band: Complex64, first_bin: int, sigma: Float, known_level: Float | None = None
    ) -> ComponentSet:
        """Search one band.

        Args:
            band: (2 or 3, K) whitened A, E (, T); T is not used.
            first_bin: Fourier bin of the band's first column.
            sigma: (2,) the whitening's divisor at the band's centre in A and E, i.e. the
                noise per bin in the data's own unit, sqrt(S T mean(w^2) / 2).
            known_level: (2,) noise power per bin of A and E relative to the whitening, where
                it is to be believed instead of estimated from the band.

        Returns:
            The components; none at all is an empty set, not an error.
        """
        bins = band.shape[1]
        level = noise_power(band[:2]) if known_level is None else known_level
        residual = (band[:2] / np.sqrt(level)[:, None]).astype(np.complex64)
        scale = self._scale(sigma * np.sqrt(level))
        bank = self.banks.at(first_bin + bins // 2)
        statistic = np.empty((bins, STEPS, len(bank.sky)), dtype=np.float32)
        bank.correlate(residual, 0, bins, statistic)
        peaks = statistic.max(axis=2)
        found: list[_Found] = []
        ratio, settled = 1.0, known_level is not None
        while len(found) < self.settings.max_components:
            position = int(np.argmax(peaks))
            height = 2.0 * float(peaks.flat[position])
            if not settled and height < LEVEL_HEIGHT * ratio:
                # only clear sources move the level: fits to noise would lower it without end
                ratio, settled = float(np.mean(noise_power(residual))), True
            if height < self.settings.threshold * ratio:
                break
            one = self._refine_peak(position, statistic, bank.sky, residual, first_bin, scale)
            found.append(one)
            self._add(residual, one, first_bin, -1.0)
            low, high = self._touched(one, first_bin, bins)
            bank.correlate(residual, low, high, statistic)
            peaks[low:high] = statistic[low:high].max(axis=2)
            # a peak that its own subtraction did not lower would be found for ever
            row = position // STEPS
            if peaks.flat[position] > 0.7 * one.f and low <= row < high:
                peaks[row] = 0.0
        for _ in range(SWEEPS):
            for one in found:
                self._refit(one, residual, first_bin, scale)
        if not settled:
            ratio = float(np.mean(noise_power(residual)))
        components = self._records(found, residual, first_bin, ratio)
        residual *= np.sqrt(level).astype(np.float32)[:, None]
        return ComponentSet(components, level * ratio, residual)

    def _scale(self, sigma: Float) -> Float:
        # of the slow samples, so that a sum over time is a sum over whitened bins
        return np.asarray(0.5 * self.grid.duration / np.sqrt(self.grid.n) / sigma)

    def _slow_data(self, residual: Complex64, centre: int, first_bin: int) -> Complex:
        """The residual around ``centre`` as a slow series: (2 n,), zero beyond the band."""
        n = self.grid.n
        start = centre - n // 2 - first_bin
        cut = np.zeros((2, n), dtype=np.complex128)
        low, high = max(start, 0), min(start + n, residual.shape[1])
        if high > low:
            cut[:, low - start : high - start] = residual[:, low:high]
        return np.asarray(scipy.fft.ifft(cut[:, self._order], axis=1, norm="ortho")).reshape(-1)

    def _model(self, one_x: Float, centre: int, coefficients: Complex, scale: Float) -> Complex:
        """The whitened component per bin: (2, n) from bin ``centre - n/2``."""
        n = self.grid.n
        basis = np.empty((2, 2 * n), dtype=np.complex128)
        work = np.empty((2, 3, n), dtype=np.complex128)
        _basis(one_x, float(centre), *self._grid_arguments, scale, work, basis)
        slow = (coefficients @ basis).reshape(2, n)
        return np.asarray(scipy.fft.fftshift(scipy.fft.fft(slow, axis=1, norm="ortho"), axes=1))

    @property
    def _grid_arguments(self) -> tuple[float, Float, Float, float, Float]:
        g = self.grid
        return g.duration, g.times, g.positions, g.arm_length, g.window

    def _run(
        self, x: Float, centre: int, data: Complex, scale: Float, span: float
    ) -> tuple[float, Complex, Float]:
        coefficients = np.empty(2, dtype=np.complex128)
        hessian = np.empty((4, 4))
        f = _refine(
            x, x[0] - span, x[0] + span, MAX_ITERATIONS, float(centre), *self._grid_arguments,
            scale, data, coefficients, hessian,
        )  # fmt: skip
        return float(f), coefficients, hessian

    def _refine_peak(
        self, position: int, statistic: NDArray[np.float32], sky: Float, residual: Complex64,
        first_bin: int, scale: Float,
    ) -> _Found:  # fmt: skip
        row, step = divmod(position, STEPS)
        centre = first_bin + row
        data = self._slow_data(residual, centre, first_bin)
        scores = statistic[row, step].copy()
        best: list[tuple[float, Float, Complex, Float]] = []
        for _ in range(2):
            index = int(np.argmax(scores))
            x = np.array([centre + step / STEPS, *sky[index], SEARCH_FDOT_T2])
            f, coefficients, hessian = self._run(x, centre, data, scale, 2.0)
            best.append((f, x, coefficients, hessian))
            scores[_separation(sky, sky[index]) < SECOND_MODE_ANGLE] = 0.0
        best.sort(key=lambda item: -item[0])
        f, x, coefficients, hessian = best[0]
        return _Found(
            x, centre, coefficients, hessian, f, self._model(x, centre, coefficients, scale),
            best[1][1][1:3], best[1][0],
        )  # fmt: skip

    def _add(self, residual: Complex64, one: _Found, first_bin: int, sign: float) -> None:
        start = one.centre - self.grid.n // 2 - first_bin
        low, high = max(start, 0), min(start + self.grid.n, residual.shape[1])
        if high > low:
            residual[:, low:high] += (sign * one.model[:, low - start : high - start]).astype(
                np.complex64
            )

    def _touched(self, one: _Found, first_bin: int, bins: int) -> tuple[int, int]:
        reach = REACH + self.settings.taps // 2
        row = one.centre - first_bin
        return max(row - reach, 0), min(row + reach + 1, bins)

    def _refit(self, one: _Found, residual: Complex64, first_bin: int, scale: Float) -> None:
        """Refine one component against the band less all the others."""
        self._add(residual, one, first_bin, +1.0)
        one.centre = int(np.rint(one.x[0]))
        data = self._slow_data(residual, one.centre, first_bin)
        second_loss = one.f - one.second_f
        one.f, one.coefficients, one.hessian = self._run(one.x, one.centre, data, scale, 1.0)
        one.second_f = one.f - second_loss
        one.model = self._model(one.x, one.centre, one.coefficients, scale)
        self._add(residual, one, first_bin, -1.0)

    def _records(
        self, found: list[_Found], residual: Complex64, first_bin: int, level: float
    ) -> NDArray[np.void]:
        records = np.zeros(len(found), dtype=COMPONENT_DTYPE)
        power = np.mean(np.abs(residual) ** 2, axis=0) / level
        padded = np.pad(power, PATCH)
        for record, one in zip(records, found, strict=True):
            row = int(np.clip(round(one.x[0]) - first_bin, 0, residual.shape[1] - 1))
            record["bin"] = one.x[0] - first_bin
            record["ra"], record["dec"] = one.x[1], one.x[2]
            record["fdot_t2"] = one.x[3]
            record["plus"], record["cross"] = one.coefficients
            record["f_statistic"] = one.f / level
            record["covariance"] = _covariance(one.hessian / level)
            record["second_ra"], record["second_dec"] = one.second
            record["second_loss"] = max(one.f - one.second_f, 0.0) / level
            record["patch"] = padded[row : row + 2 * PATCH + 1]
        return records


def _separation(sky: Float, point: Float) -> Float:
    cosine = np.sin(sky[:, 1]) * np.sin(point[1]) + np.cos(sky[:, 1]) * np.cos(point[1]) * np.cos(
        sky[:, 0] - point[0]
    )
    return np.asarray(np.arccos(np.clip(cosine, -1.0, 1.0)))


def _covariance(hessian: Float) -> Float:
    """Covariance of (bin, east, north, fdot T^2) from the half Hessian, held to sensible widths."""
    prior = np.diag([1.0 / 0.5**2, 1.0, 1.0, 0.0])  # half a bin, one radian: keeps it invertible
    return np.asarray(np.linalg.inv(2.0 * hessian + prior))
