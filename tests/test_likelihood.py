"""The likelihood of a band against sums by hand, and against the simulation's bands."""

import numpy as np
import pytest

from slotflow.config import Preset
from slotflow.likelihood import INTRINSIC, BandLikelihood, bin_sigma, training_sigma
from slotflow.response import polarisation_coefficients
from slotflow.simulate.orbits import response_grid
from slotflow.simulate.sample import simulate_group
from slotflow.waveform import response_ae
from tests.exact_band import LEVEL, OBSERVATION, PRIOR, band

BINS = PRIOR.bins


def _particles(likelihood: BandLikelihood, number: int, sources: int) -> np.ndarray:
    draws = likelihood.draw_prior(np.random.default_rng(3), number * sources)
    return draws.reshape(number, sources, 8)


def _by_hand(likelihood: BandLikelihood, sources: np.ndarray) -> np.ndarray:
    """The residual (2, K), bin by bin, from another kernel."""
    grid = response_grid(OBSERVATION, likelihood.kernel.n)
    residual = likelihood.data.copy()
    for response, start in zip(*response_ae(sources, grid), strict=True):
        for j in range(grid.n):
            k = int(start) + j - likelihood.first_bin
            if 0 <= k < BINS:
                residual[:, k] -= response[:, j] / likelihood.sigma[:, k]
    return residual


def test_equals_the_sum_by_hand() -> None:
    likelihood = band()
    particles = _particles(likelihood, 4, 3)
    particles[1, 0, 0] = likelihood.first_bin / likelihood.duration  # cut by both edges
    particles[1, 1, 0] = (likelihood.first_bin + BINS + 20.4) / likelihood.duration
    particles[2, 2, 0] = (likelihood.first_bin - 5000) / likelihood.duration  # not in the band
    seen = likelihood.log_likelihood(particles)
    scaled = likelihood.log_likelihood(particles, np.full((4, 2), [0.1, -0.2]))
    for p in range(4):
        residual = _by_hand(likelihood, particles[p])
        for level, value in ((LEVEL, seen[p]), (LEVEL * np.exp([0.1, -0.2]), scaled[p])):
            terms = np.abs(residual) ** 2 / level[:, None] + np.log(np.pi * level)[:, None]
            assert value == pytest.approx(-terms.sum(), rel=1e-10)
    for row in (0, 1):
        np.testing.assert_allclose(
            likelihood.residual(particles)[row], _by_hand(likelihood, particles[row]), atol=1e-9
        )


def test_no_source_is_noise_alone() -> None:
    likelihood = band()
    terms = np.abs(likelihood.data) ** 2 / LEVEL[:, None] + np.log(np.pi * LEVEL)[:, None]
    assert likelihood.log_noise == pytest.approx(-terms.sum(), rel=1e-12)
    nothing = likelihood.log_likelihood(np.empty((2, 0, 8)))
    np.testing.assert_allclose(nothing, likelihood.log_noise, rtol=1e-14)
    assert (likelihood.log_prior(np.empty((2, 0, 8))) == 0.0).all()


def test_the_residual_of_a_simulated_band_is_what_is_not_a_source() -> None:
    """With all bright sources, the training set's own signal goes away to the error of its 256
    slow samples; the recorded SNRs are ours."""
    preset = Preset()
    grid = response_grid(OBSERVATION, 128)
    for one in simulate_group(preset, 11, range(3)):
        sigma = training_sigma(OBSERVATION, one.first_bin, BINS, PRIOR)
        likelihood = BandLikelihood(
            one.signal[:2], one.first_bin, np.ones(2), sigma, grid, OBSERVATION, PRIOR
        )
        targets = one.sources[: one.count]
        outside = one.outside[np.isfinite(one.outside[:, 0])]
        assert len(outside) == one.outside_count
        np.testing.assert_allclose(likelihood.snr(targets), one.snr[: one.count], rtol=3e-5)
        left = likelihood.residual(np.concatenate([targets, outside])[None])[0]
        assert np.linalg.norm(left) < 1e-3 * np.linalg.norm(one.signal)


def test_one_more_source() -> None:
    likelihood = band()
    particles = _particles(likelihood, 37, 3)
    whole = likelihood.log_likelihood(particles)
    residual = likelihood.residual(particles[:, 1:])
    np.testing.assert_allclose(
        likelihood.log_likelihood_with(residual, particles[:, 0]), whole, rtol=1e-12
    )
    shared = likelihood.log_likelihood_with(likelihood.data, particles[:, 0])
    np.testing.assert_allclose(shared, likelihood.log_likelihood(particles[:, :1]), rtol=1e-12)
    np.testing.assert_allclose(
        likelihood.residual(particles), residual - likelihood.model(particles[:, 0]), atol=1e-10
    )
    prior, value = likelihood.log_prior_and_likelihood(particles)
    np.testing.assert_array_equal(value, whole)
    np.testing.assert_array_equal(prior, likelihood.log_prior(particles))


def test_projection_is_the_likelihoods_quadratic_form() -> None:
    likelihood = band()
    particles = _particles(likelihood, 20, 2)
    d = polarisation_coefficients(particles[:, 0])
    others = likelihood.residual(particles[:, 1:])
    ln_level = np.random.default_rng(4).normal(size=(20, 2)) * 0.1
    for shift in (None, ln_level):
        p = likelihood.project(others, particles[:, 0][:, INTRINSIC], shift)
        gain = 2.0 * np.einsum("np,np->n", d.conj(), p.product).real
        gain -= np.einsum("np,npq,nq->n", d.conj(), p.gram, d).real
        expected = likelihood.log_likelihood(particles, shift)
        expected -= likelihood.log_likelihood_of(others, shift)
        np.testing.assert_allclose(gain, expected, rtol=1e-9, atol=1e-8)
        norm = 2.0 * np.einsum("np,npq,nq->n", d.conj(), p.snr_gram, d).real
        np.testing.assert_allclose(np.sqrt(norm), likelihood.snr(particles[:, 0]), rtol=1e-11)
    level = LEVEL if shift is None else LEVEL * np.exp(ln_level)
    power = (np.abs(others) ** 2 / level[:, :, None]).sum(axis=(1, 2))
    np.testing.assert_allclose(p.power, power, rtol=1e-12)
    shared = likelihood.project(likelihood.data, particles[:, 0][:, INTRINSIC])
    alone = likelihood.project(likelihood.data[None], particles[:1, 0][:, INTRINSIC])
    np.testing.assert_allclose(shared.product[:1], alone.product, rtol=1e-13)
    np.testing.assert_allclose(shared.power, likelihood.project_joint(
        particles[..., INTRINSIC]).power, rtol=1e-12)  # fmt: skip


def test_joint_projection() -> None:
    likelihood = band()
    particles = _particles(likelihood, 9, 2)
    particles[:, 1, 0] = particles[:, 0, 0] + 1.5 / likelihood.duration
    intrinsic = particles[..., INTRINSIC]
    for shift in (None, np.full((9, 2), [0.2, -0.1])):
        joint = likelihood.project_joint(intrinsic, shift)
        d = polarisation_coefficients(particles.reshape(-1, 8)).reshape(9, 4)
        gain = 2.0 * np.einsum("np,np->n", d.conj(), joint.product).real
        gain -= np.einsum("np,npq,nq->n", d.conj(), joint.gram, d).real
        expected = likelihood.log_likelihood(particles, shift)
        expected -= likelihood.log_likelihood(np.empty((9, 0, 8)), shift)
        np.testing.assert_allclose(gain, expected, rtol=1e-9, atol=1e-8)
    bases = likelihood.basis(intrinsic.reshape(-1, 4)).reshape(9, 2, 2, 2, BINS)
    again = likelihood.join(bases, joint.snr_gram, shift)
    np.testing.assert_array_equal(again.gram, joint.gram)
    gram = likelihood.snr_gram(intrinsic[:, 1])
    np.testing.assert_array_equal(joint.snr_gram[:, 1], gram)


def test_rougher_responses_cost_what_is_said() -> None:
    """ln L of the truth is off by about half of SNR^2 times the mismatch."""
    fine = band()
    one = _particles(fine, 30, 1)
    snr = fine.snr(one[:, 0])
    rough = BandLikelihood(
        fine.data, fine.first_bin, LEVEL, fine.sigma, fine.kernel.grid, OBSERVATION, PRIOR, 1e-6
    )
    assert rough.kernel.n < fine.kernel.n
    for p in range(30):
        truth = BandLikelihood(
            fine.model(one[p])[0], fine.first_bin, LEVEL, fine.sigma, fine.kernel.grid, OBSERVATION,
            PRIOR, 1e-6,
        )  # fmt: skip
        perfect = truth.log_noise + (np.abs(truth.data) ** 2 / LEVEL[:, None]).sum()
        off = truth.log_likelihood(one[p][None])[0] - perfect
        assert -2.0 * snr[p] ** 2 * 1e-6 < off <= 0.0


def test_sigma_per_bin_and_the_levels_prior() -> None:
    density = np.exp(np.random.default_rng(5).normal(size=(3, 64)))
    sigma = bin_sigma(np.array([2.0, 3.0]), density)
    np.testing.assert_allclose(sigma[:, 32], [2.0, 3.0])
    np.testing.assert_allclose(sigma[0] ** 2 / sigma[0, 0] ** 2, density[0] / density[0, 0])
    grid = np.linspace(-1, 1, 401)
    plane = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
    total = np.exp(band().log_level_prior(plane)).sum() * (grid[1] - grid[0]) ** 2
    assert total == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize(
    ("data", "level", "sigma"),
    [
        (np.zeros((3, BINS)), LEVEL, np.ones(2)),
        (np.full((2, BINS), np.nan), LEVEL, np.ones(2)),
        (np.zeros((2, BINS)), np.array([1.0, 0.0]), np.ones(2)),
        (np.zeros((2, BINS)), np.ones(3), np.ones(2)),
        (np.zeros((2, BINS)), LEVEL, np.array([1.0, -1.0])),
    ],
)
def test_what_cannot_be_a_band_is_refused(
    data: np.ndarray, level: np.ndarray, sigma: np.ndarray
) -> None:
    grid = response_grid(OBSERVATION, 128)
    with pytest.raises(ValueError, match="expected"):
        BandLikelihood(data, 47_000, level, sigma, grid, OBSERVATION, PRIOR)
