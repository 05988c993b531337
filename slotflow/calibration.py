"""Probabilities that mean what they say: recalibrated logits, reliability, and q(K).

A network's existence probabilities are monotone in its certainty but need not be frequencies.
Two numbers fitted on held-out simulations set that right (Platt scaling: the logit is scaled and
shifted, which keeps the order).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize
import scipy.special
from numpy.typing import ArrayLike, NDArray

Float = NDArray[np.float64]


@dataclass(frozen=True)
class Calibration:
    """A scale (above 0) and a shift of existence logits; the identity by default."""

    slope: float = 1.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.slope) and np.isfinite(self.offset) and self.slope > 0.0):
            raise ValueError(
                f"expected a finite slope above 0 and a finite offset; got {self.slope!r},"
                f" {self.offset!r}"
            )

    def __call__(self, logits: ArrayLike) -> Float:
        """Return calibrated probabilities of logits of any shape."""
        scaled = self.slope * np.asarray(logits, dtype=np.float64) + self.offset
        return np.asarray(scipy.special.expit(scaled))

    def to_json(self) -> dict[str, float]:
        """Return the two numbers by name."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Calibration":
        """Invert :meth:`to_json`.

        Raises:
            ValueError: other names, or numbers out of range.
        """
        try:
            return cls(**{name: float(value) for name, value in content.items()})
        except TypeError as error:
            raise ValueError(f"expected slope and offset: {error}") from error


class ReliabilityRow(NamedTuple):
    """Probabilities of one interval: how many, their mean, and how often they were right."""

    low: float
    high: float
    number: int
    predicted: float
    observed: float


def fit_calibration(logits: ArrayLike, labels: ArrayLike) -> Calibration:
    """Return the scale and shift that make held-out labels the most likely.

    The targets are Platt's (1999): (n1 + 1) / (n1 + 2) and 1 / (n0 + 2) in place of 1 and 0, so
    that labels which the logits separate have an optimum, too.

    Args:
        logits: (n,) of slots of held-out bands.
        labels: (n,) whether each stands for a source.

    Raises:
        ValueError: shapes that differ, logits that are not finite, or labels of one kind only.
    """
    x = np.asarray(logits, dtype=np.float64)
    y = np.asarray(labels, dtype=bool)
    if x.ndim != 1 or x.shape != y.shape:
        raise ValueError(f"expected logits and labels (n,); got {x.shape} and {y.shape}")
    if not np.isfinite(x).all():
        raise ValueError("expected finite logits")
    ones = int(y.sum())
    if ones in (0, y.size):
        raise ValueError("expected labels of both kinds")
    target = np.where(y, (ones + 1.0) / (ones + 2.0), 1.0 / (y.size - ones + 2.0))

    def loss(parameters: Float) -> tuple[float, Float]:
        # the slope's logarithm, so that it stays above 0
        slope, offset = np.exp(parameters[0]), parameters[1]
        z = slope * x + offset
        wrong = (scipy.special.expit(z) - target) / x.size
        value = float(np.mean(np.logaddexp(0.0, z) - target * z))
        return value, np.array([slope * np.sum(wrong * x), np.sum(wrong)])

    found = scipy.optimize.minimize(
        loss, np.zeros(2), jac=True, method="L-BFGS-B", bounds=[(-7.0, 7.0), (-50.0, 50.0)],
        options={"ftol": 1e-15, "gtol": 1e-10},
    )  # fmt: skip
    return Calibration(float(np.exp(found.x[0])), float(found.x[1]))


def fit_share(existence: ArrayLike, component: ArrayLike, labels: ArrayLike) -> float:
    """Return the share s of (1 - s) existence + s component that tells slots best, in [0, 1].

    The head of a slot and that of its component judge the same thing by different numbers; the
    logarithmic loss of the calibrated mixture is least at s, found to 0.05. Where that gains less
    than a hundredth of the loss, s is 0: the slot's own judgement (all our choice).

    Args:
        existence: (n,) logits of slots of held-out bands.
        component: (n,) logits that their components stand for a source.
        labels: (n,) whether each slot stands for a source.

    Raises:
        ValueError: as for :func:`fit_calibration`.
    """
    e, c = np.asarray(existence, dtype=np.float64), np.asarray(component, dtype=np.float64)
    y = np.asarray(labels, dtype=bool)

    def loss(share: float) -> float:
        mixed = (1.0 - share) * e + share * c
        p = fit_calibration(mixed, y)(mixed)
        return float(-np.log(np.clip(np.where(y, p, 1.0 - p), 1e-12, 1.0)).mean())

    shares = np.linspace(0.0, 1.0, 21)
    losses = [loss(share) for share in shares]
    best = int(np.argmin(losses))
    return round(float(shares[best]), 2) if losses[best] < 0.99 * losses[0] else 0.0


def reliability(
    probabilities: ArrayLike, labels: ArrayLike, bins: int = 10
) -> tuple[ReliabilityRow, ...]:
    """Return how often events of each probability happened, over equal intervals of [0, 1].

    Empty intervals are left out; 1 belongs to the last.

    Args:
        probabilities: (n,).
        labels: (n,) whether each happened.
        bins: number of intervals.

    Raises:
        ValueError: shapes that differ, or probabilities outside [0, 1].
    """
    p = np.asarray(probabilities, dtype=np.float64)
    y = np.asarray(labels, dtype=bool)
    if p.ndim != 1 or p.shape != y.shape:
        raise ValueError(f"expected probabilities and labels (n,); got {p.shape} and {y.shape}")
    if not ((p >= 0.0) & (p <= 1.0)).all():
        raise ValueError("expected probabilities from 0 to 1")
    index = np.minimum((p * bins).astype(np.int64), bins - 1)
    rows = []
    for i in range(bins):
        chosen = index == i
        if chosen.any():
            means = float(p[chosen].mean()), float(y[chosen].mean())
            rows.append(ReliabilityRow(i / bins, (i + 1) / bins, int(chosen.sum()), *means))
    return tuple(rows)


def reliability_error(rows: tuple[ReliabilityRow, ...]) -> float:
    """Return the mean distance of predicted and observed, weighted by number; 0 for no rows."""
    total = sum(row.number for row in rows)
    return sum(row.number * abs(row.predicted - row.observed) for row in rows) / max(total, 1)


def count_distribution(probabilities: ArrayLike) -> Float:
    """Return the probability of 0, 1, ... S sources of independent slots: (..., S) -> (..., S + 1).

    The Poisson-binomial distribution, by exact convolution.
    """
    p = np.asarray(probabilities, dtype=np.float64)
    q = np.zeros((*p.shape[:-1], p.shape[-1] + 1))
    q[..., 0] = 1.0
    for slot in range(p.shape[-1]):
        here = p[..., slot, None]
        q[..., 1:] = q[..., 1:] * (1.0 - here) + q[..., :-1] * here
        q[..., 0] *= 1.0 - here[..., 0]
    return q
