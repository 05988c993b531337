"""The splines with their own backward pass: the plain ones, by autograd, are the oracle."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from slotflow import fastsplines
from slotflow.fastsplines import head_spline, packed_spline
from slotflow.splines import UNIT_DERIVATIVE, Shape, make_knots, spline

LOW, HIGH = -2.0, 3.0


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def plain(x: Tensor, parameters: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """The same from ``make_knots`` and ``spline``."""
    steps, derivatives = parameters.split(
        [2 * shape.bins, parameters.shape[-1] - 2 * shape.bins], -1
    )
    if shape.tails:
        derivatives = F.pad(derivatives, (1, 1), value=UNIT_DERIVATIVE)
    knots = make_knots(steps * shape.scale, derivatives, shape.low, shape.high)
    outputs, log_slope = spline(x.clamp(shape.low, shape.high), knots, shape.inverse)
    inside = (x >= shape.low) & (x <= shape.high)
    return torch.where(inside, outputs, x), torch.where(inside, log_slope, 0.0)


def draw(
    shape: Shape, rows: tuple[int, ...], seed: int, rough: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Inputs, with tails on both sides of the ends, and rows of parameters."""
    width = 3 * shape.bins + (-1 if shape.tails else 1)
    parameters = rough * torch.randn(*rows, width, generator=seeded(seed), dtype=torch.float64)
    x = torch.rand(rows, generator=seeded(seed + 1), dtype=torch.float64)
    x = shape.low + (shape.high - shape.low) * x
    return (1.5 * x if shape.tails else x), parameters


@pytest.fixture(params=["compiled", "plain"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled loops, and what serves other devices."""
    if request.param == "plain":
        monkeypatch.setattr(fastsplines, "_compiled", lambda values: False)


def gradients(function: Any, x: Tensor, parameters: Tensor, shape: Shape) -> list[Tensor]:
    """Outputs, log slopes and the gradients of a mixture of both."""
    leaves = [x.clone().requires_grad_(), parameters.clone().requires_grad_()]
    outputs, log_slope = function(*leaves, shape)
    mixture = (outputs * outputs.detach().cos()).sum() + (log_slope * outputs.detach()).sum()
    return [outputs.detach(), log_slope.detach(), *torch.autograd.grad(mixture, leaves)]


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("tails", [True, False])
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("bins", [1, 2, 12, 64])
def test_values_and_gradients_equal_autograd(tails: bool, inverse: bool, bins: int) -> None:
    shape = Shape(bins, LOW, HIGH, 0.7, tails, inverse)
    x, parameters = draw(shape, (50, 3), 7 * bins)
    got = gradients(packed_spline, x, parameters, shape)
    expected = gradients(plain, x, parameters, shape)
    torch.testing.assert_close(got[:2], expected[:2], rtol=0, atol=1e-11)
    for ours, theirs in zip(got[2:], expected[2:], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-11)


@settings(deadline=None, max_examples=30)
@given(
    bins=st.integers(1, 70),
    seed=st.integers(0, 2**31),
    rough=st.sampled_from([0.0, 0.3, 2.0]),
    inverse=st.booleans(),
    tails=st.booleans(),
)
def test_any_spline_equals_autograd(
    bins: int, seed: int, rough: float, inverse: bool, tails: bool
) -> None:
    shape = Shape(bins, LOW, HIGH, 1.0, tails, inverse)
    x, parameters = draw(shape, (30,), seed, rough)
    got = gradients(packed_spline, x, parameters, shape)
    expected = gradients(plain, x, parameters, shape)
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-9)


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("tails", [True, False])
@pytest.mark.parametrize("inverse", [False, True])
def test_gradcheck(tails: bool, inverse: bool) -> None:
    shape = Shape(5, LOW, HIGH, 0.9, tails, inverse)
    x, parameters = draw(shape, (6,), 3)
    leaves = (x.requires_grad_(), parameters.requires_grad_())
    assert torch.autograd.gradcheck(lambda a, b: packed_spline(a, b, shape), leaves)


@pytest.mark.parametrize("inverse", [False, True])
def test_gradcheck_of_the_head(inverse: bool) -> None:
    shape = Shape(4, LOW, HIGH, 0.9, True, inverse)
    x, _ = draw(shape, (5, 2), 3)
    hidden = torch.randn(5, 3, generator=seeded(4), dtype=torch.float64)
    weight = torch.randn(2 * 11, 3, generator=seeded(5), dtype=torch.float64)
    bias = torch.randn(2 * 11, generator=seeded(6), dtype=torch.float64)
    leaves = tuple(v.requires_grad_() for v in (x, hidden, weight, bias))
    assert torch.autograd.gradcheck(lambda *v: head_spline(*v, shape), leaves)


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 40])
def test_head_equals_layer_and_spline(rows: int, inverse: bool) -> None:
    shape = Shape(12, LOW, HIGH, 0.3, True, inverse)
    x, _ = draw(shape, (rows, 3), 3)
    layer = torch.nn.Linear(20, 3 * 35).double()
    hidden = torch.randn(rows, 20, generator=seeded(4), dtype=torch.float64)
    results = []
    for merged in (True, False):
        leaves = [x.clone().requires_grad_(), hidden.clone().requires_grad_()]
        if merged:
            y, change = head_spline(*leaves, layer.weight, layer.bias, shape)
        else:
            y, slopes = packed_spline(leaves[0], layer(leaves[1]).view(rows, 3, 35), shape)
            change = slopes.sum(-1)
        loss = (y * y.detach().sin()).sum() + (change**2).sum()
        results.append([y, change, *torch.autograd.grad(loss, [*leaves, *layer.parameters()])])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-11)


def test_second_derivatives_are_refused() -> None:
    shape = Shape(5, LOW, HIGH)
    x, parameters = draw(shape, (6,), 3)
    y, _ = packed_spline(x.requires_grad_(), parameters, shape)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(y.sum(), x, create_graph=True)


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("inverse", [False, True])
def test_at_beyond_and_a_few_ulp_inside_bounds_and_knots(dtype: torch.dtype, inverse: bool) -> None:
    bins, eps = 9, torch.finfo(dtype).eps
    shape = Shape(bins, -5.0, 5.0, 1.0, True, inverse)
    parameters = torch.randn(50, 3 * bins - 1, generator=seeded(5), dtype=dtype)
    derivatives = F.pad(parameters[:, 2 * bins :], (1, 1), value=UNIT_DERIVATIVE)
    knots = make_knots(parameters[:, : 2 * bins], derivatives, -5.0, 5.0)
    source, target = knots.positions.unbind(-2)[:: -1 if inverse else 1]
    rows = parameters.unsqueeze(1).expand(-1, bins + 1, -1)
    for direction in (math.inf, -math.inf):
        beside = source.clone()
        for _ in range(4):
            leaves = [beside.clone().requires_grad_(), rows.clone().requires_grad_()]
            y, log_slope = packed_spline(*leaves, shape)
            torch.testing.assert_close(y, target, rtol=0, atol=600 * eps)
            assert (y.abs() <= 5.0 * (1.0 + 8 * eps)).all()
            assert log_slope.isfinite().all()
            for slope in torch.autograd.grad(y.sum() + log_slope.sum(), leaves):
                assert slope.isfinite().all()
            beside = torch.nextafter(beside, torch.full_like(beside, direction))
    beyond = torch.tensor([-5.0, 5.0], dtype=dtype)
    beyond = torch.nextafter(beyond, 2.0 * beyond)
    y, log_slope = packed_spline(beyond, parameters[:2], shape)
    assert (y == beyond).all()
    assert (log_slope == 0.0).all()


@pytest.mark.usefixtures("both_ways")
def test_what_is_not_a_number_stays_so() -> None:
    shape = Shape(5, LOW, HIGH, 1.0, True)
    x, parameters = draw(shape, (4,), 3)
    x = torch.tensor([0.1, math.nan, math.inf, 0.2], dtype=torch.float64)
    parameters[0, 2] = math.nan
    y, _ = packed_spline(x, parameters, shape)
    assert y.isnan().tolist() == [True, True, False, False]
    assert y[2] == math.inf


@pytest.mark.parametrize("inverse", [False, True])
def test_half_precision_is_raised_to_float32(inverse: bool) -> None:
    shape = Shape(5, LOW, HIGH, 1.0, True, inverse)
    x, parameters = (v.to(torch.bfloat16) for v in draw(shape, (20,), 3))
    got = packed_spline(x, parameters, shape)
    expected = packed_spline(x.double(), parameters.double(), shape)
    assert got[0].dtype == got[1].dtype == torch.float32
    for ours, exact in zip(got, expected, strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_draws_through_rough_splines_never_raise(dtype: torch.dtype) -> None:
    """20 times 2e5 draws: slopes of 1e-3 beside 1e3, half the draws a few ulp below a knot."""
    shape = Shape(8, -5.0, 5.0, 1.0, True, True)
    for seed in range(20):
        # 10,000 splines, each for 20 draws: the splines are what takes time
        parameters = torch.randn(10_000, 23, generator=seeded(seed), dtype=dtype)
        parameters[:, :16] *= 10.0
        parameters[:, 16:] *= 300.0
        y = 10.0 * torch.rand(10_000, 20, generator=seeded(seed), dtype=dtype) - 5.0
        derivatives = F.pad(parameters[:, 16:], (1, 1), value=UNIT_DERIVATIVE)
        knots = make_knots(parameters[:, :16], derivatives, -5.0, 5.0)
        beside = knots.positions[:, 1, 4]
        for _ in range(1 + seed % 3):
            beside = torch.nextafter(beside, torch.full_like(beside, -9.0))
        y[:, ::2] = beside.unsqueeze(-1)
        x, log_slope = packed_spline(y, parameters.unsqueeze(1).expand(-1, 20, -1), shape)
        assert log_slope.isfinite().all()
        assert (x.abs() <= 5.0 * (1.0 + 8.0 * torch.finfo(dtype).eps)).all()
