"""What a report keeps of a model's reading of known bands: numbers a source, numbers a band.

Bands are read batch by batch; of the draws only scores and ranks are kept, and those of one source
of each band, thinned, for the tests of the joint posterior. Whatever is chosen at random depends
on the seed and the band, and at the end the bands stand in the order of their samples: figures do
not depend on the order in which they are read.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotflow.checkpoint import Model
from slotflow.evaluation import matched_first, scored
from slotflow.merging import Comparison
from slotflow.metrics import all_ranks
from slotflow.outcomes import Batch, outcomes
from slotflow.parameters import F0, SCORED
from slotflow.report.found import Finder, Found
from slotflow.report.record import ReportSettings
from slotflow.report.slots import Looks, looks
from slotflow.scores import crps_columns, energy_score
from slotflow.store import TrainingSet
from slotflow.tokendata import TokenSource

Float = NDArray[np.float64]
Float32 = NDArray[np.float32]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]

#: As scored, but for psi, which is an angle, too: its circle is a quarter turn.
PERIODS: Final = tuple(1.0 if name == "psi" else period for name, period in SCORED)
NAMES: Final = tuple(name for name, _ in SCORED)
JOINT_BANDS: Final = 4000  # most bands whose draws are kept, to bound the memory
MISSED_BINS: Final = 1.0  # from a source to its slot's component, beyond which it is missed
BATCH: Final = 100  # bands read at a time
_RHO: Final = 7  # column of the reference: the component's SNR

Progress = Callable[[int, int], None]


class Sources(NamedTuple):
    """One row a true source, n sources.

    ``band`` (n,) row of its band; ``snr``; ``f0`` Hz; ``nearest`` bins to the nearest other one,
    infinite for none; ``offset`` bins to its slot's component, whose SNR is ``rho``; ``truths``
    (n, 8) in unit ranges; ``crps`` (n, 8), ``energy`` (n,), ``nll`` (n,), infinite outside the
    support; ``ranks`` (n, 8) among the draws and ``density_rank`` (n,): how many draws are denser
    than the truth.
    """

    band: Int
    snr: Float
    f0: Float
    nearest: Float
    offset: Float
    rho: Float
    truths: Float
    crps: Float
    energy: Float
    nll: Float
    ranks: Int
    density_rank: Int


class Bands(NamedTuple):
    """One row a band, B bands.

    ``probability`` (B, S) calibrated, nothing for slots that are never reported, (B, S)
    ``counts`` false; ``holds`` (B, S) whether a source that is not missed was assigned to it.
    """

    sample: Int
    first_bin: Int
    number: Int
    probability: Float
    logits: Float
    counts: Bool
    holds: Bool


class Joint(NamedTuple):
    """Draws (c, t, 8) in unit ranges of the sources ``source`` (c,), one of each band."""

    source: Int
    draws: Float32


@dataclass(frozen=True)
class Outcome:
    """All that figures are made of; ``draws`` a source, B bands of the observation time T."""

    draws: int
    sources: Sources
    bands: Bands
    joint: Joint
    found: Found
    looks: Looks


def collect(
    model: Model, data: TrainingSet, tokens: TokenSource, settings: ReportSettings,
    progress: Progress | None = None,
) -> Outcome:  # fmt: skip
    """Let a model read all bands of a set.

    Args:
        model: to report on.
        data: the set.
        tokens: its bands, searched for this model.
        settings: of the report.
        progress: called with (bands read, bands).
    """
    reader = _Reader(model, data, settings, len(tokens))
    parts = []
    done = 0
    for batch in outcomes(
        model.network, tokens, settings.draws, settings.seed, BATCH, reader.finder.choose
    ):
        parts.append(reader.keep(batch))
        done += len(batch.number)
        if progress is not None:
            progress(done, len(tokens))
    return _in_order(_joined(parts, settings.draws))


class _Reader:
    """Keeps of each batch what figures need."""

    def __init__(
        self, model: Model, data: TrainingSet, settings: ReportSettings, bands: int
    ) -> None:
        self.model, self.settings = model, settings
        self.duration, self.bins = data.observation.duration, data.prior.bins
        self.finder = Finder(model.calibration, Comparison(model.grid), data, settings)
        self.share = min(1.0, JOINT_BANDS / max(bands, 1))

    def keep(self, batch: Batch) -> Outcome:
        """Return the outcome of one batch; rows are counted within it."""
        draws, truths = scored(batch, self.bins, self.duration)
        found = self.finder.find(batch)
        counts = batch.counts & ~found.repeated
        probability = np.where(counts, self.model.calibration(batch.existence), 0.0)
        offset = batch.offset
        holds = np.zeros_like(counts)
        seen = offset <= MISSED_BINS
        holds[batch.band[seen], batch.slot[seen]] = True
        bands = Bands(
            batch.sample, batch.first_bin, batch.number, probability, batch.existence, counts, holds
        )
        joint = self._joint(batch, draws)
        return Outcome(
            self.settings.draws, self._sources(batch, draws, truths, offset), bands, joint, found,
            looks(batch, matched_first(batch)),
        )  # fmt: skip

    def _sources(self, batch: Batch, draws: Float, truths: Float, offset: Float) -> Sources:
        few = draws[:, : self.settings.test_draws]
        nothing, none = np.empty((0, len(NAMES))), np.empty(0)
        some = len(truths) > 0
        first = batch.first_bin[batch.band]
        return Sources(
            batch.band, batch.snr, (first + batch.truths[:, F0]) / self.duration, batch.nearest,
            offset, batch.reference[batch.band, batch.slot, _RHO], truths,
            crps_columns(draws, truths, PERIODS) if some else nothing,
            energy_score(few, truths, PERIODS) if some else none, -batch.truth_log_q,
            all_ranks(draws, truths, PERIODS) if some else nothing.astype(np.int64),
            (batch.log_q > batch.truth_log_q[:, None]).sum(axis=1),
        )  # fmt: skip

    def _joint(self, batch: Batch, draws: Float) -> Joint:
        """One source of each band, at random, and of many bands a part."""
        chosen = []
        for row, sample in enumerate(batch.sample.tolist()):
            own = np.flatnonzero(batch.band == row)
            rng = np.random.default_rng([self.settings.seed, sample, 2])
            if own.size and rng.random() < self.share:
                chosen.append(int(rng.choice(own)))
        index = np.array(chosen, dtype=np.int64)
        return Joint(index, draws[index, : self.settings.test_draws].astype(np.float32))


def _joined(parts: list[Outcome], draws: int) -> Outcome:
    """Put batches together; what counts rows counts them over all batches."""
    bands, sources, truths, moved = 0, 0, 0, []
    for part in parts:
        found = part.found
        moved.append(
            Outcome(
                draws, part.sources._replace(band=part.sources.band + bands), part.bands,
                part.joint._replace(source=part.joint.source + sources),
                found._replace(
                    truth=np.where(found.truth >= 0, found.truth + truths, -1),
                    band=found.band + bands,
                ),
                part.looks,
            )
        )  # fmt: skip
        bands += len(part.bands.sample)
        sources += len(part.sources.band)
        truths += len(found.truth_snr)
    columns: dict[str, Any] = {}
    for field in fields(Outcome)[1:]:
        records = [getattr(part, field.name) for part in moved]
        kind: Any = type(records[0])
        columns[field.name] = kind(*(np.concatenate(c) for c in zip(*records, strict=True)))
    return Outcome(draws, **columns)


def _in_order(outcome: Outcome) -> Outcome:
    """Put the bands in the order of their samples, and the sources in that of their bands."""
    order = np.argsort(outcome.bands.sample, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    band = place[outcome.sources.band]
    rows = np.argsort(band, kind="stable")
    number = np.empty_like(rows)
    number[rows] = np.arange(rows.size)
    joint = number[outcome.joint.source]
    chosen = np.argsort(joint, kind="stable")
    found = outcome.found._replace(
        band=place[outcome.found.band], repeated=outcome.found.repeated[order]
    )
    return Outcome(
        outcome.draws, _rows(outcome.sources._replace(band=band), rows),
        _rows(outcome.bands, order), Joint(joint[chosen], outcome.joint.draws[chosen]), found,
        _rows(outcome.looks, order),
    )  # fmt: skip


def _rows[T: (Sources, Bands, Looks)](record: T, index: Int) -> T:
    """Return the chosen rows of every column."""
    return record._replace(**{name: column[index] for name, column in record._asdict().items()})
