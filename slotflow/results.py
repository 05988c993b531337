"""What a posterior run returns: records, and their medians and intervals.

Kept apart from :mod:`slotflow.posterior` so that results on disk are read without PyTorch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotflow.config import ObservationSettings
from slotflow.parameters import F0, PARAMETERS, PHI0, PSI, RA, wrap
from slotflow.refined import Refinement, RefineSettings

Float = NDArray[np.float64]
Complex64 = NDArray[np.complex64]

#: Where the noise's density comes from: one of these words, or the path of a table.
Psd = str
PSD_NAMES: Final = ("data", "running", "model")

#: Circles on which the summary of a parameter lives: those of psi and phi0 are half the
#: parameter's own, since (psi + pi/2, phi0 + pi) is the same signal.
SUMMARY_PERIODS: Final = {RA: 2.0 * np.pi, PSI: 0.5 * np.pi, PHI0: np.pi}


class Interval(NamedTuple):
    """Medians and bounds of the central interval, one entry a parameter."""

    median: Float
    lower: Float
    upper: Float


def summarise(values: Float, period: float | None = None, mass: float = 0.9) -> Interval:
    """Return the median and the central interval over the last axis: (..., n) -> (...,).

    On a circle both are taken about the circular mean and returned in [0, period), so that
    ``lower > upper`` says that the interval runs through zero.

    Args:
        values: samples.
        period: of the circle, None for a parameter that has none.
        mass: of the interval.
    """
    levels = (0.5, 0.5 - 0.5 * mass, 0.5 + 0.5 * mass)
    if period is None:
        return Interval(*np.quantile(values, levels, axis=-1))
    turn = np.exp(2j * np.pi / period * values).mean(axis=-1)
    centre = np.angle(turn) * period / (2.0 * np.pi)
    offset = np.mod(values - centre[..., None] + 0.5 * period, period) - 0.5 * period
    return Interval(*(wrap(centre + q, period) for q in np.quantile(offset, levels, axis=-1)))


@dataclass(frozen=True)
class SourcePosterior:
    """One source's posterior, as one slot of one band gives it.

    Attributes:
        samples: (n, 8) in the order of :data:`slotflow.parameters.PARAMETERS`, psi over [0, pi)
            and phi0 over [0, 2 pi): both images of (psi, phi0), each for half the draws.
        log_q: (n,) ln density per unit volume of the ranges of
            :func:`slotflow.parameters.to_scored`. The network's density knows one image; it is
            halved here, since two images share it.
        probability: that the slot holds a source.
        first_bin: first Fourier bin of the band.
        slot: index of the slot.
        snr: sqrt(2 F) of the component that the slot attends most, against the noise level
            found in the band.
        model: number of the model among several that share the frequencies.
    """

    samples: Float
    log_q: Float
    probability: float
    first_bin: int
    slot: int
    snr: float
    model: int = 0

    @cached_property
    def summary(self) -> Interval:
        """Medians and central 90% intervals, (8,) each; psi modulo pi/2 and phi0 modulo pi."""
        return self.interval(0.9)

    def interval(self, mass: float) -> Interval:
        """Medians and central intervals of that mass, (8,) each."""
        columns = [
            summarise(self.samples[:, i], SUMMARY_PERIODS.get(i), mass)
            for i in range(len(PARAMETERS))
        ]
        return Interval(*(np.array(part) for part in zip(*columns, strict=True)))

    @property
    def median(self) -> Float:
        """Medians (8,), of angles on a circle about the circular mean."""
        return self.summary.median

    @property
    def f0(self) -> float:
        """Median frequency, Hz."""
        return float(self.summary.median[F0])


class TileRecord(NamedTuple):
    """What was seen in one band: the frequencies (Hz) reported from it, the noise power in A
    and E over the model's, the components found, the expected number of sources.

    ``outlying`` is its score against the training distribution, above 1 where it lies outside
    (:mod:`slotflow.outlying`), and ``outlying_p`` the share of simulated bands with a larger one;
    both None under a model without such a score.
    """

    first_bin: int
    low: float
    high: float
    level_a: float
    level_e: float
    components: int
    expected: float
    outlying: float | None = None
    outlying_p: float | None = None

    @property
    def outside(self) -> bool:
        """Whether the band lies outside the training distribution."""
        return self.outlying is not None and self.outlying > 1.0


#: Fields of a band's record that are kept where a band has them.
SCORE_FIELDS: Final = ("outlying", "outlying_p")


def tile_columns(tiles: Sequence[TileRecord]) -> dict[str, NDArray[np.float64] | NDArray[np.int64]]:
    """Return the bands' records as columns, those of a score only where any band has one.

    NaN where a band has none.
    """
    columns = {
        name: np.array([getattr(tile, name) for tile in tiles])
        for name in TileRecord._fields
        if name not in SCORE_FIELDS
    }
    if any(tile.outlying is not None for tile in tiles):
        for name in SCORE_FIELDS:
            values = [getattr(tile, name) for tile in tiles]
            columns[name] = np.array([np.nan if v is None else v for v in values])
    return columns


class BandOutcome(NamedTuple):
    """All that is kept of one band before its sources are merged with the neighbours'.

    ``measured`` (2,) noise power of A and E with all that is in them, over the model's density;
    ``q_k`` (S + 1,) as in :class:`Result`; ``sources`` of its likely slots; ``view`` where asked
    for, its ``sources`` still empty. ``refinement`` where the samples are refined ones.
    """

    record: TileRecord
    measured: Float
    q_k: Float
    sources: tuple[SourcePosterior, ...]
    view: "BandView | None"
    refinement: Refinement | None = None


@dataclass(frozen=True)
class PosteriorSettings:
    """What a posterior was asked for; frequencies in Hz."""

    fmin: float
    fmax: float
    samples: int
    seed: int
    psd: Psd
    min_probability: float


@dataclass(frozen=True, eq=False)
class BandView:
    """One band as the network saw it, for pictures.

    Attributes:
        first_bin: Fourier bin of index 0.
        data: (3, K) whitened A, E, T.
        psd: (3, K) the one-sided density that whitens, 1/Hz, the band's level included: data
            times ``sqrt(psd T mean(w^2) / 2)`` is ``dt rfft(w x)``.
        attention: (S, C) of each slot over the components.
        evidence: (S + 1, C) at the start and after each slot, in the order of reading.
        places: (C,) the components' frequencies, in bins from the band's first.
        existence: (S,) probability that each slot holds a source.
        sources: their indices in :attr:`Result.sources`.
        gap_fraction: share of the samples that lie in gaps, which were tapered.
        gain: of a signal in ``data``, below 1 where gaps took their share.
    """

    first_bin: int
    data: Complex64
    psd: Float
    attention: Float
    evidence: Float
    places: Float
    existence: Float
    sources: tuple[int, ...]
    gap_fraction: float = 0.0
    gain: float = 1.0


@dataclass(frozen=True)
class Result:
    """Posteriors of all sources found, by frequency.

    Attributes:
        sources: none at all is a result, too.
        tiles: the bands, by frequency.
        settings: what was asked for.
        observation: what the model takes for granted of the data.
        t0: to which f0 and phi0 refer, s since 2035-01-01T00:00:00 TCB.
        notes: what the user should know, one line each.
        seconds: time spent in each part.
        q_k: (tiles, S + 1) probability that a band holds 0, 1, ... S sources in its whole window
            (a tile's neighbours' included), for independent slots.
        views: the bands as the network saw them, by first bin, where asked for.
        rotation: of the sky about the ecliptic pole (rad), already done to the samples, where the
            data's orbit is the model's turned.
        refine: how the samples were refined, None for the network's own.
        refinements: of the bands, where they were.
    """

    sources: tuple[SourcePosterior, ...]
    tiles: tuple[TileRecord, ...]
    settings: PosteriorSettings
    observation: ObservationSettings
    t0: float
    notes: tuple[str, ...]
    seconds: Mapping[str, float]
    q_k: Float = field(default_factory=lambda: np.zeros((0, 1)))
    views: Mapping[int, BandView] = field(default_factory=dict)
    rotation: float = 0.0
    refine: RefineSettings | None = None
    refinements: tuple[Refinement, ...] = ()
