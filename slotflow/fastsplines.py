"""The splines of :mod:`slotflow.splines` with a backward pass of their own, compiled on a CPU.

``packed_spline`` takes a row of parameters for each input; ``head_spline`` takes in the linear
layer that the parameters come from. What is gained, at 64 bins: one softmax is all that is done
over all bins; neither cumulative sums nor gradients of each step of the algebra are stored.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from slotflow import splinekernels as kernels
from slotflow.splines import Shape, at_least_float32, plain_backward, plain_forward, softmax


def packed_spline(inputs: Tensor, parameters: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """Map ``inputs`` (...) through splines given by one row of parameters each.

    As ``spline``, but with a backward pass of its own, which takes a gradient once (a second
    derivative raises RuntimeError); on a CPU both passes are compiled loops.

    Args:
        inputs: (...).
        parameters: (..., 2 K + D): widths, heights and derivatives, unnormalised; D is K - 1
            with tails and K + 1 without.
        shape: the rest.

    Returns:
        The outputs and the logarithm of their derivative, (...), in float32 at least.
    """
    inputs, parameters = at_least_float32(inputs), at_least_float32(parameters)
    dtype = torch.promote_types(inputs.dtype, parameters.dtype)
    flat = inputs.to(dtype).reshape(-1)
    rows = parameters.to(dtype).reshape(-1, parameters.shape[-1])
    outputs, log_slope = _Packed.apply(flat, rows, shape)
    return outputs.view(inputs.shape), log_slope.view(inputs.shape)


def head_spline(
    inputs: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor, shape: Shape
) -> tuple[Tensor, Tensor]:
    """``packed_spline`` with tails whose parameters are a linear layer's outputs; on a CPU.

    Of the derivatives, a third of the layer, the two that each input needs are computed alone.

    Args:
        inputs: (N, d).
        hidden: (N, H), the layer's input, of the same type as all others: float32 or float64.
        weight: (d (3 K - 1), H).
        bias: (d (3 K - 1)).
        shape: the rest; has tails.

    Returns:
        The outputs (N, d) and the sum of the logarithms of their derivatives (N,).
    """
    outputs, log_slope = _Head.apply(
        inputs.T.contiguous(), hidden.contiguous(), weight, bias, shape
    )
    return outputs.T, log_slope.sum(0)


class _Packed(Function):
    """(M,), (M, 2 K + D) -> outputs (M,), log slopes (M,)."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, parameters: Tensor, shape: Shape) -> tuple[Tensor, ...]:
        steps = parameters[:, : 2 * shape.bins]
        steps = steps * shape.scale if shape.scale != 1.0 else steps
        shares = softmax(steps.reshape(-1, 2, shape.bins))
        if _compiled(inputs):
            left, corners = _locate(inputs, shares, shape)
            raw = corners.new_empty(len(inputs), 2)
            kernels.pick_slopes(
                _array(parameters), shape.bins, _array(left), shape.tails, _array(raw)
            )
            outputs, log_slope, theta = _finish(inputs, left, corners, raw, shape)
        else:
            outputs, log_slope, *state = plain_forward(inputs, parameters, shares, shape)
            left, corners, raw, theta = state
        ctx.shape = shape
        ctx.width = parameters.shape[1]
        ctx.save_for_backward(left, corners, raw, theta, shares)
        return outputs, log_slope

    @staticmethod
    def backward(ctx: Any, from_outputs: Tensor, from_slope: Tensor) -> tuple[Tensor | None, ...]:
        _refuse_graph()
        left, _, _, _, shares = state = ctx.saved_tensors
        shape = ctx.shape
        gradient = shares.new_empty(len(left), ctx.width)
        if _compiled(shares):
            steps = gradient[:, : 2 * shape.bins]
            to_inputs, to_raw = _pull_back(state, from_outputs, from_slope, steps, shape)
            kernels.spread_slopes(
                _array(to_raw), shape.bins, _array(left), shape.tails, _array(gradient)
            )
        else:
            to_inputs = plain_backward(state, from_outputs, from_slope, gradient, shape)
        return to_inputs, gradient, None


class _Head(Function):
    """(d, N), (N, H), (d (3 K - 1), H), (d (3 K - 1)) -> outputs (d, N), log slopes (d, N)."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor, shape: Shape
    ) -> tuple[Tensor, ...]:
        bins, (features, rows) = shape.bins, inputs.shape
        weights = weight.detach().contiguous().view(features, 3 * bins - 1, -1)
        biases = bias.detach().contiguous().view(features, 3 * bins - 1)
        steps = hidden.new_empty(features, rows, 2 * bins)
        for f in range(features):
            # 2 K columns at a time: the product is quicker than with all of them at once
            torch.addmm(
                biases[f, : 2 * bins], hidden, weights[f, : 2 * bins].T,
                beta=shape.scale, alpha=shape.scale, out=steps[f],
            )  # fmt: skip
        shares = softmax(steps.view(-1, 2, bins))
        flat = inputs.reshape(-1)
        left, corners = _locate(flat, shares, shape)
        raw = corners.new_empty(len(flat), 2)
        kernels.make_slopes(
            _array(hidden), _array(weights), _array(biases), bins, _array(left), _array(raw)
        )
        outputs, log_slope, theta = _finish(flat, left, corners, raw, shape)
        ctx.shape = shape
        ctx.save_for_backward(left, corners, raw, theta, shares, hidden, weight)
        return outputs.view_as(inputs), log_slope.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, from_outputs: Tensor, from_slope: Tensor) -> tuple[Tensor | None, ...]:
        _refuse_graph()
        *state, hidden, weight = ctx.saved_tensors
        shape, (features, rows) = ctx.shape, from_outputs.shape
        bins, width = shape.bins, hidden.shape[1]
        weights = weight.detach().contiguous().view(features, 3 * bins - 1, width)
        steps = hidden.new_empty(features, rows, 2 * bins)
        to_inputs, to_raw = _pull_back(
            state, from_outputs.reshape(-1), from_slope.reshape(-1), steps.view(-1, 2 * bins), shape
        )
        to_hidden, to_weight = torch.empty_like(hidden), torch.empty_like(weights)
        to_bias = hidden.new_zeros(features, 3 * bins - 1)
        to_weight[:, 2 * bins :] = 0.0
        to_bias[:, : 2 * bins] = steps.sum(1)
        for f in range(features):
            torch.mm(steps[f].T, hidden, out=to_weight[f, : 2 * bins])
            torch.addmm(
                to_hidden, steps[f], weights[f, : 2 * bins], beta=float(f > 0), out=to_hidden
            )
        kernels.pull_back_slopes(
            _array(to_raw), _array(hidden), _array(weights), bins, _array(state[0]),
            _array(to_hidden), _array(to_weight), _array(to_bias),
        )  # fmt: skip
        to_inputs = to_inputs.view(features, rows)
        return to_inputs, to_hidden, to_weight.view_as(weight), to_bias.view(-1), None


def _refuse_graph() -> None:
    """Gradients that would be differentiated again have no graph: say so, rather than drop them."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "splines: no second derivatives (create_graph=True); slotflow.splines.spline has them"
        )


def _compiled(values: Tensor) -> bool:
    """Whether the compiled loops serve them."""
    return values.device.type == "cpu"


def _array(values: Tensor) -> Any:
    """The same memory as a NumPy array."""
    return values.detach().numpy()


def _locate(inputs: Tensor, shares: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """Return each input's bin (M,) and its corners (M, 4), float64."""
    left = torch.empty(len(inputs), dtype=torch.int64)
    corners = torch.empty(len(inputs), 4, dtype=torch.float64)
    kernels.locate(
        _array(inputs), _array(shares), shape.low, shape.high, int(shape.inverse), shape.tails,
        _array(left), _array(corners),
    )  # fmt: skip
    return left, corners


def _finish(
    inputs: Tensor, left: Tensor, corners: Tensor, raw: Tensor, shape: Shape
) -> tuple[Tensor, Tensor, Tensor]:
    """Return outputs, log slopes and places in the bin, (M,) each."""
    outputs, log_slope = torch.empty_like(inputs), torch.empty_like(inputs)
    theta = corners.new_empty(len(inputs))
    kernels.evaluate(
        _array(inputs), _array(left), _array(corners), _array(raw), shape.inverse,
        _array(outputs), _array(log_slope), _array(theta),
    )  # fmt: skip
    return outputs, log_slope, theta


def _pull_back(
    state: Any, from_outputs: Tensor, from_slope: Tensor, to_steps: Tensor, shape: Shape
) -> tuple[Tensor, Tensor]:
    """Write the steps' gradient; return the inputs' (M,) and the raw slopes' (M, 2)."""
    left, corners, raw, theta, shares = state
    to_inputs, to_raw = torch.empty_like(from_outputs), torch.empty_like(raw)
    kernels.pull_back(
        _array(left), _array(corners), _array(raw), _array(theta), _array(shares),
        shape.low, shape.high, shape.scale, shape.inverse, shape.tails,
        _array(from_outputs.contiguous()), _array(from_slope.contiguous()),
        _array(to_inputs), _array(to_steps), _array(to_raw),
    )  # fmt: skip
    return to_inputs, to_raw
