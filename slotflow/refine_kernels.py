"""What a refinement does for each particle, compiled: products with responses, amplitude walks."""

import numba
import numpy as np


@numba.njit(cache=True, error_model="numpy")
def project(spectra, first, rows, residual, weight, product, gram):  # type: ignore[no-untyped-def]
    """Project residuals on responses.

    Args:
        spectra: (P, 2 polarisations, 2 channels, n) responses.
        first: (P,) their first bins, from the band's first.
        rows: (P,) which residual belongs to each.
        residual: (N, 2, K) whitened to unit noise.
        weight: (2, K) that whitens responses to unit noise.
        product: (P, 2) out, ``sum conj(u) r``.
        gram: (P, 2, 2) out, over the band.
    """
    n = spectra.shape[3]
    bins = residual.shape[2]
    for i in range(spectra.shape[0]):
        b0 = 0.0j
        b1 = 0.0j
        g00 = 0.0
        g11 = 0.0
        g01 = 0.0j
        row = rows[i]
        low, high = max(-first[i], 0), min(n, bins - first[i])
        for c in range(2):
            for j in range(low, high):
                k = first[i] + j
                u, v = spectra[i, 0, c, j], spectra[i, 1, c, j]
                w = weight[c, k]
                w2 = w * w
                g00 += (u.real * u.real + u.imag * u.imag) * w2
                g11 += (v.real * v.real + v.imag * v.imag) * w2
                g01 += np.conj(u) * v * w2
                r = residual[row, c, k] * w
                b0 += np.conj(u) * r
                b1 += np.conj(v) * r
        product[i, 0], product[i, 1] = b0, b1
        gram[i, 0, 0], gram[i, 1, 1] = g00, g11
        gram[i, 0, 1], gram[i, 1, 0] = g01, np.conj(g01)


@numba.njit(cache=True, error_model="numpy")
def add_signals(residual, spectra, first, coefficients, weight, sign):  # type: ignore[no-untyped-def]
    """Add ``sign`` times whitened signals to residuals (N, 2, K), in place."""
    n = spectra.shape[3]
    bins = residual.shape[2]
    for i in range(spectra.shape[0]):
        a, b = coefficients[i, 0], coefficients[i, 1]
        for c in range(2):
            for j in range(n):
                k = first[i] + j
                if 0 <= k < bins:
                    h = a * spectra[i, 0, c, j] + b * spectra[i, 1, c, j]
                    residual[i, c, k] += sign * weight[c, k] * h


@numba.njit(cache=True, error_model="numpy")
def _coefficients(ln_a, psi, cos_iota, phi0):  # type: ignore[no-untyped-def]
    """Return the two complex coefficients of a source."""
    a = np.exp(ln_a)
    plus, cross = -a * (1.0 + cos_iota * cos_iota), -2.0 * a * cos_iota
    c, s = np.cos(2.0 * psi), np.sin(2.0 * psi)
    turn = complex(np.cos(phi0), -np.sin(phi0))
    return turn * complex(plus * c, cross * s), turn * complex(plus * s, -cross * c)


@numba.njit(cache=True, error_model="numpy")
def coefficients(x, out):  # type: ignore[no-untyped-def]
    """Write the coefficients of sources x (N, 8) to ``out`` (N, 2)."""
    for i in range(x.shape[0]):
        out[i, 0], out[i, 1] = _coefficients(x[i, 2], x[i, 5], x[i, 6], x[i, 7])


@numba.njit(cache=True, error_model="numpy")
def _form(gram, d0, d1):  # type: ignore[no-untyped-def]
    """The quadratic form conj(d) . gram . d."""
    cross = np.conj(d0) * gram[0, 1] * d1
    return (
        gram[0, 0].real * (d0.real**2 + d0.imag**2)
        + gram[1, 1].real * (d1.real**2 + d1.imag**2)
        + 2.0 * cross.real
    )


@numba.njit(cache=True, error_model="numpy")
def gains(x, product, gram, snr_gram, gain, snr2):  # type: ignore[no-untyped-def]
    """Write ln L over that without the source, and the SNR's square, of sources x (N, 8)."""
    for i in range(x.shape[0]):
        d0, d1 = _coefficients(x[i, 2], x[i, 5], x[i, 6], x[i, 7])
        linear = np.conj(d0) * product[i, 0] + np.conj(d1) * product[i, 1]
        gain[i] = 2.0 * linear.real - _form(gram[i], d0, d1)
        snr2[i] = 2.0 * _form(snr_gram[i], d0, d1)


@numba.njit(cache=True, error_model="numpy")
def mapped(old, new, x, moved, gain):  # type: ignore[no-untyped-def]
    """Carry amplitudes from one place to another, as far from the best fit as they were.

    ``old`` and ``new``: (product (N, 2), gram (N, 2, 2)) at the two places. The distance from the
    best fit, whitened by the Gram matrix, is kept, so that ln L changes as the F-statistic does.
    Writes the amplitude columns of ``moved`` (N, 8), psi folded, and to ``gain`` (N,) the ln
    of the map's Jacobian in x; -inf where a Gram matrix is singular.
    """
    for i in range(x.shape[0]):
        d0, d1 = _coefficients(x[i, 2], x[i, 5], x[i, 6], x[i, 7])
        product, gram = old[0][i], old[1][i]
        l00 = np.sqrt(gram[0, 0].real)
        l10 = gram[1, 0] / l00
        rest = gram[1, 1].real - (l10.real**2 + l10.imag**2)
        product2, gram2 = new[0][i], new[1][i]
        m00 = np.sqrt(gram2[0, 0].real)
        m10 = gram2[1, 0] / m00
        rest2 = gram2[1, 1].real - (m10.real**2 + m10.imag**2)
        if not (rest > 1e-12 * gram[1, 1].real and rest2 > 1e-12 * gram2[1, 1].real):
            gain[i] = -np.inf
            continue
        l11, m11 = np.sqrt(rest), np.sqrt(rest2)
        # white = L^H d - L^-1 b, which is L^H (d - best)
        y0 = product[0] / l00
        y1 = (product[1] - l10 * y0) / l11
        e0 = l00 * d0 + np.conj(l10) * d1 - y0
        e1 = l11 * d1 - y1
        z0 = product2[0] / m00
        z1 = (product2[1] - m10 * z0) / m11
        n1 = (e1 + z1) / m11
        n0 = (e0 + z0 - np.conj(m10) * n1) / m00
        right, left = n0 + 1j * n1, n0 - 1j * n1
        root_r, root_l = np.sqrt(abs(right)), np.sqrt(abs(left))
        amplitude = (0.5 * (root_r + root_l)) ** 2
        cosine = (root_r - root_l) / (root_r + root_l)
        phase_r = np.arctan2(-right.imag, -right.real)
        phase_l = np.arctan2(-left.imag, -left.real)
        psi = np.mod(0.25 * (phase_r - phase_l), np.pi)
        phi0 = -0.5 * (phase_r + phase_l)
        if psi >= 0.5 * np.pi:
            psi -= 0.5 * np.pi
            phi0 -= np.pi
        moved[i, 2], moved[i, 5] = np.log(amplitude), psi
        moved[i, 6], moved[i, 7] = cosine, np.mod(phi0, 2.0 * np.pi)
        volume = 4.0 * (x[i, 2] - moved[i, 2])
        volume += 3.0 * (np.log1p(-(x[i, 6] ** 2)) - np.log1p(-(cosine**2)))
        gain[i] = 2.0 * np.log(l00 * l11 / (m00 * m11)) + volume


@numba.njit(cache=True, error_model="numpy")
def walk(rng, x, product, gram, snr_gram, least, most, steps):  # type: ignore[no-untyped-def]
    """Metropolis steps of the amplitude parameters alone, in place; return the accepted share.

    The prior is flat in ln A, psi, cos iota and phi0 while the SNR is in [least, most]. Steps are
    of the size of the signal's inverse SNR times a random factor; along the ridge of constant
    phase of the stronger circular amplitude; and along constant power in cos iota.
    """
    taken = 0
    for i in range(x.shape[0]):
        d0, d1 = _coefficients(x[i, 2], x[i, 5], x[i, 6], x[i, 7])
        linear = np.conj(d0) * product[i, 0] + np.conj(d1) * product[i, 1]
        here = 2.0 * linear.real - _form(gram[i], d0, d1)
        # of the best fit's SNR, which the steps do not change
        y0 = product[i, 0] / np.sqrt(gram[i, 0, 0].real)
        rest = gram[i, 1, 1].real - abs(gram[i, 1, 0]) ** 2 / gram[i, 0, 0].real
        y1 = product[i, 1] - gram[i, 1, 0] * product[i, 0] / gram[i, 0, 0].real
        power = abs(y0) ** 2 + abs(y1) ** 2 / max(rest, 1e-12 * gram[i, 1, 1].real)
        sigma = 1.0 / np.sqrt(max(2.0 * power, 1.0))
        for step in range(steps):
            ln_a, psi, cosine, phi0 = x[i, 2], x[i, 5], x[i, 6], x[i, 7]
            size = sigma * np.exp(1.5 * rng.standard_normal())
            kind = step % 4
            if kind == 0:
                ln_a += size * rng.standard_normal()
                psi += 0.5 * size * rng.standard_normal()
                cosine += size * rng.standard_normal()
                phi0 += size * rng.standard_normal()
            elif kind == 1:
                turn = np.pi * (rng.random() - 0.5)
                psi += turn
                phi0 += 2.0 * turn if cosine >= 0.0 else -2.0 * turn
            elif kind == 2:
                before = (1.0 + cosine) ** 4 + (1.0 - cosine) ** 4
                cosine += 4.0 * size * rng.standard_normal()
                after = (1.0 + cosine) ** 4 + (1.0 - cosine) ** 4
                ln_a += 0.5 * np.log(before / after)
            else:
                ln_a += size * rng.standard_normal()
                phi0 += size * rng.standard_normal()
            if not -1.0 <= cosine <= 1.0:
                continue
            d0, d1 = _coefficients(ln_a, psi, cosine, phi0)
            snr2 = 2.0 * _form(snr_gram[i], d0, d1)
            if not least * least <= snr2 <= most * most:
                continue
            linear = np.conj(d0) * product[i, 0] + np.conj(d1) * product[i, 1]
            there = 2.0 * linear.real - _form(gram[i], d0, d1)
            if np.log(rng.random()) < there - here:
                quarters = np.floor(psi / (0.5 * np.pi))
                psi = min(max(psi - quarters * 0.5 * np.pi, 0.0), 0.5 * np.pi)
                phi0 = np.mod(phi0 - quarters * np.pi, 2.0 * np.pi)
                x[i, 2], x[i, 5], x[i, 6], x[i, 7] = ln_a, psi, cosine, phi0
                here = there
                taken += 1
    return taken / max(x.shape[0] * steps, 1)
