"""A binary's responses in A and E for the exact likelihood: compiled, several samples at a time.

The formula of :mod:`slotflow.response` for A and E alone, the two polarisations apart or added.
It is written without branches and calls, in blocks of ``BLOCK`` slow samples whose tables lie at
fixed distances, so that the compiler does eight samples in one instruction: sines are polynomials
after a reduction to an eighth of a turn (so the loop is one long body). No fastmath, as in
:mod:`slotflow.waveform`.

How many samples are needed says :mod:`slotflow.exact_grid`. Oracle: jaxgb at equal n (tests).
"""

from collections.abc import Iterator
from math import factorial
from typing import Final

import numba
import numpy as np
import scipy.fft
from numpy.typing import NDArray

from slotflow.response import C, ResponseGrid, polarisation_coefficients

Float = NDArray[np.float64]
Complex = NDArray[np.complex128]
Int = NDArray[np.int64]

MAX_PHASE: Final = 1.5  # 2 pi f L / c up to which the delays' series hold (28 mHz at 2.5 Gm)
BLOCK: Final = 64  # samples
CHUNK: Final = 16  # sources whose responses are in the processor's cache together
_ROWS: Final = 20  # of the table: time, window, three positions, three arms

_S1, _S2, _S3, _S4, _S5, _S6, _S7 = ((-1.0) ** k / factorial(2 * k + 1) for k in range(1, 8))
_C1, _C2, _C3, _C4, _C5, _C6, _C7, _C8 = ((-1.0) ** k / factorial(2 * k) for k in range(1, 9))
_TURN = 2.0 * np.pi
_TURN_HIGH = 6.28125  # few digits, so that its multiples are exact
_TURN_LOW = _TURN - _TURN_HIGH
_TO_INTEGER = 1.5 * 2.0**52  # adding and subtracting it rounds


@numba.njit(inline="always", error_model="numpy")
def _series(y):  # type: ignore[no-untyped-def]
    """Return sin(x) / x and cos(x), y = x^2 up to 0.64."""
    sinc = 1.0 + y * (
        _S1 + y * (_S2 + y * (_S3 + y * (_S4 + y * (_S5 + y * (_S6 + y * _S7)))))
    )  # fmt: skip
    cosine = 1.0 + y * (
        _C1 + y * (_C2 + y * (_C3 + y * (_C4 + y * (_C5 + y * (_C6 + y * (_C7 + y * _C8))))))
    )  # fmt: skip
    return sinc, cosine


@numba.njit(inline="always", error_model="numpy")
def _small(x):  # type: ignore[no-untyped-def]
    """Return sin(x) / x and cos(x) of a delay's phase, by half of it."""
    sinc, cosine = _series(0.25 * x * x)
    sine = 0.5 * x * sinc
    return sinc * cosine, 1.0 - 2.0 * sine * sine


@numba.njit(inline="always", error_model="numpy")
def _sincos(x):  # type: ignore[no-untyped-def]
    """Return sin(x) and cos(x) of any phase of less than some 1e5 turns."""
    turns = (x * (1.0 / _TURN) + _TO_INTEGER) - _TO_INTEGER
    quarter = 0.25 * ((x - turns * _TURN_HIGH) - turns * _TURN_LOW)
    sinc, cosine = _series(quarter * quarter)
    sine = quarter * sinc
    sine, cosine = 2.0 * sine * cosine, 1.0 - 2.0 * sine * sine
    return 2.0 * sine * cosine, 1.0 - 2.0 * sine * sine


@numba.njit(inline="always", error_model="numpy")
def _link(ratio, along, sine, cosine):  # type: ignore[no-untyped-def]
    """Return ``-i r sinc(a) exp(-i a) (cosine + i sine)``, a = r along, as two numbers."""
    alpha = ratio * along
    sinc, c = _small(alpha)
    size, s = ratio * sinc, alpha * sinc
    return size * (c * sine - s * cosine), -size * (c * cosine + s * sine)


@numba.njit(inline="always", error_model="numpy")
def _delayed(re, im, other_re, other_im, dc, ds):  # type: ignore[no-untyped-def]
    """Return ``link + other exp(-i delay)``."""
    return re + other_re * dc + other_im * ds, im + other_im * dc - other_re * ds


@numba.njit(inline="always", error_model="numpy")
def _pattern(ux, uy, vx, vy, vz, rx, ry, rz):  # type: ignore[no-untyped-def]
    """Return what plus and cross do to an arm."""
    ur, vr = ux * rx + uy * ry, vx * rx + vy * ry + vz * rz
    return ur * ur - vr * vr, 2.0 * ur * vr


@numba.njit(cache=True, error_model="numpy")
def _slow(f0, fdot, ra, dec, centre, duration, arm, table, planes):  # type: ignore[no-untyped-def]
    """Write the windowed slow responses of unit coefficients.

    Args:
        table: (blocks * _ROWS * BLOCK,) by :func:`_table`.
        planes: (blocks * 8 * BLOCK,) per block: plus A, plus E, cross A, cross E; re, im.
    """
    sr, cr, sd, cd = np.sin(ra), np.cos(ra), np.sin(dec), np.cos(dec)
    ux, uy, vx, vy, vz = sr, -cr, -sd * cr, -sd * sr, cd
    kx, ky, kz = -cd * cr, -cd * sr, -sd
    star = 2.0 * np.pi * arm / C
    om, chirp = 2.0 * np.pi * f0, np.pi * fdot
    dom = om - 2.0 * np.pi * centre / duration
    f, g = f0 * star, fdot * star
    B = BLOCK
    for block in range(table.size // (_ROWS * B)):
        i = block * _ROWS * B
        o = block * 8 * B
        for t in range(B):
            now = table[i + t]
            p0 = kx * table[i + 2 * B + t] + ky * table[i + 3 * B + t] + kz * table[i + 4 * B + t]
            p1 = kx * table[i + 5 * B + t] + ky * table[i + 6 * B + t] + kz * table[i + 7 * B + t]
            p2 = kx * table[i + 8 * B + t] + ky * table[i + 9 * B + t] + kz * table[i + 10 * B + t]
            x0, x1, x2 = now - p0, now - p1, now - p2
            q0, q1, q2 = 0.5 * (f + g * x0), 0.5 * (f + g * x1), 0.5 * (f + g * x2)
            s0, c0 = _sincos(dom * now + chirp * x0 * x0 - om * p0)
            s1, c1 = _sincos(dom * now + chirp * x1 * x1 - om * p1)
            s2, c2 = _sincos(dom * now + chirp * x2 * x2 - om * p2)
            ax, ay, az = table[i + 11 * B + t], table[i + 12 * B + t], table[i + 13 * B + t]
            k0 = kx * ax + ky * ay + kz * az
            plus0, cross0 = _pattern(ux, uy, vx, vy, vz, ax, ay, az)
            ax, ay, az = table[i + 14 * B + t], table[i + 15 * B + t], table[i + 16 * B + t]
            k1 = kx * ax + ky * ay + kz * az
            plus1, cross1 = _pattern(ux, uy, vx, vy, vz, ax, ay, az)
            ax, ay, az = table[i + 17 * B + t], table[i + 18 * B + t], table[i + 19 * B + t]
            k2 = kx * ax + ky * ay + kz * az
            plus2, cross2 = _pattern(ux, uy, vx, vy, vz, ax, ay, az)
            # links 12, 23, 31, 13, 32, 21
            r0, i0 = _link(q0, 1.0 - k0, s0, c0)
            r1, i1 = _link(q1, 1.0 - k1, s1, c1)
            r2, i2 = _link(q2, 1.0 - k2, s2, c2)
            r3, i3 = _link(q0, 1.0 + k2, s0, c0)
            r4, i4 = _link(q2, 1.0 + k1, s2, c2)
            r5, i5 = _link(q1, 1.0 + k0, s1, c1)
            phase = f + g * now
            ds, dc = _small(phase)
            ds *= phase
            # A and E as sums over the three arms' patterns
            mr, mi = _delayed(r5, i5, r0, i0, dc, ds)
            nr, ni = _delayed(r0, i0, r5, i5, dc, ds)
            a0r, a0i, e0r, e0i = -mr, -mi, mr + 2.0 * nr, mi + 2.0 * ni
            mr, mi = _delayed(r1, i1, r4, i4, dc, ds)
            nr, ni = _delayed(r4, i4, r1, i1, dc, ds)
            a1r, a1i, e1r, e1i = -mr, -mi, -mr - 2.0 * nr, -mi - 2.0 * ni
            mr, mi = r2 + r3, i2 + i3
            a2r, a2i = _delayed(mr, mi, mr, mi, dc, ds)
            mr, mi = r3 - r2, i3 - i2
            e2r, e2i = _delayed(mr, mi, -mr, -mi, dc, ds)
            window = -2.0 * table[i + B + t] * ds
            fr, fi = window * ds * np.sqrt(0.5), window * dc * np.sqrt(0.5)
            re = plus0 * a0r + plus1 * a1r + plus2 * a2r
            im = plus0 * a0i + plus1 * a1i + plus2 * a2i
            planes[o + t] = re * fr - im * fi
            planes[o + B + t] = re * fi + im * fr
            re = cross0 * a0r + cross1 * a1r + cross2 * a2r
            im = cross0 * a0i + cross1 * a1i + cross2 * a2i
            planes[o + 4 * B + t] = re * fr - im * fi
            planes[o + 5 * B + t] = re * fi + im * fr
            fr, fi = fr * np.sqrt(1.0 / 3.0), fi * np.sqrt(1.0 / 3.0)
            re = plus0 * e0r + plus1 * e1r + plus2 * e2r
            im = plus0 * e0i + plus1 * e1i + plus2 * e2i
            planes[o + 2 * B + t] = re * fr - im * fi
            planes[o + 3 * B + t] = re * fi + im * fr
            re = cross0 * e0r + cross1 * e1r + cross2 * e2r
            im = cross0 * e0i + cross1 * e1i + cross2 * e2i
            planes[o + 6 * B + t] = re * fr - im * fi
            planes[o + 7 * B + t] = re * fi + im * fr


@numba.njit(cache=True, error_model="numpy")
def _bases(intrinsic, centres, duration, arm, table, planes, out):  # type: ignore[no-untyped-def]
    """Write both polarisations' slow responses to ``out`` (N, 2, 2, n)."""
    for i in range(len(intrinsic)):
        f0, fdot, ra, dec = intrinsic[i, 0], intrinsic[i, 1], intrinsic[i, 2], intrinsic[i, 3]
        _slow(f0, fdot, ra, dec, centres[i], duration, arm, table, planes)
        for block in range(planes.size // (8 * BLOCK)):
            for row in range(4):
                o = (block * 8 + 2 * row) * BLOCK
                for t in range(BLOCK):
                    value = complex(planes[o + t], planes[o + BLOCK + t])
                    out[i, row // 2, row % 2, block * BLOCK + t] = value


@numba.njit(cache=True, error_model="numpy")
def _sums(intrinsic, d, centres, duration, arm, table, planes, out):  # type: ignore[no-untyped-def]
    """Write the slow responses of the coefficients ``d`` (N, 2) to ``out`` (N, 2, n)."""
    B = BLOCK
    for i in range(len(intrinsic)):
        f0, fdot, ra, dec = intrinsic[i, 0], intrinsic[i, 1], intrinsic[i, 2], intrinsic[i, 3]
        _slow(f0, fdot, ra, dec, centres[i], duration, arm, table, planes)
        pr, pi, cr, ci = d[i, 0].real, d[i, 0].imag, d[i, 1].real, d[i, 1].imag
        for block in range(planes.size // (8 * B)):
            for channel in range(2):
                o = (block * 8 + 2 * channel) * B
                for t in range(B):
                    ur, ui = planes[o + t], planes[o + B + t]
                    wr, wi = planes[o + 4 * B + t], planes[o + 5 * B + t]
                    out[i, channel, block * B + t] = complex(
                        pr * ur - pi * ui + cr * wr - ci * wi,
                        pr * ui + pi * ur + cr * wi + ci * wr,
                    )


def _table(grid: ResponseGrid) -> Float:
    """Return what depends on time alone, in blocks; the window with the transform's scale.

    The window's sign alternates: that moves the carrier from bin 0 of the transform to n / 2.
    """
    n = grid.n
    sign = np.where(np.arange(n) % 2, -1.0, 1.0) * (0.5 * grid.duration / n)
    arms = (grid.positions - np.roll(grid.positions, -1, axis=0)) / grid.arm_length
    rows = np.concatenate(
        [[grid.times, grid.window * sign], (grid.positions / C).reshape(9, n), arms.reshape(9, n)]
    )
    return np.ascontiguousarray(rows.reshape(_ROWS, -1, BLOCK).transpose(1, 0, 2)).reshape(-1)


class Kernel:
    """Responses of one observation at ``grid.n`` slow samples, a multiple of BLOCK.

    Not to be shared by threads: it has work space of its own.

    Raises:
        ValueError: another number of samples.
    """

    def __init__(self, grid: ResponseGrid) -> None:
        if grid.n % BLOCK:
            raise ValueError(f"expected a multiple of {BLOCK} slow samples; got {grid.n}")
        self.grid, self.n, self.duration = grid, grid.n, grid.duration
        self._arguments = (
            grid.duration, grid.arm_length, _table(grid), np.empty(8 * grid.n),
        )  # fmt: skip
        self.highest = MAX_PHASE * C / (2.0 * np.pi * grid.arm_length)

    def basis(self, intrinsic: Float) -> tuple[Complex, Int]:
        """Return the responses to unit coefficients d_plus, d_cross.

        Args:
            intrinsic: (N, 4) f0, fdot, ra, dec.

        Returns:
            ``(basis, first)``: (N, 2, 2, n), polarisation, channel (A, E), bin, as ``dt rfft``
            of the windowed series in fractional frequency x seconds; and (N,), the bin of
            index 0.
        """
        out = np.empty((len(intrinsic), 2, 2, self.n), dtype=np.complex128)
        first = np.empty(len(intrinsic), dtype=np.int64)
        for rows, values, start in self.bases(intrinsic):
            out[rows], first[rows] = values, start
        return out, first

    def bases(self, intrinsic: Float) -> Iterator[tuple[slice, Complex, Int]]:
        """As :meth:`basis`, a chunk of rows at a time, each in place of the one before."""
        work = np.empty((CHUNK, 2, 2, self.n), dtype=np.complex128)
        for rows, centre in self._slow_bases(intrinsic, work):
            yield rows, *self._transformed(work[: rows.stop - rows.start], centre)

    def _slow_bases(self, intrinsic: Float, work: Complex) -> Iterator[tuple[slice, Float]]:
        """Write slow responses to ``work``, a chunk at a time; yield rows and their centres."""
        intrinsic, centre = self._checked(intrinsic, 4)
        for rows in _chunks(len(intrinsic)):
            slow = work[: rows.stop - rows.start]
            _bases(intrinsic[rows], centre[rows], *self._arguments, slow)
            yield rows, centre[rows]

    def signals(self, sources: Float) -> Iterator[tuple[slice, Complex, Int]]:
        """Yield sources (N, 8) as responses (rows, 2, n) and first bins, a chunk at a time."""
        sources, centre = self._checked(sources, 8)
        intrinsic = np.ascontiguousarray(sources[:, [0, 1, 3, 4]])
        coefficients = polarisation_coefficients(sources)
        work = np.empty((CHUNK, 2, self.n), dtype=np.complex128)
        for rows in _chunks(len(sources)):
            slow = work[: rows.stop - rows.start]
            _sums(intrinsic[rows], coefficients[rows], centre[rows], *self._arguments, slow)
            yield rows, *self._transformed(slow, centre[rows])

    def response(self, sources: Float) -> tuple[Complex, Int]:
        """Return sources (N, 8) as responses (N, 2, n) and first bins (N,)."""
        out = np.empty((len(sources), 2, self.n), dtype=np.complex128)
        first = np.empty(len(sources), dtype=np.int64)
        for rows, values, start in self.signals(sources):
            out[rows], first[rows] = values, start
        return out, first

    def _checked(self, rows: Float, columns: int) -> tuple[Float, Float]:
        rows = np.ascontiguousarray(rows, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != columns:
            raise ValueError(f"expected sources of shape (N, {columns}); got {rows.shape}")
        if not (np.abs(rows[:, 0]) < self.highest).all():
            raise ValueError(f"expected frequencies below {self.highest:.4g} Hz")
        return rows, np.rint(rows[:, 0] * self.duration)

    def _transformed(self, slow: Complex, centre: Float) -> tuple[Complex, Int]:
        spectrum = scipy.fft.fft(slow, axis=-1, overwrite_x=True)
        return np.asarray(spectrum), centre.astype(np.int64) - self.n // 2


def _chunks(number: int) -> Iterator[slice]:
    for start in range(0, number, CHUNK):
        yield slice(start, min(start + CHUNK, number))
