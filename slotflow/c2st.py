"""A learned discriminator between truths and posterior draws, tested on sources it has not seen.

A classifier two-sample test (Lopez-Paz & Oquab 2017, arXiv:1610.06545) that is told about the data,
as in the local test of Linhart et al. 2023 (arXiv:2306.03580): it also sees what is known of each
source, so that a posterior too narrow for weak sources and too wide for loud ones is caught.

The discriminator is a penalised logistic regression on quadratic terms, waves along each axis and
random cosines of the residual, truth's or draw's, whitened by the spread of draws that were set
aside: a convex problem with one solution. It learns from half the sources. In the other half the
truth's score is ranked among those of its own draws: whatever was learned, these ranks are
exactly uniform if the posterior is exact. This is the null; no other training is needed for it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg, special

from slotflow.errors import NonFiniteError
from slotflow.metrics import joint

Float = NDArray[np.float64]
Int = NDArray[np.int64]

RANDOM_FEATURES: Final = 48
PENALTY: Final = 0.1  # of the squared weights of standardised features, per unit of mean loss
DRAWS: Final = 4  # of each source that the discriminator learns from
_WHITEN_FLOOR: Final = 1e-6  # added to the correlation matrix of the draws set aside
_CHUNK: Final = 4_000_000  # features held at once
_STEPS: Final = 50
_CONVERGED: Final = 1e-12  # expected gain of a step, in the mean loss
_RIDGE: Final = 1e-9  # so that features that are sums of others do no harm
_FAR: Final = 8.0  # spreads beyond which a residual tells nothing more


class _Residuals(NamedTuple):
    """Whitened residuals of draws (n, k, d) and truths (n, d), and conditions (n, c)."""

    draws: Float
    truths: Float
    conditions: Float


@dataclass(frozen=True)
class GroupTest:
    """The discriminator on the held-out sources of one group."""

    group: int
    number: int
    auc: float
    p_value: float


@dataclass(frozen=True)
class C2st:
    """What a discriminator does on ``number`` held-out sources of ``draws`` draws each.

    ``auc``: the chance that a truth looks more like a truth than one of its draws, 1/2 if the
    posterior is exact; ``p_value`` of it, one-sided. ``accuracy`` at even odds, beside the 5% and
    95% quantiles (``null_lower``, ``null_upper``) of what it is with draws in the truths' place.
    """

    number: int
    draws: int
    auc: float
    p_value: float
    accuracy: float
    null_lower: float
    null_upper: float
    groups: tuple[GroupTest, ...]


def c2st(
    draws: ArrayLike, truths: ArrayLike, periods: Sequence[float | None],
    generator: np.random.Generator, conditions: ArrayLike | None = None,
    groups: ArrayLike | None = None, random_features: int = RANDOM_FEATURES,
) -> C2st:  # fmt: skip
    """Train a discriminator on half the sources and test it on the others.

    Args:
        draws: (n, m, d), m >= 3 d + 8; the first third, at least 2 d + 4, are set aside.
        truths: (n, d).
        periods: d, None for parameters that are no angles.
        generator: of the halves and of the random features; the same one, the same result.
        conditions: (n, c) what is known of a source without its truth: the estimated SNR, the
            posterior's place or width, the number of neighbours.
        groups: (n,) small integers, for a result each; None: none. A group may be made by the truth
            only if it does not tell truth and draws apart.
        random_features: number of random cosines; without them no shape is seen that shows
            neither in means, widths and correlations nor in one parameter alone.

    Raises:
        ValueError: shapes that do not fit, too few draws, or fewer than 20 sources.
        NonFiniteError: numbers that are not finite.
    """
    x, y = joint(draws, truths, periods)
    n, m, d = x.shape
    if n < 20 or m < 3 * d + 8:
        raise ValueError(f"expected 20 sources and {3 * d + 8} draws or more; got {n} and {m}")
    given = _conditions(conditions, n)
    labels = None if groups is None else np.asarray(groups).astype(np.int64)
    if labels is not None and labels.shape != (n,):
        raise ValueError(f"groups: expected ({n},); got {labels.shape}")
    order = generator.permutation(n)
    learn, test = order[: n // 2], np.sort(order[n // 2 :])
    aside = max(m // 3, 2 * d + 4)
    rows = _Residuals(*_whiten(x[:, :aside], x[:, aside:], y, periods), given)
    basis = _Basis(d, given.shape[1], random_features, generator)
    weights = _train(rows, learn, basis)
    scores = _scores(rows, test, basis, weights)
    return _result(*scores, None if labels is None else labels[test])


def _conditions(conditions: ArrayLike | None, n: int) -> Float:
    """Standardised conditions (n, c), c = 0 without."""
    given = np.empty((n, 0)) if conditions is None else np.asarray(conditions, np.float64)
    if given.ndim != 2 or len(given) != n:
        raise ValueError(f"conditions: expected ({n}, c); got {given.shape}")
    if not np.isfinite(given).all():
        raise NonFiniteError("conditions: not all are finite")
    spread = given.std(axis=0)
    return (given - given.mean(axis=0)) / np.where(spread > 0.0, spread, 1.0)


def _whiten(
    aside: Float, draws: Float, truths: Float, periods: Sequence[float | None]
) -> tuple[Float, Float]:
    """Residuals in which the draws set aside have mean 0 and unit covariance."""
    centre = aside.mean(axis=1)
    period = np.array([np.inf if p is None else p for p in periods])
    for j, p in enumerate(periods):
        if p is not None:
            turn = np.exp(2j * np.pi / p * aside[..., j]).mean(axis=1)
            centre[:, j] = np.angle(turn) * p / (2.0 * np.pi)

    def offset(values: Float) -> Float:
        difference = values - centre[:, None]
        turns = np.where(np.isfinite(period), np.rint(difference / period), 0.0)
        shift: Float = turns * np.where(np.isfinite(period), period, 0.0)
        return difference - shift

    known = offset(aside)
    spread = np.sqrt((known**2).mean(axis=1))
    spread = np.where(spread > 0.0, spread, 1.0)[:, None]
    known = known / spread
    d = known.shape[-1]
    correlation = known.swapaxes(1, 2) @ known / known.shape[1] + _WHITEN_FLOOR * np.eye(d)
    inverse = np.linalg.inv(np.linalg.cholesky(correlation)).swapaxes(1, 2)
    both = np.concatenate((offset(draws), offset(truths[:, None])), axis=1) / spread
    whitened = np.clip(both @ inverse, -_FAR, _FAR)
    return whitened[:, :-1], whitened[:, -1]


class _Basis:
    """Features of residuals z (n, k, d) and conditions c (n, c): (n, k, features).

    z, z z', z c, z z c, sines and cosines of z and 2 z, cosines along random directions through z
    and through z and c, and a constant.
    """

    def __init__(self, d: int, c: int, cosines: int, generator: np.random.Generator) -> None:
        self.first, self.second = np.triu_indices(d)
        self.directions = generator.normal(size=(d + c, cosines))
        self.directions[d:, ::2] = 0.0  # every other one whatever the conditions
        # half a radian to two a spread: slow and fast features
        self.directions /= np.linalg.norm(self.directions, axis=0)
        self.directions *= np.exp2(generator.uniform(-1.0, 1.0, cosines))
        self.phases = generator.uniform(0.0, 2.0 * np.pi, cosines)

    def __call__(self, z: Float, conditions: Float) -> Float:
        given = np.broadcast_to(conditions[:, None], (*z.shape[:2], conditions.shape[1]))
        products = z[..., self.first] * z[..., self.second]
        parts = [z, products]
        for j in range(given.shape[-1]):
            parts += [z * given[..., j, None], products * given[..., j, None]]
        everything = np.concatenate((z, given), axis=-1)
        parts += [np.cos(z), np.sin(z), np.cos(2.0 * z), np.sin(2.0 * z)]
        parts.append(np.cos(everything @ self.directions + self.phases))
        parts.append(np.ones((*z.shape[:2], 1)))
        return np.concatenate(parts, axis=-1)


def _train(rows: _Residuals, chosen: Int, basis: _Basis) -> Float:
    """Return the weights of the features, learned from the chosen sources at even odds."""
    few = min(DRAWS, rows.draws.shape[1])
    of_draws = basis(rows.draws[chosen][:, :few], rows.conditions[chosen])
    of_truth = basis(rows.truths[chosen][:, None], rows.conditions[chosen])
    width = of_draws.shape[-1]
    features = np.concatenate((of_truth.reshape(-1, width), of_draws.reshape(-1, width)))
    n = len(chosen)
    sign = np.concatenate((np.ones(n), -np.ones(n * few)))
    share = np.concatenate((np.full(n, 0.5 / n), np.full(n * few, 0.5 / (n * few))))
    spread = features.std(axis=0)
    spread = np.where(spread > 0.0, spread, 1.0)
    return _logistic(features / spread, sign, share) / spread


def _scores(rows: _Residuals, chosen: Int, basis: _Basis, weights: Float) -> tuple[Float, Float]:
    """Return log odds of draws (n, k) and truths (n,), positive for what looks like a truth."""
    both = np.concatenate((rows.draws, rows.truths[:, None]), axis=1)
    step = max(_CHUNK // (both.shape[1] * weights.size), 1)
    parts = [
        basis(both[some], rows.conditions[some]) @ weights
        for some in np.split(chosen, np.arange(step, len(chosen), step))
    ]
    odds = np.concatenate(parts)
    return odds[:, :-1], odds[:, -1]


def _logistic(features: Float, sign: Float, share: Float) -> Float:
    """Minimise sum share log(1 + exp(-sign X w)) + PENALTY |w|^2 / 2 by damped Newton steps.

    The last feature is the constant, whose weight is not penalised.
    """
    weights = np.zeros(features.shape[1])
    penalty = np.full(weights.size, PENALTY)
    penalty[-1] = 0.0

    def loss(w: Float) -> float:
        fit = np.logaddexp(0.0, -sign * (features @ w))
        return float(share @ fit + 0.5 * penalty @ w**2)

    value = loss(weights)
    for _ in range(_STEPS):
        wrong = special.expit(-sign * (features @ weights))
        slope = penalty * weights - features.T @ (share * sign * wrong)
        curved = (features * (share * wrong * (1.0 - wrong))[:, None]).T @ features
        step = linalg.solve(curved + np.diag(penalty + _RIDGE), slope, assume_a="pos")
        size, gain = 1.0, float(slope @ step)
        if gain < _CONVERGED:
            break
        while (new := loss(weights - size * step)) > value - 0.25 * size * gain and size > 1e-6:
            size *= 0.5
        weights, value = weights - size * step, new
    return weights


def _result(of_draws: Float, of_truth: Float, labels: Int | None) -> C2st:
    """Compare scores of held-out draws (n, k) and truths (n,)."""
    n, k = of_draws.shape
    place = (of_draws < of_truth[:, None]).mean(-1) + 0.5 * (of_draws == of_truth[:, None]).mean(-1)
    right = 0.5 * float((of_draws <= 0.0).mean())
    null = 0.5 * (of_draws > 0.0).mean(axis=0) + right
    low, high = np.quantile(null, [0.05, 0.95])
    found = []
    for group in [] if labels is None else np.unique(labels).tolist():
        chosen = place[labels == group]
        found.append(GroupTest(group, chosen.size, float(chosen.mean()), _p_value(chosen, k)))
    return C2st(
        n, k, float(place.mean()), _p_value(place, k),
        0.5 * float((of_truth > 0.0).mean()) + right, float(low), float(high), tuple(found),
    )  # fmt: skip


def _p_value(place: Float, draws: int) -> float:
    """P of so large a mean of uniform ranks (0..draws) / draws, from their sum's normal limit."""
    deviation = math.sqrt((draws + 2.0) / (12.0 * draws * place.size))
    return float(special.ndtr((0.5 - place.mean()) / deviation))
