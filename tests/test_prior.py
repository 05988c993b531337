"""slotflow.prior: the training prior's density."""

import numpy as np
import pytest

from slotflow.config import PriorSettings
from slotflow.parameters import AMPLITUDE, DEC, F0, FDOT, IOTA
from slotflow.prior import log_prior, ranges
from slotflow.simulate.sample import window_of_interest

T = 524_288 * 60.0
PRIOR = PriorSettings()


@pytest.mark.parametrize("first_bin", [40_000, 60_000, 150_000])
def test_density_integrates_to_one(first_bin: int) -> None:
    """By Monte Carlo over a box wider than the prior's ranges, ln A uniform over ln(20)."""
    rng, n = np.random.default_rng(1), 200_000
    low, high = first_bin / T, (first_bin + PRIOR.bins) / T
    widest = 0.5 * max(1.0, high / 3e-3) ** (11 / 3) / T**2
    s = np.empty((n, 8))
    s[:, F0] = rng.uniform(low, high, n)
    s[:, FDOT] = rng.uniform(-widest, widest, n)
    s[:, AMPLITUDE] = 1e-22 * 20.0 ** rng.random(n)  # SNR 5 to 100 is a factor of 20
    s[:, 3], s[:, 7] = rng.uniform(0, 2 * np.pi, (2, n))
    s[:, DEC] = rng.uniform(-np.pi / 2, np.pi / 2, n)
    s[:, 5], s[:, IOTA] = rng.uniform(0, np.pi, (2, n))
    box = (high - low) * 2 * widest * s[:, AMPLITUDE] * np.log(20.0) * (2 * np.pi) ** 2 * np.pi**3
    weights = np.exp(log_prior(s, first_bin, PRIOR, T)) * box
    assert weights.mean() == pytest.approx(1.0, abs=5 * weights.std() / n**0.5)
    assert weights.std() / n**0.5 < 0.01


@pytest.mark.parametrize("first_bin", [40_000, 60_000])
def test_ranges_are_the_simulations(first_bin: int) -> None:
    low, high = window_of_interest(first_bin, PRIOR, T)
    f0, fdot = ranges(first_bin, PRIOR, T)
    assert f0 == (low / T, high / T)
    assert fdot == pytest.approx((-0.1 / T**2, 0.3 / T**2))


def test_outside_the_ranges_there_is_none() -> None:
    first_bin = 40_000
    low, high = ranges(first_bin, PRIOR, T).f0
    inside = np.array([0.5 * (low + high), 0.1 / T**2, 1e-22, 1.0, 0.2, 0.5, 1.0, 2.0])
    rows = np.tile(inside, (5, 1))
    rows[1, F0], rows[2, F0] = low - 1e-9, high + 1e-9
    rows[3, FDOT], rows[4, FDOT] = -0.11 / T**2, 0.31 / T**2
    value = log_prior(rows, first_bin, PRIOR, T)
    assert np.isfinite(value[0])
    assert (value[1:] == -np.inf).all()


@pytest.mark.parametrize(
    "prior",
    [
        None,
        PriorSettings(snr_law="uniform"),
        PriorSettings(sky="galactic"),
        PriorSettings(snr_min=20.0, snr_max=20.0),
        PriorSettings(fdot_t2_min=0.0, fdot_t2_max=0.0),
    ],
)
def test_unknown_densities_are_nan(prior: PriorSettings | None) -> None:
    assert np.isnan(log_prior(np.ones((3, 8)), 40_000, prior, T)).all()
