"""The prior with its SNR's ends against the simulation's own draws and density."""

import numpy as np
import pytest
import scipy.stats

from slotflow.config import ObservationSettings, Preset, PriorSettings, load_preset
from slotflow.likelihood import training_sigma
from slotflow.prior import log_prior
from slotflow.simulate.bright import draw_bright, response_snr, snr_psd
from slotflow.simulate.orbits import response_grid
from slotflow.simulate.sample import RESPONSE_BINS, window_of_interest
from slotflow.source_prior import SourcePrior, snr_density
from slotflow.waveform import response_ae
from tests.exact_band import OBSERVATION, PRIOR, band

FIRST = (47_000, 100_000)  # below and above the frequency from which fdot's range widens
YEAR = OBSERVATION.duration


def _simulated(first_bin: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Targets as the simulation draws and scales them: sources and SNRs."""
    rng = np.random.default_rng([7, first_bin])
    bins = rng.uniform(*window_of_interest(first_bin, PRIOR, YEAR), number)
    sources, snr = draw_bright(rng, bins, Preset())
    responses, firsts = response_ae(sources, response_grid(OBSERVATION, RESPONSE_BINS))
    reach = PRIOR.margin + RESPONSE_BINS // 2 + 1
    sigma = training_sigma(OBSERVATION, first_bin - reach, PRIOR.bins + 2 * reach, PRIOR)
    sources[:, 2] *= snr / response_snr(responses, firsts, sigma, first_bin - reach)
    return sources, snr


@pytest.mark.parametrize("first_bin", FIRST)
def test_equal_in_law_to_the_simulations_draws(first_bin: int) -> None:
    likelihood = band(first_bin)
    theirs, snr = _simulated(first_bin, 2000)
    np.testing.assert_allclose(likelihood.snr(theirs), snr, rtol=3e-5)
    ours = likelihood.draw_prior(np.random.default_rng(8), 2000)
    ours[:, 5] = np.mod(ours[:, 5], 0.5 * np.pi)  # theirs are folded
    for column in range(8):
        p = scipy.stats.ks_2samp(ours[:, column], theirs[:, column]).pvalue
        assert p > 1e-3, column
    values = [likelihood.log_prior(s[:, None]) for s in (ours, theirs)]
    assert np.isfinite(values[0]).all()
    inside = (snr > 5.0001) & (snr < 99.999)
    assert np.isfinite(values[1][inside]).all()
    assert scipy.stats.ks_2samp(values[0], values[1][inside]).pvalue > 1e-3


@pytest.mark.parametrize("first_bin", FIRST)
def test_density_integrates_to_one(first_bin: int) -> None:
    """By Monte Carlo over a box in which amplitudes reach beyond all ranges of SNR."""
    likelihood, rng, n = band(first_bin), np.random.default_rng(1), 12_000
    (low, high), widest = likelihood.prior.f0, 0.5 * max(1.0, (first_bin + 256) / YEAR / 3e-3) ** 4
    s = np.empty((n, 8))
    s[:, 0] = rng.uniform(low - 1e-7, high + 1e-7, n)
    s[:, 1] = rng.uniform(-widest, widest, n) / YEAR**2
    s[:, 2] = 10.0 ** rng.uniform(-23.5, -20.0, n)
    s[:, 3], s[:, 7] = rng.uniform(0, 2 * np.pi, (2, n))
    s[:, 4], s[:, 6] = np.arcsin(rng.uniform(-1, 1, n)), np.arccos(rng.uniform(-1, 1, n))
    s[:, 5] = rng.uniform(0, np.pi, n)
    density = np.cos(s[:, 4]) * np.sin(s[:, 6]) / (4.0 * 4.0 * np.pi**3)
    density /= (high - low + 2e-7) * 2.0 * widest / YEAR**2 * s[:, 2] * 3.5 * np.log(10.0)
    weights = np.exp(likelihood.log_prior(s[:, None])) / density
    assert weights.mean() == pytest.approx(1.0, abs=4.0 * weights.std() / n**0.5)
    assert weights.std() / n**0.5 < 0.03


def test_ends_of_the_snr_and_of_the_ranges() -> None:
    likelihood = band()
    rng = np.random.default_rng(2)
    s = likelihood.draw_prior(rng, 400)
    expected = log_prior(s, likelihood.first_bin, PRIOR, YEAR)
    np.testing.assert_allclose(likelihood.log_prior(s[:, None]), expected, rtol=1e-12)
    snr = likelihood.snr(s)
    for factor in (4.9999 / snr, 100.001 / snr):
        out = s.copy()
        out[:, 2] *= factor
        assert (likelihood.log_prior(out[:, None]) == -np.inf).all()
    for column, value in ((0, 2e-3), (1, 1e-15), (2, -1e-22), (4, 1.6), (6, -0.1), (6, 3.2)):
        out = s.copy()
        out[:, column] = value
        assert (likelihood.log_prior(out[:, None]) == -np.inf).all()
    place = likelihood.prior.log_density_intrinsic(s[:, [0, 1, 3, 4]])
    rest = np.log(np.sin(s[:, 6]) / (4.0 * np.pi**2 * s[:, 2] * np.log(20.0)))
    np.testing.assert_allclose(place + rest, expected, rtol=1e-12)


def test_unit_cube() -> None:
    """Each column moves one parameter; the third is the SNR."""
    likelihood = band()
    u = np.full((3, 8), 0.5)
    u[1], u[2] = 0.0, 1.0
    s = likelihood.from_unit(u)
    np.testing.assert_allclose(likelihood.snr(s), [np.sqrt(500.0), 5.0, 100.0], rtol=1e-12)
    np.testing.assert_allclose(s[1:, 0], likelihood.prior.f0)
    np.testing.assert_allclose(s[1:, 1] * YEAR**2, [-0.1, 0.3])
    np.testing.assert_allclose(s[:, 4], [0.0, -0.5 * np.pi, 0.5 * np.pi], atol=1e-12)
    np.testing.assert_allclose(s[:, 6], [0.5 * np.pi, 0.0, np.pi], atol=1e-12)


def test_density_of_the_snr_is_the_simulations() -> None:
    f = np.linspace(1e-3, 4.2e-3, 300)
    crowded = load_preset("crowded")
    for preset in (Preset(), crowded, Preset(observation=ObservationSettings(foreground=False))):
        seen = snr_density(f, preset.observation, preset.prior)
        np.testing.assert_allclose(seen, snr_psd(f, preset)[:2], rtol=1e-12)
    assert crowded.prior.confusion_share


@pytest.mark.parametrize(
    "keys", [{"snr_law": "uniform"}, {"sky": "galactic"}, {"snr_min": 20.0, "snr_max": 20.0}]
)
def test_priors_without_a_closed_form_are_refused(keys: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="no closed form"):
        SourcePrior(PriorSettings(**keys), 47_000, YEAR)  # type: ignore[arg-type]
