"""Scores: closed forms, direct sums and other packages are the oracles."""

import numpy as np
import pytest
import scoringrules
import torch
from evidence_depletion.metrics import peak_overlap_rate
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import special, stats

from slotflow import metrics
from slotflow.errors import NonFiniteError

TURN = 2.0 * np.pi


def direct(x: NDArray[np.float64], y: float, period: float | None) -> float:
    """The definition, over all pairs."""

    def distance(d: NDArray[np.float64]) -> NDArray[np.float64]:
        d = np.abs(d)
        if period is None:
            return d
        d = d % period
        return np.minimum(d, period - d)

    n = len(x)
    pairs = distance(x[:, None] - x[None, :]).sum()
    return float(distance(x - y).mean() - 0.5 * pairs / (n * (n - 1)))


@settings(deadline=None, max_examples=60)
@given(
    n=st.integers(2, 60),
    seed=st.integers(0, 2**31),
    period=st.sampled_from([None, 1.0, TURN]),
    spread=st.sampled_from([1e-3, 0.3, 10.0]),
    lattice=st.booleans(),
)
def test_crps_is_the_sum_over_all_pairs(
    n: int, seed: int, period: float | None, spread: float, lattice: bool
) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(0.1, spread, (2, 3, n)), rng.normal(0.0, spread, (2, 3))
    if lattice:  # equal draws, and pairs exactly half a period apart
        x, y = rng.integers(0, 4, x.shape) / 4.0, rng.integers(0, 4, y.shape) / 4.0
        period = None if period is None else 1.0
    got = metrics.fair_crps(x, y, period)
    expected = [[direct(x[i, j], y[i, j], period) for j in range(3)] for i in range(2)]
    np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-11 * max(1.0, spread))


def test_crps_equals_scoringrules() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(20, 100)), rng.normal(size=20)
    expected = scoringrules.crps_ensemble(y, x, estimator="fair")
    np.testing.assert_allclose(metrics.fair_crps(x, y), expected, rtol=1e-12, atol=1e-14)


def test_crps_of_a_normal_distribution_whatever_the_number_of_draws() -> None:
    """Unbiased: 3 draws or 200 average to the closed form (Gneiting & Raftery 2007)."""
    rng = np.random.default_rng(2)
    y = 0.7
    pdf = np.exp(-0.5 * y**2) / np.sqrt(2.0 * np.pi)
    exact = y * (2.0 * special.ndtr(y) - 1.0) + 2.0 * pdf - 1.0 / np.sqrt(np.pi)
    for n, repeats in ((3, 100_000), (200, 2_000)):
        scores = metrics.fair_crps(rng.normal(size=(repeats, n)), np.full(repeats, y))
        error = scores.std() / np.sqrt(repeats)
        assert abs(scores.mean() - exact) < 4.0 * error
        assert error < 0.004


@pytest.mark.parametrize(
    ("period", "exact"),
    [(None, metrics.UNIFORM_CRPS), (1.0, metrics.UNIFORM_CIRCULAR_CRPS)],
)
@pytest.mark.parametrize("n", [2, 50])
def test_crps_of_a_uniform_prior(period: float | None, exact: float, n: int) -> None:
    """1/6 on a line and 1/8 on a circle, averaged over truths of the same prior."""
    rng = np.random.default_rng(3)
    scores = metrics.fair_crps(rng.random((20_000, n)), rng.random(20_000), period)
    assert abs(scores.mean() - exact) < 4.0 * scores.std() / np.sqrt(20_000)


def test_circular_crps_does_not_see_where_the_circle_is_cut() -> None:
    rng = np.random.default_rng(4)
    x, y = rng.normal(0.0, 0.2, (5, 200)), rng.normal(0.0, 0.2, 5)
    turned = metrics.fair_crps(np.mod(x + 3.0, TURN), np.mod(y + 3.0, TURN), TURN)
    np.testing.assert_allclose(metrics.fair_crps(x, y, TURN), turned, rtol=1e-10)
    # far from the antipode the circle is a line
    np.testing.assert_allclose(turned, metrics.fair_crps(x, y), rtol=1e-10)


@settings(deadline=None, max_examples=30)
@given(
    turn=st.floats(-20.0, 20.0), width=st.sampled_from([0.01, 1.0, 9.0]), seed=st.integers(0, 99)
)
def test_circular_crps_is_invariant_under_rotation(turn: float, width: float, seed: int) -> None:
    """Also of posteriors that fill the circle, by any angle."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(0.0, width, (4, 31)), rng.normal(0.0, width, 4)
    here = metrics.fair_crps(x, y, TURN)
    np.testing.assert_allclose(metrics.fair_crps(x + turn, y + turn, TURN), here, atol=1e-12)
    np.testing.assert_allclose(metrics.fair_crps(-x, -y, TURN), here, atol=1e-12)


@pytest.mark.parametrize("period", [None, 1.0])
def test_ten_fifty_and_a_thousand_draws_agree(period: float | None) -> None:
    """Over the same truths, within the error of the difference; the plain score does not."""
    rng = np.random.default_rng(8)
    n = 4000
    y, centre = rng.normal(0.0, 0.15, n), rng.normal(0.0, 0.05, n)
    many = metrics.fair_crps(centre[:, None] + rng.normal(0.0, 0.1, (n, 1000)), y, period)
    for draws in (10, 50):
        x = centre[:, None] + rng.normal(0.0, 0.1, (n, draws))
        difference = metrics.fair_crps(x, y, period) - many
        error = difference.std() / np.sqrt(n)
        assert abs(difference.mean()) < 3.5 * error
        assert error < 0.01 * many.mean()
        if draws == 10:  # E|X - X'| / 2 / draws is what a plain mean over pairs adds
            assert 0.1 / np.sqrt(np.pi) / draws > 10.0 * error


def test_embedding_keeps_small_distances_and_closes_the_circle() -> None:
    rng = np.random.default_rng(9)
    a = rng.random((50, 2))
    b = a + 1e-4 * rng.normal(size=(50, 2))
    distance = np.linalg.norm(metrics.embed(a, (None, 0.5)) - metrics.embed(b, (None, 0.5)), axis=1)
    np.testing.assert_allclose(distance, np.linalg.norm(a - b, axis=1), rtol=1e-5)
    first, last, opposite = metrics.embed([[0.0], [0.5], [0.25]], (0.5,))
    np.testing.assert_allclose(first, last, atol=1e-15)
    assert np.linalg.norm(first - opposite) == pytest.approx(0.5 / np.pi)


def test_ranks_of_all_parameters_are_those_of_each() -> None:
    rng = np.random.default_rng(10)
    x, y = rng.random((20, 9, 2)), rng.random((20, 2))
    found = metrics.all_ranks(x, y, (None, 1.0))
    for j, period in enumerate((None, 1.0)):
        np.testing.assert_array_equal(found[:, j], metrics.ranks(x[..., j], y[:, j], period))
    with pytest.raises(ValueError, match="d periods"):
        metrics.all_ranks(x, y, (None,))
    with pytest.raises(ValueError, match="expected some"):
        metrics.all_ranks(x[:0], y[:0], (None, 1.0))


def test_crps_of_bad_input_is_refused_and_nan_is_kept() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        metrics.fair_crps(np.zeros((3, 1)), np.zeros(3))
    with pytest.raises(ValueError, match="truth: expected shape"):
        metrics.fair_crps(np.zeros((3, 4)), np.zeros(4))
    with pytest.raises(ValueError, match="period"):
        metrics.fair_crps(np.zeros((3, 4)), np.zeros(3), period=0.0)
    assert np.isnan(metrics.fair_crps([[0.0, np.nan], [0.0, 1.0]], [0.0, 0.0], 1.0)).tolist() == [
        True,
        False,
    ]


def test_compression_is_0_for_the_prior_and_1_for_the_truth() -> None:
    got = metrics.compression([metrics.UNIFORM_CRPS, 0.0], metrics.UNIFORM_CRPS)
    np.testing.assert_array_equal(got, [0.0, 1.0])


@pytest.mark.parametrize("period", [None, TURN])
@pytest.mark.parametrize("width", [0.3, 20.0])
def test_ranks_of_a_calibrated_posterior_are_uniform(period: float | None, width: float) -> None:
    """Also where the posterior fills the circle and its mean direction is noise."""
    rng = np.random.default_rng(5)
    n, repeats = 9, 20_000
    centre = rng.uniform(0.0, TURN, repeats)
    y = centre + rng.normal(0.0, width, repeats)
    x = centre[:, None] + rng.normal(0.0, width, (repeats, n))
    counts = np.bincount(metrics.ranks(x, y, period), minlength=n + 1)
    assert stats.chisquare(counts).pvalue > 1e-3
    for level in (0.5, 0.9):
        inside = metrics.covered(x, y, level, period)
        places = (np.arange(n + 1) + 0.5) / (n + 1)
        exact = np.mean(np.abs(places - 0.5) <= 0.5 * level)
        assert abs(exact - level) <= 1.0 / (n + 1) + 1e-12
        assert abs(inside.mean() - exact) <= 4.0 * np.sqrt(exact * (1.0 - exact) / repeats)
        assert metrics.coverage(x, y, level, period) == inside.mean()


def test_coverage_of_a_posterior_half_as_wide_is_short() -> None:
    rng = np.random.default_rng(6)
    got = metrics.coverage(0.5 * rng.normal(size=(4_000, 400)), rng.normal(size=4_000), 0.9)
    assert got == pytest.approx(2.0 * special.ndtr(0.5 * 1.645) - 1.0, abs=0.03)


def test_intervals_of_angles_reach_over_the_cut() -> None:
    draws = np.linspace(-0.2, 0.2, 101)[None] % TURN
    assert metrics.covered(draws, [0.01], 0.5, TURN).all()
    assert metrics.covered(draws, [TURN - 0.01], 0.5, TURN).all()
    assert not metrics.covered(draws, [0.3], 0.99, TURN).any()
    assert not metrics.covered(draws, [TURN - 0.3], 0.99, TURN).any()


def test_ranks_refuse_what_has_none() -> None:
    with pytest.raises(NonFiniteError, match="2 of the draws"):
        metrics.ranks([[0.0, np.nan]], [np.inf])
    with pytest.raises(ValueError, match="level"):
        metrics.covered(np.zeros((1, 2)), np.zeros(1), 1.0)
    assert np.isnan(metrics.coverage(np.zeros((0, 5)), np.zeros(0), 0.5))


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**31), slots=st.integers(1, 6), tokens=st.integers(1, 8))
def test_peak_overlap_equals_the_authors_package(seed: int, slots: int, tokens: int) -> None:
    rng = np.random.default_rng(seed)
    attention = rng.dirichlet(np.ones(tokens), (12, slots))
    counts = rng.integers(0, 8, 12)
    expected = peak_overlap_rate(torch.from_numpy(attention), torch.from_numpy(counts))
    assert metrics.peak_overlap(attention, counts) == pytest.approx(expected)


def test_chance_level_of_peak_overlap() -> None:
    """0.19 for 16 tokens, 0.10 for 32, and what random attention gives."""
    assert metrics.chance_peak_overlap(5, 16) == pytest.approx(0.19, abs=0.005)
    assert metrics.chance_peak_overlap(5, 32) == pytest.approx(0.10, abs=0.005)
    rng = np.random.default_rng(7)
    counts = rng.integers(1, 7, 20_000)
    chance = metrics.chance_peak_overlap(5, 16, counts)
    got = metrics.peak_overlap(rng.random((20_000, 5, 16)), counts)
    assert got == pytest.approx(chance, abs=0.015)
    assert metrics.chance_peak_overlap(5, 2, [3]) == 1.0
    assert metrics.chance_peak_overlap(5, [16, 32], [2, 2]) == pytest.approx((1 / 16 + 1 / 32) / 2)
    assert metrics.chance_peak_overlap(5, 16, [0, 1]) == 0.0
    assert metrics.peak_overlap(np.ones((2, 5, 3)), [0, 1]) == 0.0
