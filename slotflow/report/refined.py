"""The model's draws beside the exact posterior's, on a few bands of a report.

Bands are refined as those of an observation are (:mod:`slotflow.refine`): all sources that a band
reports together, with the noise level and the components that its search found. True sources are
assigned to slots as everywhere in a report, so that both sets of draws are of the same slot and
are scored on the same truth.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from slotflow.bands import Tile
from slotflow.batches import Tensors
from slotflow.checkpoint import Model
from slotflow.componentcache import Found, cache_path, read_components
from slotflow.components import ComponentSearch, ComponentSet
from slotflow.labels import from_local_units
from slotflow.merging import Comparison, distinct_in_band
from slotflow.metrics import all_ranks
from slotflow.outcomes import Batch, outcomes
from slotflow.parameters import to_scored
from slotflow.refine import Refined, Refiner
from slotflow.refine_input import RefineBand, band_to_refine
from slotflow.refined import RefineSettings
from slotflow.report.found import Finder
from slotflow.report.outcome import MISSED_BINS, NAMES, PERIODS, Outcome
from slotflow.report.record import RefinedParameter, RefinedScores, ReportSettings
from slotflow.results import SourcePosterior
from slotflow.scores import Estimate, ParameterScore, crps_columns, estimates, parameter_scores
from slotflow.store import TrainingSet
from slotflow.stored import StoredBands
from slotflow.templates import BankSet
from slotflow.tokendata import TokenSource, TokenSubset
from slotflow.whitening import WhiteBand

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]

MOST_REPORTS: Final = 3  # of a band that is refined: its time grows with them
_STREAM: Final = 50  # of the random numbers


class Refine(Protocol):
    """Refines a band; :class:`slotflow.refine.Refiner`, say."""

    def __call__(self, band: RefineBand, rng: np.random.Generator) -> Refined: ...


class Pairs(NamedTuple):
    """Sources with both sets of draws, n of them, in unit ranges.

    ``band`` (n,) their samples; ``truths`` (n, 8); ``network`` (n, m, 8) and ``refined``
    (n, k, 8). ``not_found`` and ``not_refined`` count the others.
    """

    band: Int
    truths: Float
    network: Float
    refined: Float
    not_found: int
    not_refined: int


class Read(NamedTuple):
    """A band as a refinement takes it, what it reports, and the true sources' slots."""

    band: RefineBand
    reports: tuple[SourcePosterior, ...]
    batch: Batch


def refined_scores(
    model: Model, data: TrainingSet, tokens: TokenSource, outcome: Outcome,
    settings: ReportSettings, refine: Refine | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> RefinedScores:  # fmt: skip
    """Refine some bands of a report and score the model's draws and the refined ones.

    A band's draws depend on the seed and the band alone.

    Args:
        model: that has read the bands.
        data: the set.
        tokens: its bands, searched for this model.
        outcome: of the reading; says which bands are refined.
        settings: of the report.
        refine: by what; None: tempered SMC with the compiled likelihood.
        progress: called with (bands refined, bands).
    """
    started = time.perf_counter()
    if refine is None:
        banks = BankSet(model.grid, model.preset.components)
        refine = Refiner(model, banks, RefineSettings("smc", evidence=False), settings.draws)
    reader = Bands(model, data, tokens, settings)
    chosen = to_refine(outcome, settings).tolist()
    parts: list[Pairs] = []
    warnings: dict[int, tuple[str, ...]] = {}
    for done, sample in enumerate(chosen, start=1):
        read = reader.read(sample)
        found = refine(read.band, np.random.default_rng([settings.seed, sample, _STREAM]))
        parts.append(paired(read, found, data.prior.bins, data.observation.duration))
        if found.record.warnings:
            warnings[sample] = found.record.warnings
        if progress is not None:
            progress(done, len(chosen))
    pairs = joined(parts, settings.draws)
    lines = tuple(f"band {sample}: {text}" for sample, own in warnings.items() for text in own)
    return RefinedScores(
        len(chosen), len(pairs.band), pairs.not_found, pairs.not_refined, len(warnings), lines,
        compared(pairs, settings), round(time.perf_counter() - started, 3),
    )  # fmt: skip


def to_refine(outcome: Outcome, settings: ReportSettings) -> Int:
    """Return the samples of the first ``settings.refine`` bands with one to three reports."""
    bands = outcome.bands
    reports = (bands.probability >= settings.min_probability).sum(axis=1)
    chosen = np.flatnonzero((reports >= 1) & (reports <= MOST_REPORTS))
    return np.asarray(bands.sample[chosen[: settings.refine]])


class Bands:
    """Bands of a searched set, read by a model one at a time."""

    def __init__(
        self, model: Model, data: TrainingSet, tokens: TokenSource, settings: ReportSettings
    ) -> None:
        self.model, self.data, self.tokens, self.settings = model, data, tokens, settings
        self.stored = StoredBands(data.directory, data, 0, len(data))
        self.finder = Finder(model.calibration, Comparison(model.grid), data, settings)
        self._shard: tuple[int, Found | None] | None = None

    def read(self, sample: int) -> Read:
        """Read a band by its number in the set.

        Raises:
            InputError: a damaged shard, or a channel without noise.
        """
        network, draws = self.model.network, self.settings.draws
        one = TokenSubset(self.tokens, np.flatnonzero(self.tokens.sample == sample)[:1])
        index = np.zeros(1, dtype=np.int64)
        batch = next(outcomes(network, one, 1, self.settings.seed, 1, self.finder.choose, draws))
        rows = Tensors.of(one.rows(index), one.bands(index) if network.needs_data else None)
        with torch.no_grad():
            reading = network.read(rows.batch)
        likely = [report for _, report in self.finder.reports(batch)]
        reports = distinct_in_band(likely, self.finder.comparison)
        first = int(batch.first_bin[0])
        white = self.stored.of(Tile(first, 0.0, 0.0, sample))
        found = self._components(sample, first, white)
        return Read(band_to_refine(first, white, found, reading, 0, reports), reports, batch)

    def _components(self, sample: int, first_bin: int, white: WhiteBand) -> ComponentSet:
        """Return what the search found in a band; searched anew where that is not kept."""
        ranges, settings = self.data.shard_ranges(), self.model.preset.components
        shard = next(i for i, (_, stop) in enumerate(ranges) if sample < stop)
        start, stop = ranges[shard]
        if self._shard is None or self._shard[0] != shard:
            path = cache_path(self.data, shard, settings, 0)
            self._shard = shard, read_components(path, stop - start, settings.max_components)
        found, row = self._shard[1], sample - start
        if found is None:
            search = ComponentSearch(self.model.grid, settings)
            return search(white.data, first_bin, white.sigma, white.known)
        nothing = np.zeros((2, 0), dtype=np.complex64)
        return ComponentSet(found.records[row, : found.counts[row]], found.levels[row], nothing)


def paired(read: Read, found: Refined, bins: int, duration: float) -> Pairs:
    """Return the true sources of a band that are found and refined, and count the others."""
    batch, first = read.batch, read.batch.first_bin.astype(np.float64)
    own = {report.slot: report.samples for report in read.reports}
    done: dict[int, Float] = {}
    if not math.isnan(found.record.ln_z.value):  # else its draws are the network's still
        done = dict(zip(found.record.slots, found.samples, strict=True))
    slots, near = batch.slot.tolist(), (batch.offset <= MISSED_BINS).tolist()
    seen = [slot in own and near[i] for i, slot in enumerate(slots)]
    both = [i for i, slot in enumerate(slots) if seen[i] and slot in done]
    nothing = np.empty((0, 0, 8))

    def unit(sources: Float) -> Float:
        return to_scored(sources, first, bins, duration)

    return Pairs(
        batch.sample[batch.band[both]], unit(from_local_units(batch.truths[both], first, duration)),
        unit(np.stack([own[slots[i]] for i in both])) if both else nothing,
        unit(np.stack([done[slots[i]] for i in both])) if both else nothing,
        len(slots) - sum(seen), sum(seen) - len(both),
    )  # fmt: skip


def joined(parts: Sequence[Pairs], draws: int) -> Pairs:
    """Put the sources of several bands together."""
    some = [part for part in parts if len(part.band)]
    lost = sum(part.not_found for part in parts), sum(part.not_refined for part in parts)
    if not some:
        none = np.empty((0, draws, 8))
        return Pairs(np.empty(0, dtype=np.int64), np.empty((0, 8)), none, none, *lost)
    columns = [np.concatenate(c) for c in zip(*(part[:4] for part in some), strict=True)]
    return Pairs(columns[0], columns[1], columns[2], columns[3], *lost)


def compared(pairs: Pairs, settings: ReportSettings) -> tuple[RefinedParameter, ...]:
    """Return every parameter's scores by both sets of draws; nothing without a source."""
    if not len(pairs.band):
        return ()
    rng = np.random.default_rng([settings.seed, _STREAM])
    of = rng, pairs.band, settings.level, settings.resamples
    network, exact = (
        crps_columns(draws, pairs.truths, PERIODS) for draws in (pairs.network, pairs.refined)
    )
    # what it says of a prior holds of any other draws: 1 - ratio of the means
    divisor = np.where(exact.mean(axis=0) > 0.0, exact, 1.0)
    beside = parameter_scores(network, divisor, NAMES, *of)
    inside = [
        estimates(_inside(draws, pairs.truths), *of) for draws in (pairs.network, pairs.refined)
    ]
    columns = zip(beside, estimates(exact, *of), *inside, strict=True)
    return tuple(
        RefinedParameter(one.name, one.crps, refined, *_ratio(one, refined), covered, covered_exact)
        for one, refined, covered, covered_exact in columns
    )


def _ratio(one: ParameterScore, exact: Estimate) -> tuple[float | None, float | None, float | None]:
    """Return the ratio of mean CRPS and its interval; a fair CRPS can be negative by chance."""
    if exact.mean <= 0.0:
        return None, None, None
    ratio = one.crps.mean / exact.mean
    low, high = one.compression_upper, one.compression_lower
    if low is None or high is None or exact.mean_lower is None or exact.mean_lower <= 0.0:
        return ratio, None, None
    return ratio, 1.0 - low, 1.0 - high


def _inside(draws: Float, truths: Float) -> Bool:
    """Return whether the central 90% of draws (n, m, 8) hold the truths: (n, 8)."""
    share = (all_ranks(draws, truths, PERIODS) + 0.5) / (draws.shape[1] + 1)
    return np.asarray(np.abs(share - 0.5) <= 0.45)
