"""Counts and existence: hand-made tables, SciPy, and simulated bands."""

import json
from dataclasses import asdict

import numpy as np
import pytest
import scoringrules
from scipy import stats

from slotflow import cardinality
from slotflow.calibration import count_distribution


def test_confusion_by_hand() -> None:
    found = cardinality.confusion([0, 1, 1, 2, 2, 2], [0, 1, 3, 2, 1, 2])
    assert found.matrix == ((1, 0, 0, 0), (0, 1, 0, 1), (0, 1, 2, 0), (0, 0, 0, 0))
    assert (found.exact, found.within_one) == (4 / 6, 5 / 6)
    assert found.bias == pytest.approx(1 / 6)


def test_reliability_of_right_probabilities_is_standard_normal() -> None:
    rng = np.random.default_rng(1)
    z = []
    for _ in range(400):
        p = rng.beta(0.3, 0.5, 200)
        z.append(cardinality.reliability_test(p, rng.random(200) < p).z)
    assert stats.kstest(z, "norm").pvalue > 1e-3


def test_reliability_of_sure_probabilities_is_caught() -> None:
    rng = np.random.default_rng(2)
    logit = rng.normal(0.0, 2.0, 2000)
    happened = rng.random(2000) < 1.0 / (1.0 + np.exp(-logit))
    right = cardinality.reliability_test(1.0 / (1.0 + np.exp(-logit)), happened)
    sure = cardinality.reliability_test(1.0 / (1.0 + np.exp(-1.6 * logit)), happened)
    assert right.p_value > 0.01
    assert sure.p_value < 1e-6
    assert sure.z > 0.0  # a worse Brier score than promised
    assert sure.error > 2.0 * right.error
    assert sure.brier > right.brier
    json.dumps(asdict(sure), allow_nan=False)


def test_certainty_is_right_or_wrong() -> None:
    right = cardinality.reliability_test([1.0, 0.0], [True, False])
    assert (right.z, right.p_value, right.brier) == (None, 1.0, 0.0)
    wrong = cardinality.reliability_test([1.0, 0.0], [True, True])
    assert (wrong.z, wrong.p_value) == (None, 0.0)


def test_counts_of_independent_slots() -> None:
    rng = np.random.default_rng(3)
    p = rng.beta(0.5, 0.5, (1500, 4))
    true = (rng.random((1500, 4)) < p).sum(-1)
    q = count_distribution(p)
    right = cardinality.count_tests(q, true, rng)
    assert right.pit.p_value > 0.01
    assert right.reliability.p_value > 0.01
    assert right.log_score == pytest.approx(-np.log(q[np.arange(1500), true]).mean())
    # the CRPS of the ensemble that q weights
    ensemble = np.broadcast_to(np.arange(5.0), q.shape)
    crps = scoringrules.crps_ensemble(true.astype(float), ensemble, ens_w=q, estimator="nrg")
    assert right.rps == pytest.approx(crps.mean(), rel=1e-9)
    low = cardinality.count_tests(count_distribution(0.9 * p), true, rng)
    assert low.pit.p_value < 1e-3
    assert low.rps > right.rps
    json.dumps(asdict(low), allow_nan=False)


def test_test_of_counts_has_its_level() -> None:
    rng = np.random.default_rng(4)
    q = rng.dirichlet(np.ones(4), 200)
    z = []
    for _ in range(400):
        k = (rng.random((200, 1)) > np.cumsum(q, axis=-1)).sum(-1)
        z.append(cardinality.count_tests(q, np.minimum(k, 3), rng).reliability.z)
    assert stats.kstest(z, "norm").pvalue > 1e-3


def test_a_count_beyond_all_slots_is_scored() -> None:
    found = cardinality.count_tests([[0.5, 0.5]], [3], np.random.default_rng(0))
    assert found.log_score == pytest.approx(-np.log(np.finfo(float).tiny))
    assert found.rps == 0.5**2 + 1.0 + 1.0
    assert found.bands == 1


def test_area_is_that_of_mann_and_whitney_and_of_the_curve() -> None:
    rng = np.random.default_rng(5)
    labels = rng.random(400) < 0.3
    scores = np.round(rng.normal(size=400) + labels, 1)  # with ties
    found = cardinality.roc(scores, labels, points=10_000)
    u = stats.mannwhitneyu(scores[labels], scores[~labels]).statistic
    assert found.auc == pytest.approx(u / (labels.sum() * (~labels).sum()))
    assert np.trapezoid(found.hit_rate, found.false_alarm_rate) == pytest.approx(found.auc)
    threshold = 0.5
    assert np.mean(scores[labels] >= threshold) in found.hit_rate
    assert cardinality.roc([0.1, 0.9], [False, True]).auc == 1.0
    assert cardinality.roc([0.5, 0.5], [False, True]).auc == 0.5
    assert len(cardinality.roc(rng.normal(size=400), labels, points=50).hit_rate) == 50


def test_error_of_the_area() -> None:
    """Hanley and McNeil assume exponential scores: for those it is the spread over samples."""
    rng = np.random.default_rng(6)
    labels = np.arange(120) < 40
    found = [
        cardinality.roc(rng.exponential(np.where(labels, 2.0, 1.0)), labels) for _ in range(1000)
    ]
    spread = np.std([one.auc for one in found])
    assert np.mean([one.error for one in found]) == pytest.approx(spread, rel=0.1)
    assert np.mean([one.auc for one in found]) == pytest.approx(2.0 / 3.0, abs=0.01)


def test_what_makes_no_sense_is_refused() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="estimated: expected shape"):
        cardinality.confusion([1, 2], [1])
    with pytest.raises(ValueError, match="from 0 on"):
        cardinality.confusion([1, -2], [1, 1])
    with pytest.raises(ValueError, match="integers"):
        cardinality.confusion([0.5], [1])
    with pytest.raises(ValueError, match="expected some"):
        cardinality.reliability_test([], [])
    with pytest.raises(ValueError, match="distribution"):
        cardinality.count_tests([[0.5, 0.6]], [1], rng)
    with pytest.raises(ValueError, match="both kinds"):
        cardinality.roc([0.1, 0.2], [True, True])
    with pytest.raises(ValueError, match="no NaN"):
        cardinality.roc([0.1, np.nan], [True, False])
