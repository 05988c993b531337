"""TARP: the definition in loops, uniform p-values, and what each choice of points sees."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from slotflow.tarp import References, tarp

Float = NDArray[np.float64]
PERIODS = (None, 1.0)


def pair(
    n: int, m: int, rng: np.random.Generator, scale: tuple[float, float]
) -> tuple[Float, Float]:
    """Draws and truths about centres anywhere, of that spread on the line and on the circle."""
    centre = rng.random((n, 1, 2))
    both = centre + np.array(scale) * rng.normal(size=(n, m + 1, 2))
    both[..., 1] = np.mod(both[..., 1], 1.0)
    return both[:, 1:], both[:, 0]


def test_curve_is_the_definition() -> None:
    rng = np.random.default_rng(1)
    x, y = pair(60, 19, rng, (0.3, 0.1))
    test = tarp(x, y, PERIODS, np.random.default_rng(2), "uniform")
    again = np.random.default_rng(2)
    points = again.uniform(
        [y[:, 0].min(), y[:, 1].min()], [y[:, 0].max(), y[:, 1].min() + 1.0], y.shape
    )

    def distance(a: Float, b: Float) -> float:
        chord = np.sin(np.pi * (a[1] - b[1])) / np.pi
        return float(np.hypot(a[0] - b[0], chord))

    share = [
        np.mean([distance(draw, points[i]) < distance(y[i], points[i]) for draw in x[i]])
        for i in range(60)
    ]
    for level, observed in zip(test.nominal, test.observed, strict=True):
        # a share of r of m draws is rank r, the (r + 1)-th of m + 1
        assert observed == np.mean([round(19 * s) + 1 <= round(20 * level) for s in share])


@pytest.mark.parametrize("references", ["posterior", "uniform"])
def test_p_values_of_the_exact_posterior_are_uniform(references: References) -> None:
    rng = np.random.default_rng(3)
    p = [
        tarp(*pair(60, 15, rng, (0.02, 0.4)), PERIODS, rng, references).p_value for _ in range(300)
    ]
    assert stats.kstest(p, "uniform").pvalue > 1e-3


def test_a_narrow_parameter_beside_a_wide_one_is_seen_from_the_posterior_only() -> None:
    rng = np.random.default_rng(4)
    x, y = pair(800, 60, rng, (1e-4, 0.2))
    x[..., 0] = x[..., :1].mean(axis=1) + 0.6 * (x[..., 0] - x[..., :1].mean(axis=1))
    assert tarp(x, y, PERIODS, rng).p_value < 1e-6
    assert tarp(x, y, PERIODS, rng, "uniform").p_value > 1e-3


def test_turning_the_circle_changes_nothing() -> None:
    x, y = pair(50, 20, np.random.default_rng(5), (0.1, 0.1))
    here = tarp(x, y, PERIODS, np.random.default_rng(6))
    x[..., 1], y[:, 1] = np.mod(x[..., 1] + 0.37, 1.0), np.mod(y[:, 1] + 0.37, 1.0)
    assert tarp(x, y, PERIODS, np.random.default_rng(6)) == here


def test_too_few_draws_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 8"):
        tarp(np.zeros((3, 7, 1)), np.zeros((3, 1)), (None,), np.random.default_rng(0))
