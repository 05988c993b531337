"""Fitting the score of :mod:`slotflow.outlying` to simulations, and measuring its false alarms."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from slotflow.outlying import FALSE_ALARMS, Float, Outlying, Part
from slotflow.outlying_features import BandVectors

FEWEST: Final = 200  # bands that a threshold is found from
_QUANTILES: Final = (0.9, 0.99)  # of a kind's distances, that tell how they fall off
_LEAST_SPREAD: Final = 1e-3
_LEAST_SCALE: Final = 1e-3  # of a feature: what never varies in simulations is still compared
#: Probabilities of a larger score at which the scores of simulations are kept.
_LEVELS: Final = (0.5, 0.3, 0.2, 0.1, 0.05, 0.03, 0.02, 0.01, 0.005, 0.003, 0.002, 0.001)


def shrunk_correlation(x: Float) -> Float:
    """Return the correlation of standardised rows, drawn towards none: (n, F) -> (F, F).

    By how much is what Ledoit & Wolf (2004, J. Multivar. Anal. 88, 365) find best from the rows.
    """
    n, width = x.shape
    sample = x.T @ x / n
    away = float(((sample - np.eye(width)) ** 2).sum())
    noise = float((((x**2).sum(axis=1)) ** 2).sum() / n - (sample**2).sum()) / n
    share = min(max(noise / away, 0.0), 1.0) if away > 0.0 else 1.0
    np.fill_diagonal(sample, 1.0)  # below 1 where a feature varies less than its least scale
    return np.asarray((1.0 - share) * sample + share * np.eye(width))


def fit_part(name: str, bands: Sequence[BandVectors]) -> Part:
    """Return mean and covariance of one kind of vectors.

    Raises:
        ValueError: fewer than two vectors.
    """
    x = np.concatenate([band.vectors[name] for band in bands])
    rows = [np.tile(band.conditions, (len(band.vectors[name]), 1)) for band in bands]
    if len(x) < 2:
        raise ValueError(f"{name}: {len(x)} vectors in {len(bands)} bands: too few")
    conditions = np.concatenate(rows)
    slope = np.linalg.lstsq(conditions, x, rcond=None)[0]
    away = x - conditions @ slope
    scale = np.maximum(np.sqrt(np.mean(away**2, axis=0)), _LEAST_SCALE)
    root = np.linalg.cholesky(np.linalg.inv(shrunk_correlation(away / scale)))
    # in the order in which files have them, by which the last digits of a product depend
    return Part(name, np.ascontiguousarray(slope), np.ascontiguousarray(root.T / scale))


def calibrated(
    parts: Sequence[Part], bands: Sequence[BandVectors], fitted: int, rate: float = FALSE_ALARMS
) -> Outlying:
    """Return the score that a share ``rate`` of such bands exceeds.

    The threshold is the k-th largest of n, k the whole part of ``rate (n + 1)``: a further band is
    above it with a probability of k / (n + 1), whatever the distribution.

    Args:
        parts: of other bands.
        bands: n simulations.
        fitted: number of bands that the parts are of.
        rate: of false alarms.

    Raises:
        ValueError: too few bands.
    """
    n = len(bands)
    order = int(rate * (n + 1))
    if n < FEWEST or order < 1:
        raise ValueError(f"{n} bands are too few for {rate:.2%} false alarms")
    far = np.array([[part.farthest(band) for part in parts] for band in bands])
    seen = [column[np.isfinite(column)] for column in far.T]
    centre, upper = np.array([np.quantile(column, _QUANTILES) for column in seen]).T
    spread = np.maximum(upper - centre, _LEAST_SPREAD)
    largest = np.sort(np.max(1.0 + (far - centre) / spread, axis=1))[::-1]
    threshold = float(largest[order - 1])
    levels = np.array([level for level in _LEVELS if int(level * (n + 1)) >= 1])
    values = np.array([largest[int(level * (n + 1)) - 1] for level in levels]) / threshold
    return Outlying(tuple(parts), centre, spread, threshold, levels, values, fitted, n)


class Rate(NamedTuple):
    """``hits`` of ``number`` bands that were flagged."""

    hits: int
    number: int

    @property
    def share(self) -> float:
        """Their share."""
        return self.hits / self.number

    @property
    def error(self) -> float:
        """Its standard error, binomial; that of one hit where there is none."""
        p = max(self.hits, 1) / self.number
        return float(np.sqrt(p * (1.0 - p) / self.number))


def false_alarms(
    parts: Sequence[Part], halves: Iterable[Sequence[BandVectors]], rate: float = FALSE_ALARMS
) -> Rate:
    """Return how many bands are flagged by thresholds found from the others of two halves.

    Raises:
        ValueError: too few bands.
    """
    one, other = (list(half) for half in halves)
    hits = 0
    for known, fresh in ((one, other), (other, one)):
        score = calibrated(parts, known, 1, rate)
        hits += sum(score(band).outside for band in fresh)
    return Rate(hits, len(one) + len(other))
