"""Scores with intervals: scoringrules, closed forms and resampling by hand are the oracles."""

import json
from dataclasses import asdict

import numpy as np
import pytest
import scoringrules
from scipy import special

from slotflow import scores
from slotflow.errors import NonFiniteError
from slotflow.metrics import UNIFORM_CIRCULAR_CRPS, UNIFORM_CRPS, fair_crps

LINE = (None, None, None)


def test_energy_score_equals_scoringrules() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(6, 40, 3)), rng.normal(size=(6, 3))
    expected = scoringrules.es_ensemble(y, x, estimator="fair")
    np.testing.assert_allclose(scores.energy_score(x, y, LINE), expected, rtol=1e-12)
    one = scores.energy_score(x[..., :1], y[:, :1], (None,))
    np.testing.assert_allclose(one, fair_crps(x[..., 0], y[:, 0]), rtol=1e-10)


def test_energy_score_of_a_normal_distribution_whatever_the_number_of_draws() -> None:
    """E|X - y| - E|X - X'| / 2 at the centre: (1 - 1 / sqrt 2) times the mean of a chi_3."""
    rng = np.random.default_rng(2)
    mean = np.sqrt(2.0) * special.gamma(2.0) / special.gamma(1.5)
    exact = mean - 0.5 * np.sqrt(2.0) * mean
    for n, repeats in ((3, 20_000), (60, 1_000)):
        found = scores.energy_score(rng.normal(size=(repeats, n, 3)), np.zeros((repeats, 3)), LINE)
        assert abs(found.mean() - exact) < 4.0 * found.std() / np.sqrt(repeats)
        assert found.std() / np.sqrt(repeats) < 0.01


def test_energy_score_of_angles_knows_no_cut() -> None:
    rng = np.random.default_rng(3)
    x, y = rng.normal(0.0, 0.2, (5, 50, 2)), rng.normal(0.0, 0.2, (5, 2))
    here = scores.energy_score(x, y, (1.0, None))
    x[..., 0], y[..., 0] = np.mod(x[..., 0] + 0.9, 1.0), np.mod(y[..., 0] + 0.9, 1.0)
    turned = scores.energy_score(x, y, (1.0, None))
    np.testing.assert_allclose(turned, here, rtol=1e-10)
    # a small arc is its chord
    narrow = 1e-3 * rng.normal(size=(4, 30, 1))
    line = scores.energy_score(narrow, np.zeros((4, 1)), (None,))
    circle = scores.energy_score(np.mod(narrow, 1.0), np.zeros((4, 1)), (1.0,))
    np.testing.assert_allclose(circle, line, rtol=1e-4)


def test_energy_score_is_least_for_the_right_posterior() -> None:
    """Among them one of the right margins and no correlation."""
    rng = np.random.default_rng(4)
    root = np.linalg.cholesky(np.array([[1.0, 0.9], [0.9, 1.0]]))
    truths = rng.normal(size=(4000, 2)) @ root.T
    unit = rng.normal(size=(4000, 30, 2))
    right = scores.energy_score(unit @ root.T, truths, (None, None))
    for other in (unit, 0.7 * unit @ root.T, unit @ root.T + 0.4):
        worse = scores.energy_score(other, truths, (None, None)) - right
        assert worse.mean() > 3.0 * worse.std() / np.sqrt(4000)


def test_crps_of_the_prior_and_compression() -> None:
    rng = np.random.default_rng(5)
    periods = (None, 1.0)
    truths = rng.random((2000, 2))
    prior = scores.prior_crps(rng.random((800, 2)), truths, periods)
    assert prior.mean(axis=0) == pytest.approx([UNIFORM_CRPS, UNIFORM_CIRCULAR_CRPS], rel=0.05)
    draws = truths[:, None] + 0.01 * rng.normal(size=(2000, 20, 2))
    crps = scores.crps_columns(draws, truths, periods)
    for j, period in enumerate(periods):
        np.testing.assert_array_equal(crps[:, j], fair_crps(draws[..., j], truths[:, j], period))
    line, circle = scores.parameter_scores(crps, prior, ("x", "angle"), rng, resamples=200)
    assert (line.name, circle.name) == ("x", "angle")
    assert line.compression == pytest.approx(1.0 - line.crps.mean / prior[:, 0].mean())
    assert line.compression_lower < line.compression < line.compression_upper
    same = scores.parameter_scores(prior, prior, ("x", "angle"), rng, resamples=50)[0]
    assert (same.compression, same.compression_lower, same.compression_upper) == (0.0, 0.0, 0.0)


def test_intervals_hold_mean_and_median_as_often_as_they_say() -> None:
    rng = np.random.default_rng(6)
    held = np.zeros(2)
    for _ in range(200):
        one = scores.estimates(rng.exponential(size=60), rng, resamples=200)[0]
        held += (
            one.mean_lower <= 1.0 <= one.mean_upper,
            one.median_lower <= np.log(2.0) <= one.median_upper,
        )
    # the percentile interval of a skew mean is a little short at this size
    assert (np.abs(held / 200 - 0.88) < 0.06).all()


def test_intervals_are_those_of_resampling_by_hand() -> None:
    rng = np.random.default_rng(7)
    x = rng.normal(size=80) ** 2
    one = scores.estimates(x, np.random.default_rng(8), resamples=4000)[0]
    again = x[rng.integers(0, 80, (4000, 80))]
    for found, by_hand in (
        ((one.mean_lower, one.mean_upper), again.mean(-1)),
        ((one.median_lower, one.median_upper), np.median(again, axis=-1)),
    ):
        assert found == pytest.approx(np.quantile(by_hand, [0.05, 0.95]), abs=0.03)
    assert (one.mean, one.median, one.number) == (x.mean(), np.median(x), 80)


def test_sources_of_a_band_are_resampled_together() -> None:
    """Nine equal scores a band say no more than one: intervals three times as wide."""
    rng = np.random.default_rng(9)
    x = np.repeat(rng.normal(size=200), 9)
    bands = np.repeat(np.arange(200), 9) * 7 + 3
    shuffled = rng.permutation(x.size)
    x, bands = x[shuffled], bands[shuffled]
    alone = scores.estimates(x, rng)[0]
    together = scores.estimates(x, rng, bands)[0]
    ratio = (together.mean_upper - together.mean_lower) / (alone.mean_upper - alone.mean_lower)
    assert ratio == pytest.approx(3.0, rel=0.15)
    assert together.mean == alone.mean
    chosen = scores.one_per_cluster(bands, rng)
    assert len(chosen) == 200
    assert len(set(bands[chosen].tolist())) == 200


def test_breakdown_has_every_source_once() -> None:
    rng = np.random.default_rng(10)
    x = rng.normal(size=(300, 2))
    by = rng.uniform(0.0, 12.0, 300)
    by[:40] = np.nan
    by[40] = 5.0  # an edge belongs to the row above it
    rows = scores.breakdown(x, by, (1.0, 5.0, 7.0), rng, resamples=50)
    limits = [(None, 1.0), (1.0, 5.0), (5.0, 7.0), (7.0, None), (None, None)]
    assert [(row.low, row.high) for row in rows] == limits
    assert [row.known for row in rows] == [True, True, True, True, False]
    assert sum(row.estimates[0].number for row in rows) == 300
    inside = (by >= 5.0) & (by < 7.0)
    assert inside[40]
    assert rows[2].estimates[1].mean == pytest.approx(x[inside, 1].mean())
    json.dumps([asdict(row) for row in rows], allow_nan=False)


def test_one_source_has_no_interval() -> None:
    one = scores.estimates([0.5], np.random.default_rng(0))[0]
    assert (one.mean, one.mean_lower, one.median_upper) == (0.5, None, None)
    band = scores.estimates([0.5, 0.7], np.random.default_rng(0), [4, 4])[0]
    assert (band.median, band.mean_lower) == (0.6, None)


def test_what_cannot_be_scored_is_refused() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(NonFiniteError, match="1 of the draws"):
        scores.energy_score([[[0.0], [np.nan]]], [[0.0]], (None,))
    with pytest.raises(ValueError, match="at least 2"):
        scores.energy_score(np.zeros((3, 1, 1)), np.zeros((3, 1)), (None,))
    with pytest.raises(ValueError, match="d periods"):
        scores.crps_columns(np.zeros((3, 4, 2)), np.zeros((3, 2)), (None,))
    with pytest.raises(NonFiniteError, match="1 of 2 scores"):
        scores.estimates([1.0, np.inf], rng)
    with pytest.raises(ValueError, match="n > 0"):
        scores.estimates([], rng)
    with pytest.raises(ValueError, match="clusters"):
        scores.estimates([1.0, 2.0], rng, [1])
    with pytest.raises(ValueError, match="rising edges"):
        scores.breakdown([1.0, 2.0], [1.0, 2.0], (2.0, 1.0), rng)
