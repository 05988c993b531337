"""Closed forms of the amplitude parameters against quadrature, sampling and linear algebra."""

from itertools import pairwise

import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats

from slotflow.amplitudes import (
    Reduced,
    draw_amplitude,
    gaussian,
    log_jacobian,
    log_marginal,
    log_prior_coefficients,
    reduce,
    snr_ridge,
    unit_coefficients,
)
from slotflow.response import polarisation_coefficients

# matched SNR, (snr_min, snr_max), noise of the data over the training set's
CASES = [
    (0.3, (5.0, 100.0), 1.0),
    (2.0, (5.0, 100.0), 1.2),
    (20.0, (5.0, 100.0), 0.9),
    (95.0, (5.0, 100.0), 1.1),
    (150.0, (5.0, 100.0), 1.0),
    (30.0, (1e-3, 1e3), 1.0),
    (0.0, (1e-3, 1e3), 1.0),
    (12.0, (30.0, 31.0), 1.0),
]


def _reduced(m: float, ratio: float, size: int = 1) -> Reduced:
    q = 3.0e43
    z = m * np.sqrt(q / 2.0) * np.exp(0.7j)
    return Reduced(np.full(size, z), np.full(size, q), np.full(size, ratio * np.sqrt(2.0 * q)))


def _density(ln_a: float, r: Reduced, shift: float) -> float:
    """I0 exp(-A^2 q) in ln A, less exp(shift)."""
    a = np.exp(ln_a)
    argument = 2.0 * a * abs(r.z[0])
    return scipy.special.i0e(argument) * np.exp(argument - a * a * r.q[0] - shift)


@pytest.mark.parametrize(("m", "snr", "ratio"), CASES)
def test_marginal_is_the_quadrature(m: float, snr: tuple[float, float], ratio: float) -> None:
    r = _reduced(m, ratio)
    low, high = np.log(np.array(snr) / r.rho[0])
    grid = np.linspace(low, high, 4001)
    argument = 2.0 * np.exp(grid) * abs(r.z[0])
    shift = float((argument - np.exp(2.0 * grid) * r.q[0]).max())
    peak = grid[np.argmax(argument - np.exp(2.0 * grid) * r.q[0])]
    points = sorted({min(max(peak + d, low), high) for d in (-1.0, -0.1, 0.0, 0.1, 1.0)})
    edges = [low, *points, high]
    total = sum(
        scipy.integrate.quad(_density, a, b, (r, shift), epsabs=0, epsrel=1e-11, limit=400)[0]
        for a, b in pairwise(edges)
        if b > a
    )
    expected = shift + np.log(total / np.log(snr[1] / snr[0]))
    assert log_marginal(r, snr)[0] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("m", "snr", "ratio"), CASES)
def test_amplitudes_are_drawn_from_their_density(
    m: float, snr: tuple[float, float], ratio: float
) -> None:
    r = _reduced(m, ratio, 4000)
    amplitude, phi0 = draw_amplitude(np.random.default_rng(5), r, snr)
    low, high = np.log(np.array(snr) / r.rho[0])
    centre = np.log(max(m, 1e-9) / np.sqrt(2.0 * r.q[0]))
    fine = np.clip(centre + np.linspace(-9.0, 9.0, 8001) / max(m, 0.5), low, high)
    end = np.maximum(high - np.logspace(-7, -1, 4001), low)
    grid = np.unique(np.concatenate([np.linspace(low, high, 8001), fine, end]))
    value = np.log(scipy.special.i0e(2.0 * np.exp(grid) * abs(r.z[0])))
    value += 2.0 * np.exp(grid) * abs(r.z[0]) - np.exp(2.0 * grid) * r.q[0]
    weight = np.exp(value - value.max())
    cumulative = scipy.integrate.cumulative_trapezoid(weight, grid, initial=0.0)
    uniform = np.interp(np.log(amplitude), grid, cumulative / cumulative[-1])
    assert scipy.stats.kstest(uniform, "uniform").pvalue > 1e-3
    # the phase at given amplitude: von Mises about -arg z
    kappa = 2.0 * amplitude * abs(r.z[0])
    turned = np.mod(phi0 + np.angle(r.z) + np.pi, 2.0 * np.pi) - np.pi
    assert ((phi0 >= 0) & (phi0 < 2.0 * np.pi)).all()
    place = scipy.stats.vonmises.cdf(turned, kappa)
    assert scipy.stats.kstest(place, "uniform").pvalue > 1e-3


def test_nothing_in_the_band_leaves_the_prior() -> None:
    r = Reduced(np.zeros(3000, complex), np.zeros(3000), np.full(3000, 2.0))
    assert (log_marginal(r, (5.0, 100.0)) == 0.0).all()
    amplitude, phi0 = draw_amplitude(np.random.default_rng(1), r, (5.0, 100.0))
    place = np.log(2.0 * amplitude / 5.0) / np.log(20.0)
    assert scipy.stats.kstest(place, "uniform").pvalue > 1e-3
    assert scipy.stats.kstest(phi0 / (2.0 * np.pi), "uniform").pvalue > 1e-3


def _amplitudes(rng: np.random.Generator, number: int) -> np.ndarray:
    sources = np.zeros((number, 8))
    sources[:, 2] = rng.uniform(0.5, 2.0, number)
    sources[:, 5] = rng.uniform(0.0, 0.5 * np.pi, number)
    sources[:, 6] = np.arccos(rng.uniform(-0.95, 0.95, number))
    sources[:, 7] = rng.uniform(0.0, 2.0 * np.pi, number)
    return sources


def test_unit_coefficients_and_jacobian() -> None:
    sources = _amplitudes(np.random.default_rng(2), 50)
    amplitude, psi, iota, phi0 = sources[:, [2, 5, 6, 7]].T
    v = unit_coefficients(psi, iota)
    d = polarisation_coefficients(sources)
    np.testing.assert_allclose(amplitude[:, None] * np.exp(-1j * phi0)[:, None] * v, d, atol=1e-14)
    matrix = np.empty((50, 4, 4))
    for column, index in enumerate((2, 5, 6, 7)):
        up, down = sources.copy(), sources.copy()
        up[:, index] += 1e-6
        down[:, index] -= 1e-6
        step = (polarisation_coefficients(up) - polarisation_coefficients(down)) / 2e-6
        matrix[:, :, column] = step.view(np.float64)
    expected = np.log(np.abs(np.linalg.det(matrix)))
    np.testing.assert_allclose(log_jacobian(amplitude, iota), expected, atol=1e-6)


def test_prior_of_the_coefficients_is_that_of_the_amplitudes() -> None:
    sources = _amplitudes(np.random.default_rng(3), 50)
    amplitude, iota = sources[:, 2], sources[:, 6]
    snr, rho = (5.0, 100.0), np.full(50, 20.0)
    # psi in [0, pi / 2): one image of the symmetry
    prior = np.log(np.sin(iota) / 2.0 * 2.0 / np.pi / (2.0 * np.pi) / (amplitude * np.log(20.0)))
    d = polarisation_coefficients(sources)
    seen = log_prior_coefficients(d, rho, snr)
    np.testing.assert_allclose(seen, prior - log_jacobian(amplitude, iota), rtol=1e-10)
    assert (log_prior_coefficients(d, rho * 20.0, snr)[rho * 20.0 * amplitude > 100.0] < -1e9).all()


def _problem(
    rng: np.random.Generator, particles: int, m: int, size: float
) -> tuple[np.ndarray, np.ndarray]:
    a = rng.normal(size=(particles, m, 12)) + 1j * rng.normal(size=(particles, m, 12))
    gram = a.conj() @ np.swapaxes(a, 1, 2)
    product = size * (rng.normal(size=(particles, m)) + 1j * rng.normal(size=(particles, m)))
    return product, gram


def test_gaussian_is_the_real_one() -> None:
    """Against the same form written in real numbers: peak, integral, density, draws."""
    product, gram = _problem(np.random.default_rng(4), 3, 4, 3.0)
    g = gaussian(product, gram)
    np.testing.assert_allclose(np.einsum("npq,nq->np", gram, g.best), product, rtol=1e-9)
    for i in range(3):
        real = np.block([[gram[i].real, -gram[i].imag], [gram[i].imag, gram[i].real]])
        b = np.concatenate([product[i].real, product[i].imag])
        height = b @ np.linalg.solve(real, b)
        integral = 4.0 * np.log(np.pi) - 0.5 * np.linalg.slogdet(real)[1] + height
        assert g.height[i] == pytest.approx(height, rel=1e-9)
        assert g.log_integral[i] == pytest.approx(integral, rel=1e-9)
    number = 20_000
    many = gaussian(*(np.broadcast_to(x[:1], (number, *x.shape[1:])) for x in (product, gram)))
    draws = many.draw(np.random.default_rng(5))
    flat = np.concatenate([draws.real, draws.imag], axis=1)
    real = np.block([[gram[0].real, -gram[0].imag], [gram[0].imag, gram[0].real]])
    mean = np.concatenate([g.best[0].real, g.best[0].imag])
    law = scipy.stats.multivariate_normal(mean, 0.5 * np.linalg.inv(real))
    np.testing.assert_allclose(many.log_density(draws), law.logpdf(flat), atol=1e-8)
    distance = 2.0 * np.einsum("np,pq,nq->n", flat - mean, real, flat - mean)
    assert scipy.stats.kstest(distance, scipy.stats.chi2(8).cdf).pvalue > 1e-3


def test_two_signals_that_are_one() -> None:
    """Height as of one of them, numbers finite; with a ridge the evidence is that of the sum."""
    rng = np.random.default_rng(6)
    product, gram = _problem(rng, 5, 2, 10.0)
    twice = np.concatenate([product, product], axis=1)
    double = np.tile(gram, (1, 2, 2))
    single = gaussian(product, gram)
    seen = gaussian(twice, double)
    np.testing.assert_allclose(seen.height, single.height, rtol=1e-6)
    assert np.isfinite(seen.draw(rng)).all()
    ridge = snr_ridge(np.broadcast_to(np.eye(2), (5, 2, 2, 2)), 10.0)
    assert ridge.shape == (5, 4, 4)
    joint = gaussian(twice, double, ridge)
    # with a ridge r on both, their sum has a ridge r / 2 and their difference is free of data
    summed = gaussian(product, gram, 0.5 * ridge[:, :2, :2])
    np.testing.assert_allclose(joint.height, summed.height, rtol=1e-7)
    free = np.linalg.slogdet(2.0 * ridge[:, :2, :2])[1]
    np.testing.assert_allclose(joint.log_det, summed.log_det + free, rtol=1e-8)


def test_ridge_is_the_prior_of_that_snr() -> None:
    gram = np.broadcast_to(np.array([[2.0, 0.3j], [-0.3j, 1.0]]), (50_000, 2, 2))
    ridge = snr_ridge(gram[:, None], 30.0)
    draws = gaussian(np.zeros((50_000, 2), complex), ridge).draw(np.random.default_rng(7))
    snr2 = 2.0 * np.einsum("np,npq,nq->n", draws.conj(), gram, draws).real
    assert snr2.mean() == pytest.approx(900.0, rel=0.02)


def test_marginal_and_gaussian_agree_on_the_evidence() -> None:
    """The integral over all four amplitude parameters, by quadrature over psi and cos iota of the
    marginal, and by the prior's density under draws from the Gaussian."""
    rng = np.random.default_rng(8)
    gram = np.array([[[40.0, 4.0 + 6.0j], [4.0 - 6.0j, 30.0]]])
    product = np.array([[55.0 + 20.0j, -30.0 + 44.0j]])
    snr = (3.0, 60.0)
    psi, cosine = np.meshgrid(np.arange(128) / 128 * 0.5 * np.pi, (np.arange(512) + 0.5) / 256 - 1)
    number = psi.size
    psi, iota = psi.ravel(), np.arccos(cosine.ravel())
    r = reduce(
        np.broadcast_to(product, (number, 2)), np.broadcast_to(gram, (number, 2, 2)),
        np.broadcast_to(gram, (number, 2, 2)), psi, iota,
    )  # fmt: skip
    marginal = scipy.special.logsumexp(log_marginal(r, snr)) - np.log(number)
    g = gaussian(*(np.broadcast_to(x, (400_000, *x.shape[1:])) for x in (product, gram)))
    draws = g.draw(rng)
    right, left = np.abs(draws[:, 0] + 1j * draws[:, 1]), np.abs(draws[:, 0] - 1j * draws[:, 1])
    amplitude = 0.25 * (np.sqrt(right) + np.sqrt(left)) ** 2
    norm2 = 2.0 * np.einsum("np,pq,nq->n", draws.conj(), gram[0], draws).real
    prior = np.exp(log_prior_coefficients(draws, np.sqrt(norm2) / amplitude, snr))
    by_draws = np.log(prior.mean()) + g.log_integral[0]
    error = prior.std() / prior.mean() / np.sqrt(len(prior))
    assert error < 0.05
    assert marginal == pytest.approx(by_draws, abs=5.0 * error)
