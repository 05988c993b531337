"""slotflow.bounds: draws folded into their bounds, and the density that belongs to them."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from slotflow.bounds import Bound, bounded, mirrored


def _normal(draws: Tensor) -> Tensor:
    """Independent unit normals in the first two columns."""
    return -0.5 * (draws[:, :2] ** 2).sum(dim=-1) - math.log(2.0 * math.pi)


def _draws(n: int) -> Tensor:
    values = np.zeros((n, 8))
    values[:, :2] = np.random.default_rng(1).standard_normal((n, 2))
    return torch.from_numpy(values)


INFINITE = (-math.inf, math.inf)


def test_the_density_is_that_of_the_folded_draws() -> None:
    """It integrates to one over the box, and bins of it hold their share of the draws."""
    bounds = [Bound(0, -0.5, 3.0, *INFINITE), Bound(1, -2.5, 0.7, *INFINITE)]
    draws = _draws(400_000)
    found = bounded(draws, _normal(draws), bounds, _normal)
    x, y = found.draws[:, 0].numpy(), found.draws[:, 1].numpy()
    assert x.min() >= -0.5
    assert x.max() <= 3.0
    assert y.min() >= -2.5
    assert y.max() <= 0.7
    edges = np.linspace(-0.5, 3.0, 36), np.linspace(-2.5, 0.7, 33)
    counts = np.histogram2d(x, y, edges)[0]
    centres = [0.5 * (e[1:] + e[:-1]) for e in edges]
    places = np.zeros((35 * 32, 8))
    places[:, :2] = np.stack(np.meshgrid(*centres, indexing="ij"), axis=-1).reshape(-1, 2)
    # the same folding for the density at given places: draws that all are beyond, folded there
    beyond = torch.from_numpy(places).clone()
    beyond[:, 0], beyond[:, 1] = -1.0 - beyond[:, 0], 1.4 - beyond[:, 1]
    folded = bounded(beyond, torch.zeros(len(places)), bounds, _normal)
    np.testing.assert_allclose(folded.draws.numpy(), places, atol=1e-12)
    q = np.exp(folded.log_q.numpy()).reshape(35, 32) * 0.1 * 0.1
    assert q.sum() == pytest.approx(1.0, abs=2e-3)
    expected = 400_000 * q
    big = expected > 50
    z = (counts - expected)[big] / np.sqrt(expected[big])
    assert np.mean(z**2) == pytest.approx(1.0, abs=0.3)


def test_draws_inside_are_left_as_they_are() -> None:
    draws = _draws(50).clamp(-1.0, 1.0)
    log_q = torch.arange(50.0)
    found = bounded(draws, log_q, [Bound(0, -1.0, 1.0, *INFINITE)], _normal)
    assert found.draws is draws
    assert found.log_q is log_q


def test_an_image_where_no_draw_can_come_from_does_not_count() -> None:
    draws = _draws(2000)
    draws[:, 0] = draws[:, 0].abs()  # none below 0: a half normal
    bound = Bound(0, 0.0, 1.0, 0.0, math.inf)

    def half(x: Tensor) -> Tensor:
        return _normal(x) + math.log(2.0)  # as if the density went on below 0

    found = bounded(draws, half(draws), [bound], half)
    x = found.draws[:, 0].numpy()
    y = found.draws[:, 1].numpy()
    expected = (np.exp(-0.5 * x**2) + np.exp(-0.5 * (2.0 - x) ** 2)) * np.exp(-0.5 * y**2) / np.pi
    np.testing.assert_allclose(np.exp(found.log_q.numpy()), expected, rtol=1e-9)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(-10, 10), st.floats(1e-3, 10))
def test_mirrors(values: list[float], low: float, width: float) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    folded = mirrored(x, low, low + width)
    assert bool(((folded >= low) & (folded <= low + width)).all())
    inside = (x >= low) & (x <= low + width)
    torch.testing.assert_close(folded[inside], x[inside], atol=1e-9, rtol=0)
    near = (x < low) & (x > low - width)
    torch.testing.assert_close(folded[near], 2 * low - x[near], atol=1e-9, rtol=0)
