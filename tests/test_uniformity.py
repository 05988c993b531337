"""Exact tests of uniformity: all outcomes of small cases, and simulated large ones."""

import itertools
import json
from dataclasses import asdict

import numpy as np
import pytest
from scipy import stats

from slotflow.uniformity import discrete_test, histogram_test, holm, uniform_test


@pytest.mark.parametrize("shares", [[0.25, 0.25, 0.25, 0.25], [0.5, 0.1, 0.4]])
def test_p_values_of_all_outcomes(shares: list[float]) -> None:
    """P(p <= x) = x at every x that occurs, summed over all sequences of four values."""
    outcomes = list(itertools.product(range(len(shares)), repeat=4))
    chance = np.array([np.prod([shares[i] for i in outcome]) for outcome in outcomes])
    p = np.array([discrete_test(np.array(o), np.cumsum(shares)).p_value for o in outcomes])
    assert len(np.unique(p.round(9))) > 4
    for x in p:
        assert chance[p <= x + 1e-9].sum() == pytest.approx(x, abs=1e-9)


def test_band_of_a_histogram_over_all_outcomes() -> None:
    """Counts leave the band as seldom as stated, and a narrower band more often."""
    shares = np.array([0.2, 0.3, 0.5])
    counts = [c for c in itertools.product(range(13), repeat=3) if sum(c) == 12]
    chance = np.array([stats.multinomial.pmf(c, 12, shares) for c in counts])
    test = histogram_test([3, 3, 6], shares, level=0.8)
    inside = np.array([np.all((c >= np.array(test.lower)) & (c <= test.upper)) for c in counts])
    assert chance[inside].sum() >= 0.8 - 1e-9
    tighter = np.array(
        [np.all((c > np.array(test.lower)) & (c < np.array(test.upper))) for c in counts]
    )
    assert chance[tighter].sum() < 0.8
    assert test.p_value == stats.chisquare([3, 3, 6], 12 * shares).pvalue


def test_p_values_of_uniform_ranks_are_uniform_and_the_band_is_theirs() -> None:
    rng = np.random.default_rng(1)
    tests = [discrete_test(rng.integers(0, 100, 300), np.arange(1, 101) / 100) for _ in range(600)]
    assert stats.kstest([t.p_value for t in tests], "uniform").pvalue > 1e-3
    lower, upper = np.array(tests[0].lower), np.array(tests[0].upper)
    left = [np.any((t.observed < lower - 1e-9) | (t.observed > upper + 1e-9)) for t in tests]
    assert left == [t.p_value < 0.05 for t in tests]


def test_p_values_of_uniform_numbers_are_uniform() -> None:
    rng = np.random.default_rng(2)
    tests = [uniform_test(rng.random(50), points=20) for _ in range(600)]
    assert stats.kstest([t.p_value for t in tests], "uniform").pvalue > 1e-3
    assert uniform_test(rng.random(400) ** 1.3).p_value < 1e-3
    # too even is not uniform either
    assert uniform_test((np.arange(400) + 0.5) / 400).p_value > 0.9


def test_large_numbers() -> None:
    rng = np.random.default_rng(3)
    test = discrete_test(rng.integers(0, 1000, 50_000), np.arange(1, 1001) / 1000)
    assert test.p_value > 1e-3
    assert len(test.nominal) == 100
    # a Kolmogorov band has the same half width everywhere; in the middle this one's is near it
    middle = np.argmin(np.abs(np.array(test.nominal) - 0.5))
    half = 0.5 * (test.upper[middle] - test.lower[middle]) * np.sqrt(50_000)
    assert 1.36 < half < 1.65
    assert discrete_test(np.zeros(1000, np.int64), np.arange(1, 101) / 100).p_value == 0.0


def test_records_are_json() -> None:
    text = json.dumps(asdict(uniform_test([0.1, 0.5])), allow_nan=False)
    assert set(json.loads(text)) >= {"nominal", "observed", "lower", "upper", "p_value"}
    json.dumps(asdict(histogram_test([1, 2], [0.5, 0.5])), allow_nan=False)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx((0.03, 0.06, 0.06))
    assert holm([0.9, 0.8]) == (1.0, 1.0)
    assert holm([]) == ()


@pytest.mark.parametrize(
    "values", [np.zeros(0, np.int64), np.array([4]), np.array([-1]), np.array([0.5])]
)
def test_values_that_cannot_be_are_refused(values: np.ndarray) -> None:
    with pytest.raises(ValueError, match="values: expected"):
        discrete_test(values, np.arange(1, 5) / 4)
    with pytest.raises(ValueError, match="two outcomes"):
        discrete_test(np.zeros(3, np.int64), [1.0, 1.0])
    for bad in ([], [1.2], [np.nan]):
        with pytest.raises(ValueError, match="from 0 to 1"):
            uniform_test(bad)
