"""What is found: recall, precision and F1 against SNR, duplicates, false alarms a band.

A report stands for a true source where their frequencies are within a bin and their waveforms
overlap by more than 0.8, the field's usual criterion; matched one to one, at the largest total
overlap.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from scipy.optimize import linear_sum_assignment
from scipy.sparse.csgraph import connected_components

from slotflow.merging import Comparison
from slotflow.parameters import F0
from slotflow.results import SourcePosterior

Float = NDArray[np.float64]
Int = NDArray[np.int64]

BINS: Final = 1.0  # largest distance in frequency
OVERLAP: Final = 0.8  # least overlap of waveforms, itself not enough
LEVEL: Final = 0.9  # of the intervals


class Pairs(NamedTuple):
    """Reports and true sources near in frequency: indices (p,) each, and overlaps (p,)."""

    report: Int
    truth: Int
    overlap: Float


class Matches(NamedTuple):
    """``truth`` (r,) the true source of each report, -1 for none; ``duplicate`` (r,) whether it
    would stand for one that another report has."""

    truth: Int
    duplicate: NDArray[np.bool_]


@dataclass(frozen=True)
class Share:
    """``hits`` of ``number`` with Wilson's interval; the rest is None where ``number`` is 0."""

    hits: int
    number: int
    share: float | None
    lower: float | None
    upper: float | None


@dataclass(frozen=True)
class SnrRow:
    """Recall of the true sources, and precision of the reports, of SNR from ``low`` to ``high``.

    True sources by their SNR, reports by their own; ``high`` None: no bound.
    """

    low: float
    high: float | None
    recall: Share
    precision: Share
    f1: float | None


@dataclass(frozen=True)
class Detection:
    """Recall, precision, F1 in all and by SNR, and what went wrong.

    ``duplicates`` are reports of a source that another report has, ``false_alarms`` those of
    none; both lower the precision. The interval of false alarms a band is Garwood's, of a Poisson
    mean. ``weak`` reports stand for true sources below the first SNR: right, but not asked for.
    """

    bands: int
    truths: int
    reports: int
    weak: int
    recall: Share
    precision: Share
    f1: float | None
    duplicates: int
    false_alarms: int
    false_alarms_per_band: float
    false_alarms_lower: float
    false_alarms_upper: float
    rows: tuple[SnrRow, ...]


def near_pairs(
    reports: Float, truths: Float, duration: float, bins: float = BINS,
    bands: tuple[Int, Int] | None = None,
) -> tuple[Int, Int]:  # fmt: skip
    """Return indices of reports and true sources within ``bins`` of each other: (p,), (p,).

    Args:
        reports: (r,) frequencies, Hz.
        truths: (n,) frequencies, Hz.
        duration: observation time T, s.
        bins: largest distance, in units of 1 / T, itself included.
        bands: the band of each report (r,) and of each true source (n,) where bands are
            simulations of their own: only what is of one band is compared.
    """
    order = np.argsort(truths, kind="stable")
    reach = bins / duration
    low = np.searchsorted(truths[order], reports - reach, side="left")
    high = np.searchsorted(truths[order], reports + reach, side="right")
    report = np.repeat(np.arange(len(reports)), high - low)
    within = np.arange(report.size) - np.repeat(np.cumsum(high - low) - (high - low), high - low)
    truth = order[np.repeat(low, high - low) + within]
    if bands is not None:
        same = bands[0][report] == bands[1][truth]
        report, truth = report[same], truth[same]
    return report.astype(np.int64), truth.astype(np.int64)


def overlaps(
    reports: Sequence[SourcePosterior], truths: ArrayLike, comparison: Comparison,
    bands: tuple[Int, Int] | None = None,
) -> Pairs:  # fmt: skip
    """Return the overlaps of all reports with the true sources near them.

    A report's waveform is the mean over draws, as in :meth:`slotflow.merging.Comparison.overlap`.

    Args:
        reports: r posteriors.
        truths: (n, 8) in the order of :data:`slotflow.parameters.PARAMETERS`.
        comparison: of the observation.
        bands: as in :func:`near_pairs`.
    """
    true = np.asarray(truths, np.float64).reshape(-1, 8)
    frequencies = np.array([report.f0 for report in reports])
    report, truth = near_pairs(frequencies, true[:, F0], comparison.grid.duration, BINS, bands)
    found = [
        comparison.overlap(reports[i], _exactly(true[j]))
        for i, j in zip(report.tolist(), truth.tolist(), strict=True)
    ]
    return Pairs(report, truth, np.array(found, np.float64))


def _exactly(source: Float) -> SourcePosterior:
    """A true source as a posterior of one draw."""
    return SourcePosterior(source[None], np.zeros(1), 1.0, 0, 0, 0.0)


def match(pairs: Pairs, reports: int, least: float = OVERLAP) -> Matches:
    """Return which report stands for which true source.

    As many as possible are matched, and of these ways that of the largest total overlap is taken.

    Args:
        pairs: near in frequency.
        reports: number of all reports.
        least: overlap that a match exceeds.
    """
    truth = np.full(reports, -1, np.int64)
    right = pairs.overlap > least
    i, j, value = pairs.report[right], pairs.truth[right], pairs.overlap[right]
    candidate = np.zeros(reports, bool)
    candidate[i] = True
    if i.size:
        size = reports + int(j.max()) + 1
        graph = scipy.sparse.coo_array((np.ones(i.size), (i, reports + j)), shape=(size, size))
        group = connected_components(graph, directed=False)[1][i]
        order = np.argsort(group, kind="stable")
        for part in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
            rows, a = np.unique(i[part], return_inverse=True)
            columns, b = np.unique(j[part], return_inverse=True)
            # any pair is worth more than all differences of overlap
            worth = np.zeros((rows.size, columns.size))
            worth[a, b] = value[part] + 2.0 * part.size
            for x, y in zip(*linear_sum_assignment(worth, maximize=True), strict=True):
                if worth[x, y] > 0.0:
                    truth[rows[x]] = columns[y]
    return Matches(truth, candidate & (truth < 0))


def detection(
    matches: Matches, truth_snr: ArrayLike, report_snr: ArrayLike, edges: Sequence[float],
    bands: int, level: float = LEVEL,
) -> Detection:  # fmt: skip
    """Return recall, precision and F1.

    Recall is over true sources from the first edge on. Weaker ones are no misses, and a report
    that stands for one is no false alarm; it counts in no share.

    Args:
        matches: of :func:`match`.
        truth_snr: (n,) of the true sources.
        report_snr: (r,) of the reports.
        edges: rising SNR; the last interval has no upper bound.
        bands: number of bands searched, above 0.
        level: of the intervals.

    Raises:
        ValueError: shapes that do not fit, edges that do not rise, or no band.
    """
    snr, reported = np.asarray(truth_snr, np.float64), np.asarray(report_snr, np.float64)
    if reported.shape != matches.truth.shape or matches.truth.max(initial=-1) >= snr.size:
        raise ValueError(
            f"expected the SNR of {matches.truth.size} reports and of all true sources"
        )
    if bands < 1 or not len(edges) or not (np.diff(edges) > 0).all():
        raise ValueError(f"expected bands > 0 and rising edges; got {bands} and {list(edges)}")
    found = np.zeros(snr.size, bool)
    hit = matches.truth >= 0
    found[matches.truth[hit]] = True
    weak = np.zeros(hit.size, bool)
    weak[hit] = snr[matches.truth[hit]] < edges[0]
    asked = snr >= edges[0]
    rows = []
    for low, high in zip(edges, [*edges[1:], math.inf], strict=True):
        here = (snr >= low) & (snr < high)
        there = (reported >= low) & (reported < high) & ~weak
        recall, precision = _share(found[here], level), _share(hit[there], level)
        upper = None if math.isinf(high) else float(high)
        rows.append(SnrRow(float(low), upper, recall, precision, _f1(recall, precision)))
    recall, precision = _share(found[asked], level), _share(hit[~weak], level)
    wrong = int((~hit & ~matches.duplicate).sum())
    bounds = _poisson_interval(wrong, level)
    return Detection(
        bands, int(asked.sum()), hit.size, int(weak.sum()), recall, precision,
        _f1(recall, precision), int(matches.duplicate.sum()), wrong, wrong / bands,
        bounds[0] / bands, bounds[1] / bands, tuple(rows),
    )  # fmt: skip


def _share(hits: NDArray[np.bool_], level: float) -> Share:
    n, k = hits.size, int(hits.sum())
    if not n:
        return Share(0, 0, None, None, None)
    interval = stats.binomtest(k, n).proportion_ci(level, method="wilson")
    return Share(k, n, k / n, float(interval.low), float(interval.high))


def _f1(recall: Share, precision: Share) -> float | None:
    """The harmonic mean; None where there is nothing to find or nothing was reported."""
    if recall.share is None or precision.share is None:
        return None
    total = recall.share + precision.share
    return 2.0 * recall.share * precision.share / total if total > 0.0 else 0.0


def _poisson_interval(number: int, level: float) -> tuple[float, float]:
    """Bounds of a Poisson mean (Garwood 1936, Biometrika 28, 437)."""
    tail = 0.5 * (1.0 - level)
    low = 0.5 * float(stats.chi2.ppf(tail, 2 * number)) if number else 0.0
    return low, 0.5 * float(stats.chi2.ppf(1.0 - tail, 2 * number + 2))
