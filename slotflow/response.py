"""One Galactic binary's response in TDI A, E, T, compiled.

For given frequency, frequency derivative and sky position the response of a
binary is linear in two complex coefficients,

    h = r [U_plus - i U_cross] / 2 + l [U_plus + i U_cross] / 2,

where ``r = exp(-i phi0) (d_plus + i d_cross)``, ``l = exp(-i phi0) (d_plus - i d_cross)`` and

    d_plus  = a_plus cos 2psi + i a_cross sin 2psi,
    d_cross = a_plus sin 2psi - i a_cross cos 2psi,
    a_plus  = -A (1 + cos^2 iota),   a_cross = -2 A cos iota,

so that ``r = -A (1 + cos iota)^2 exp(i (2 psi - phi0))`` and
``l = -A (1 - cos iota)^2 exp(-i (2 psi + phi0))``: the two circular polarisations.
The slow (heterodyned) response follows Cornish & Littenberg, arXiv:0704.1808, in the
form and with the sign conventions of jaxgb 0.2.2 (constant, equal arms in the delays),
which is this module's oracle in the tests. TDI 1.5 in fractional frequency; the factor
to TDI 2 is :func:`tdi2_factor`.

This module needs NumPy, SciPy and numba alone: no JAX and no PyTorch.
"""

from dataclasses import dataclass

import numba
import numpy as np
import scipy.fft
from numpy.typing import NDArray

# inverse factorials: 3!, 5!, ... of the sine's series, 4!, 6!, ... of the cosine's
S1, S2, S3, S4, S5 = 1 / 6, 1 / 120, 1 / 5040, 1 / 362880, 1 / 39916800
C2, C3, C4, C5 = 1 / 24, 1 / 720, 1 / 40320, 1 / 3628800

C = 299792458.0  # speed of light, m / s (exact, SI)

Float = NDArray[np.float64]
Complex = NDArray[np.complex128]


@dataclass(frozen=True)
class ResponseGrid:
    """The observation as the response needs it.

    Attributes:
        duration: observation time T in seconds.
        t0: start of the observation, seconds since 2035-01-01T00:00:00 TCB.
        times: (n,) seconds since ``t0`` of the slow samples.
        positions: (3, 3, n) metres: spacecraft, ICRS coordinate, time.
        arm_length: the one arm length of the delays, metres.
        window: (n,) the time-domain window at ``times``.
    """

    duration: float
    t0: float
    times: Float
    positions: Float
    arm_length: float
    window: Float

    def __post_init__(self) -> None:
        n = self.times.size
        if n < 2 or n % 2:
            raise ValueError(f"expected an even number of slow samples; got {n}")
        if self.positions.shape != (3, 3, n):
            raise ValueError(f"expected positions of shape (3, 3, {n}); got {self.positions.shape}")
        if self.window.shape != (n,):
            raise ValueError(f"expected a window of shape ({n},); got {self.window.shape}")

    def thinned(self, step: int) -> "ResponseGrid":
        """Return the grid of every ``step``-th sample."""
        return ResponseGrid(
            self.duration, self.t0, np.ascontiguousarray(self.times[::step]),
            np.ascontiguousarray(self.positions[..., ::step]), self.arm_length,
            np.ascontiguousarray(self.window[::step]),
        )  # fmt: skip

    @property
    def n(self) -> int:
        """Number of slow samples, which is also the number of bins of a response."""
        return int(self.times.size)


@numba.njit(cache=True, inline="always")
def _sincos(x):  # type: ignore[no-untyped-def]
    """Return sin x and cos x; by their series where that is exact to rounding.

    The delays' phases are a fraction of a radian, and libm is what the response costs.
    """
    if abs(x) < 0.2:
        y = x * x
        sine = x * (1 - y * (S1 - y * (S2 - y * (S3 - y * (S4 - y * S5)))))
        cosine = 1 - y * (0.5 - y * (C2 - y * (C3 - y * (C4 - y * C5))))
        return sine, cosine
    return np.sin(x), np.cos(x)


@numba.njit(cache=True, error_model="numpy")
def slow_kernel(f0, fdot, ra, dec, centre, duration, times, positions, arm, window, out):  # type: ignore[no-untyped-def]
    """Write the windowed slow responses (2 polarisations, 3 channels, n) to ``out``.

    Heterodyned at ``centre / duration``. The polarisation axis is (plus, cross), with
    unit coefficients d_plus, d_cross.
    """
    sinra, cosra = np.sin(ra), np.cos(ra)
    sindec, cosdec = np.sin(dec), np.cos(dec)
    u = (sinra, -cosra, 0.0)
    v = (-sindec * cosra, -sindec * sinra, cosdec)
    k = (-cosdec * cosra, -cosdec * sinra, -sindec)
    fstar = C / (2.0 * np.pi * arm)
    om = 2.0 * np.pi * f0
    dom = om - 2.0 * np.pi * centre / duration
    n = times.size
    kp = np.empty(3)
    kr = np.empty(3)
    plus = np.empty(3)
    cross = np.empty(3)
    fonfs = np.empty(3)
    carrier = np.empty(3, dtype=np.complex128)
    g = np.empty((2, 6), dtype=np.complex128)
    for t in range(n):
        tm = times[t]
        for s in range(3):
            p = k[0] * positions[s, 0, t] + k[1] * positions[s, 1, t] + k[2] * positions[s, 2, t]
            kp[s] = p / C
            xi = tm - kp[s]
            fonfs[s] = (f0 + fdot * xi) / fstar
            phase = dom * tm + np.pi * fdot * xi * xi - om * kp[s]
            carrier[s] = complex(np.cos(phase), np.sin(phase))
            b = (s + 1) % 3
            rx = (positions[s, 0, t] - positions[b, 0, t]) / arm
            ry = (positions[s, 1, t] - positions[b, 1, t]) / arm
            rz = (positions[s, 2, t] - positions[b, 2, t]) / arm
            kr[s] = k[0] * rx + k[1] * ry + k[2] * rz
            ur = u[0] * rx + u[1] * ry + u[2] * rz
            vr = v[0] * rx + v[1] * ry + v[2] * rz
            plus[s] = ur * ur - vr * vr
            cross[s] = 2.0 * ur * vr
        # links in the order 12, 23, 31, 13, 32, 21; the sender's arm, its sign and spacecraft
        for link in range(6):
            if link < 3:
                arm_index, spacecraft, sign = link, link, 1.0
            else:
                arm_index = 5 - link
                spacecraft = 0 if link == 3 else (2 if link == 4 else 1)
                sign = -1.0
            ratio = fonfs[spacecraft]
            alpha = 0.5 * ratio * (1.0 - sign * kr[arm_index])
            sine, cosine = _sincos(alpha)
            sinc = sine / alpha if abs(alpha) > 1e-12 else 1.0
            common = -0.5j * ratio * sinc * complex(cosine, -sine) * carrier[spacecraft]
            g[0, link] = common * plus[arm_index]
            g[1, link] = common * cross[arm_index]
        oml = (f0 + fdot * tm) / fstar
        soml, coml = _sincos(oml)
        delay = complex(coml, -soml)
        factor = -2.0j * soml * delay * window[t]
        for p in range(2):
            x = factor * (g[p, 5] - g[p, 2] + (g[p, 0] - g[p, 3]) * delay)
            y = factor * (g[p, 4] - g[p, 0] + (g[p, 1] - g[p, 5]) * delay)
            z = factor * (g[p, 3] - g[p, 1] + (g[p, 2] - g[p, 4]) * delay)
            out[p, 0, t] = (z - x) / np.sqrt(2.0)
            out[p, 1, t] = (x - 2.0 * y + z) / np.sqrt(6.0)
            out[p, 2, t] = (x + y + z) / np.sqrt(3.0)


@numba.njit(cache=True)
def _slow_bases(intrinsic, centres, duration, times, positions, arm, window, out):  # type: ignore[no-untyped-def]
    for i in range(intrinsic.shape[0]):
        slow_kernel(
            intrinsic[i, 0], intrinsic[i, 1], intrinsic[i, 2], intrinsic[i, 3], centres[i],
            duration, times, positions, arm, window, out[i],
        )  # fmt: skip


def slow_basis_at(intrinsic: Float, centre: NDArray[np.int64], grid: ResponseGrid) -> Complex:
    """Return the slow responses heterodyned at given bins: (sources, 2, 3, n).

    As :func:`slow_basis`, but with the bins (sources,) of the carriers given.
    """
    intrinsic = np.ascontiguousarray(np.atleast_2d(intrinsic), dtype=np.float64)
    if intrinsic.shape[1] != 4:
        raise ValueError(f"expected sources of shape (n, 4); got {intrinsic.shape}")
    out = np.empty((len(intrinsic), 2, 3, grid.n), dtype=np.complex128)
    _slow_bases(
        intrinsic, centre.astype(np.float64), grid.duration, grid.times, grid.positions,
        grid.arm_length, grid.window, out,
    )  # fmt: skip
    return out


def slow_basis(intrinsic: Float, grid: ResponseGrid) -> tuple[Complex, NDArray[np.int64]]:
    """Return the windowed slow responses of the plus and cross polarisations.

    Args:
        intrinsic: (sources, 4) f0 (Hz), fdot (Hz/s), ra, dec (rad, ICRS).
        grid: the observation.

    Returns:
        ``(basis, centre)``: basis (sources, 2, 3, n), polarisation (plus, cross), channel
        (A, E, T), time; and the bin (sources,) at which each is heterodyned,
        ``rint(f0 T)``.
    """
    intrinsic = np.atleast_2d(intrinsic)
    centre = np.rint(intrinsic[:, 0] * grid.duration).astype(np.int64)
    return slow_basis_at(intrinsic, centre, grid), centre


def to_frequency(slow: Complex, grid: ResponseGrid) -> Complex:
    """Return ``dt rfft`` of the windowed series around its centre bin: (..., n).

    Index j is the bin ``centre - n/2 + j``.
    """
    scale = 0.5 * grid.duration / grid.n
    return np.asarray(scipy.fft.fftshift(scipy.fft.fft(slow, axis=-1), axes=-1) * scale)


def frequency_basis(intrinsic: Float, grid: ResponseGrid) -> tuple[Complex, NDArray[np.int64]]:
    """Return the polarisations' responses per Fourier bin and their first bins.

    Args:
        intrinsic: (sources, 4), as in :func:`slow_basis`.
        grid: the observation.

    Returns:
        ``(basis, first)``: basis (sources, 2, 3, n) in fractional frequency x seconds, and
        first (sources,) int64, the bin of index 0.
    """
    slow, centre = slow_basis(intrinsic, grid)
    return to_frequency(slow, grid), centre - grid.n // 2


def polarisation_coefficients(sources: Float) -> Complex:
    """Return exp(-i phi0) (d_plus, d_cross): (sources, 2).

    Args:
        sources: (sources, 8) in the order of :data:`slotflow.parameters.PARAMETERS`.
    """
    _, _, amplitude, _, _, psi, iota, phi0 = np.atleast_2d(sources).T
    a_plus = -amplitude * (1.0 + np.cos(iota) ** 2)
    a_cross = -2.0 * amplitude * np.cos(iota)
    cos2, sin2 = np.cos(2.0 * psi), np.sin(2.0 * psi)
    d_plus = a_plus * cos2 + 1j * a_cross * sin2
    d_cross = a_plus * sin2 - 1j * a_cross * cos2
    return np.asarray(np.exp(-1j * phi0)[:, None] * np.stack([d_plus, d_cross], axis=-1))


def response(sources: Float, grid: ResponseGrid) -> tuple[Complex, NDArray[np.int64]]:
    """Return each source's A, E, T response per Fourier bin (TDI 1.5).

    Args:
        sources: (sources, 8) f0, fdot, amplitude, ra, dec, psi, iota, phi0.
        grid: the observation.

    Returns:
        ``(response, first)``: (sources, 3, n) in fractional frequency x seconds (as
        ``dt rfft(window x)``), and (sources,) int64, the bin of index 0.
    """
    sources = np.atleast_2d(sources)
    basis, first = frequency_basis(sources[:, [0, 1, 3, 4]], grid)
    return np.einsum("sp,spcn->scn", polarisation_coefficients(sources), basis), first


def tdi2_factor(frequency: Float, arm_length: float) -> Complex:
    """Return the complex factor from TDI 1.5 to TDI 2: ``1 - exp(-4 i x)``, x = 2 pi f L / c."""
    return np.asarray(1.0 - np.exp(-4j * (2.0 * np.pi * np.asarray(frequency) * arm_length / C)))


def amplitudes_from_coefficients(coefficients: Complex) -> Float:
    """Invert :func:`polarisation_coefficients`: (..., 2) -> (..., 4) A, psi, iota, phi0.

    psi is returned in [0, pi/2) and phi0 in [0, 2 pi), the fold of the symmetry
    (psi + pi/2, phi0 + pi).
    """
    right = coefficients[..., 0] + 1j * coefficients[..., 1]
    left = coefficients[..., 0] - 1j * coefficients[..., 1]
    root_r, root_l = np.sqrt(np.abs(right)), np.sqrt(np.abs(left))
    amplitude = (0.5 * (root_r + root_l)) ** 2
    cos_iota = (root_r - root_l) / np.maximum(root_r + root_l, np.finfo(float).tiny)
    phase_r, phase_l = np.angle(-right), np.angle(-left)  # 2 psi - phi0 and -2 psi - phi0
    psi = np.mod(0.25 * (phase_r - phase_l), np.pi)
    phi0 = -0.5 * (phase_r + phase_l)
    fold = psi >= 0.5 * np.pi
    psi = np.where(fold, psi - 0.5 * np.pi, psi)
    phi0 = np.mod(np.where(fold, phi0 - np.pi, phi0), 2.0 * np.pi)
    return np.stack([amplitude, psi, np.arccos(np.clip(cos_iota, -1.0, 1.0)), phi0], axis=-1)
