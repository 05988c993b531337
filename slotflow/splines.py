"""Monotone rational-quadratic splines (arXiv:1906.04032) without boolean masks.

The numbers are those of nflows' rational_quadratic_spline. Only the two knots around an input
are looked at, and no input makes anything raise.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

#: Least share of the range that a bin takes in x and in y, and least derivative (nflows').
MIN_STEP = MIN_DERIVATIVE = 1e-3
#: softplus(UNIT_DERIVATIVE) + MIN_DERIVATIVE = 1
UNIT_DERIVATIVE = math.log(math.expm1(1.0 - MIN_DERIVATIVE))


class Knots(NamedTuple):
    """A spline's knots.

    ``positions`` (..., 2, K + 1), x then y, rising; ``derivatives`` (..., K + 1), dy/dx before
    the softplus that makes them positive.
    """

    positions: Tensor
    derivatives: Tensor


def make_knots(steps: Tensor, derivatives: Tensor, low: float, high: float) -> Knots:
    """Return knots from ``low`` to ``high`` in x and y.

    Args:
        steps: (..., 2 K), unnormalised widths and then heights.
        derivatives: (..., K + 1), unnormalised.
        low: both axes' lower end.
        high: both axes' upper end.
    """
    bins = steps.shape[-1] // 2
    steps = steps.reshape(*steps.shape[:-1], 2, bins)
    # a softmax, which PyTorch's own does several times as slowly along so short an axis
    powers = torch.exp(steps - steps.detach().amax(-1, keepdim=True))
    shares = MIN_STEP + (1.0 - MIN_STEP * bins) * (powers / powers.sum(-1, keepdim=True))
    inner = torch.cumsum(shares, -1)[..., :-1]
    ends = F.pad(F.pad(inner, (1, 0), value=0.0), (0, 1), value=1.0)
    return Knots((high - low) * ends + low, derivatives)


def spline(inputs: Tensor, knots: Knots, inverse: bool = False) -> tuple[Tensor, Tensor]:
    """Map ``inputs`` (...), inside the knots' range, through monotone splines of that shape.

    Returns the outputs and the logarithm of their derivative with respect to the inputs. Only
    the two knots around each input are looked at, and no input makes it raise.
    """
    known = knots.positions[..., 1 if inverse else 0, 1:-1]
    left = (inputs.unsqueeze(-1) >= known).sum(-1, keepdim=True)
    both = torch.cat((left, left + 1), -1)
    x0, x1, y0, y1 = _gather_pairs(knots.positions, both)
    slopes = MIN_DERIVATIVE + F.softplus(torch.gather(knots.derivatives, -1, both))
    d0, d1 = slopes.unbind(-1)
    width, height = x1 - x0, y1 - y0
    delta = height / width
    bend = d0 + d1 - 2.0 * delta
    if inverse:
        theta = _inverse(inputs - y0, y1 - inputs, delta, d0, d1)
        outputs = theta * width + x0
    else:
        theta = (inputs - x0) / width
    mixed = theta * (1.0 - theta)
    denominator = delta + bend * mixed
    if not inverse:
        outputs = y0 + height * (delta * theta**2 + d0 * mixed) / denominator
    numerator = delta**2 * (d1 * theta**2 + 2.0 * delta * mixed + d0 * (1.0 - theta) ** 2)
    log_slope = torch.log(numerator) - 2.0 * torch.log(denominator)
    return outputs, -log_slope if inverse else log_slope


def _gather_pairs(positions: Tensor, both: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return x and y of the left and the right knot, from (..., 2, K + 1) and (..., 2)."""
    index = both.unsqueeze(-2).expand(*both.shape[:-1], 2, 2)
    x, y = torch.gather(positions, -1, index).unbind(-2)
    return x[..., 0], x[..., 1], y[..., 0], y[..., 1]


def _inverse(rise: Tensor, rest: Tensor, delta: Tensor, d0: Tensor, d1: Tensor) -> Tensor:
    """Return where in its bin, in [0, 1], a spline has risen by ``rise``, with ``rest`` to go.

    The root of nflows' quadratic a theta^2 + b theta + c = 0, written with
    m = d0 rest - d1 rise = b - 2 delta rise, in which the discriminant is the sum of squares
    m^2 + 4 delta^2 rise rest. b^2 - 4 a c itself rounds below 0 beside a knot, and the root
    beyond 1. The floor keeps inputs outside the range from a NaN.
    """
    m = d0 * rest - d1 * rise
    square = m**2 + 4.0 * delta**2 * (rise * rest)
    s = torch.sqrt(square.clamp(min=torch.finfo(m.dtype).tiny))
    ahead = m >= 0.0
    p = torch.where(ahead, s + m, s - m)
    low, high = 2.0 * delta * rise, 2.0 * delta * rest
    return torch.where(ahead, low, p) / (p + torch.where(ahead, low, high))


def at_least_float32(values: Tensor) -> Tensor:
    """Return the values in float32, or in float64 if they are."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
