"""Tests of accuracy with random points (TARP): coverage of the joint without its density.

Lemos et al. 2023 (arXiv:2302.03026): about a reference point, the ball that reaches to the truth
holds a share of the posterior that is uniform over sources if the posterior is exact.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slotflow.metrics import embed, joint
from slotflow.sbc import rank_test
from slotflow.uniformity import EcdfTest

Float = NDArray[np.float64]

References = Literal["posterior", "uniform"]


def tarp(
    draws: ArrayLike, truths: ArrayLike, periods: Sequence[float | None],
    generator: np.random.Generator, references: References = "posterior",
) -> EcdfTest:  # fmt: skip
    """Return expected coverage of balls about random points, with its simultaneous band.

    ``uniform``: points anywhere in the truths' range, distances in the units given, as published.
    Where posteriors are narrower than the range by orders of magnitude, such a ball's edge is a
    plane, and the widest parameters alone decide. ``posterior``: a source's point is one of its
    draws, and every parameter is in units of its spread, both from a quarter of the draws, set
    aside: given those, truth and the other draws are exchangeable if the posterior is exact.

    Args:
        draws: (n, m, d), m >= 8.
        truths: (n, d).
        periods: d, None for parameters that are no angles; these are compared by the chord.
        generator: of the points.
        references: where the points are.
    """
    x, y = joint(draws, truths, periods)
    if x.shape[1] < 8:
        raise ValueError(f"draws: expected at least 8 a source; got {x.shape[1]}")
    if references == "uniform":
        points = embed(_anywhere(y, periods, generator), periods)
        scale = np.ones_like(points)
    else:
        aside = max(x.shape[1] // 4, 4)
        points = embed(x[:, generator.integers(aside)], periods)
        scale = _spread(embed(x[:, :aside], periods), periods)
        x = x[:, aside:]
    ranks = np.empty(len(x), np.int64)
    of_truth = np.linalg.norm((embed(y, periods) - points) / scale, axis=-1)
    for i, reach in enumerate(of_truth.tolist()):  # one at a time: embedded draws are many
        of_draws = np.linalg.norm((embed(x[i], periods) - points[i]) / scale[i], axis=-1)
        ranks[i] = (of_draws < reach).sum()
    return rank_test(ranks, x.shape[1])


def _anywhere(truths: Float, periods: Sequence[float | None], rng: np.random.Generator) -> Float:
    """Points (n, d), uniform over the truths' range or the circle."""
    low, high = truths.min(axis=0), truths.max(axis=0)
    high = np.where([p is None for p in periods], high, low + np.array([p or 0.0 for p in periods]))
    return rng.uniform(low, high, truths.shape)


def _spread(points: Float, periods: Sequence[float | None]) -> Float:
    """Standard deviation (n, e) of embedded draws (n, m, e); a circle's two axes share theirs."""
    variance = points.var(axis=1)
    at = 0
    for period in periods:
        if period is None:
            at += 1
        else:
            variance[:, at : at + 2] = variance[:, at : at + 2].sum(-1, keepdims=True)
            at += 2
    # draws that are all the same leave the parameter out of the distance's scale
    return np.where(variance > 0.0, np.sqrt(variance), 1.0)
