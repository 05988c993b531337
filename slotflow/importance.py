"""Importance weights: how good they are, the evidence they give, and draws resampled by them.

For draws from q and an unnormalised target t, ``w = t / q``. The mean weight estimates the
target's integral, ``ESS = (sum w)^2 / sum w^2`` says how many independent draws the weighted ones
are worth, and the shape k of a generalised Pareto distribution fitted to the largest weights says
whether either can be believed: the weights' variance is finite below 1/2, and up to 0.7 averages
still converge at a useful pace (Vehtari, Simpson, Gelman, Yao & Gabry, arXiv:1507.02646).
"""

from typing import Final, NamedTuple

import numpy as np
import scipy.special
from numpy.typing import ArrayLike, NDArray

Float = NDArray[np.float64]

MAX_K: Final = 0.7  # above it weighted averages are not to be trusted
MIN_ESS: Final = 100.0  # below it they are too few for quantiles
_LEAST_TAIL: Final = 5  # weights that a tail can be fitted to


class Pareto(NamedTuple):
    """A generalised Pareto distribution of excesses: its shape k and its scale."""

    k: float
    scale: float


class Weighted(NamedTuple):
    """What weights say.

    Attributes:
        weights: (n,) normalised, the largest smoothed.
        ln_z: ln of the mean of the weights as they are.
        ln_z_error: its standard error by the weights' scatter.
        ess: effective sample size of the weights as they are.
        efficiency: ESS over n.
        largest: largest normalised weight, as it is.
        k: Pareto shape of the largest weights; NaN for too few.
    """

    weights: Float
    ln_z: float
    ln_z_error: float
    ess: float
    efficiency: float
    largest: float
    k: float


def fit_pareto(excesses: ArrayLike) -> Pareto:
    """Fit a generalised Pareto distribution to excesses over a threshold.

    The quasi-Bayesian estimator of Zhang & Stephens (Technometrics 51, 2009, 316), in the sign of
    k under which large k means a heavy tail.

    Args:
        excesses: (n,) above 0.

    Raises:
        ValueError: fewer than 5 excesses, or one that is not above 0.
    """
    x = np.sort(np.asarray(excesses, dtype=np.float64))
    n = x.size
    if n < _LEAST_TAIL or not (x[0] >= 0.0 and x[-1] > 0.0 and np.isfinite(x[-1])):
        raise ValueError(f"expected at least {_LEAST_TAIL} finite excesses above 0; got {n}")
    points = 30 + int(np.sqrt(n))
    quartile = x[int(n / 4 + 0.5) - 1] or x[x > 0.0][0]
    grid = np.sqrt(points / (np.arange(1, points + 1) - 0.5))
    theta = 1.0 / x[-1] + (1.0 - grid) / (3.0 * quartile)
    theta = theta[theta != 0.0]
    shape = np.mean(np.log1p(-theta[:, None] * x), axis=1)
    profile = n * (np.log(-theta / shape) - shape - 1.0)
    weight = scipy.special.softmax(profile)
    best = float(theta @ weight)
    k = float(np.mean(np.log1p(-best * x)))
    return Pareto(k, -k / best)


def pareto_smoothed(ln_weights: Float) -> tuple[Float, float]:
    """Replace the largest weights by the order statistics of the Pareto tail fitted to them.

    Args:
        ln_weights: (n,) not normalised; -inf for draws outside the target.

    Returns:
        ``(ln_weights, k)``: smoothed, relative to the largest; k drawn a little towards 1/2, as
        by ten more weights (arXiv:1507.02646, appendix), NaN where the tail is too short.
    """
    shifted = ln_weights - np.max(ln_weights)
    n = shifted.size
    tail = int(min(0.2 * n, 3.0 * np.sqrt(n)))
    order = np.argsort(shifted, kind="stable")
    if tail < _LEAST_TAIL:
        return shifted, float("nan")
    cut = np.exp(shifted[order[-tail - 1]])
    chosen = order[-tail:]
    excess = np.exp(shifted[chosen]) - cut
    if excess[0] < 0.0 or not excess[-1] > 0.0 or np.count_nonzero(excess) < _LEAST_TAIL:
        return shifted, (float("nan") if excess[-1] > 0.0 else 0.0)
    fitted = fit_pareto(excess)
    k = (tail * fitted.k + 5.0) / (tail + 10.0)
    place = (np.arange(tail) + 0.5) / tail
    quantile = scipy.special.expm1(-k * np.log1p(-place)) * fitted.scale / k
    smoothed = shifted.copy()
    with np.errstate(divide="ignore"):
        smoothed[chosen] = np.minimum(np.log(quantile + cut), 0.0)
    return smoothed, k


def weigh(ln_weights: Float) -> Weighted:
    """Assess weights.

    Args:
        ln_weights: (n,) ln of target over proposal; -inf for draws outside the target.

    Raises:
        ValueError: no draws, NaN or +inf.
    """
    if ln_weights.size == 0 or np.isnan(ln_weights).any() or np.isposinf(ln_weights).any():
        raise ValueError("expected ln weights that are numbers, or -inf; got none, NaN or inf")
    n = ln_weights.size
    if np.isneginf(ln_weights).all():
        nothing = np.full(n, 1.0 / n)
        return Weighted(nothing, -np.inf, np.inf, 0.0, 0.0, 1.0, float("inf"))
    ln_sum = float(scipy.special.logsumexp(ln_weights))
    plain = np.exp(ln_weights - ln_sum)
    ess = float(1.0 / np.sum(plain**2))
    smoothed, k = pareto_smoothed(ln_weights)
    weights = scipy.special.softmax(smoothed)
    error = float(np.sqrt(max(1.0 / ess - 1.0 / n, 0.0)))
    return Weighted(weights, ln_sum - np.log(n), error, ess, ess / n, float(plain.max()), k)


def complaints(weighted: Weighted) -> tuple[str, ...]:
    """Return why the weights cannot be relied on, in words; nothing where they can."""
    found = []
    if weighted.ess < MIN_ESS:
        found.append(f"effective sample size {weighted.ess:.0f} (below {MIN_ESS:.0f})")
    if weighted.k > MAX_K:
        found.append(f"Pareto k {weighted.k:.2f} (above {MAX_K:g})")
    elif np.isnan(weighted.k):
        found.append("too few weights for their tail")
    return tuple(found)


def systematic(weights: Float, number: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the indices of systematic resampling: each draw's count is within 1 of its share.

    Args:
        weights: (n,) normalised.
        number: of indices.
        rng: one uniform number is drawn.
    """
    places = (np.arange(number) + rng.random()) / number
    cumulative = np.cumsum(weights)
    chosen = np.searchsorted(cumulative / cumulative[-1], places, side="right")
    return np.asarray(np.minimum(chosen, weights.size - 1), dtype=np.int64)
