"""Whether a band looks like those that a model was trained on: a score, its p value, a flag.

Search and network make of a band a few kinds of vectors (:mod:`slotflow.outlying_features`). For
each kind, simulations that the model was not trained on give the mean, which may depend on the
band's frequency, and a covariance; a band's distance is the largest Mahalanobis distance of its
vectors of that kind. How rare that is, other such simulations tell: the logarithm of the distance
is taken to fall off exponentially, as between its 90% and its 99% quantile. The score is -log10 of
the smallest of these probabilities over the threshold that one in a hundred of the simulated bands
exceeds: above 1 a band is outside. :mod:`slotflow.outlying_fit` finds all this.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotflow.outlying_features import CONDITIONS, KINDS, VERSION, BandVectors

Float = NDArray[np.float64]

FALSE_ALARMS: Final = 0.01  # share of the simulated bands that are flagged
_NEAREST: Final = 1e-12  # squared distances beyond which none are told apart
_FARTHEST: Final = 1e200
_LEAST: Final = 1e-9  # of a spread and a threshold


class Score(NamedTuple):
    """How far a band lies from the simulations.

    ``value`` above 1 is outside; ``p_value`` the share of simulated bands with a larger one, no
    smaller than one over their number; ``kind`` the vectors that lie furthest.
    """

    value: float
    p_value: float
    kind: str

    @property
    def outside(self) -> bool:
        """Whether the band is flagged."""
        return self.value > 1.0


@dataclass(frozen=True, eq=False)
class Part:
    """Mean and covariance of one kind of vectors.

    Attributes:
        name: of the kind.
        slope: (Q, F) the mean is the conditions times this.
        whiten: (F, F) brings deviations from the mean to unit covariance.

    Raises:
        ValueError: shapes that do not fit, or numbers that are not finite.
    """

    name: str
    slope: Float
    whiten: Float

    def __post_init__(self) -> None:
        if self.slope.ndim != 2 or self.whiten.shape != (self.slope.shape[1],) * 2:
            raise ValueError(
                f"{self.name}: expected (Q, F) and (F, F); got {self.slope.shape} and"
                f" {self.whiten.shape}"
            )
        if not (np.isfinite(self.slope).all() and np.isfinite(self.whiten).all()):
            raise ValueError(f"{self.name}: numbers that are not finite")

    def distances(self, vectors: Float, conditions: Float) -> Float:
        """Return squared Mahalanobis distances: (n, F), (Q,) -> (n,).

        Of Gaussian vectors they follow chi^2 with F degrees of freedom.
        """
        away = (vectors - conditions @ self.slope) @ self.whiten.T
        return np.asarray((away**2).sum(axis=-1))

    def farthest(self, band: BandVectors) -> float:
        """Return ln of a band's largest squared distance per feature, -inf without vectors."""
        vectors = band.vectors[self.name]
        if not len(vectors):
            return -np.inf
        with np.errstate(over="ignore", invalid="ignore"):
            largest = float(self.distances(vectors, band.conditions).max())
        if not largest < _FARTHEST:  # nor is NaN
            largest = _FARTHEST
        return float(np.log(max(largest, _NEAREST) / vectors.shape[1]))


@dataclass(frozen=True, eq=False)
class Outlying:
    """The score of a model's bands.

    Attributes:
        parts: one a kind.
        centre: (parts,) 90% quantile of their ln distances in simulations.
        spread: (parts,) from there to the 99% quantile, above 0.
        threshold: of -log10 of the smallest probability, above 0; it is the score's unit.
        levels: (n,) falling probabilities, and
        values: (n,) rising scores that simulated bands exceed with these.
        fitted: bands that mean and covariance are of.
        calibrated: others that the rest is of.

    Raises:
        ValueError: naming what does not fit.
    """

    parts: tuple[Part, ...]
    centre: Float
    spread: Float
    threshold: float
    levels: Float
    values: Float
    fitted: int
    calibrated: int

    def __post_init__(self) -> None:
        number = (len(self.parts),)
        if self.centre.shape != number or self.spread.shape != number:
            raise ValueError(f"expected centre and spread of {number[0]} parts")
        if not (np.isfinite(self.centre).all() and np.isfinite(self.spread).all()):
            raise ValueError("centre and spread: numbers that are not finite")
        if not ((self.spread > _LEAST).all() and _LEAST < self.threshold < np.inf):
            raise ValueError("expected a spread and a threshold above 0")
        if self.levels.ndim != 1 or self.levels.shape != self.values.shape or not self.levels.size:
            raise ValueError("expected as many levels as values")
        falling = (np.diff(self.levels) < 0.0).all() and (np.diff(self.values) >= 0.0).all()
        if not (falling and ((self.levels > 0.0) & (self.levels < 1.0)).all()):
            raise ValueError("expected falling levels between 0 and 1, and rising values")
        if not np.isfinite(self.values).all():
            raise ValueError("values: numbers that are not finite")
        if self.fitted < 1 or self.calibrated < 1:
            raise ValueError("expected numbers of bands above 0")

    def __call__(self, band: BandVectors) -> Score:
        """Return a band's score."""
        units = self._units(band)
        largest = int(np.argmax(units))
        value = float(units[largest] / self.threshold)
        return Score(value, self.p_value(value), self.parts[largest].name)

    def _units(self, band: BandVectors) -> Float:
        """Return -log10 of each kind's probability; large and negative where it has no vector."""
        farthest = np.array([part.farthest(band) for part in self.parts])
        return np.asarray(np.maximum(1.0 + (farthest - self.centre) / self.spread, -1e3))

    def p_value(self, value: float) -> float:
        """Return the share of simulated bands whose score is larger.

        That of the nearer half is not told apart: they all have the first of the levels. Beyond
        the largest score that is kept, the logarithm goes on falling as before, down to one over
        the number of bands.
        """
        x, y = self.values, np.log(self.levels)
        p = float(np.interp(value, x, y))
        if value > x[-1] and len(x) > 1 and x[-1] > x[-2]:
            p = float(y[-1] + (value - x[-1]) * (y[-1] - y[-2]) / (x[-1] - x[-2]))
        return float(max(np.exp(p), 1.0 / (self.calibrated + 1.0)))

    def to_json(self) -> dict[str, Any]:
        """Return all but the arrays of :meth:`arrays`."""
        return {
            "version": VERSION,
            "parts": [part.name for part in self.parts],
            "centre": self.centre.tolist(),
            "spread": self.spread.tolist(),
            "threshold": self.threshold,
            "levels": self.levels.tolist(),
            "values": self.values.tolist(),
            "fitted": self.fitted,
            "calibrated": self.calibrated,
        }

    def arrays(self) -> dict[str, Float]:
        """Return the parts' arrays by name: ``kind.slope`` and ``kind.whiten``."""
        return {
            f"{part.name}.{name}": getattr(part, name)
            for part in self.parts
            for name in ("slope", "whiten")
        }


def from_json(content: Mapping[str, Any], arrays: Mapping[str, Float]) -> Outlying:
    """Put together what :meth:`Outlying.to_json` and :meth:`Outlying.arrays` gave.

    Raises:
        ValueError, KeyError, TypeError, OverflowError: what is missing or cannot be.
    """
    if content["version"] != VERSION:
        raise ValueError(f"version {content['version']!r:.80} of the score; {VERSION!r} is known")
    if content["parts"] != list(KINDS):
        raise ValueError(f"parts {content['parts']!r:.80}; {list(KINDS)} expected")
    parts = tuple(Part(name, arrays[f"{name}.slope"], arrays[f"{name}.whiten"]) for name in KINDS)
    centre, spread, levels, values = (
        np.array(content[name], np.float64) for name in ("centre", "spread", "levels", "values")
    )
    threshold, fitted = float(content["threshold"]), int(content["fitted"])
    calibrated = int(content["calibrated"])
    return Outlying(parts, centre, spread, threshold, levels, values, fitted, calibrated)


def shapes(widths: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return the shapes of :meth:`Outlying.arrays` for kinds of these widths."""
    found: dict[str, tuple[int, int]] = {}
    for name, width in widths.items():
        found |= {f"{name}.slope": (CONDITIONS, width), f"{name}.whiten": (width, width)}
    return found
