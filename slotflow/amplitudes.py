"""The amplitude parameters of binaries whose other parameters are given: closed forms.

For given (f0, fdot, ra, dec) a signal is linear in the two complex coefficients ``d`` of
:func:`slotflow.response.polarisation_coefficients`, and its log likelihood is

    ln L(d) - ln L(0) = 2 Re(conj(d) . b) - conj(d) . G . d

with ``b`` the products of the basis with the data and ``G`` its Gram matrix, both over the noise
(:class:`slotflow.projection.Projection`; 2 S coefficients for S sources). It is a complex Gaussian
in d: the F-statistic is its height, and its integral and its draws are those of a Gaussian.

The prior is uniform in psi, cos iota and phi0 and log-uniform in the SNR, ``rho A``, so that it is
log-uniform in A between two ends that depend on psi and iota. As a density of the four real
coefficients it is ``1 / (8 pi^2 ln(snr_max / snr_min) A^4 sin(iota)^6)``: singular where the source
is seen face on, so that weights from the Gaussian to it have no finite variance. What has: with
``d = A exp(-i phi0) v(psi, iota)`` the likelihood is that of one complex number,
``2 A Re(exp(i phi0) z) - A^2 q``; its integral over phi0 and ln A (:func:`log_marginal`) and draws
of both (:func:`draw_amplitude`) are exact. So sample (f0, fdot, ra, dec, psi, cos iota) by that
integral, then draw (A, phi0).
"""

from typing import Final, NamedTuple

import numba
import numpy as np
from numpy.polynomial import legendre
from numpy.typing import NDArray

from slotflow.bessel import FAR, NEAR, i0e

Float = NDArray[np.float64]
Complex = NDArray[np.complex128]

JITTER: Final = 1e-12  # on a Gram matrix of unit diagonal: below it two signals are one
DROP: Final = 40.0  # fall of the log integrand beyond which ln A is not looked at
SEGMENTS: Final = 64  # of the envelope from which A is drawn
_NODES, _WEIGHTS = legendre.leggauss(48)


class Reduced(NamedTuple):
    """Likelihoods of one complex number, each (P,): ``2 A Re(exp(i phi0) z) - A^2 q``.

    Attributes:
        z: complex product of the data with the signal of unit amplitude and phi0 = 0.
        q: that signal's squared norm over the noise.
        rho: its SNR by which the prior is defined: SNR = rho A.
    """

    z: Complex
    q: Float
    rho: Float


def unit_coefficients(psi: Float, iota: Float) -> Complex:
    """Return v(psi, iota), the coefficients of unit amplitude and phi0 = 0: (P,) -> (P, 2)."""
    cosine = np.cos(iota)
    plus, cross = -(1.0 + cosine**2), -2.0 * cosine
    c, s = np.cos(2.0 * psi), np.sin(2.0 * psi)
    return np.stack([plus * c + 1j * cross * s, plus * s - 1j * cross * c], axis=-1)


def reduce(product: Complex, gram: Complex, snr_gram: Complex, psi: Float, iota: Float) -> Reduced:
    """Return the one complex number's likelihood at given psi, iota: (P, 2), (P, 2, 2), ... (P,).

    Args:
        product, gram, snr_gram: of a :class:`slotflow.projection.Projection`.
        psi, iota: rad.
    """
    v = unit_coefficients(psi, iota)
    z = np.einsum("np,np->n", v.conj(), product)
    q = np.einsum("np,npq,nq->n", v.conj(), gram, v).real
    rho2 = 2.0 * np.einsum("np,npq,nq->n", v.conj(), snr_gram, v).real
    return Reduced(z, np.maximum(q, 0.0), np.sqrt(np.maximum(rho2, 0.0)))


@numba.njit(cache=True, error_model="numpy")
def _span(m, low, high):  # type: ignore[no-untyped-def]
    """Between which x the integrand lies: exp(x m - x^2/2) against its largest in [low, high]."""
    beyond = max(low - m, m - high, 0.0)
    reach = np.sqrt(beyond**2 + 2.0 * DROP)
    return max(low, m - reach), min(high, m + reach)


@numba.njit(cache=True, error_model="numpy")
def _log_marginal(z, q, rho, least, most, nodes, weights, near, far, out):  # type: ignore[no-untyped-def]
    for i in range(z.size):
        if not (q[i] > 0.0 and rho[i] > 0.0):
            out[i] = 0.0 if rho[i] > 0.0 else -np.inf
            continue
        m = np.sqrt(2.0) * abs(z[i]) / np.sqrt(q[i])
        unit = np.sqrt(2.0 * q[i]) / rho[i]
        low, high = _span(m, unit * least, unit * most)
        middle = 0.5 * np.log(high * low)
        half = 0.5 * np.log(high / low)
        top = min(max(m, low), high)
        total = 0.0
        for k in range(nodes.size):
            x = np.exp(middle + half * nodes[k])
            total += weights[k] * i0e(x * m, near, far) * np.exp(
                0.5 * (top - m) ** 2 - 0.5 * (x - m) ** 2
            )  # fmt: skip
        peak = 0.5 * m * m - 0.5 * (top - m) ** 2
        out[i] = peak + np.log(total * half / np.log(most / least))


def log_marginal(reduced: Reduced, snr: tuple[float, float]) -> Float:
    """Return ln of L / L(0), averaged over the prior of phi0 and ln A: (P,).

    ``(1 / 2 pi) int d phi0 (1 / ln(snr_max / snr_min)) int d ln A exp(2 A Re(exp(i phi0) z)
    - A^2 q)``: over phi0 the Bessel function I0, over ln A by quadrature between the prior's ends
    (to 1e-10).

    Args:
        reduced: by :func:`reduce`.
        snr: (snr_min, snr_max) of the prior.
    """
    out = np.empty(len(reduced.q))
    _log_marginal(*reduced, float(snr[0]), float(snr[1]), _NODES, _WEIGHTS, NEAR, FAR, out)
    return out


@numba.njit(cache=True, error_model="numpy")
def _decreasing(x, m, near, far):  # type: ignore[no-untyped-def]
    """The factor I0e(x m) / x of the density of x."""
    return i0e(x * m, near, far) / x


@numba.njit(cache=True, error_model="numpy")
def _draw_scaled(rng, m, low, high, near, far, bound):  # type: ignore[no-untyped-def]
    """Draw x from I0(x m) exp(-x^2/2) / x on [low, high], by rejection from a staircase.

    On each step the Gaussian is bounded by its largest value, the rest by that of the left edge.
    """
    low, high = _span(m, low, high)
    step = (high - low) / SEGMENTS
    top = min(max(m, low), high)
    total = 0.0
    for k in range(SEGMENTS):
        left = low + k * step
        nearest = min(max(m, left), left + step)
        gauss = np.exp(0.5 * (top - m) ** 2 - 0.5 * (nearest - m) ** 2)
        total += gauss * _decreasing(left, m, near, far)
        bound[k] = total
    while True:
        k = np.searchsorted(bound, rng.random() * total, side="right")
        k = min(k, SEGMENTS - 1)
        height = bound[k] - (bound[k - 1] if k > 0 else 0.0)
        x = low + (k + rng.random()) * step
        value = np.exp(0.5 * (top - m) ** 2 - 0.5 * (x - m) ** 2) * _decreasing(x, m, near, far)
        if rng.random() * height < value:
            return x


@numba.njit(cache=True, error_model="numpy")
def _draw_amplitudes(rng, z, q, rho, least, most, near, far, out):  # type: ignore[no-untyped-def]
    bound = np.empty(SEGMENTS)
    for i in range(z.size):
        root = np.sqrt(2.0 * q[i])
        if root > 0.0:
            m = 2.0 * abs(z[i]) / root
            unit = root / rho[i]
            out[i] = _draw_scaled(rng, m, unit * least, unit * most, near, far, bound) / root
        else:
            out[i] = least * (most / least) ** rng.random() / rho[i]


def draw_amplitude(
    rng: np.random.Generator, reduced: Reduced, snr: tuple[float, float]
) -> tuple[Float, Float]:
    """Draw (A, phi0) from their posterior at given other parameters: each (P,); exact.

    A from its density with phi0 integrated out, then phi0 from a von Mises distribution of
    concentration ``2 A |z|``; phi0 in [0, 2 pi).

    Args:
        rng: source of the randomness.
        reduced: by :func:`reduce`.
        snr: (snr_min, snr_max) of the prior.
    """
    amplitude = np.empty(len(reduced.q))
    _draw_amplitudes(rng, *reduced, float(snr[0]), float(snr[1]), NEAR, FAR, amplitude)
    phase = rng.vonmises(0.0, 2.0 * amplitude * np.abs(reduced.z))
    return amplitude, np.mod(phase - np.angle(reduced.z), 2.0 * np.pi)


def log_jacobian(amplitude: Float, iota: Float) -> Float:
    """Return ln of d^4(Re d, Im d) / d(A, psi, iota, phi0) = 4 A^3 sin(iota)^7: (...).

    One image of (psi, phi0) is meant; the other maps to the same coefficients.
    """
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(4.0) + 3.0 * np.log(amplitude) + 7.0 * np.log(np.sin(iota)))


def log_prior_coefficients(coefficients: Complex, rho: Float, snr: tuple[float, float]) -> Float:
    """Return ln prior density of one source's four real coefficients at given others: (P,).

    Args:
        coefficients: (P, 2) complex.
        rho: (P,) SNR over amplitude A at these coefficients.
        snr: (snr_min, snr_max) of the prior; -inf outside.
    """
    right = np.abs(coefficients[:, 0] + 1j * coefficients[:, 1])  # A (1 + cos iota)^2
    left = np.abs(coefficients[:, 0] - 1j * coefficients[:, 1])
    amplitude = 0.25 * (np.sqrt(right) + np.sqrt(left)) ** 2
    with np.errstate(divide="ignore"):
        # A^4 sin^6 = A (r l)^(3/2)
        value = -np.log(amplitude) - 1.5 * (np.log(right) + np.log(left))
    value -= np.log(8.0 * np.pi**2 * np.log(snr[1] / snr[0]))
    inside = (rho * amplitude >= snr[0]) & (rho * amplitude <= snr[1])
    return np.where(inside, value, -np.inf)


class Gaussian(NamedTuple):
    """A complex Gaussian of M coefficients a particle, ``exp(height - conj(e) . H . e)``.

    ``e`` is the distance from the best fit.

    Attributes:
        best: (P, M) the coefficients at its peak.
        height: (P,) ln L / L(0) there (less the ridge's part): the F-statistic of all sources.
        log_det: (P,) ln determinant of H.
        root: (P, M, M) Cholesky factor of H scaled to unit diagonal, lower.
        scale: (P, M) square roots of H's diagonal.
    """

    best: Complex
    height: Float
    log_det: Float
    root: Complex
    scale: Float

    @property
    def log_integral(self) -> Float:
        """ln of its integral over the 2 M real numbers, d(Re) d(Im) of each: (P,)."""
        return np.asarray(self.best.shape[1] * np.log(np.pi) - self.log_det + self.height)

    def draw(self, rng: np.random.Generator) -> Complex:
        """Draw coefficients from it: (P, M)."""
        white = rng.standard_normal((*self.best.shape, 2)).view(np.complex128)[..., 0]
        white *= np.sqrt(0.5)
        upper = np.swapaxes(self.root, 1, 2).conj()
        return self.best + np.linalg.solve(upper, white[..., None])[..., 0] / self.scale

    def log_density(self, coefficients: Complex) -> Float:
        """Return the ln density, normalised over the 2 M real numbers, at coefficients (P, M)."""
        e = (coefficients - self.best) * self.scale
        white = np.einsum("nqp,nq->np", self.root.conj(), e)
        norm = self.log_det - self.best.shape[1] * np.log(np.pi)
        return np.asarray(norm - (np.abs(white) ** 2).sum(axis=1))


def gaussian(product: Complex, gram: Complex, ridge: Complex | None = None) -> Gaussian:
    """Return the likelihood of M coefficients as a Gaussian: (P, M), (P, M, M).

    Two signals that are alike to 1e-12 are told apart by a jitter of the Gram matrix alone; with
    a ridge there is no need of it.

    Args:
        product, gram: of a :class:`slotflow.projection.Projection` or ``JointProjection``.
        ridge: (P, M, M) added to the Gram matrix: the Gaussian prior
            ``exp(-conj(d) . ridge . d)`` (:func:`snr_ridge`).
    """
    total = gram if ridge is None else gram + ridge
    tiny = np.finfo(np.float64).tiny
    scale = np.sqrt(np.maximum(np.einsum("npp->np", total).real, tiny))
    unit = total / (scale[:, :, None] * scale[:, None, :])
    count = unit.shape[1]
    root = np.linalg.cholesky(unit + JITTER * np.eye(count))
    white = np.linalg.solve(root, (product / scale)[..., None])
    best = np.linalg.solve(np.swapaxes(root, 1, 2).conj(), white)[..., 0] / scale
    diagonal = np.einsum("npp->np", root).real
    log_det = 2.0 * (np.log(diagonal) + np.log(scale)).sum(axis=1)
    return Gaussian(best, (np.abs(white[..., 0]) ** 2).sum(axis=1), log_det, root, scale)


def snr_ridge(snr_gram: Complex, snr: float) -> Complex:
    """Return the ridge under which each source's mean squared SNR is ``snr^2``.

    Args:
        snr_gram: (P, S, 2, 2) of a ``JointProjection``.
        snr: the root mean square.

    Returns:
        (P, 2 S, 2 S), block by block.
    """
    particles, number = snr_gram.shape[:2]
    out = np.zeros((particles, 2 * number, 2 * number), dtype=np.complex128)
    for s in range(number):
        out[:, 2 * s : 2 * s + 2, 2 * s : 2 * s + 2] = snr_gram[:, s] * (4.0 / snr**2)
    return out
