"""Monotone rational-quadratic splines (arXiv:1906.04032) without boolean masks.

The numbers are those of nflows' rational_quadratic_spline. Only the two knots around an input
are looked at, and no input makes anything raise. This is the plain form, in PyTorch's own
operations; :mod:`slotflow.fastsplines` is the same with a backward pass of its own.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from slotflow.splinekernels import MIN_DERIVATIVE, MIN_STEP, UNIT_DERIVATIVE, partials

__all__ = ["MIN_DERIVATIVE", "MIN_STEP", "UNIT_DERIVATIVE", "Knots", "Shape", "at_least_float32",
           "make_knots", "plain_backward", "plain_forward", "softmax", "spline"]  # fmt: skip


class Knots(NamedTuple):
    """A spline's knots.

    ``positions`` (..., 2, K + 1), x then y, rising; ``derivatives`` (..., K + 1), dy/dx before
    the softplus that makes them positive.
    """

    positions: Tensor
    derivatives: Tensor


class Shape(NamedTuple):
    """What a spline is like besides its parameters.

    ``bins`` K; ``low`` and ``high`` are both axes' ends; ``scale`` multiplies the steps;
    ``tails``: derivatives are 1 at both ends and the spline is the identity beyond them.
    """

    bins: int
    low: float
    high: float
    scale: float = 1.0
    tails: bool = False
    inverse: bool = False


def softmax(steps: Tensor) -> Tensor:
    """Softmax along the last axis."""
    if steps.shape[-1] >= 32:
        return torch.softmax(steps, -1)
    # PyTorch's own takes several times as long along so short an axis
    powers = torch.exp(steps - steps.detach().amax(-1, keepdim=True))
    return powers / powers.sum(-1, keepdim=True)


def make_knots(steps: Tensor, derivatives: Tensor, low: float, high: float) -> Knots:
    """Return knots from ``low`` to ``high`` in x and y.

    Args:
        steps: (..., 2 K), unnormalised widths and then heights.
        derivatives: (..., K + 1), unnormalised.
        low: both axes' lower end.
        high: both axes' upper end.
    """
    shares = softmax(steps.reshape(*steps.shape[:-1], 2, steps.shape[-1] // 2))
    return Knots(_positions(shares, low, high), derivatives)


def _positions(shares: Tensor, low: float, high: float) -> Tensor:
    """(..., K) -> (..., K + 1)."""
    shares = MIN_STEP + (1.0 - MIN_STEP * shares.shape[-1]) * shares
    inner = torch.cumsum(shares, -1)[..., :-1]
    ends = F.pad(F.pad(inner, (1, 0), value=0.0), (0, 1), value=1.0)
    return (high - low) * ends + low


def spline(inputs: Tensor, knots: Knots, inverse: bool = False) -> tuple[Tensor, Tensor]:
    """Map ``inputs`` (...), inside the knots' range, through monotone splines of that shape.

    Returns the outputs and the logarithm of their derivative with respect to the inputs. Only
    the two knots around each input are looked at, and no input makes it raise.
    """
    left = _left(inputs, knots.positions, inverse)
    both = torch.cat((left, left + 1), -1)
    corners = torch.cat(_gather_pairs(knots.positions, both), -1)
    outputs, log_slope, _ = _evaluate(
        inputs, corners, torch.gather(knots.derivatives, -1, both), inverse
    )
    return outputs, log_slope


def _left(inputs: Tensor, positions: Tensor, inverse: bool) -> Tensor:
    """Return each input's bin, (..., 1)."""
    known = positions[..., 1 if inverse else 0, 1:-1]
    return (inputs.unsqueeze(-1) >= known).sum(-1, keepdim=True)


def _gather_pairs(positions: Tensor, both: Tensor) -> tuple[Tensor, Tensor]:
    """Return x and y of the left and the right knot, from (..., 2, K + 1) and (..., 2)."""
    index = both.unsqueeze(-2).expand(*both.shape[:-1], 2, 2)
    x, y = torch.gather(positions, -1, index).unbind(-2)
    return x, y


def _evaluate(
    inputs: Tensor, corners: Tensor, raw: Tensor, inverse: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return outputs, log slopes and places in the bin, from x0, x1, y0, y1 and raw slopes."""
    x0, x1, y0, y1 = corners.unbind(-1)
    d0, d1 = (MIN_DERIVATIVE + F.softplus(raw)).unbind(-1)
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
    return outputs, -log_slope if inverse else log_slope, theta


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


def plain_forward(
    inputs: Tensor, parameters: Tensor, shares: Tensor, shape: Shape
) -> tuple[Tensor, ...]:
    """What the compiled loops do, in PyTorch: for other devices.

    Returns outputs, log slopes, left (M,), corners (M, 4), raw slopes (M, 2) and theta (M,).
    """
    positions = _positions(shares, shape.low, shape.high)
    derivatives = parameters[:, 2 * shape.bins :]
    if shape.tails:
        derivatives = F.pad(derivatives, (1, 1), value=UNIT_DERIVATIVE)
    held = inputs.clamp(shape.low, shape.high)
    left = _left(held, positions, shape.inverse)
    both = torch.cat((left, left + 1), -1)
    raw = torch.gather(derivatives, -1, both)
    corners = torch.cat(_gather_pairs(positions, both), -1)
    outputs, log_slope, theta = _evaluate(held, corners, raw, shape.inverse)
    left = left.squeeze(-1)
    if shape.tails:
        inside = (inputs >= shape.low) & (inputs <= shape.high)
        outputs = torch.where(inside, outputs, inputs)
        log_slope = log_slope.masked_fill(~inside, 0.0)
        left = left.masked_fill(~inside, -1)
    return outputs, log_slope, left, corners, raw, theta


def plain_backward(
    state: Any, from_outputs: Tensor, from_slope: Tensor, gradient: Tensor, shape: Shape
) -> Tensor:
    """Write the parameters' gradient (M, 2 K + D); return the inputs' (M,).

    ``state`` is what ``plain_forward`` returned from ``left`` on, and the shares (M, 2, K).
    """
    left, corners, raw, theta, shares = state
    x0, x1, y0, y1 = corners.unbind(-1)
    d0, d1 = (MIN_DERIVATIVE + F.softplus(raw)).unbind(-1)
    parts = partials(theta, x1 - x0, y1 - y0, d0, d1, from_outputs, from_slope, shape.inverse)
    inside = left >= 0
    to_inputs = torch.where(inside, parts[0], from_outputs)
    first, last = left == 0, left == shape.bins - 1
    keep = torch.stack((inside & ~first, inside & ~last), -1)
    at = left.clamp(min=0)
    # both knots' places and slopes: (M, 2 axes, 2 knots), (M, 2 knots)
    places = torch.stack(parts[1:5], -1).view(-1, 2, 2) * keep.unsqueeze(1)
    slopes = torch.stack(parts[5:], -1) * torch.where(raw > 20.0, 1.0, torch.sigmoid(raw))
    scale, span = 1.0 - MIN_STEP * shape.bins, shape.high - shape.low
    knots = torch.stack((at, at + 1), -1).unsqueeze(1)
    mass = ((corners.view(-1, 2, 2) - shape.low) / span - MIN_STEP * knots.to(corners)) / scale
    mean = (places * mass).sum(-1, keepdim=True)
    bins = torch.arange(shape.bins, device=left.device)
    level = (bins < knots[..., :1]) * places[..., :1] + (bins < knots[..., 1:]) * places[..., 1:]
    common = span * scale * shape.scale
    gradient[:, : 2 * shape.bins] = (common * shares * (level - mean)).flatten(1)
    derivatives = gradient.new_zeros(len(left), shape.bins + 1)
    derivatives.scatter_(1, knots.squeeze(1), slopes * inside.unsqueeze(-1))
    gradient[:, 2 * shape.bins :] = derivatives[:, 1:-1] if shape.tails else derivatives
    return to_inputs


def at_least_float32(values: Tensor) -> Tensor:
    """Return the values in float32, or in float64 if they are."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
