"""Sums over the bins of a band that the exact likelihood is made of, compiled.

Responses come from :class:`slotflow.exact_kernel.Kernel`: n bins from an absolute first bin each.
Sums are over the bins that a response and the band share, channel by channel.
"""

import numba


@numba.njit(cache=True, error_model="numpy")
def subtract(signals, first, owner, first_bin, inverse, residual):  # type: ignore[no-untyped-def]
    """Take signals (N, 2, n) off the residuals (P, 2, K) of their owners (N,).

    ``inverse`` (2, K) is one over the whitening's divisor.
    """
    bins, n = residual.shape[2], signals.shape[2]
    for i in range(len(signals)):
        shift = first[i] - first_bin
        low, high = max(shift, 0), min(shift + n, bins)
        for c in range(2):
            for k in range(low, high):
                residual[owner[i], c, k] -= signals[i, c, k - shift] * inverse[c, k]


@numba.njit(cache=True, error_model="numpy")
def powers(residual, out):  # type: ignore[no-untyped-def]
    """Write ``sum |r|^2`` of each channel: (P, 2, K) to (P, 2)."""
    for p in range(len(residual)):
        for c in range(2):
            even, odd = 0.0, 0.0
            for k in range(residual.shape[2]):
                value = residual[p, c, k]
                even += value.real * value.real
                odd += value.imag * value.imag
            out[p, c] = even + odd


@numba.njit(cache=True, error_model="numpy")
def powers_less(residual, signals, first, first_bin, inverse, out):  # type: ignore[no-untyped-def]
    """Write ``sum |r - h|^2`` of each channel: (1 or N, 2, K) and (N, 2, n) to (N, 2)."""
    bins, n = residual.shape[2], signals.shape[2]
    for i in range(len(signals)):
        row = i if len(residual) > 1 else 0
        shift = first[i] - first_bin
        low, high = min(max(shift, 0), bins), max(min(shift + n, bins), 0)
        for c in range(2):
            re, im = 0.0, 0.0
            for k in range(bins):
                value = residual[row, c, k]
                if low <= k < high:
                    value -= signals[i, c, k - shift] * inverse[c, k]
                re += value.real * value.real
                im += value.imag * value.imag
            out[i, c] = re + im


@numba.njit(cache=True, error_model="numpy")
def squared_snr(signals, first, snr_first, inverse2, out):  # type: ignore[no-untyped-def]
    """Write ``2 sum |h|^2 / sigma^2`` over all bins of each response: (N, 2, n) to (N,).

    ``inverse2`` (2, W) is one over sigma squared from the bin ``snr_first`` on; beyond its ends
    their values hold.
    """
    last, n = inverse2.shape[1] - 1, signals.shape[2]
    for i in range(len(signals)):
        shift = first[i] - snr_first
        total = 0.0
        for c in range(2):
            for k in range(n):
                value = signals[i, c, k]
                weight = inverse2[c, min(max(shift + k, 0), last)]
                total += (value.real * value.real + value.imag * value.imag) * weight
        out[i] = 2.0 * total


@numba.njit(cache=True, error_model="numpy")
def place(bases, first, first_bin, inverse, out):  # type: ignore[no-untyped-def]
    """Whiten bases (N, 2, 2, n) and cut them to the band: to (N, 2, 2, K)."""
    bins, n = out.shape[3], bases.shape[3]
    out[:] = 0.0
    for i in range(len(bases)):
        shift = first[i] - first_bin
        low, high = max(shift, 0), min(shift + n, bins)
        for p in range(2):
            for c in range(2):
                for k in range(low, high):
                    out[i, p, c, k] = bases[i, p, c, k - shift] * inverse[c, k]


@numba.njit(cache=True, error_model="numpy")
def snr_grams(bases, first, snr_first, inverse2, out):  # type: ignore[no-untyped-def]
    """Write ``sum conj(u_i) u_j / sigma^2`` over all bins: (N, 2, 2, n) to (N, 2, 2)."""
    last, n = inverse2.shape[1] - 1, bases.shape[3]
    for i in range(len(bases)):
        shift = first[i] - snr_first
        g00, g11, re, im = 0.0, 0.0, 0.0, 0.0
        for c in range(2):
            for k in range(n):
                u, w = bases[i, 0, c, k], bases[i, 1, c, k]
                weight = inverse2[c, min(max(shift + k, 0), last)]
                g00 += (u.real * u.real + u.imag * u.imag) * weight
                g11 += (w.real * w.real + w.imag * w.imag) * weight
                re += (u.real * w.real + u.imag * w.imag) * weight
                im += (u.real * w.imag - u.imag * w.real) * weight
        out[i, 0, 0], out[i, 1, 1] = g00, g11
        out[i, 0, 1], out[i, 1, 0] = complex(re, im), complex(re, -im)


@numba.njit(cache=True, error_model="numpy")
def project(bases, first, first_bin, inverse, residual, weight, product, gram):  # type: ignore[no-untyped-def]
    """Write products (N, 2) and Gram matrices (N, 2, 2) of bases (N, 2, 2, n) in the band.

    Args:
        residual: (1 or N, 2, K).
        weight: (1 or N, 2) one over the noise level.
    """
    bins, n = residual.shape[2], bases.shape[3]
    for i in range(len(bases)):
        row = i if len(residual) > 1 else 0
        at = i if len(weight) > 1 else 0
        shift = first[i] - first_bin
        low, high = max(shift, 0), min(shift + n, bins)
        g00, g11, g01 = 0.0, 0.0, 0.0j
        b0, b1 = 0.0j, 0.0j
        for c in range(2):
            s00, s11, sr, si, p0r, p0i, p1r, p1i = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
            for k in range(low, high):
                u, w = bases[i, 0, c, k - shift], bases[i, 1, c, k - shift]
                scale = inverse[c, k]
                scale2 = scale * scale
                d = residual[row, c, k] * scale
                s00 += (u.real * u.real + u.imag * u.imag) * scale2
                s11 += (w.real * w.real + w.imag * w.imag) * scale2
                sr += (u.real * w.real + u.imag * w.imag) * scale2
                si += (u.real * w.imag - u.imag * w.real) * scale2
                p0r += u.real * d.real + u.imag * d.imag
                p0i += u.real * d.imag - u.imag * d.real
                p1r += w.real * d.real + w.imag * d.imag
                p1i += w.real * d.imag - w.imag * d.real
            g00 += s00 * weight[at, c]
            g11 += s11 * weight[at, c]
            g01 += complex(sr, si) * weight[at, c]
            b0 += complex(p0r, p0i) * weight[at, c]
            b1 += complex(p1r, p1i) * weight[at, c]
        product[i, 0], product[i, 1] = b0, b1
        gram[i, 0, 0], gram[i, 1, 1] = g00, g11
        gram[i, 0, 1], gram[i, 1, 0] = g01, complex(g01.real, -g01.imag)
