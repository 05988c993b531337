"""The discriminator: its level, what it must see, and the optimum it stops at."""

import json
from dataclasses import asdict

import numpy as np
import pytest
import scipy.optimize
from numpy.typing import NDArray
from scipy import special, stats

from slotflow import c2st as module
from slotflow.c2st import c2st
from slotflow.errors import NonFiniteError

Float = NDArray[np.float64]


def pair(n: int, m: int, d: int, seed: int) -> tuple[Float, Float, np.random.Generator]:
    """Draws and truths of unit normal posteriors, centres anywhere."""
    rng = np.random.default_rng(seed)
    both = 5.0 * rng.normal(size=(n, 1, d)) + rng.normal(size=(n, m + 1, d))
    return both[:, 1:], both[:, 0], rng


def test_p_values_of_the_exact_posterior_are_uniform() -> None:
    """Though the discriminator has more weights than it has truths to learn from."""
    p = []
    for seed in range(150):
        x, y, rng = pair(60, 15, 2, seed)
        p.append(c2st(x, y, (None, None), rng, conditions=x[:, 0]).p_value)
    assert stats.kstest(p, "uniform").pvalue > 1e-3


def test_a_shift_is_told_as_well_as_it_can_be() -> None:
    """The best AUC for a shift of s is Phi(s / sqrt 2)."""
    x, y, rng = pair(4000, 60, 1, 1)
    found = c2st(x + 0.6, y, (None,), rng)
    best = special.ndtr(0.6 / np.sqrt(2.0))
    assert best - 0.03 < found.auc < best + 3.0 * 0.29 / np.sqrt(2000)
    assert found.p_value < 1e-12
    assert found.null_lower < 0.5 < found.null_upper < found.accuracy
    assert (found.number, found.draws) == (2000, 40)
    json.dumps(asdict(found), allow_nan=False)


def test_accuracy_of_the_exact_posterior_is_within_its_null() -> None:
    x, y, rng = pair(1000, 40, 2, 3)
    found = c2st(x, y, (None, None), rng)
    assert abs(found.accuracy - 0.5) < 0.04
    assert found.null_upper - found.null_lower == pytest.approx(3.29 * 0.25 / np.sqrt(500), rel=0.4)


def test_faults_that_cancel_are_seen_with_the_condition_only() -> None:
    x, y, rng = pair(1500, 45, 2, 4)
    kind = np.arange(1500) % 2
    centre = x.mean(axis=1, keepdims=True)
    x = centre + np.where(kind, 0.7, 1.4)[:, None, None] * (x - centre)
    told = c2st(x, y, (None, None), rng, conditions=kind[:, None], groups=kind)
    assert told.p_value < 1e-4
    assert [group.group for group in told.groups] == [0, 1]
    assert sum(group.number for group in told.groups) == told.number
    assert all(group.p_value < 0.05 for group in told.groups)


def test_a_shape_of_the_same_mean_and_covariance_is_seen() -> None:
    x, y, rng = pair(1500, 45, 2, 5)
    centre = x.mean(axis=1, keepdims=True)
    peaks = 0.9 * np.sign(rng.normal(size=x.shape)) + np.sqrt(0.19) * rng.normal(size=x.shape)
    assert c2st(centre + peaks, y, (None, None), rng).p_value < 1e-3


def test_the_prior_in_place_of_the_posterior_is_seen_with_the_condition_only() -> None:
    rng = np.random.default_rng(6)
    y = rng.normal(size=(600, 1))
    seen = y + 0.5 * rng.normal(size=(600, 1))
    x = rng.normal(size=(600, 30, 1))
    assert c2st(x, y, (None,), np.random.default_rng(7)).p_value > 1e-3
    assert c2st(x, y, (None,), np.random.default_rng(7), conditions=seen).p_value < 1e-12


def test_the_same_generator_gives_the_same_and_circles_have_no_cut() -> None:
    rng = np.random.default_rng(8)
    both = np.mod(rng.random((60, 1, 1)) + 0.1 * rng.normal(size=(60, 21, 1)), 1.0)
    x, y = both[:, 1:], both[:, 0]
    first = c2st(x, y, (1.0,), np.random.default_rng(9))
    assert c2st(x, y, (1.0,), np.random.default_rng(9)) == first
    turned = c2st(np.mod(x + 0.4, 1.0), np.mod(y + 0.4, 1.0), (1.0,), np.random.default_rng(9))
    assert turned.auc == pytest.approx(first.auc, abs=1e-3)


def test_training_ends_at_the_optimum() -> None:
    rng = np.random.default_rng(10)
    features = np.concatenate((rng.normal(size=(80, 4)), np.ones((80, 1))), axis=1)
    sign = np.where(features[:, 0] + rng.normal(size=80) > 0.3, 1.0, -1.0)
    share = rng.dirichlet(np.ones(80))

    def loss(w: Float) -> float:
        fit = np.log1p(np.exp(-sign * (features @ w)))
        return float(share @ fit + 0.5 * module.PENALTY * (w[:-1] ** 2).sum())

    found = module._logistic(features, sign, share)
    other = scipy.optimize.minimize(loss, np.zeros(5), options={"gtol": 1e-9})
    np.testing.assert_allclose(found, other.x, atol=1e-5)


def test_what_cannot_be_tested_is_refused() -> None:
    x, y, rng = pair(30, 20, 2, 11)
    with pytest.raises(ValueError, match="20 sources and 14 draws"):
        c2st(x[:, :13], y, (None, None), rng)
    with pytest.raises(ValueError, match="20 sources"):
        c2st(x[:19], y[:19], (None, None), rng)
    with pytest.raises(ValueError, match="conditions"):
        c2st(x, y, (None, None), rng, conditions=np.zeros(30))
    with pytest.raises(NonFiniteError, match="conditions"):
        c2st(x, y, (None, None), rng, conditions=np.full((30, 1), np.nan))
    with pytest.raises(ValueError, match="groups"):
        c2st(x, y, (None, None), rng, groups=np.zeros(3))
