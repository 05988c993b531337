"""slotflow.calibration: recalibrated probabilities, reliability, and the number of sources."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotflow.calibration import (
    Calibration,
    count_distribution,
    fit_calibration,
    fit_share,
    reliability,
    reliability_error,
)


@pytest.mark.parametrize(("slope", "offset"), [(0.5, 1.0), (2.0, -0.7), (1.0, 0.0)])
def test_a_known_distortion_is_undone(slope: float, offset: float) -> None:
    """Labels follow expit(z); logits x with z = slope x + offset must give slope and offset."""
    rng = np.random.default_rng(1)
    z = rng.normal(0.0, 2.0, 200_000)
    labels = rng.random(z.size) < 1.0 / (1.0 + np.exp(-z))
    found = fit_calibration((z - offset) / slope, labels)
    assert found.slope == pytest.approx(slope, rel=0.02)
    assert found.offset == pytest.approx(offset, abs=0.02)
    before = reliability(1.0 / (1.0 + np.exp(-(z - offset) / slope)), labels)
    after = reliability(found((z - offset) / slope), labels)
    assert reliability_error(after) < 0.005
    if slope != 1.0:
        assert reliability_error(before) > 0.05


def test_labels_that_the_logits_separate_have_a_fit() -> None:
    """The likelihood grows without end; Platt's targets keep the probabilities below 1."""
    x = np.array([-2.0, -1.0, 1.0, 2.0])
    p = fit_calibration(x, x > 0)(x)
    np.testing.assert_allclose(p[-1], 3.0 / 4.0, atol=0.15)
    assert (np.diff(p) > 0).all()


@given(st.floats(1e-3, 20), st.floats(-20, 20), st.lists(st.floats(-30, 30), min_size=2))
def test_the_order_is_kept(slope: float, offset: float, logits: list[float]) -> None:
    p = Calibration(slope, offset)(sorted(logits))
    assert (np.diff(p) >= 0).all()
    assert ((p >= 0) & (p <= 1)).all()


def test_the_identity_and_json() -> None:
    x = np.linspace(-5, 5, 11)
    np.testing.assert_allclose(Calibration()(x), 1 / (1 + np.exp(-x)), rtol=1e-12)
    one = Calibration(0.7, -0.2)
    assert Calibration.from_json(one.to_json()) == one
    for content in (
        {"slope": 0.0, "offset": 0.0},
        {"slope": 1.0, "offset": float("nan")},
        {"slope": 1.0, "offset": 0.0, "more": 1.0},
        {"slope": "x", "offset": 0.0},
    ):
        with pytest.raises(ValueError, match=r"slope|could not convert"):
            Calibration.from_json(content)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="both kinds"):
        fit_calibration([1.0, 2.0], [True, True])
    with pytest.raises(ValueError, match="finite"):
        fit_calibration([1.0, np.inf], [True, False])
    with pytest.raises(ValueError, match="logits and labels"):
        fit_calibration([1.0], [True, False])
    with pytest.raises(ValueError, match="from 0 to 1"):
        reliability([1.5], [True])


def test_reliability_counts() -> None:
    rows = reliability([0.0, 0.05, 0.55, 1.0, 1.0], [False, True, True, True, False], bins=10)
    assert [row.number for row in rows] == [2, 1, 2]
    assert [row.observed for row in rows] == [0.5, 1.0, 0.5]
    assert rows[-1][:2] == (0.9, 1.0)
    # (2 |0.025 - 0.5| + |0.55 - 1| + 2 |1 - 0.5|) / 5
    assert reliability_error(rows) == pytest.approx((0.95 + 0.45 + 1.0) / 5)
    assert reliability_error(()) == 0.0


@given(st.lists(st.floats(0, 1), min_size=0, max_size=6))
def test_the_number_of_sources_against_all_outcomes(p: list[float]) -> None:
    expected = np.zeros(len(p) + 1)
    for outcome in itertools.product((0, 1), repeat=len(p)):
        chance = [q if yes else 1.0 - q for q, yes in zip(p, outcome, strict=True)]
        expected[sum(outcome)] += np.prod(chance)
    q = count_distribution(p)
    np.testing.assert_allclose(q, expected, atol=1e-14)
    assert q.sum() == pytest.approx(1.0)
    assert q @ np.arange(len(p) + 1) == pytest.approx(sum(p), abs=1e-12)


def test_the_number_of_sources_of_many_bands() -> None:
    p = np.random.default_rng(0).random((7, 5))
    np.testing.assert_allclose(count_distribution(p)[3], count_distribution(p[3]))


@pytest.mark.parametrize(
    ("noise_of_slot", "noise_of_component", "expected"),
    [(0.0, 30.0, 0.0), (30.0, 0.0, 1.0), (1.5, 1.5, 0.5), (1.0, 2.0, 0.2)],
)
def test_the_share_weighs_by_what_each_logit_knows(
    noise_of_slot: float, noise_of_component: float, expected: float
) -> None:
    """Two unbiased readings of one logit are best weighed by the inverse of their variances."""
    rng = np.random.default_rng(1)
    truth = rng.normal(0.0, 30.0, 40_000)  # far wider than the noise: its prior hardly pulls
    labels = rng.uniform(size=len(truth)) < 1 / (1 + np.exp(-truth))
    slot = truth + noise_of_slot * rng.normal(size=len(truth))
    component = truth + noise_of_component * rng.normal(size=len(truth))
    assert fit_share(slot, component, labels) == pytest.approx(expected, abs=0.15)


def test_a_share_that_gains_nothing_is_none() -> None:
    rng = np.random.default_rng(2)
    logits = rng.normal(0.0, 3.0, 5000)
    labels = rng.uniform(size=5000) < 1 / (1 + np.exp(-logits))
    assert fit_share(logits, logits, labels) == 0.0
