"""Noise with a covariance over the observation: against dense Gaussians, and white where it is."""

import numpy as np
import pytest

from slotflow.exact_foreground import with_share
from slotflow.exact_modulation import ModulatedKernel, Modulation
from slotflow.likelihood import INTRINSIC, BandLikelihood, training_sigma
from slotflow.refine_moves import SourceMoves
from slotflow.refine_space import Space
from slotflow.simulate.orbits import response_grid
from tests.exact_band import OBSERVATION, PRIOR
from tests.refine_example import Simple

Complex = np.typing.NDArray[np.complex128]
BINS, FIRST = PRIOR.bins, 47_000
#: Lags -2..2 of A and E, with a correlation between them; Hermitian at every time.
SERIES = np.zeros((2, 2, 5), dtype=np.complex128)
SERIES[0, 0] = [-0.28 + 0.04j, -0.09 - 0.07j, 0.97, -0.09 + 0.07j, -0.28 - 0.04j]
SERIES[1, 1] = [-0.26, -0.08 - 0.03j, 1.03, -0.08 + 0.03j, -0.26]
SERIES[0, 1] = [0.02 + 0.01j, -0.03, 0.05 - 0.02j, -0.02 + 0.01j, 0.03 - 0.02j]
SERIES[1, 0] = SERIES[0, 1, ::-1].conj()
MODULATION = with_share(SERIES, 0.9)
LEVEL = 1.3


def _noise(rng: np.random.Generator, number: int) -> Complex:
    """Noise of that covariance: (number, 2, BINS)."""
    white = rng.standard_normal((number, 2, BINS, 2)).view(np.complex128)[..., 0] * np.sqrt(0.5)
    root = np.linalg.inv(MODULATION.whitener(BINS))
    times = np.fft.ifft(white, axis=-1)
    return np.asarray(np.fft.fft(np.einsum("tij,njt->nit", root, times), axis=-1))


def _dense() -> Complex:
    """The covariance of all 2 BINS numbers, by its lags on the circle."""
    k = np.arange(BINS)
    lag = (k[:, None] - k + BINS // 2) % BINS - BINS // 2
    out = np.zeros((2, BINS, 2, BINS), dtype=np.complex128)
    for i, one in enumerate(range(-2, 3)):
        out += (
            np.where(lag == one, 1.0, 0.0)[None, :, None, :]
            * MODULATION.series[:, None, :, i, None]
        )
    return LEVEL * out.reshape(2 * BINS, 2 * BINS)


def _band(data: Complex, modulation: Modulation | None, profile: object = None) -> BandLikelihood:
    sigma = training_sigma(OBSERVATION, FIRST + BINS // 2, 1, PRIOR)[:, 0]
    return BandLikelihood(
        data, FIRST, np.full(2, LEVEL), sigma, response_grid(OBSERVATION, 128), OBSERVATION, PRIOR,
        1e-6, modulation, profile,  # type: ignore[arg-type]
    )  # fmt: skip


def test_the_whitener_makes_it_white() -> None:
    covariance, matrix = MODULATION.covariance(64), MODULATION.whitener(64)
    np.testing.assert_allclose(covariance, np.swapaxes(covariance.conj(), 1, 2), atol=1e-14)
    np.testing.assert_allclose(matrix, np.swapaxes(matrix.conj(), 1, 2), atol=1e-14)
    unit = matrix @ covariance @ matrix
    np.testing.assert_allclose(unit, np.broadcast_to(np.eye(2), unit.shape), atol=1e-12)
    assert MODULATION.log_det(64) == pytest.approx(-2 * np.linalg.slogdet(matrix)[1].sum())
    noise = _noise(np.random.default_rng(1), 400)
    for lag, expected in ((1, MODULATION.series[..., 3]), (2, MODULATION.series[..., 4])):
        seen = np.einsum("nik,njk->ij", noise, np.roll(noise, lag, -1).conj()) / (400 * BINS)
        np.testing.assert_allclose(seen, expected, atol=0.02)


def test_equals_the_dense_gaussian() -> None:
    rng = np.random.default_rng(2)
    noise = np.sqrt(LEVEL) * _noise(rng, 1)[0]
    covariance = _dense()
    ln_det = np.linalg.slogdet(covariance)[1]

    def ln_l(residual: Complex) -> float:
        flat = residual.reshape(-1)
        form = np.vdot(flat, np.linalg.solve(covariance, flat)).real
        return float(-form - ln_det - 2 * BINS * np.log(np.pi))

    plain = _band(noise, None)
    sources = plain.draw_prior(np.random.default_rng(3), 200)
    inside = np.abs(sources[:, 0] * plain.duration - FIRST - 128) < 60
    signals = plain.model(sources[inside][:5])
    band = _band(noise + signals[0], MODULATION)
    assert band.log_noise == pytest.approx(ln_l(noise + signals[0]), abs=1e-7)
    for source, signal in zip(sources[inside][:5], signals, strict=True):
        seen = band.log_likelihood(source[None, None])[0]
        # the circle is the band's in one, the response's own in the other
        assert seen == pytest.approx(ln_l(noise + signals[0] - signal), abs=0.02)


def test_a_profile_counts_by_bin() -> None:
    noise = _noise(np.random.default_rng(4), 1)[0]
    profile = np.exp(0.3 * np.sin(np.arange(2 * BINS) / 9.0)).reshape(2, BINS)
    band = _band(noise, None, profile)
    terms = np.abs(noise) ** 2 / (LEVEL * profile) + np.log(np.pi * LEVEL * profile)
    assert band.log_noise == pytest.approx(-terms.sum())
    source = band.draw_prior(np.random.default_rng(5), 1)
    residual = noise - _band(noise, None).model(source)[0]
    terms = np.abs(residual) ** 2 / (LEVEL * profile) + np.log(np.pi * LEVEL * profile)
    assert band.log_likelihood(source[None])[0] == pytest.approx(-terms.sum())
    with pytest.raises(ValueError, match="profile"):
        _band(noise, None, -profile)


def test_without_a_share_nothing_changes() -> None:
    noise = _noise(np.random.default_rng(6), 1)[0]
    plain, same = _band(noise, None), _band(noise, with_share(SERIES, 0.0))
    sources = plain.draw_prior(np.random.default_rng(7), 6).reshape(3, 2, 8)
    np.testing.assert_allclose(same.data, noise, atol=1e-12)
    np.testing.assert_allclose(
        same.log_likelihood(sources), plain.log_likelihood(sources), rtol=1e-11
    )


def test_the_priors_snr_is_not_of_the_modulation() -> None:
    noise = _noise(np.random.default_rng(8), 1)[0]
    plain, band = _band(noise, None), _band(noise, MODULATION)
    assert isinstance(band.kernel, ModulatedKernel)
    sources = plain.draw_prior(np.random.default_rng(9), 20)
    np.testing.assert_array_equal(band.snr(sources), plain.snr(sources))
    np.testing.assert_allclose(band.log_prior(sources[:, None]), plain.log_prior(sources[:, None]))
    ours = band.spectra(np.ascontiguousarray(sources[:, INTRINSIC]))[2]
    exact = plain.snr_gram(np.ascontiguousarray(sources[:, INTRINSIC]))
    assert np.abs(ours - exact).max() < 1e-3 * np.abs(exact).max()


def test_the_refined_target_is_this_likelihood() -> None:
    noise = _noise(np.random.default_rng(10), 1)[0]
    profile = np.tile(1.0 + 0.2 * np.cos(np.arange(BINS) / 20.0), (2, 1))
    band = _band(noise, MODULATION, profile)
    space = Space(FIRST, OBSERVATION.duration, PRIOR)
    mean = np.array([120.0, 0.1, -50.0, 2.0, 0.1, 0.4, 0.3, 2.0])
    mean[2] += np.log(15.0 / band.snr(space.to_sources(mean[None]))[0])
    references = [Simple(mean, (0.2, 0.2, 0.1, 0.1))]
    problem = SourceMoves(band, space, references, np.random.default_rng(0))
    cloud = problem.draw(60, np.random.default_rng(11))
    expected = band.log_likelihood(space.to_sources(cloud.x)) - band.log_noise + space.log_prior
    inside = np.isfinite(cloud.log_target)
    assert inside.sum() > 30
    assert cloud.log_target[inside] == pytest.approx(expected[inside], abs=1e-8)


def test_chi_squares_of_a_fit_in_correlated_noise() -> None:
    """Two amplitudes fitted to nothing take two numbers' worth of noise, white ones by the sky."""
    rng = np.random.default_rng(12)
    noise = np.sqrt(LEVEL) * _noise(rng, 300)
    means = []
    for modulation in (MODULATION, None):
        band = _band(noise[0], modulation)
        sources = band.draw_prior(np.random.default_rng(13), 60)
        sources[:, 0] = (FIRST + 128.3) / band.duration
        basis = band.basis(np.ascontiguousarray(sources[:, INTRINSIC])).reshape(60, 2, -1)
        data = noise if modulation is None else modulation.filtered(noise)
        product = np.einsum("spk,nk->snp", basis.conj(), data.reshape(300, -1))
        gram = np.einsum("spk,sqk->spq", basis.conj(), basis)
        best = np.linalg.solve(gram[:, None], product[..., None])[..., 0]
        means.append(np.einsum("snp,snp->sn", product.conj(), best).real.mean(axis=1) / LEVEL)
    # the scatter of a mean of 300 is 0.08; sources share their noise
    assert np.abs(means[0] - 2.0).max() < 0.35
    assert np.ptp(means[1]) > 0.6
    assert means[0].mean() == pytest.approx(2.0, abs=0.15)
