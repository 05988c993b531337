"""Simulation-based calibration: ranks, PIT curves, and expected coverage, each with its test.

Were the draws from the exact posterior, a truth would be one more draw: its rank among them is
uniform (Talts et al. 2018, arXiv:1804.06788). All tests here are of that. They take the
sources to be independent: see :func:`slotflow.scores.one_per_cluster` for those that share a band.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slotflow.errors import NonFiniteError
from slotflow.metrics import all_ranks
from slotflow.uniformity import EcdfTest, HistogramTest, discrete_test, histogram_test

Int = NDArray[np.int64]

BINS: Final = 20  # most bins of a rank histogram


@dataclass(frozen=True)
class ParameterTests:
    """The tests of one parameter's ranks among ``draws`` draws.

    ``histogram`` of the ranks with chi2; ``pit`` the P-P curve: the share of truths below
    each quantile of their posterior; ``coverage`` that of truths inside each central interval.
    """

    name: str
    draws: int
    histogram: HistogramTest
    pit: EcdfTest
    coverage: EcdfTest


def parameter_tests(
    draws: ArrayLike, truths: ArrayLike, periods: Sequence[float | None], names: Sequence[str]
) -> tuple[ParameterTests, ...]:
    """Return the tests of every parameter's ranks.

    Angles are cut opposite the mean direction of draws and truth (:func:`slotflow.metrics.ranks`).

    Args:
        draws: (n, m, d).
        truths: (n, d).
        periods: d, None for parameters that are no angles.
        names: d.
    """
    ranks = all_ranks(draws, truths, periods)
    m = np.shape(draws)[1]
    return tuple(
        ParameterTests(
            name, m, rank_histogram(column, m), rank_test(column, m), central_coverage(column, m)
        )
        for name, column in zip(names, ranks.T, strict=True)
    )


def rank_histogram(ranks: ArrayLike, draws: int, bins: int | None = None) -> HistogramTest:
    """Return the histogram of ranks 0..draws, and chi2 against the exact share of each bin.

    Args:
        ranks: (n,) of :func:`slotflow.metrics.ranks`.
        draws: number of draws m.
        bins: at most m + 1; None: 20, fewer below 200 ranks (ten in each).
    """
    values = _checked(ranks, draws)
    wanted = min(BINS, max(values.size // 10, 2)) if bins is None else bins
    bins = min(wanted, draws + 1)
    shares = np.bincount(np.arange(draws + 1) * bins // (draws + 1)) / (draws + 1)
    return histogram_test(np.bincount(values * bins // (draws + 1), minlength=bins), shares)


def rank_test(ranks: ArrayLike, draws: int) -> EcdfTest:
    """Return the ECDF of ranks 0..draws, the PIT's curve, with its simultaneous band."""
    return discrete_test(_checked(ranks, draws), np.arange(1, draws + 2) / (draws + 1))


def central_coverage(ranks: ArrayLike, draws: int) -> EcdfTest:
    """Return the share of truths inside each central interval.

    An interval holds the central ranks, |2 r - m| <= c, whose share of the m + 1 possible ones is
    its nominal level.
    """
    values = _checked(ranks, draws)
    outcomes = np.abs(2 * np.arange(draws + 1) - draws) // 2
    cumulative = np.cumsum(np.bincount(outcomes)) / (draws + 1)
    return discrete_test(outcomes[values], cumulative)


def density_coverage(draw_log_q: ArrayLike, truth_log_q: ArrayLike) -> EcdfTest:
    """Return the expected coverage of the joint's regions of highest density.

    A region holds the truth where no larger share of draws than its level is denser than the
    truth (Hermans et al. 2022, arXiv:2110.06581; Deistler et al. 2022, arXiv:2210.04815).

    Args:
        draw_log_q: (n, m) ln q of each source's draws.
        truth_log_q: (n,) ln q of its truth; -inf is a truth where q is nothing.

    Raises:
        NonFiniteError: NaN, or a draw of no density.
        ValueError: shapes that do not fit.
    """
    x, y = np.asarray(draw_log_q, np.float64), np.asarray(truth_log_q, np.float64)
    if x.ndim != 2 or y.shape != x.shape[:1]:
        raise ValueError(f"expected ln q of draws (n, m) and truths (n,); got {x.shape}, {y.shape}")
    if bad := int((~np.isfinite(x)).sum() + np.isnan(y).sum()):
        raise NonFiniteError(f"{bad} values of ln q are not finite")
    return rank_test((x > y[:, None]).sum(-1), x.shape[1])


def _checked(ranks: ArrayLike, draws: int) -> Int:
    values = np.asarray(ranks)
    if values.ndim != 1 or not np.issubdtype(values.dtype, np.integer):
        raise ValueError(f"ranks: expected integers (n,); got {values.dtype} {values.shape}")
    if draws < 2:
        raise ValueError(f"draws: expected at least 2 a source; got {draws}")
    if not values.size or values.min() < 0 or values.max() > draws:
        raise ValueError(f"ranks: expected some, from 0 to {draws}")
    return values.astype(np.int64)
