"""Exact tests of uniformity: simultaneous bands of an ECDF and of a histogram.

The band of level L about an ECDF is the one of Säilynoja, Bürkner & Vehtari (2022, Stat. Comput.
32, 32): at every point the count is binomial; the pointwise probability gamma at which a count is
called extreme is the same at all points, and chosen such that a calibrated ECDF leaves the band
anywhere with probability 1 - L. They find gamma by simulation or by a recursion over the points;
here it is a recursion, of convolutions with Poisson probabilities given the total, so that
nothing is drawn and p-values are exact also for ranks, which are discrete.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Float = NDArray[np.float64]
Int = NDArray[np.int64]

POINTS: Final = 100  # at which an ECDF is compared
LEVEL: Final = 0.95  # of the bands


@dataclass(frozen=True)
class EcdfTest:
    """An ECDF of n values beside what uniformity asks of it.

    ``nominal`` and ``observed`` are the curve, the share expected and found at or below each
    point; ``lower`` and ``upper`` the simultaneous band of that ``level``, shares too.
    ``p_value`` is below 1 - level where the curve leaves the band; below 1e-12 it is rounding.
    """

    number: int
    nominal: tuple[float, ...]
    observed: tuple[float, ...]
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    level: float
    p_value: float


@dataclass(frozen=True)
class HistogramTest:
    """Counts of n values in bins, their expectation and simultaneous band, and Pearson's chi2."""

    number: int
    counts: tuple[int, ...]
    expected: tuple[float, ...]
    lower: tuple[int, ...]
    upper: tuple[int, ...]
    level: float
    chi2: float
    p_value: float


def discrete_test(
    values: ArrayLike, cumulative: ArrayLike, points: int = POINTS, level: float = LEVEL
) -> EcdfTest:
    """Test integers against a discrete distribution on 0, 1, ... k - 1.

    Args:
        values: (n,) integers.
        cumulative: (k,) P(value <= i), rising to 1; (i + 1) / k for uniform ranks.
        points: most points at which the curves are compared.
        level: of the band.

    Raises:
        ValueError: no values, or values outside 0..k - 1.
    """
    drawn, total = np.asarray(values), np.asarray(cumulative, np.float64)
    if drawn.ndim != 1 or not drawn.size or not np.issubdtype(drawn.dtype, np.integer):
        raise ValueError(f"values: expected integers (n,), n > 0; got {drawn.dtype} {drawn.shape}")
    if drawn.min() < 0 or drawn.max() >= total.size:
        raise ValueError(f"values: expected 0..{total.size - 1}; got {drawn.min()}..{drawn.max()}")
    counts = np.cumsum(np.bincount(drawn, minlength=total.size))
    chosen = np.unique(np.rint(np.linspace(0, total.size - 1, points + 1)).astype(np.int64))
    chosen = chosen[(total[chosen] > 0.0) & (total[chosen] < 1.0)]
    if not chosen.size:
        raise ValueError("cumulative: expected two outcomes or more")
    return _ecdf(counts[chosen], total[chosen], drawn.size, level)


def uniform_test(values: ArrayLike, points: int = POINTS, level: float = LEVEL) -> EcdfTest:
    """Test values (n,) against the uniform distribution on [0, 1], at equidistant points.

    Raises:
        ValueError: no values, or values outside [0, 1].
    """
    drawn = np.sort(np.asarray(values, np.float64).ravel())
    if not drawn.size or not (drawn[0] >= 0.0 and drawn[-1] <= 1.0):
        raise ValueError("values: expected numbers from 0 to 1")
    z = np.arange(1, points + 1) / (points + 1)
    return _ecdf(np.searchsorted(drawn, z, side="right"), z, drawn.size, level)


def histogram_test(counts: ArrayLike, shares: ArrayLike, level: float = LEVEL) -> HistogramTest:
    """Test counts (b,) against expected shares (b,), by chi2 with b - 1 degrees of freedom.

    chi2's own distribution is a limit: expect at least five in each bin. The band is exact:
    multinomial counts leave it in any bin with probability 1 - level at most.
    """
    found, share = np.asarray(counts, np.int64), np.asarray(shares, np.float64)
    n = int(found.sum())
    expected = n * share
    chi2 = float(((found - expected) ** 2 / expected).sum())
    low, high = _histogram_band(n, tuple(share.tolist()), level)
    return HistogramTest(
        n, tuple(found.tolist()), tuple(expected.tolist()), low, high, level, chi2,
        float(stats.chi2.sf(chi2, found.size - 1)),
    )  # fmt: skip


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return p-values adjusted for their number (Holm 1979): any below 5% once in 20 families."""
    p = np.asarray(p_values, np.float64)
    order = np.argsort(p)
    adjusted = np.empty_like(p)
    factors = np.arange(p.size, 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * factors), 1.0)
    return tuple(adjusted.tolist())


def _ecdf(counts: Int, z: Float, n: int, level: float) -> EcdfTest:
    """Compare cumulative counts with n z, all at once."""
    tails = np.minimum(stats.binom.cdf(counts, n, z), stats.binom.sf(counts - 1, n, z))
    # a little more than observed, so that the observed count itself counts as extreme
    bounds = _bounds(2.0 * float(tails.min()) * (1.0 + 1e-9), n, z)
    p_value = 1.0 - _inside(n, z, *bounds)
    low, high = _ecdf_band(n, tuple(z.tolist()), level)
    return EcdfTest(
        n, tuple(z.tolist()), tuple((counts / n).tolist()), low, high, level,
        min(max(p_value, 0.0), 1.0),
    )  # fmt: skip


def _bounds(gamma: float, n: int, z: Float) -> tuple[Int, Int]:
    """The least and largest count whose one-sided probability is gamma / 2 or more."""
    low = stats.binom.ppf(0.5 * gamma, n, z)
    high = stats.binom.isf(0.5 * gamma, n, z)
    return np.maximum(low, 0).astype(np.int64), np.minimum(high, n).astype(np.int64)


@lru_cache(maxsize=64)
def _ecdf_band(
    n: int, z: tuple[float, ...], level: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    points = np.array(z)
    gamma = _widest(lambda g: _inside(n, points, *_bounds(g, n, points)), len(z), level)
    low, high = _bounds(gamma, n, points)
    return tuple((low / n).tolist()), tuple((high / n).tolist())


@lru_cache(maxsize=64)
def _histogram_band(
    n: int, shares: tuple[float, ...], level: float
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    share = np.array(shares)
    gamma = _widest(lambda g: _all_in(n, share, *_bounds(g, n, share)), len(shares), level)
    low, high = _bounds(gamma, n, share)
    return tuple(low.tolist()), tuple(high.tolist())


def _widest(inside: Callable[[float], float], points: int, level: float) -> float:
    """The largest gamma at which ``inside`` is ``level`` or more, from Bonferroni's up."""
    low, high = np.log((1.0 - level) / points), np.log(2.0 * (1.0 - level))
    for _ in range(24):
        middle = 0.5 * (low + high)
        if inside(float(np.exp(middle))) >= level:
            low = middle
        else:
            high = middle
    return float(np.exp(low))


def _inside(n: int, z: Float, low: Int, high: Int) -> float:
    """P(low <= N_i <= high at all i) of the numbers N_i of n uniform values at or below z_i.

    n values are n + 1 independent Poisson counts between the points, given that they add up.
    """
    state, first = np.ones(1), 0
    for step, a, b in zip(
        np.diff(z, prepend=0.0).tolist(), low.tolist(), high.tolist(), strict=True
    ):
        start, kernel = _poisson(round(n * step, 9))
        state, first = np.convolve(state, kernel), first + start
        cut = max(a - first, 0)
        state, first = state[cut : max(b - first + 1, 0)], first + cut
        if not state.size:
            return 0.0
    rest = stats.poisson.pmf(n - first - np.arange(state.size), n * (1.0 - float(z[-1])))
    return float(state @ rest / stats.poisson.pmf(n, n))


def _all_in(n: int, shares: Float, low: Int, high: Int) -> float:
    """P(low <= N_i <= high in all bins) of multinomial counts N_i."""
    state, first = np.ones(1), 0
    for share, a, b in zip(shares.tolist(), low.tolist(), high.tolist(), strict=True):
        state = np.convolve(state, stats.poisson.pmf(np.arange(a, b + 1), n * share))
        first += a
    at = n - first
    return float(state[at] / stats.poisson.pmf(n, n)) if 0 <= at < state.size else 0.0


@lru_cache(maxsize=4096)
def _poisson(mean: float) -> tuple[int, Float]:
    """Where the Poisson probabilities of that mean are not nothing, and these."""
    reach = 12.0 * np.sqrt(mean) + 40.0
    start = max(int(mean - reach), 0)
    return start, stats.poisson.pmf(np.arange(start, int(mean + reach) + 1), mean)
