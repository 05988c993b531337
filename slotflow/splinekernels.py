"""Compiled loops of the rational-quadratic spline, for the CPU; :mod:`slotflow.splines` calls them.

One row is one input and its spline. The scalars of a row are float64 whatever the rows are in.
NumPy arrays in and out; results are written into arrays that the caller provides.
"""

import math
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

#: Least share of the range that a bin takes in x and in y, and least derivative (nflows').
MIN_STEP = MIN_DERIVATIVE = 1e-3
#: softplus(UNIT_DERIVATIVE) + MIN_DERIVATIVE = 1
UNIT_DERIVATIVE = math.log(math.expm1(1.0 - MIN_DERIVATIVE))


Array = NDArray[np.float32] | NDArray[np.float64]
Rows = NDArray[np.float64]
Index = NDArray[np.int64]

_LOOSE = {"reassoc", "contract", "nsz"}  # sums in any order; NaN and infinity stay what they are


def partials(
    theta: Any, width: Any, height: Any, d0: Any, d1: Any, from_outputs: Any, from_slope: Any,
    inverse: bool,
) -> tuple[Any, Any, Any, Any, Any, Any, Any]:  # fmt: skip
    """Return the gradients of the input, x0, x1, y0, y1, d0 and d1 of one bin.

    Arithmetic alone, so that it serves tensors and compiled scalars. With R = (y - y0) / height
    and L = ln dy/dx as functions of theta, delta = height / width, d0 and d1 (arXiv:1906.04032,
    equations 4 and 5); the inverse by the implicit function theorem.

    Args:
        theta: the place in the bin, (x - x0) / width.
        width: x1 - x0.
        height: y1 - y0.
        d0: derivative dy/dx at the left knot.
        d1: at the right knot.
        from_outputs: gradient of the output: of y, or of x if inverse.
        from_slope: gradient of its log slope: of L, or of -L if inverse.
        inverse: whether y is the input.
    """
    rest = 1.0 - theta
    mixed = theta * rest
    delta = height / width
    bend = d0 + d1 - 2.0 * delta
    denominator = delta + bend * mixed
    numerator = d1 * theta * theta + 2.0 * delta * mixed + d0 * rest * rest
    share = (delta * theta * theta + d0 * mixed) / denominator
    slope = numerator * (delta / denominator) * (delta / denominator)
    turn = 1.0 - 2.0 * theta  # of mixed, with theta
    slope_theta = (
        2.0 * (d1 * theta + delta * turn - d0 * rest) / numerator - 2.0 * bend * turn / denominator
    )
    of_slope = -from_slope if inverse else from_slope
    if inverse:
        of_input = (from_outputs * width + of_slope * slope_theta) / (slope * width)
        of_y, of_x0, of_width = -of_input, from_outputs, from_outputs * theta
    else:
        of_input = from_outputs * slope + of_slope * slope_theta / width
        of_y, of_x0, of_width = from_outputs, -of_input, -of_input * theta
    rise = of_y * height / denominator
    pull = 2.0 * mixed / denominator
    of_delta = rise * (theta * theta - share * (1.0 - 2.0 * mixed)) + of_slope * (
        2.0 / delta + 2.0 * mixed / numerator - 2.0 * (1.0 - 2.0 * mixed) / denominator
    )
    of_d0 = rise * mixed * (1.0 - share) + of_slope * (rest * rest / numerator - pull)
    of_d1 = -rise * mixed * share + of_slope * (theta * theta / numerator - pull)
    of_height = of_y * share + of_delta / width
    of_width = of_width - of_delta * delta / width
    return of_input, of_x0 - of_width, of_width, of_y - of_height, of_height, of_d0, of_d1


_partials = numba.njit(inline="always")(partials)


@numba.njit(cache=True, nogil=True, fastmath=_LOOSE, error_model="numpy")
def locate(
    inputs: Array, shares: Array, low: float, high: float, axis: int, tails: bool,
    left: Index, corners: Rows,
) -> None:  # fmt: skip
    """Find each input's bin, ``left`` (M,), and its corners (M, 4): x0, x1, y0, y1.

    ``left`` is -1 for an input outside the range, where tails are the identity, and for NaN.

    Args:
        inputs: (M,).
        shares: (M, 2, K), softmax of the widths and of the heights.
        low: lower end of both axes.
        high: upper end.
        axis: 0 if the inputs are x, 1 if they are y.
        tails: whether inputs may be outside.
        left: written.
        corners: written.
    """
    bins = shares.shape[2]
    span, scale = high - low, 1.0 - MIN_STEP * bins
    for i in range(len(inputs)):
        x = float(inputs[i])
        if not (low <= x <= high) and (tails or x != x):
            left[i] = -1
            continue
        target = (x - low) / span
        before = after = 0.0
        at = bins - 1
        passed = 0.0
        for j in range(bins - 1):
            passed += shares[i, axis, j]
            after = scale * passed + MIN_STEP * (j + 1)
            if target < after:
                at = j
                break
            before = after
        other = 0.0
        for j in range(at):
            other += shares[i, 1 - axis, j]
        start = scale * other + MIN_STEP * at
        stop = start + scale * shares[i, 1 - axis, at] + MIN_STEP
        left[i] = at
        corners[i, 2 * axis] = low + span * before
        corners[i, 2 * (1 - axis)] = low + span * start
        last = at == bins - 1
        corners[i, 2 * axis + 1] = high if last else low + span * after
        corners[i, 2 * (1 - axis) + 1] = high if last else low + span * stop


@numba.njit(cache=True, nogil=True)
def pick_slopes(parameters: Array, bins: int, left: Index, tails: bool, pair: Rows) -> None:
    """Copy both knots' unnormalised derivatives, ``pair`` (M, 2), from (M, 2 K + D)."""
    first = 2 * bins - (1 if tails else 0)
    for i in range(len(left)):
        at = left[i]
        if at < 0:
            continue
        pair[i, 0] = UNIT_DERIVATIVE if tails and at == 0 else parameters[i, first + at]
        ends = tails and at == bins - 1
        pair[i, 1] = UNIT_DERIVATIVE if ends else parameters[i, first + at + 1]


@numba.njit(cache=True, nogil=True, fastmath=_LOOSE)
def make_slopes(
    hidden: Array, weight: Array, bias: Array, bins: int, left: Index, pair: Rows
) -> None:
    """Compute both knots' unnormalised derivatives alone, of all that a layer would return.

    Args:
        hidden: (N, H), the layer's input.
        weight: (d, 3 K - 1, H).
        bias: (d, 3 K - 1).
        bins: K.
        left: (d N,).
        pair: (d N, 2), written.
    """
    rows, width = hidden.shape
    for i in range(len(left)):
        feature, row = i // rows, i % rows
        for side in range(2):
            knot = left[i] - 1 + side
            if left[i] < 0:
                continue
            if knot < 0 or knot == bins - 1:
                pair[i, side] = UNIT_DERIVATIVE
                continue
            total = bias[feature, 2 * bins + knot]
            for h in range(width):
                total += hidden[row, h] * weight[feature, 2 * bins + knot, h]
            pair[i, side] = total


@numba.njit(cache=True, nogil=True, error_model="numpy")
def evaluate(
    inputs: Array, left: Index, corners: Rows, pair: Rows, inverse: bool,
    outputs: Array, log_slope: Array, theta: Rows,
) -> None:  # fmt: skip
    """Map the inputs (M,); writes outputs, log slopes and places in the bin, each (M,)."""
    for i in range(len(inputs)):
        if left[i] < 0:
            outputs[i], log_slope[i] = inputs[i], 0.0
            continue
        x0, x1, y0, y1 = corners[i]
        d0, d1 = _slope(pair[i, 0]), _slope(pair[i, 1])
        width, height = x1 - x0, y1 - y0
        delta = height / width
        if inverse:
            rise, rest = max(inputs[i] - y0, 0.0), max(y1 - inputs[i], 0.0)
            place = _solve(rise, rest, delta, d0, d1)
            outputs[i] = x0 + place * width
        else:
            place = min(max((inputs[i] - x0) / width, 0.0), 1.0)
        mixed = place * (1.0 - place)
        denominator = delta + (d0 + d1 - 2.0 * delta) * mixed
        if not inverse:
            outputs[i] = y0 + height * (delta * place**2 + d0 * mixed) / denominator
        numerator = d1 * place**2 + 2.0 * delta * mixed + d0 * (1.0 - place) ** 2
        change = math.log(numerator * (delta / denominator) ** 2)
        log_slope[i] = -change if inverse else change
        theta[i] = place


@numba.njit(cache=True, nogil=True, error_model="numpy")
def pull_back(
    left: Index, corners: Rows, pair: Rows, theta: Rows, shares: Array,
    low: float, high: float, scale: float, inverse: bool, tails: bool,
    from_outputs: Array, from_slope: Array,
    to_inputs: Array, to_steps: Array, to_pair: Rows,
) -> None:  # fmt: skip
    """Write the gradients of the inputs (M,), of the steps (M, 2 K) and of ``pair`` (M, 2).

    Those of the outputs and of the log slopes, (M,) each, are given; ``scale`` is what the
    steps were multiplied by before the softmax.
    """
    bins = shares.shape[2]
    span, share_scale = high - low, 1.0 - MIN_STEP * bins
    for i in range(len(left)):
        at = left[i]
        if at < 0:
            to_inputs[i] = from_outputs[i]
            to_steps[i] = 0.0
            to_pair[i] = 0.0
            continue
        x0, x1, y0, y1 = corners[i]
        d0, d1 = _slope(pair[i, 0]), _slope(pair[i, 1])
        of_input, gx0, gx1, gy0, gy1, gd0, gd1 = _partials(
            theta[i], x1 - x0, y1 - y0, d0, d1,
            float(from_outputs[i]), float(from_slope[i]), inverse,
        )  # fmt: skip
        to_inputs[i] = of_input
        to_pair[i, 0] = 0.0 if tails and at == 0 else gd0 * _softplus_slope(pair[i, 0])
        ends = tails and at == bins - 1
        to_pair[i, 1] = 0.0 if ends else gd1 * _softplus_slope(pair[i, 1])
        for axis in range(2):
            g0, g1 = (gx0, gx1) if axis == 0 else (gy0, gy1)
            g0 = 0.0 if at == 0 else g0
            g1 = 0.0 if at == bins - 1 else g1
            # the softmax's share of the mass left of each knot, from the knot's place
            c0 = ((corners[i, 2 * axis] - low) / span - MIN_STEP * at) / share_scale
            c1 = ((corners[i, 2 * axis + 1] - low) / span - MIN_STEP * (at + 1)) / share_scale
            common = span * share_scale * scale
            mean = g0 * c0 + g1 * c1
            # to the inputs' own precision first, so that the loops are vectorised
            before = to_steps.dtype.type(common * (g0 + g1 - mean))
            behind = to_steps.dtype.type(-common * mean)
            row, first = shares[i, axis], axis * bins
            for j in range(at):
                to_steps[i, first + j] = before * row[j]
            to_steps[i, first + at] = common * (g1 - mean) * row[at]
            for j in range(at + 1, bins):
                to_steps[i, first + j] = behind * row[j]


@numba.njit(cache=True, nogil=True)
def spread_slopes(to_pair: Rows, bins: int, left: Index, tails: bool, gradient: Array) -> None:
    """Write the derivatives' part of the gradient (M, 2 K + D): the reverse of pick_slopes."""
    first = 2 * bins - (1 if tails else 0)
    for i in range(len(left)):
        gradient[i, 2 * bins :] = 0.0
        at = left[i]
        if at < 0:
            continue
        if not (tails and at == 0):
            gradient[i, first + at] = to_pair[i, 0]
        if not (tails and at == bins - 1):
            gradient[i, first + at + 1] = to_pair[i, 1]


@numba.njit(cache=True, nogil=True, fastmath=_LOOSE)
def pull_back_slopes(
    to_pair: Rows, hidden: Array, weight: Array, bins: int, left: Index,
    to_hidden: Array, to_weight: Array, to_bias: Array,
) -> None:  # fmt: skip
    """Add the gradients of what went into make_slopes to those of the rest of the layer."""
    rows, width = hidden.shape
    for i in range(len(left)):
        feature, row = i // rows, i % rows
        for side in range(2):
            knot = left[i] - 1 + side
            if left[i] < 0 or knot < 0 or knot == bins - 1:
                continue
            place = 2 * bins + knot
            g = hidden.dtype.type(to_pair[i, side])
            to_bias[feature, place] += g
            for h in range(width):
                to_hidden[row, h] += g * weight[feature, place, h]
            for h in range(width):
                to_weight[feature, place, h] += g * hidden[row, h]


@numba.njit(cache=True, inline="always")
def _slope(raw: float) -> float:
    """Softplus and the floor, with PyTorch's threshold (nflows' numbers come from there)."""
    return MIN_DERIVATIVE + (raw if raw > 20.0 else math.log1p(math.exp(raw)))


@numba.njit(cache=True, inline="always")
def _softplus_slope(raw: float) -> float:
    return 1.0 if raw > 20.0 else 1.0 / (1.0 + math.exp(-raw))


@numba.njit(cache=True, inline="always")
def _solve(rise: float, rest: float, delta: float, d0: float, d1: float) -> float:
    """Where in its bin a spline has risen by ``rise``: see ``splines._inverse``."""
    m = d0 * rest - d1 * rise
    s = math.sqrt(max(m * m + 4.0 * delta * delta * (rise * rest), 1e-300))
    if m >= 0.0:
        low = 2.0 * delta * rise
        return low / (s + m + low)
    p = s - m
    return p / (p + 2.0 * delta * rest)
