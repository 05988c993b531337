"""The spline kernel: nflows is the oracle; bounds, knots and rough parameters."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nflows.transforms.splines.rational_quadratic import rational_quadratic_spline
from torch import Tensor

from slotflow.splines import UNIT_DERIVATIVE, Knots, make_knots, spline


def random_knots(
    shape: tuple[int, ...],
    bins: int,
    seed: int,
    rough: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    steps = rough * torch.randn((*shape, 2 * bins), generator=g, dtype=dtype)
    return steps, rough * torch.randn((*shape, bins + 1), generator=g, dtype=dtype)


@settings(deadline=None, max_examples=40)
@given(
    bins=st.integers(1, 64),
    seed=st.integers(0, 2**31),
    rough=st.sampled_from([0.0, 1.0, 3.0]),
    inverse=st.booleans(),
)
def test_equals_nflows(bins: int, seed: int, rough: float, inverse: bool) -> None:
    steps, slopes = random_knots((40, 3), bins, seed, rough)
    x = 6.0 * torch.rand(40, 3, generator=torch.Generator().manual_seed(seed + 1)).double() - 3.0
    expected = rational_quadratic_spline(
        x,
        steps[..., :bins],
        steps[..., bins:],
        slopes,
        inverse=inverse,
        left=-3.0,
        right=3.0,
        bottom=-3.0,
        top=3.0,
    )
    got = spline(x, make_knots(steps, slopes, -3.0, 3.0), inverse)
    torch.testing.assert_close(got[0], expected[0], rtol=0, atol=1e-11)
    torch.testing.assert_close(got[1], expected[1], rtol=0, atol=1e-9 if rough > 1 else 1e-11)


@pytest.mark.parametrize("inverse", [False, True])
def test_gradcheck_in_inputs_and_parameters(inverse: bool) -> None:
    steps, slopes = random_knots((4, 2), 5, 3)
    x = 1.9 * torch.rand(4, 2, generator=torch.Generator().manual_seed(4)).double() - 0.95

    def run(x: Tensor, steps: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
        return spline(x, make_knots(steps, slopes, -1.0, 1.0), inverse)

    leaves = tuple(v.requires_grad_() for v in (x, steps, slopes))
    assert torch.autograd.gradcheck(run, leaves)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**31), rough=st.sampled_from([0.0, 1.0, 5.0]))
def test_the_inverse_inverts(seed: int, rough: float) -> None:
    knots = make_knots(*random_knots((200,), 12, seed, rough), -2.0, 2.0)
    x = 4.0 * torch.rand(200, generator=torch.Generator().manual_seed(seed + 1)).double() - 2.0
    y, forward = spline(x, knots)
    back, backward = spline(y, knots, inverse=True)
    again, _ = spline(back, knots)
    torch.testing.assert_close(again, y, rtol=0, atol=1e-10)
    if rough <= 1.0:  # elsewhere flat stretches map many x to one rounded y
        torch.testing.assert_close(back, x, rtol=0, atol=1e-9)
        torch.testing.assert_close(forward, -backward, rtol=0, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("inverse", [False, True])
def test_on_and_a_few_ulp_beside_knots_and_bounds(dtype: torch.dtype, inverse: bool) -> None:
    """Knots map to knots, neighbours stay neighbours and in the range."""
    bins, bound = 9, 5.0
    steps, slopes = random_knots((50,), bins, 5, 1.0, dtype)
    knots = make_knots(steps, slopes, -bound, bound)
    source, target = knots.positions.unbind(-2)[:: -1 if inverse else 1]
    assert (source[:, 0] == -bound).all()
    assert (source[:, -1] == bound).all()
    repeated = Knots(
        knots.positions.unsqueeze(1).expand(-1, bins + 1, -1, -1),
        knots.derivatives.unsqueeze(1).expand(-1, bins + 1, -1),
    )
    step = torch.zeros_like(source)
    for sign in (0.0, math.inf, -math.inf):
        beside = source if sign == 0.0 else torch.nextafter(source, step + sign)
        y, log_slope = spline(beside.clamp(-bound, bound), repeated, inverse)
        torch.testing.assert_close(y, target, rtol=0, atol=300 * torch.finfo(dtype).eps)
        assert log_slope.isfinite().all()
        assert (y.abs() <= bound * (1.0 + 4 * torch.finfo(dtype).eps)).all()


def rough_inputs(dtype: torch.dtype, seed: int, n: int = 20_000) -> tuple[Tensor, Tensor, Tensor]:
    """Splines with slopes of 1e-3 beside 1e3, and a y for each, half of them just below a knot.

    There the textbook discriminant, b^2 - 4 a c, rounds below 0 (in float32).
    """
    steps, slopes = random_knots((n,), 8, seed, 1.0, dtype)
    steps, slopes = 10.0 * steps, 300.0 * slopes
    y = 10.0 * torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=dtype) - 5.0
    beside = make_knots(steps, slopes, -5.0, 5.0).positions[:, 1, 4]
    for _ in range(1 + seed % 3):
        beside = torch.nextafter(beside, torch.full_like(beside, -9.0))
    return steps, slopes, torch.where(torch.arange(n) % 2 == 0, y, beside)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_very_rough_splines_never_raise_nor_leave_their_bin(dtype: torch.dtype) -> None:
    for seed in range(20):
        steps, slopes, y = rough_inputs(dtype, seed)
        knots = make_knots(steps, slopes, -5.0, 5.0)
        x, log_slope = spline(y, knots, inverse=True)
        assert log_slope.isfinite().all()
        left = (y.unsqueeze(-1) >= knots.positions[:, 1, 1:-1]).sum(-1, keepdim=True)
        x0, x1 = (knots.positions[:, 0].gather(-1, left + i).squeeze(-1) for i in (0, 1))
        slack = 8.0 * torch.finfo(dtype).eps
        assert (x >= x0 - slack).all()
        assert (x <= x1 + slack).all()


def test_float32_inverse_is_as_good_as_its_inputs() -> None:
    """Against float64 on the same knots: no digits are lost to cancellation."""
    steps, slopes, y = rough_inputs(torch.float32, 3)
    knots = make_knots(steps, slopes, -5.0, 5.0)
    exact = Knots(knots.positions.double(), knots.derivatives.double())
    x, _ = spline(y, knots, inverse=True)
    back, _ = spline(x.double(), exact)
    # an error of an ulp in x may move y by the slope there; so may one in y itself
    _, log_slope = spline(y.double(), exact, inverse=True)
    allowed = 40.0 * torch.finfo(torch.float32).eps * (1.0 + torch.exp(-log_slope)) * 5.0
    assert ((back - y).abs() < allowed).all()


def test_gradients_stay_finite_where_splines_are_very_rough() -> None:
    for inverse in (False, True):
        steps, slopes, y = rough_inputs(torch.float32, 1)
        leaves = [v.requires_grad_() for v in (steps, slopes, y)]
        x, log_slope = spline(y, make_knots(steps, slopes, -5.0, 5.0), inverse)
        torch.autograd.backward(x.sum() + log_slope.sum())
        for leaf in leaves:
            assert leaf.grad is not None
            assert leaf.grad.isfinite().all()


def test_equal_steps_and_unit_slopes_are_the_identity() -> None:
    slopes = torch.full((100, 8), UNIT_DERIVATIVE, dtype=torch.float64)
    x = torch.linspace(-1.0, 1.0, 100, dtype=torch.float64)
    y, log_slope = spline(x, make_knots(torch.zeros(100, 14).double(), slopes, -1.0, 1.0))
    torch.testing.assert_close(y, x, rtol=0, atol=1e-14)
    torch.testing.assert_close(log_slope, torch.zeros_like(x), rtol=0, atol=1e-13)
