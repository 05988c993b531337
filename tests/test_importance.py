"""Importance weights against distributions whose tails and integrals are known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotflow.importance import (
    complaints,
    fit_pareto,
    pareto_smoothed,
    systematic,
    weigh,
)


@pytest.mark.parametrize("k", [-0.3, 0.2, 0.7, 1.2])
def test_the_shape_of_exact_pareto_draws(k: float) -> None:
    # by inversion: x = s ((1 - u)^-k - 1) / k
    rng = np.random.default_rng(3)
    found = []
    for _ in range(40):
        x = 2.0 * ((1.0 - rng.random(400)) ** -k - 1.0) / k
        found.append(fit_pareto(x))
    shapes, scales = np.array(found).T
    # its standard error is about (1 + k) / sqrt(n)
    assert abs(shapes.mean() - k) < 3.0 * (1.0 + abs(k)) / np.sqrt(400 * 40) + 0.02
    assert scales.mean() == pytest.approx(2.0, rel=0.06)


@pytest.mark.parametrize("rate", [1.2, 1.6, 2.5, 4.0])
def test_the_tail_of_exponential_weights(rate: float) -> None:
    # target exp(-x), proposal rate exp(-rate x): P(w > t) ~ t^(-rate / (rate - 1))
    rng = np.random.default_rng(5)
    x = rng.exponential(1.0 / rate, (20, 20_000))
    ks = [weigh((rate - 1.0) * row - np.log(rate)).k for row in x]
    # a finite sample's tail has not reached its limit, and k is drawn towards 1/2
    assert np.mean(ks) == pytest.approx((rate - 1.0) / rate, abs=0.06)


def test_evidence_and_ess_of_normal_weights() -> None:
    # target exp(-x^2 / 2) (Z = sqrt(2 pi)), proposal N(0.5, 1.3^2)
    mean, sigma, n = 0.5, 1.3, 4000
    # E[w^2] / E[w]^2 in closed form: integral of p^2 / q
    a = 2.0 - 1.0 / sigma**2
    share = (
        np.sqrt(2.0 * np.pi) * sigma / (2.0 * np.pi) * np.sqrt(2.0 * np.pi / a)
        * np.exp(0.5 * mean**2 / sigma**2 + 0.5 * (mean / sigma**2) ** 2 / a)
    )  # fmt: skip
    z_scores, efficiencies = [], []
    for seed in range(60):
        x = np.random.default_rng(seed).normal(mean, sigma, n)
        ln_q = -0.5 * ((x - mean) / sigma) ** 2 - np.log(sigma * np.sqrt(2.0 * np.pi))
        found = weigh(-0.5 * x**2 - ln_q)
        z_scores.append((found.ln_z - 0.5 * np.log(2.0 * np.pi)) / found.ln_z_error)
        efficiencies.append(found.efficiency)
        assert found.k < 0.5
        assert not complaints(found)
    assert abs(np.mean(z_scores)) < 3.0 / np.sqrt(60)
    assert 0.75 < np.std(z_scores) < 1.3
    assert np.mean(efficiencies) == pytest.approx(1.0 / share, rel=0.01)


def test_a_proposal_that_is_too_narrow_is_told() -> None:
    x = np.random.default_rng(1).normal(0.0, 0.4, (4000, 3))
    found = weigh((-0.5 * x**2 + 0.5 * (x / 0.4) ** 2).sum(axis=1))
    assert found.k > 0.7
    assert any("Pareto k" in text for text in complaints(found))


def test_few_weights_that_count_are_told() -> None:
    x = np.random.default_rng(2).normal(0.0, 1.0, 500)
    found = weigh(-0.5 * ((x - 2.5) / 0.3) ** 2 + 0.5 * x**2)
    assert found.ess < 30
    assert any("effective sample size" in text for text in complaints(found))
    assert 0.05 < found.largest < 1.0


def test_smoothing_keeps_the_order_and_lowers_the_largest() -> None:
    ln_w = np.random.default_rng(4).standard_t(3, 2000) * 2.0
    smoothed, k = pareto_smoothed(ln_w)
    order = np.argsort(ln_w)
    assert (np.diff(smoothed[order]) >= 0.0).all()
    assert np.exp(smoothed).max() <= 1.0
    assert k > 0.7


def test_draws_outside_the_target_weigh_nothing() -> None:
    ln_w = np.zeros(1000)
    ln_w[::2] = -np.inf
    found = weigh(ln_w)
    assert found.ess == pytest.approx(500.0)
    assert found.ln_z == pytest.approx(np.log(0.5))
    assert found.weights[::2].max() == 0.0
    nothing = weigh(np.full(10, -np.inf))
    assert nothing.ess == 0.0
    assert np.isneginf(nothing.ln_z)
    assert complaints(nothing)


@pytest.mark.parametrize("bad", [np.array([]), np.array([0.0, np.nan]), np.array([np.inf])])
def test_weights_that_are_no_numbers(bad: np.ndarray) -> None:
    with pytest.raises(ValueError, match="ln weights"):
        weigh(bad)


@given(st.integers(0, 2**31), st.integers(1, 50), st.integers(1, 200))
def test_systematic_counts_are_within_one(seed: int, n: int, number: int) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.full(n, 0.3))
    counts = np.bincount(systematic(weights, number, rng), minlength=n)
    assert counts.sum() == number
    assert (np.abs(counts - number * weights) < 1.0 + 1e-9).all()
