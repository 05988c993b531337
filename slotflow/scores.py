"""Scores of posteriors against truths, with bootstrap intervals: CRPS, compression, energy score.

Sources of one band share its noise and its neighbours, so their scores are correlated. All
intervals here take ``clusters``, the band of each source: bands are resampled then, not sources.
Without it sources are taken to be independent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.distance import pdist

from slotflow.errors import NonFiniteError
from slotflow.metrics import embed, fair_crps, joint

Float = NDArray[np.float64]
Int = NDArray[np.int64]

RESAMPLES: Final = 1000
LEVEL: Final = 0.9  # of the intervals
_CHUNK: Final = 4_000_000  # weights held at once

#: CRPS published for the method (arXiv:2605.02323), all but the first as upper bounds.
PUBLISHED_CRPS: Final = {
    "f0": 0.015,
    "ln_amplitude": 0.05,
    "ra": 0.05,
    "sin_dec": 0.05,
    "cos_iota": 0.05,
}


@dataclass(frozen=True)
class Estimate:
    """Mean and median over ``number`` sources, with bootstrap intervals.

    The bounds are None where there is one source, or one cluster, only.
    """

    number: int
    mean: float
    mean_lower: float | None
    mean_upper: float | None
    median: float
    median_lower: float | None
    median_upper: float | None


@dataclass(frozen=True)
class ParameterScore:
    """CRPS of one parameter, the prior's, and the compression 1 - CRPS / prior's CRPS."""

    name: str
    crps: Estimate
    prior: float
    compression: float
    compression_lower: float | None
    compression_upper: float | None


@dataclass(frozen=True)
class Row:
    """Estimates over the sources with ``low`` <= quantity < ``high``; None: no bound.

    Sources for which the quantity is NaN (no neighbour, say) have a row with ``known`` false.
    """

    low: float | None
    high: float | None
    known: bool
    estimates: tuple[Estimate, ...]


def crps_columns(draws: ArrayLike, truths: ArrayLike, periods: Sequence[float | None]) -> Float:
    """Return the fair CRPS of every source and parameter: (n, m, d), (n, d) -> (n, d)."""
    x, y = joint(draws, truths, periods)
    columns = [fair_crps(x[..., j], y[..., j], period) for j, period in enumerate(periods)]
    return np.stack(columns, axis=-1)


def prior_crps(prior: ArrayLike, truths: ArrayLike, periods: Sequence[float | None]) -> Float:
    """Return the CRPS that the prior itself has on these truths: (m, d), (n, d) -> (n, d)."""
    samples, y = np.asarray(prior, np.float64), np.asarray(truths, np.float64)
    return crps_columns(np.broadcast_to(samples, (len(y), *samples.shape)), y, periods)


def energy_score(draws: ArrayLike, truths: ArrayLike, periods: Sequence[float | None]) -> Float:
    """Return the fair energy score, E|X - y| - E|X - X'| / 2, of the joint: (n,).

    |.| is the Euclidean norm after :func:`slotflow.metrics.embed`, so that an angle's distance is
    its chord: the score stays strictly proper (Gneiting & Raftery 2007, JASA 102, 359), which the
    arc's would not be. The pairs are of distinct draws, as in the fair CRPS. Parameters count by
    the scale they come in; unit ranges weigh them alike.

    Args:
        draws: (n, m, d), m >= 2. Costs m^2: a few hundred are plenty.
        truths: (n, d).
        periods: d, None for parameters that are no angles.
    """
    x, y = joint(draws, truths, periods)
    if x.shape[1] < 2:
        raise ValueError(f"draws: expected at least 2 a source; got {x.shape[1]}")
    score = np.empty(len(x))
    for i, target in enumerate(embed(y, periods)):
        points = embed(x[i], periods)
        to_truth = np.linalg.norm(points - target, axis=-1)
        score[i] = to_truth.mean() - 0.5 * pdist(points).mean()
    return score


def estimates(
    values: ArrayLike, generator: np.random.Generator, clusters: ArrayLike | None = None,
    level: float = LEVEL, resamples: int = RESAMPLES,
) -> tuple[Estimate, ...]:  # fmt: skip
    """Return mean and median of each column, with percentile bootstrap intervals.

    Args:
        values: (n, d) or (n,), n > 0; scores of sources.
        generator: of the resamples.
        clusters: (n,) the band of each source, to resample bands; None: sources.
        level: of the intervals.
        resamples: number of them.

    Raises:
        ValueError: no values, or clusters of another length.
        NonFiniteError: values that are not finite.
    """
    x = _columns(values)
    means, medians = _resample(x, generator, _labels(clusters, len(x)), resamples)
    return tuple(_estimate(x[:, j], means[:, j], medians[:, j], level) for j in range(x.shape[1]))


def parameter_scores(
    crps: ArrayLike, prior: ArrayLike, names: Sequence[str], generator: np.random.Generator,
    clusters: ArrayLike | None = None, level: float = LEVEL, resamples: int = RESAMPLES,
) -> tuple[ParameterScore, ...]:  # fmt: skip
    """Return the CRPS of each parameter beside the prior's.

    The compression's interval resamples both, the same sources in each.

    Args:
        crps: (n, d) of :func:`crps_columns`.
        prior: (n, d) of :func:`prior_crps`, or d numbers that hold for all.
        names: d.
        generator, clusters, level, resamples: as in :func:`estimates`.
    """
    x = _columns(crps)
    base = _columns(np.broadcast_to(np.asarray(prior, np.float64), x.shape))
    both = np.concatenate((x, base), axis=-1)
    labels, d = _labels(clusters, len(x)), len(names)
    means, medians = _resample(both, generator, labels, resamples)
    found = []
    for j, name in enumerate(names):
        crps_j = _estimate(x[:, j], means[:, j], medians[:, j], level)
        prior_j = float(base[:, j].mean())
        bounds = _interval(1.0 - means[:, j] / means[:, d + j], level)
        found.append(ParameterScore(name, crps_j, prior_j, 1.0 - crps_j.mean / prior_j, *bounds))
    return tuple(found)


def breakdown(
    values: ArrayLike, by: ArrayLike, edges: Sequence[float], generator: np.random.Generator,
    clusters: ArrayLike | None = None, level: float = LEVEL, resamples: int = RESAMPLES,
) -> tuple[Row, ...]:  # fmt: skip
    """Return :func:`estimates` in intervals of a quantity: SNR, K, frequency, separation.

    Every source is in one row: below the first edge and from the last on there are open rows.
    Empty rows are left out.

    Args:
        values: (n, d) or (n,).
        by: (n,) the quantity; NaN where a source has none.
        edges: rising.
        generator, clusters, level, resamples: as in :func:`estimates`.
    """
    x, quantity = _columns(values), np.asarray(by, np.float64)
    if quantity.shape != x.shape[:1] or not (np.diff(edges) > 0).all():
        raise ValueError(f"expected rising edges and a quantity ({len(x)},); got {quantity.shape}")
    labels = _labels(clusters, len(x))
    place = np.where(np.isnan(quantity), -1, np.searchsorted(edges, quantity, side="right"))
    bounds: list[float | None] = [None, *(float(e) for e in edges), None]
    rows = []
    for i in [*range(len(edges) + 1), -1]:
        chosen = place == i
        if chosen.any():
            low, high = (bounds[i], bounds[i + 1]) if i >= 0 else (None, None)
            found = estimates(x[chosen], generator, labels[chosen], level, resamples)
            rows.append(Row(low, high, i >= 0, found))
    return tuple(rows)


def one_per_cluster(clusters: ArrayLike, generator: np.random.Generator) -> Int:
    """Return the index of one source of each cluster, at random and in order: (c,).

    Sources of different bands are independent, so a test on these is exact.
    """
    labels = np.asarray(clusters)
    order = generator.permutation(labels.size)
    _, first = np.unique(labels[order], return_index=True)
    return np.sort(order[first]).astype(np.int64)


def _columns(values: ArrayLike) -> Float:
    x = np.asarray(values, np.float64)
    x = x[:, None] if x.ndim == 1 else x
    if x.ndim != 2 or not x.size:
        raise ValueError(f"values: expected (n, d), n > 0; got {x.shape}")
    if bad := int((~np.isfinite(x)).sum()):
        raise NonFiniteError(f"{bad} of {x.size} scores are not finite")
    return x


def _estimate(x: Float, means: Float, medians: Float, level: float) -> Estimate:
    return Estimate(
        len(x), float(x.mean()), *_interval(means, level),
        float(np.median(x)), *_interval(medians, level),
    )  # fmt: skip


def _labels(clusters: ArrayLike | None, n: int) -> Int:
    labels = np.arange(n) if clusters is None else np.asarray(clusters)
    if labels.shape != (n,):
        raise ValueError(f"clusters: expected ({n},); got {labels.shape}")
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)


def _resample(
    x: Float, generator: np.random.Generator, labels: Int, resamples: int
) -> tuple[Float, Float]:
    """Means and medians of resampled clusters, (resamples, d) each; NaN of a single cluster."""
    labels = np.unique(labels, return_inverse=True)[1]
    number = int(labels.max()) + 1
    means = np.full((resamples, x.shape[1]), np.nan)
    medians = means.copy()
    if number < 2:
        return means, medians
    order = np.argsort(x, axis=0)
    step = max(_CHUNK // len(x), 1)
    for start in range(0, resamples, step):
        rows = slice(start, min(start + step, resamples))
        count = rows.stop - rows.start
        drawn = generator.integers(0, number, (count, number))
        drawn += number * np.arange(count)[:, None]
        times = np.bincount(drawn.ravel(), minlength=count * number).reshape(count, number)
        weights = times[:, labels].astype(np.float64)
        means[rows] = (weights @ x) / weights.sum(-1, keepdims=True)
        for j in range(x.shape[1]):
            medians[rows, j] = _median(x[order[:, j], j], weights[:, order[:, j]])
    return means, medians


def _median(values: Float, weights: Float) -> Float:
    """Medians of sorted values (n,) that count ``weights`` times (r, n)."""
    total = np.cumsum(weights, axis=-1)
    half = 0.5 * total[:, -1:]
    below, above = (total >= half).argmax(-1), (total > half).argmax(-1)
    return np.asarray(0.5 * (values[below] + values[above]))


def _interval(values: Float, level: float) -> tuple[float | None, float | None]:
    if np.isnan(values).any():
        return None, None
    low, high = np.quantile(values, [0.5 - 0.5 * level, 0.5 + 0.5 * level])
    return float(low), float(high)
