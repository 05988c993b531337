"""How far two sets of draws are apart, parameter by parameter: Jensen-Shannon divergence.

The plug-in estimate over bins that hold equal shares of both sets together. It is biased upwards by
the draws' scatter; the bias is what the same estimate gives, on average, when the draws are dealt
to the two sets at random, and is taken off. In nats: 0 for equal distributions, ln 2 for
distributions that do not overlap.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]

BINS: Final = 20
PERMUTATIONS: Final = 50


class Divergence(NamedTuple):
    """Jensen-Shannon divergence in nats, less its bias; the bias; the scatter by chance."""

    value: float
    bias: float
    chance: float


def jensen_shannon(
    one: Float, other: Float, rng: np.random.Generator, bins: int = BINS
) -> Divergence:
    """Return the divergence of two sets of numbers.

    Args:
        one: (n,).
        other: (m,).
        rng: deals the draws for the bias.
        bins: fewer where the sets are small: 20 draws a bin at least.

    Raises:
        ValueError: fewer than 40 draws together.
    """
    both = np.concatenate([one, other])
    if both.size < 40:
        raise ValueError(f"expected at least 40 draws; got {both.size}")
    bins = min(bins, both.size // 20)
    edges = np.quantile(both, np.arange(1, bins) / bins)
    cell = np.searchsorted(edges, both, side="right")
    total = np.bincount(cell, minlength=bins)
    found = _plug_in(np.bincount(cell[: one.size], minlength=bins), total)
    dealt = np.array([
        _plug_in(np.bincount(rng.permutation(cell)[: one.size], minlength=bins), total)
        for _ in range(PERMUTATIONS)
    ])  # fmt: skip
    bias = float(dealt.mean())
    return Divergence(found - bias, bias, float(dealt.std()))


def _plug_in(counts: NDArray[np.int64], total: NDArray[np.int64]) -> float:
    p = counts / counts.sum()
    q = (total - counts) / (total - counts).sum()
    middle = 0.5 * (p + q)
    return 0.5 * (_relative(p, middle) + _relative(q, middle))


def _relative(p: Float, q: Float) -> float:
    some = p > 0.0
    return float(np.sum(p[some] * np.log(p[some] / q[some])))


def by_parameter(one: Float, other: Float, rng: np.random.Generator) -> Float:
    """Return the divergence less its bias of each column: (n, 8), (m, 8) -> (8,)."""
    return np.array([
        jensen_shannon(one[:, i], other[:, i], rng).value for i in range(one.shape[1])
    ])  # fmt: skip
