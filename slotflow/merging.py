"""Each source once: what two bands, or two slots of one band, both report.

Two reports are one source where their posteriors agree in frequency, amplitude and sky, or
where they mean the same signal: the normalised product of their posterior mean waveforms is
large. (The mean over draws is well determined also where single parameters, of a face-on
source's psi and phi0 say, are not, and where medians of each would mean another signal.)
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotflow.bands import NEAR_BINS
from slotflow.parameters import AMPLITUDE, DEC, F0, RA
from slotflow.response import Complex, ResponseGrid
from slotflow.results import SourcePosterior
from slotflow.waveform import response_ae

Float = NDArray[np.float64]

MASS: Final = 0.99  # of a posterior, inside which the other's draws are counted
SAME_POSTERIOR: Final = 0.5  # share of draws inside, of each of frequency, amplitude and sky
SAME_SIGNAL: Final = 0.8  # waveform overlap of two bands' reports
SAME_SIGNAL_IN_BAND: Final = 0.9  # of two slots', which had a component each
DRAWS: Final = 64  # whose mean waveform stands for a source
_SPAN: Final = 256  # bins that hold any waveform of two near sources


class Candidate(NamedTuple):
    """A source as one band reports it: the band's number, and whether it answers for it."""

    source: SourcePosterior
    tile: int
    inside: bool


class Comparison:
    """Tells whether two reports are one source.

    Args:
        grid: the observation.
    """

    def __init__(self, grid: ResponseGrid) -> None:
        self.grid = grid.thinned(2) if grid.n >= 128 and grid.n % 4 == 0 else grid

    def overlap(self, one: SourcePosterior, other: SourcePosterior) -> float:
        """Return the normalised product of the mean waveforms, -1 to 1.

        The noise is taken to be level over a source's few tens of bins.
        """
        start = round(0.5 * (one.f0 + other.f0) * self.grid.duration) - _SPAN // 2
        a, b = (self._mean(source, start) for source in (one, other))
        norm = float(np.linalg.norm(a) * np.linalg.norm(b))
        return float(np.vdot(a, b).real) / norm if norm > 0.0 else 0.0

    def _mean(self, source: SourcePosterior, start: int) -> Complex:
        """The mean waveform in A and E, (2, _SPAN), from bin ``start`` on."""
        responses, firsts = response_ae(source.samples[:DRAWS], self.grid)
        total = np.zeros((2, _SPAN), dtype=np.complex128)
        for response, first in zip(responses, firsts.tolist(), strict=True):
            low = first - start
            a, b = max(low, 0), min(low + response.shape[1], _SPAN)
            if b > a:
                total[:, a:b] += response[:, a - low : b - low]
        return total / len(responses)

    def near(self, one: SourcePosterior, other: SourcePosterior) -> bool:
        """Whether the median frequencies are near enough for one source."""
        return abs(one.f0 - other.f0) * self.grid.duration < NEAR_BINS

    def same(self, one: SourcePosterior, other: SourcePosterior) -> bool:
        """Whether the reports of two bands are one source."""
        if not self.near(one, other):
            return False
        if posterior_overlap(one, other) >= SAME_POSTERIOR:
            return True
        return self.overlap(one, other) > SAME_SIGNAL

    def same_in_band(self, one: SourcePosterior, other: SourcePosterior) -> bool:
        """Whether two slots of one band mean the same signal."""
        return self.near(one, other) and self.overlap(one, other) > SAME_SIGNAL_IN_BAND


def posterior_overlap(one: SourcePosterior, other: SourcePosterior) -> float:
    """Return the least agreement of frequency, amplitude and sky, 0 to 1.

    Of each the larger share of one's draws inside the other's central ``MASS``: a narrow
    posterior inside a wide one agrees with it.
    """
    shares = []
    for index in (F0, AMPLITUDE):
        a, b = one.samples[:, index], other.samples[:, index]
        shares.append(max(_inside(a, b), _inside(b, a)))
    u, v = _direction(one.samples), _direction(other.samples)
    shares.append(max(_inside_cap(u, v), _inside_cap(v, u)))
    return min(shares)


def _inside(values: Float, reference: Float) -> float:
    low, high = np.quantile(reference, [0.5 - 0.5 * MASS, 0.5 + 0.5 * MASS])
    return float(np.mean((values >= low) & (values <= high)))


def _inside_cap(values: Float, reference: Float) -> float:
    """The share of directions inside the cap about the mean that holds ``MASS`` of the other's."""
    centre = reference.mean(axis=0)
    edge = np.quantile(reference @ centre, 1.0 - MASS)
    return float(np.mean(values @ centre >= edge))


def _direction(samples: Float) -> Float:
    ra, dec = samples[:, RA], samples[:, DEC]
    return np.stack([np.cos(dec) * np.cos(ra), np.cos(dec) * np.sin(ra), np.sin(dec)], axis=-1)


def distinct_in_band(
    sources: Sequence[SourcePosterior], comparison: Comparison
) -> tuple[SourcePosterior, ...]:
    """Return one band's sources without those that repeat a more probable one, in their order."""
    kept: list[SourcePosterior] = []
    for one in sorted(sources, key=lambda source: source.probability, reverse=True):
        if not any(comparison.same_in_band(one, other) for other in kept):
            kept.append(one)
    return tuple(source for source in sources if any(source is one for one in kept))


def merge(candidates: Sequence[Candidate], comparison: Comparison) -> tuple[SourcePosterior, ...]:
    """Report each source once, from the band that answers for its frequency.

    Of two bands' reports of one source, the one from the band that answers for it stays, else
    the more probable. What lies outside its own band's share stays only where the neighbour
    saw the same source and put it outside, too.
    """
    by_tile: dict[int, list[Candidate]] = defaultdict(list)
    for one in candidates:
        by_tile[one.tile].append(one)
    kept: dict[int, list[Candidate]] = defaultdict(list)
    for one in sorted(candidates, key=lambda c: (c.inside, c.source.probability), reverse=True):
        if _seen(one, kept, comparison):
            continue
        if one.inside or _seen(one, by_tile, comparison):
            kept[one.tile].append(one)
    sources = (one.source for some in kept.values() for one in some)
    return tuple(sorted(sources, key=lambda source: source.f0))


def _seen(one: Candidate, by_tile: dict[int, list[Candidate]], comparison: Comparison) -> bool:
    """Whether a neighbouring band has the same source."""
    return any(
        comparison.same(one.source, other.source)
        for tile in range(one.tile - 2, one.tile + 3)
        if tile != one.tile
        for other in by_tile.get(tile, ())
    )
