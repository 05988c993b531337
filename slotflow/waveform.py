"""A source's response in A and E, compiled, all eight parameters known.

The formula of :mod:`slotflow.response` with the two polarisations added before the transform
and T left out, which takes a third of the time. Oracle: jaxgb, to 1e-9 (tests). No fastmath: code
that was just compiled then differed in the last digits from the same code out of numba's cache.
"""

from typing import Any

import numba
import numpy as np
import scipy.fft
from numpy.typing import NDArray

from slotflow.response import C, ResponseGrid, _sincos, polarisation_coefficients

Float = NDArray[np.float64]
Complex = NDArray[np.complex128]

# links 12, 23, 31, 13, 32, 21: the arm, the receiving spacecraft, the arm's sign
_ARM = (0, 1, 2, 2, 1, 0)
_CRAFT = (0, 1, 2, 0, 2, 1)
_SIGN = (1.0, 1.0, 1.0, -1.0, -1.0, -1.0)


@numba.njit(cache=True, error_model="numpy")
def _slow_ae(f0, fdot, ra, dec, dp, dc, centre, duration, times, positions, arm, window, out):  # type: ignore[no-untyped-def]
    """Write the windowed slow A and E (2, n) of one source, heterodyned at ``centre / T``."""
    ux, uy = np.sin(ra), -np.cos(ra)
    vx, vy, vz = np.sin(dec) * uy, -np.sin(dec) * ux, np.cos(dec)
    kx, ky, kz = np.cos(dec) * uy, -np.cos(dec) * ux, -np.sin(dec)
    fstar = C / (2.0 * np.pi * arm)
    om = 2.0 * np.pi * f0
    dom = om - 2.0 * np.pi * centre / duration
    ratio, kr = np.empty(3), np.empty(3)
    carrier_re, carrier_im = np.empty(3), np.empty(3)
    strain_re, strain_im = np.empty(3), np.empty(3)
    re, im = np.empty(6), np.empty(6)
    root2, root6 = 1.0 / np.sqrt(2.0), 1.0 / np.sqrt(6.0)
    for t in range(times.size):
        tm = times[t]
        for s in range(3):
            p = positions[s, :, t]
            q = positions[(s + 1) % 3, :, t]
            delay = (kx * p[0] + ky * p[1] + kz * p[2]) / C
            xi = tm - delay
            ratio[s] = (f0 + fdot * xi) / fstar
            phase = dom * tm + np.pi * fdot * xi * xi - om * delay
            carrier_re[s], carrier_im[s] = np.cos(phase), np.sin(phase)
            rx, ry, rz = (p[0] - q[0]) / arm, (p[1] - q[1]) / arm, (p[2] - q[2]) / arm
            kr[s] = kx * rx + ky * ry + kz * rz
            ur = ux * rx + uy * ry
            vr = vx * rx + vy * ry + vz * rz
            plus, cross = ur * ur - vr * vr, 2.0 * ur * vr
            strain_re[s] = dp.real * plus + dc.real * cross
            strain_im[s] = dp.imag * plus + dc.imag * cross
        for link in range(6):
            a, c = _ARM[link], _CRAFT[link]
            alpha = 0.5 * ratio[c] * (1.0 - _SIGN[link] * kr[a])
            sine, cosine = _sincos(alpha)
            size = 0.5 * ratio[c] * (sine / alpha if abs(alpha) > 1e-12 else 1.0)
            # -i size exp(-i alpha) carrier
            p_re = size * (cosine * carrier_im[c] - sine * carrier_re[c])
            p_im = -size * (cosine * carrier_re[c] + sine * carrier_im[c])
            re[link] = p_re * strain_re[a] - p_im * strain_im[a]
            im[link] = p_re * strain_im[a] + p_im * strain_re[a]
        s1, c1 = _sincos((f0 + fdot * tm) / fstar)
        d_re, d_im = re[0] - re[3], im[0] - im[3]
        x_re = re[5] - re[2] + d_re * c1 + d_im * s1
        x_im = im[5] - im[2] + d_im * c1 - d_re * s1
        d_re, d_im = re[1] - re[5], im[1] - im[5]
        y_re = re[4] - re[0] + d_re * c1 + d_im * s1
        y_im = im[4] - im[0] + d_im * c1 - d_re * s1
        d_re, d_im = re[2] - re[4], im[2] - im[4]
        z_re = re[3] - re[1] + d_re * c1 + d_im * s1
        z_im = im[3] - im[1] + d_im * c1 - d_re * s1
        f_re, f_im = -2.0 * window[t] * s1 * s1, -2.0 * window[t] * s1 * c1
        a_re, a_im = (z_re - x_re) * root2, (z_im - x_im) * root2
        e_re, e_im = (x_re - 2.0 * y_re + z_re) * root6, (x_im - 2.0 * y_im + z_im) * root6
        out[0, t] = complex(f_re * a_re - f_im * a_im, f_re * a_im + f_im * a_re)
        out[1, t] = complex(f_re * e_re - f_im * e_im, f_re * e_im + f_im * e_re)


@numba.njit(cache=True)
def _slow_sources(
    s: Any, d: Any, centres: Any, duration: Any, times: Any, positions: Any, arm: Any,
    window: Any, out: Any,
) -> None:  # fmt: skip
    for i in range(len(s)):
        _slow_ae(
            s[i, 0], s[i, 1], s[i, 3], s[i, 4], d[i, 0], d[i, 1], centres[i],
            duration, times, positions, arm, window, out[i],
        )  # fmt: skip


def response_ae(
    sources: Float, grid: ResponseGrid, coefficients: Complex | None = None
) -> tuple[Complex, NDArray[np.int64]]:
    """Return each source's response in A and E per Fourier bin (TDI 1.5).

    Args:
        sources: (S, 8) in the order of :data:`slotflow.parameters.PARAMETERS`.
        grid: the observation.
        coefficients: (S, 2) complex d_plus, d_cross with the initial phase in them, to take in
            place of those of the amplitude, psi, iota and phi0 of ``sources``.

    Returns:
        ``(response, first)``: (S, 2, n) in fractional frequency x seconds, as
        ``dt rfft(window x)``, and (S,) int64, the bin of index 0.

    Raises:
        ValueError: sources of another shape.
    """
    sources = np.ascontiguousarray(sources, dtype=np.float64)
    if sources.ndim != 2 or sources.shape[1] != 8:
        raise ValueError(f"expected sources of shape (S, 8); got {sources.shape}")
    if coefficients is None:
        coefficients = polarisation_coefficients(sources)
    centre = np.rint(sources[:, 0] * grid.duration)
    out = np.empty((len(sources), 2, grid.n), dtype=np.complex128)
    _slow_sources(
        sources, coefficients, centre, grid.duration, grid.times, grid.positions,
        grid.arm_length, grid.window, out,
    )  # fmt: skip
    spectrum = scipy.fft.fftshift(scipy.fft.fft(out, axis=-1, overwrite_x=True), axes=-1)
    spectrum *= 0.5 * grid.duration / grid.n
    return np.asarray(spectrum), centre.astype(np.int64) - grid.n // 2
