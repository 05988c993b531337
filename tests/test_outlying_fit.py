"""slotflow.outlying_fit: shrinkage, thresholds, and false alarms at the rate that is asked for."""

import numpy as np
import pytest

from slotflow.outlying_features import KINDS
from slotflow.outlying_fit import (
    FEWEST,
    Rate,
    calibrated,
    false_alarms,
    fit_part,
    shrunk_correlation,
)
from tests.outlying_example import fitted, gaussian_bands


def test_false_alarms_are_as_many_as_asked_for() -> None:
    bands, others, fresh = (gaussian_bands(seed, n) for seed, n in ((1, 500), (2, 999), (3, 2000)))
    score = fitted(bands, others)
    hits = sum(score(one).outside for one in fresh)
    # the threshold is the 10th largest of 999: its own rate is Beta(10, 990)
    error = np.sqrt(0.01 * 0.99 * (1 / 2000 + 1 / 1001))
    assert abs(hits / 2000 - 0.01) < 4 * error
    rate = false_alarms(score.parts, (others, fresh[:1000]))
    assert rate.number == 1999
    assert abs(rate.share - 0.01) < 4 * np.sqrt(2.0) * rate.error


def test_the_threshold_is_that_of_so_many_bands() -> None:
    bands, others = gaussian_bands(1, 400), gaussian_bands(2, 499)
    score = fitted(bands, others)
    assert score.calibrated == 499
    assert score.fitted == 400
    # the 5th largest of 499 is the threshold itself: 4 are above it
    assert sum(score(one).outside for one in others) == 4
    assert sorted(score(one).value for one in others)[-5] == pytest.approx(1.0)


def test_few_rows_are_drawn_towards_no_correlation() -> None:
    rng = np.random.default_rng(0)
    few = shrunk_correlation(rng.standard_normal((30, 60)))
    assert np.linalg.eigvalsh(few).min() > 0.3  # without: 30 of them would be zero
    mix = np.linalg.cholesky(np.array([[1.0, 0.8], [0.8, 1.0]]))
    many = shrunk_correlation(rng.standard_normal((20_000, 2)) @ mix.T)
    np.testing.assert_allclose(many, [[1.0, 0.8], [0.8, 1.0]], atol=0.03)


def test_a_feature_that_never_varies_is_still_compared() -> None:
    bands = [one._replace(vectors=one.vectors | {"level": np.array([[1.0, 2.0]])})
             for one in gaussian_bands(1, 50)]  # fmt: skip
    part = fit_part("level", bands)
    same, other = bands[0], bands[1]._replace(vectors={"level": np.array([[1.0, 2.1]])})
    assert part.farthest(same) < -5.0
    assert part.farthest(other) > 5.0


def test_too_few_bands() -> None:
    bands = gaussian_bands(1, FEWEST - 1)
    parts = [fit_part(name, bands) for name in KINDS]
    with pytest.raises(ValueError, match=f"{FEWEST - 1} bands are too few"):
        calibrated(parts, bands, 1)
    with pytest.raises(ValueError, match="too few for"):
        calibrated(parts, gaussian_bands(2, FEWEST), 1, rate=0.001)
    empty = [one._replace(vectors=one.vectors | {"slots": np.empty((0, 16))}) for one in bands]
    with pytest.raises(ValueError, match="slots: 0 vectors"):
        fit_part("slots", empty)


def test_the_error_of_a_rate() -> None:
    assert Rate(10, 1000).share == 0.01
    assert Rate(10, 1000).error == pytest.approx(np.sqrt(0.01 * 0.99 / 1000))
    assert Rate(0, 1000).error > 0.0
