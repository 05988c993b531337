"""Which reports stand for which true sources, band by band."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotflow.bands import MARGIN_BINS
from slotflow.calibration import Calibration
from slotflow.detection import match, overlaps
from slotflow.labels import from_local_units, window_edges
from slotflow.merging import Comparison, distinct_in_band
from slotflow.outcomes import Batch
from slotflow.report.record import ReportSettings
from slotflow.results import SourcePosterior
from slotflow.store import TrainingSet

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]

_RHO: Final = 7  # column of the reference: the component's SNR


class Found(NamedTuple):
    """Reports and what they stand for.

    Of reports: ``band`` (r,), ``snr`` (r,) estimated, ``truth`` (r,) the true source, -1 for none,
    ``duplicate`` (r,). ``truth_snr`` (t,) of all sources that a report may stand for; 0 where it
    was not asked for, outside the band's window. ``repeated`` (B, S) marks slots that repeat
    another's signal, which are never reported.
    """

    band: Int
    snr: Float
    truth: Int
    duplicate: Bool
    truth_snr: Float
    repeated: Bool


class Finder:
    """Finds out, as the main job does, which slots are reported, and compares with the truth.

    Args:
        calibration: of the existence probabilities.
        comparison: of waveforms.
        data: the set, for the sources outside the bands' windows.
        settings: of the report.
    """

    def __init__(
        self, calibration: Calibration, comparison: Comparison, data: TrainingSet,
        settings: ReportSettings,
    ) -> None:  # fmt: skip
        self.calibration, self.comparison, self.settings = calibration, comparison, settings
        self.prior, self.duration = data.prior, data.observation.duration
        self._data, self._ends = data, np.array([end for _, end in data.shard_ranges()])
        self._read: tuple[int, Float] | None = None

    def choose(self, existence: Float, counts: Bool) -> Bool:
        """Return which slots are likely enough: (B, S)."""
        return counts & (self.calibration(existence) >= self.settings.min_probability)

    def find(self, batch: Batch) -> Found:
        """Return the reports of a batch and what they stand for."""
        reports = self.reports(batch)
        kept, repeated = [], np.zeros_like(batch.counts)
        for row in range(len(batch.number)):
            own = [report for band, report in reports if band == row]
            distinct = distinct_in_band(own, self.comparison)
            repeated[row, [one.slot for one in own if not _among(one, distinct)]] = True
            kept += [(row, one) for one in distinct if self._inside(one)]
        sources, snr, band = self._truths(batch)
        rows = np.array([row for row, _ in kept], dtype=np.int64)
        posteriors = [one for _, one in kept]
        pairs = overlaps(posteriors, sources, self.comparison, (rows, band))
        matches = match(pairs, len(posteriors), self.settings.overlap)
        seen = np.array([one.snr for one in posteriors], dtype=np.float64)
        return Found(rows, seen, matches.truth, matches.duplicate, snr, repeated)

    def reports(self, batch: Batch) -> list[tuple[int, SourcePosterior]]:
        """Return the likely slots as posteriors, with the row of their band."""
        first = batch.first_bin[batch.report_band]
        samples = from_local_units(batch.report_draws, first[:, None].astype(float), self.duration)
        nothing = np.zeros(samples.shape[1])
        found = []
        for i, (row, slot) in enumerate(zip(batch.report_band, batch.report_slot, strict=True)):
            probability = float(self.calibration(batch.existence[row, slot]))
            rho = float(batch.reference[row, slot, _RHO])
            one = SourcePosterior(samples[i], nothing, probability, int(first[i]), int(slot), rho)
            found.append((int(row), one))
        return found

    def _inside(self, report: SourcePosterior) -> bool:
        """Whether a report is of its band's window, as far as a neighbour would also look."""
        low, high = window_edges(report.first_bin, self.prior, self.duration)
        place = report.f0 * self.duration - report.first_bin
        return low - MARGIN_BINS <= place < high + MARGIN_BINS

    def _outside(self, sample: int) -> Float:
        """Return the sources outside a band's window, padded with NaN; one shard is held."""
        shard = int(np.searchsorted(self._ends, sample, side="right"))
        if self._read is None or self._read[0] != shard:
            self._read = shard, self._data.column(shard, "outside")
        return np.asarray(self._read[1][sample - self._data.shard_ranges()[shard][0]])

    def _truths(self, batch: Batch) -> tuple[Float, Float, Int]:
        """Return the targets and then the sources outside: (t, 8), SNR (t,), bands (t,)."""
        first = batch.first_bin[batch.band]
        targets = from_local_units(batch.truths, first.astype(np.float64), self.duration)
        others = np.stack([self._outside(sample) for sample in batch.sample.tolist()])
        row, place = np.nonzero(np.isfinite(others[..., 0]))
        return (
            np.concatenate((targets, others[row, place])),
            np.concatenate((batch.snr, np.zeros(row.size))),
            np.concatenate((batch.band, row)),
        )


def _among(one: SourcePosterior, others: Sequence[SourcePosterior]) -> bool:
    return any(one is other for other in others)
