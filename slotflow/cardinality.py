"""Numbers of sources and existence: confusion, reliability, ROC, and tests of both.

What is tested is that probabilities are frequencies; :mod:`slotflow.calibration` sets them right.
Slots of one band are not independent; bands are.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

from slotflow.calibration import ReliabilityRow, reliability, reliability_error
from slotflow.uniformity import EcdfTest, uniform_test

Float = NDArray[np.float64]
Int = NDArray[np.int64]


@dataclass(frozen=True)
class Confusion:
    """Numbers of bands by true (row) and estimated (column) number of sources.

    ``exact`` and ``within_one`` are shares of all bands, ``bias`` the mean of estimated - true.
    """

    bands: int
    matrix: tuple[tuple[int, ...], ...]
    exact: float
    within_one: float
    bias: float


@dataclass(frozen=True)
class Reliability:
    """Predicted and observed frequencies, and Spiegelhalter's test that they agree.

    ``error`` is the mean distance from the diagonal; ``brier`` the mean squared error; ``z`` is
    standard normal if every event happens with its own probability, ``p_value`` two-sided. ``z`` is
    None where all was certain, which ``p_value`` 1 calls right and 0 wrong.
    """

    number: int
    rows: tuple[ReliabilityRow, ...]
    error: float
    brier: float
    z: float | None
    p_value: float


@dataclass(frozen=True)
class CountTests:
    """q(K) on bands of known K.

    ``log_score`` mean -ln q(K); ``rps`` the mean ranked probability score (the CRPS of a count);
    ``reliability`` of all statements "K = k", its test being of the bands, and its Brier score
    the sum over k; ``pit`` the test of the randomised PIT.
    """

    bands: int
    log_score: float
    rps: float
    reliability: Reliability
    pit: EcdfTest


@dataclass(frozen=True)
class Roc:
    """Hits and false alarms at all thresholds, and the area, with its standard error."""

    positives: int
    negatives: int
    false_alarm_rate: tuple[float, ...]
    hit_rate: tuple[float, ...]
    auc: float
    error: float


def confusion(true: ArrayLike, estimated: ArrayLike) -> Confusion:
    """Return the confusion matrix of numbers of sources, from 0 to the largest of both.

    Args:
        true, estimated: (n,) integers from 0 on, n > 0.
    """
    k, guess = _counts(true, "true"), _counts(estimated, "estimated")
    if k.shape != guess.shape:
        raise ValueError(f"estimated: expected shape {k.shape}; got {guess.shape}")
    size = int(max(k.max(), guess.max())) + 1
    matrix = np.bincount(k * size + guess, minlength=size**2).reshape(size, size)
    difference = guess - k
    return Confusion(
        k.size, tuple(tuple(row) for row in matrix.tolist()), float((difference == 0).mean()),
        float((np.abs(difference) <= 1).mean()), float(difference.mean()),
    )  # fmt: skip


def reliability_test(probabilities: ArrayLike, labels: ArrayLike, bins: int = 10) -> Reliability:
    """Return the reliability of probabilities (n,) of events that happened or not, labels (n,).

    The Brier score is compared with what it would be were the probabilities right, z = sum (y - p)
    (1 - 2 p) / sqrt(sum (1 - 2 p)^2 p (1 - p)) (Spiegelhalter 1986, Stat. Med. 5, 421). Events are
    taken to be independent. It sees probabilities that are too sure or too unsure.
    """
    p, y = np.asarray(probabilities, np.float64), np.asarray(labels, bool)
    rows = reliability(p, y, bins)
    if not p.size:
        raise ValueError("probabilities: expected some")
    z, p_value = _spiegelhalter(np.stack((1.0 - p, p), axis=-1), y.astype(np.int64))
    error, brier = reliability_error(rows), float(((y - p) ** 2).mean())
    return Reliability(p.size, rows, error, brier, z, p_value)


def count_tests(
    distribution: ArrayLike, true: ArrayLike, generator: np.random.Generator
) -> CountTests:
    """Return scores and tests of q(K).

    The PIT of a count is drawn between the cumulative probabilities below and at it (Czado et al.
    2009, Biometrics 65, 1254), which makes it exactly uniform if q(K) is right.

    Args:
        distribution: (n, S + 1) q(K) for K = 0..S, of each band.
        true: (n,); a K above S has probability nothing, and -ln of it is that of the least float.
        generator: of the draws.
    """
    q, k = np.asarray(distribution, np.float64), _counts(true, "true")
    if q.ndim != 2 or len(q) != k.size or not np.allclose(q.sum(-1), 1.0) or (q < 0.0).any():
        raise ValueError(f"distribution: expected probabilities ({k.size}, S + 1); got {q.shape}")
    size = max(q.shape[1], int(k.max()) + 1)
    q = np.pad(q, ((0, 0), (0, size - q.shape[1])))
    band = np.arange(k.size)
    happened = np.arange(size) == k[:, None]
    above = np.minimum(np.cumsum(q, axis=-1), 1.0)
    at = above[band, k]
    below = np.where(k > 0, above[band, k - 1], 0.0)
    rps = ((above - np.cumsum(happened, axis=-1)) ** 2).sum(-1).mean()
    log_score = -np.log(np.maximum(q[band, k], np.finfo(np.float64).tiny)).mean()
    pit = uniform_test(below + (at - below) * generator.random(k.size))
    rows = reliability(np.minimum(q, 1.0).ravel(), happened.ravel())
    brier = float(((happened - q) ** 2).sum(-1).mean())
    said = Reliability(q.size, rows, reliability_error(rows), brier, *_spiegelhalter(q, k))
    return CountTests(k.size, float(log_score), float(rps), said, pit)


def roc(scores: ArrayLike, labels: ArrayLike, points: int = 200) -> Roc:
    """Return the ROC curve; ties count half (Mann & Whitney), the error is Hanley & McNeil's.

    Args:
        scores: (n,) larger for what is more probably a source; probabilities or logits.
        labels: (n,) whether it is, of both kinds.
        points: most points kept of the curve.
    """
    x, y = np.asarray(scores, np.float64), np.asarray(labels, bool)
    if x.ndim != 1 or x.shape != y.shape or np.isnan(x).any():
        raise ValueError(f"expected scores and labels (n,), no NaN; got {x.shape} and {y.shape}")
    n1, n0 = int(y.sum()), int((~y).sum())
    if not n1 or not n0:
        raise ValueError("labels: expected both kinds")
    auc = (float(stats.rankdata(x)[y].sum()) - 0.5 * n1 * (n1 + 1)) / (n1 * n0)
    order = np.argsort(-x, kind="stable")
    last = np.append(np.flatnonzero(np.diff(x[order])), x.size - 1)
    hits = np.concatenate(([0.0], np.cumsum(y[order])[last] / n1))
    alarms = np.concatenate(([0.0], np.cumsum(~y[order])[last] / n0))
    kept = np.unique(np.rint(np.linspace(0, hits.size - 1, points)).astype(np.int64))
    q1, q2 = auc / (2.0 - auc), 2.0 * auc**2 / (1.0 + auc)
    spread = auc * (1.0 - auc) + (n1 - 1) * (q1 - auc**2) + (n0 - 1) * (q2 - auc**2)
    error = math.sqrt(max(spread, 0.0) / (n1 * n0))
    return Roc(n1, n0, tuple(alarms[kept].tolist()), tuple(hits[kept].tolist()), auc, error)


def _spiegelhalter(q: Float, happened: Int) -> tuple[float | None, float]:
    """Return z and p of the Brier score of probabilities (n, k), of which one happened, (n,).

    The score is 1 + sum q^2 - 2 q(happened), whose mean and variance follow from q itself.
    """
    squares = (q**2).sum(-1)
    excess = float((squares - q[np.arange(len(q)), happened]).sum())
    variance = float(np.maximum((q**3).sum(-1) - squares**2, 0.0).sum())
    if variance <= 0.0:
        return None, float(abs(excess) < 1e-9)
    z = excess / math.sqrt(variance)
    return z, float(2.0 * special.ndtr(-abs(z)))


def _counts(values: ArrayLike, name: str) -> Int:
    counts = np.asarray(values)
    if counts.ndim != 1 or not counts.size or not np.issubdtype(counts.dtype, np.integer):
        raise ValueError(
            f"{name}: expected integers (n,), n > 0; got {counts.dtype} {counts.shape}"
        )
    if counts.min() < 0:
        raise ValueError(f"{name}: expected numbers from 0 on; got {counts.min()}")
    return counts.astype(np.int64)
