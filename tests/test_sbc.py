"""Ranks, PIT and coverage: normal posteriors whose curves have closed forms."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special, stats

from slotflow import metrics, sbc
from slotflow.errors import NonFiniteError
from slotflow.scores import one_per_cluster

Float = NDArray[np.float64]


def normal(
    n: int, m: int, seed: int, width: float = 1.0, shift: float = 0.0
) -> tuple[Float, Float]:
    """Draws (n, m, 2) and truths: a line, and an angle of period 1 anywhere on its circle."""
    rng = np.random.default_rng(seed)
    centre = rng.random((n, 2))
    truths = centre + 0.1 * rng.normal(size=(n, 2))
    draws = centre[:, None] + 0.1 * (width * rng.normal(size=(n, m, 2)) + shift)
    draws[..., 1], truths[:, 1] = np.mod(draws[..., 1], 1.0), np.mod(truths[:, 1], 1.0)
    return draws, truths


def test_the_exact_posterior_passes_all() -> None:
    for test in sbc.parameter_tests(*normal(2000, 63, 1), (None, 1.0), ("x", "angle")):
        for part in (test.histogram, test.pit, test.coverage):
            assert part.p_value > 0.01
            assert part.number == 2000
        json.dumps(asdict(test), allow_nan=False)
        for curve in (test.pit, test.coverage):
            assert np.all(np.array(curve.observed) >= curve.lower)
            assert np.all(np.array(curve.observed) <= curve.upper)


@pytest.mark.parametrize(("width", "shift"), [(0.7, 0.0), (1.0, 0.5)])
def test_curves_of_a_wrong_posterior(width: float, shift: float) -> None:
    """P(truth below the posterior's quantile u) = Phi(width Phi^-1(u) + shift)."""
    n = 4000
    tests = sbc.parameter_tests(*normal(n, 199, 2, width, shift), (None, 1.0), ("x", "angle"))
    for test in tests:
        u = np.array(test.pit.nominal)
        exact = special.ndtr(width * special.ndtri(u) + shift)
        # ranks among 199 draws, not quantiles: their grain is left
        assert np.abs(np.array(test.pit.observed) - exact).max() < 0.005 + 2.0 / np.sqrt(n)
        z = special.ndtri(0.5 + 0.5 * np.array(test.coverage.nominal))
        exact = special.ndtr(width * z + shift) - special.ndtr(-width * z + shift)
        assert np.abs(np.array(test.coverage.observed) - exact).max() < 0.005 + 2.0 / np.sqrt(n)
        assert test.pit.p_value < 1e-6
        assert test.histogram.p_value < 1e-6


@pytest.mark.parametrize("draws", [2, 3, 7, 10])
def test_every_rank_once_is_even(draws: int) -> None:
    """Each possible rank as often as the others: observed is nominal, and chi2 nothing."""
    ranks = np.tile(np.arange(draws + 1), 5)
    for test in (sbc.rank_test(ranks, draws), sbc.central_coverage(ranks, draws)):
        np.testing.assert_allclose(test.observed, test.nominal, atol=1e-12)
    histogram = sbc.rank_histogram(ranks, draws)
    assert histogram.chi2 == pytest.approx(0.0, abs=1e-9)
    assert sum(histogram.counts) == len(ranks)


def test_histogram_is_scipys_chi2_also_where_bins_are_uneven() -> None:
    rng = np.random.default_rng(3)
    ranks = rng.integers(0, 11, 400)
    bins = np.arange(11) * 4 // 11
    counts = [int(np.isin(ranks, np.flatnonzero(bins == b)).sum()) for b in range(4)]
    share = np.bincount(bins) / 11
    found = sbc.rank_histogram(ranks, 10, bins=4)
    assert found.counts == tuple(counts)
    assert found.p_value == pytest.approx(stats.chisquare(counts, 400 * share).pvalue)
    assert len(sbc.rank_histogram(ranks[:50], 99).counts) == 5


def test_coverage_is_that_of_the_intervals() -> None:
    draws, truths = normal(300, 39, 4)
    for j, period in enumerate((None, 1.0)):
        test = sbc.central_coverage(metrics.ranks(draws[..., j], truths[:, j], period), 39)
        for level, observed in zip(test.nominal, test.observed, strict=True):
            inside = metrics.coverage(draws[..., j], truths[:, j], level + 1e-9, period)
            assert inside == pytest.approx(observed)


def test_density_coverage_of_a_narrow_posterior() -> None:
    """Three dimensions, 0.8 as wide: chi2_3's quantiles times 0.64, whatever the centre."""
    rng = np.random.default_rng(5)
    n = 3000
    truth = -0.5 * (rng.normal(size=(n, 3)) ** 2).sum(-1) / 0.8**2
    draws = -0.5 * (rng.normal(size=(n, 99, 3)) ** 2).sum(-1)
    test = sbc.density_coverage(draws, truth)
    exact = stats.chi2.cdf(0.64 * stats.chi2.ppf(test.nominal, 3), 3)
    assert np.abs(np.array(test.observed) - exact).max() < 0.01 + 2.0 / np.sqrt(n)
    assert test.p_value < 1e-9
    assert sbc.density_coverage(draws[:, 1:], draws[:, 0]).p_value > 0.01
    # truths outside the flow's support are in no region but the whole
    outside = sbc.density_coverage(draws[:50], np.full(50, -np.inf))
    assert max(outside.observed) == 0.0


def test_truths_that_share_a_band_are_not_independent() -> None:
    """Each calibrated, six a band, correlation 0.8: false alarms, unless one a band is taken."""
    rng = np.random.default_rng(6)
    bands = np.repeat(np.arange(100), 6)
    every, one = [], []
    for _ in range(150):
        shared = rng.normal(size=(100, 1)), rng.normal(size=(100, 6))
        place = special.ndtr(np.sqrt(0.8) * shared[0] + np.sqrt(0.2) * shared[1]).ravel()
        ranks = (place * 50).astype(np.int64)
        every.append(sbc.rank_test(ranks, 49).p_value)
        one.append(sbc.rank_test(ranks[one_per_cluster(bands, rng)], 49).p_value)
    assert stats.kstest(one, "uniform").pvalue > 1e-3
    assert np.mean(np.array(every) < 0.05) > 0.3


def test_what_has_no_rank_is_refused() -> None:
    with pytest.raises(NonFiniteError, match="ln q"):
        sbc.density_coverage([[0.0, np.nan]], [0.0])
    with pytest.raises(ValueError, match="ln q of draws"):
        sbc.density_coverage(np.zeros((2, 3)), np.zeros(3))
    with pytest.raises(ValueError, match="from 0 to 3"):
        sbc.rank_test([4], 3)
    with pytest.raises(ValueError, match="at least 2"):
        sbc.central_coverage([0, 1], 1)
    with pytest.raises(ValueError, match="integers"):
        sbc.rank_histogram([0.5], 3)
