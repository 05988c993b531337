"""Posteriors for the bands of a training set, whose sources are known.

What ``slotflow simulate`` writes (:mod:`slotflow.store`) holds bands that are whitened already,
each by itself: there is nothing to transform, to tile or to merge. A band goes through the same
search and network as one of an observation (:mod:`slotflow.inference`), with the noise of one
draw, and comes with its true sources. Bands are read as they are asked for.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotflow.assumptions import check_level
from slotflow.bands import Tile, level
from slotflow.checkpoint import Model
from slotflow.config import Preset
from slotflow.errors import InputError
from slotflow.family import Family
from slotflow.inference import BandReader
from slotflow.labels import window_edges
from slotflow.manifest import MANIFEST, file_sha256, shard_number
from slotflow.noise import standard_psd
from slotflow.parameters import F0
from slotflow.posterior import Progress, check_numbers, read_batches
from slotflow.results import BandOutcome, PosteriorSettings, Psd
from slotflow.resume import Partial
from slotflow.store import TrainingSet
from slotflow.tokencache import band_sigma
from slotflow.whitening import WhiteBand
from slotflow.workers import Way

Float = NDArray[np.float64]
Int = NDArray[np.int64]

MATCH_BINS: Final = 1.0  # between a reported and a true source
#: Settings of the observation that must be the model's: they change a source's waveform.
WAVEFORM: Final = (
    "t0", "tukey", "tdi_generation", "orbit", "orbit_sha256", "arm_length", "orbit_lambda1",
    "orbit_m_init1",
)  # fmt: skip
_FREE: Final = (*WAVEFORM, "samples", "dt", "channels", "orbit_file", "noise_file")
_NAMED: Final = 4  # settings in a note
_PSD: Final = ("data", "model")
_RANGE: Final = re.compile(r"(\d{1,12})(?::(\d{1,12}))?", re.ASCII)


@dataclass(frozen=True, eq=False)
class StoredBands:
    """Consecutive bands of a training set.

    Attributes:
        path: the folder or the shard, as it was given.
        data: the whole set.
        start: number of the first band, in the set.
        stop: and of the one after the last.
        draw: of the noise.
        known: the noise level is taken to be the set's own density, not estimated.
    """

    path: Path
    data: TrainingSet
    start: int
    stop: int
    draw: int = 0
    known: bool = False

    def __len__(self) -> int:
        return self.stop - self.start

    @cached_property
    def first_bins(self) -> Int:
        """The lowest bin of each band: (bands,)."""
        return self.data.first_bins(self.start, self.stop)

    def tiles(self, preset: Preset) -> list[Tile]:
        """Return the bands with the window in which the model expects sources."""
        duration, plan = preset.observation.duration, []
        for number, first in enumerate(self.first_bins.tolist(), self.start):
            low, high = (first + e for e in window_edges(first, preset.prior, duration))
            plan.append(Tile(first, low / duration, high / duration, number))
        return plan

    def of(self, tile: Tile) -> WhiteBand:
        """Return a band as the search takes it.

        Raises:
            InputError: the shard is damaged, or a channel has no noise.
            NonFiniteError: a number in it is not finite.
        """
        ours, bins = self.data.observation, self.data.prior.bins
        data = self.data.standard_bands(tile.number, tile.number + 1, self.draw)[0]
        frequency = (tile.first_bin + np.arange(bins)) / ours.duration
        measured = level(data)
        check_level(self.path, measured[:2], frequency)
        return WhiteBand(
            data, standard_psd(frequency, ours), np.ones(2) if self.known else None,
            float(measured[2]), measured[:2], band_sigma(ours, tile.first_bin, bins),
        )  # fmt: skip

    def key(self, tile: Tile) -> tuple[int, ...]:
        """Return first bin and number: bands of a set may begin at the same bin."""
        return tile.first_bin, tile.number


def open_bands(path: str | Path, bands: str | None = None, draw: int = 0) -> StoredBands:
    """Open bands of a training set.

    Args:
        path: its folder, or a shard in it.
        bands: ``"A:B"`` for the bands A to B - 1 of the set, ``"A"`` for one; all of the
            folder, or of the shard, where None.
        draw: of the noise.

    Raises:
        InputError: no training set, a shard that is not as the manifest lists it, or bands that
            are not there.
    """
    path = Path(path)
    data = TrainingSet(path if path.is_dir() else path.parent)
    low, high = 0, len(data)
    ranges = data.shard_ranges()
    if not path.is_dir():
        number = shard_number(path.name)
        if number is None or number >= len(ranges):
            raise InputError(f"{path}: not listed in {path.parent / MANIFEST}")
        low, high = ranges[number]
    start, stop = (low, high) if bands is None else parse_bands(bands)
    if not low <= start < stop <= high:
        raise InputError(f"bands: {bands}: {path} holds the bands {low}:{high}")
    for entry, (begin, end) in zip(data.manifest.shards, ranges, strict=True):
        if begin < stop and start < end:
            shard = data.directory / entry.name
            if file_sha256(shard) != entry.sha256:
                raise InputError(f"{shard}: SHA-256 differs from {MANIFEST}: damaged or replaced")
    return StoredBands(path, data, start, stop, draw)


def parse_bands(text: str) -> tuple[int, int]:
    """Return first and end of ``A:B`` or ``A``.

    Raises:
        InputError: anything else.
    """
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise InputError(f"bands: expected A:B, the bands A to B - 1, or A; got {text!r}")
    start = int(match[1])
    return start, start + 1 if match[2] is None else int(match[2])


def model_for(stored: StoredBands, family: Family) -> tuple[str, Model]:
    """Return name and model of a family for the bands: of their length, and most of their centres.

    Raises:
        InputError: no model reads bands of that length.
    """
    bins, duration = stored.data.prior.bins, stored.data.observation.duration
    named = list(zip(family.names, family.models, family.ranges, strict=True))
    fitting = [one for one in named if one[1].preset.prior.bins == bins]
    if not fitting:
        lengths = ", ".join(f"{m.preset.prior.bins} ({name})" for name, m, _ in named)
        raise InputError(
            f"{stored.data.directory / MANIFEST}: prior.bins: {bins}; the models read {lengths}"
        )
    centre = (stored.first_bins + bins // 2) / duration

    def inside(one: tuple[str, Model, tuple[float, float]]) -> int:
        return int(((centre >= one[2][0]) & (centre <= one[2][1])).sum())

    name, model, _ = max(fitting, key=inside)
    return name, model


def check_set(stored: StoredBands, model: Model) -> tuple[str, ...]:
    """Refuse bands that the model cannot read; return what the user should know.

    Raises:
        InputError: naming the first setting that differs: the band's length, the observation's
            duration, epoch, window, TDI generation or orbit.
    """
    found, ours = stored.data.observation, model.preset.observation
    pairs: dict[str, tuple[Any, Any]] = {
        "prior.bins": (stored.data.prior.bins, model.preset.prior.bins),
        "observation: T (s)": (found.duration, ours.duration),
    }
    pairs |= {f"observation.{name}": (getattr(found, name), getattr(ours, name))
              for name in WAVEFORM}  # fmt: skip
    for name, (theirs, wanted) in pairs.items():
        if theirs != wanted:
            raise InputError(
                f"{stored.data.directory / MANIFEST}: {name}: {theirs!r}; the model was trained on"
                f" {wanted!r}"
            )
    notes = [f"bands {stored.start}:{stored.stop} of {stored.data.directory}, each by itself"]
    differing = _other_settings(stored, model.preset)
    if differing:
        more = f", and {len(differing) - _NAMED} more" if len(differing) > _NAMED else ""
        notes.append(
            f"made with other settings than the model's training set"
            f" ({', '.join(differing[:_NAMED])}{more}): the result is out of distribution, and its"
            " probabilities and widths are not calibrated"
        )
    prior = model.preset.prior
    centre = (stored.first_bins + prior.bins // 2) / ours.duration
    outside = int(((centre < prior.fmin) | (centre > prior.fmax)).sum())
    if outside:
        notes.append(
            f"{outside} of {len(stored)} bands have their centre outside the trained"
            f" {prior.fmin:g} to {prior.fmax:g} Hz"
        )
    return tuple(notes)


def _other_settings(stored: StoredBands, preset: Preset) -> list[str]:
    """Return names and values of what differs from the model's and leaves waveforms alone."""
    pairs: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = [
        ("prior", stored.data.prior.model_dump(), preset.prior.model_dump()),
        ("observation", stored.data.observation.model_dump(), preset.observation.model_dump()),
    ]
    return [
        f"{section}.{name} {value!r:.60}, there {new[name]!r:.60}"
        for section, old, new in pairs
        for name, value in old.items()
        if value != new[name] and not (section == "observation" and name in _FREE)
        and not (section == "prior" and name == "margin")
    ]  # fmt: skip


class BandPosterior(NamedTuple):
    """What one band was found to hold, and what it does hold.

    Attributes:
        number: of the band, in the set.
        outcome: the sources found.
        truth: (n, 8) its targets, in the order of :data:`slotflow.parameters.PARAMETERS`.
        snr: (n,) theirs.
        match: (sources found,) row of the truth that each is taken for, -1 for none.
    """

    number: int
    outcome: BandOutcome
    truth: Float
    snr: Float
    match: Int


class StoredRun:
    """Posteriors of bands, one after another.

    Args:
        stored: the bands.
        model: a trained model.
        samples: draws a source.
        seed: of the draws; those of a slot depend on the seed, its band and its index alone.
        psd: ``"data"``: one level a channel is estimated from each band, as in training;
            ``"model"``: the set's own density is taken as it is.
        min_probability: of existence, below which a slot is not reported.
        way: who reads the bands; the result does not depend on it.
        partial: where batches that are done are kept, and found again.

    Attributes:
        settings: what is asked for; frequencies are those of the bands.
        notes: what the user should know, one line each.
        reader: of the bands; its ``seconds`` tell where the time went.

    Raises:
        InputError: bands that the model cannot read, or numbers out of their range.

    Example:
        >>> run = StoredRun(open_bands("training-data", "0:100"), model)
        >>> for band in run.bands():
        ...     print(band.number, len(band.outcome.sources), len(band.truth))
    """

    def __init__(
        self, stored: StoredBands, model: Model, *, samples: int = 1000, seed: int = 0,
        psd: Psd = "data", min_probability: float = 0.5, way: Way | None = None,
        partial: Partial | None = None,
    ) -> None:  # fmt: skip
        if psd not in _PSD:
            raise InputError(
                f"psd: {psd!r}: bands of a training set are whitened already: data or model"
                " expected"
            )
        self._way, self._partial = Way() if way is None else way, partial
        self._way.check()
        self.notes = check_set(stored, model)
        self._plan = stored.tiles(model.preset)
        self.settings = PosteriorSettings(
            min(t.low for t in self._plan), max(t.high for t in self._plan), samples, seed, psd,
            min_probability,
        )  # fmt: skip
        check_numbers(self.settings)
        self.stored = StoredBands(
            stored.path, stored.data, stored.start, stored.stop, stored.draw, psd == "model"
        )
        self.reader = BandReader(model, self.stored, self.settings, False)

    def bands(self, progress: Progress | None = None) -> Iterator[BandPosterior]:
        """Yield the bands in their order.

        Args:
            progress: called with (bands done, bands in all).
        """
        data, duration = self.stored.data, self.stored.data.observation.duration
        for batch, outcomes in read_batches(
            self.reader, self._plan, self._way, self._partial, progress
        ):
            first, end = batch.tiles[0].number, batch.tiles[-1].number + 1
            targets = data.targets(first, end)
            for tile, outcome, (truth, snr) in zip(batch.tiles, outcomes, targets, strict=True):
                sources = tuple(sorted(outcome.sources, key=lambda source: source.f0))
                places = np.array([source.f0 for source in sources]) * duration
                match = match_by_frequency(places, truth[:, F0] * duration)
                yield BandPosterior(
                    tile.number, outcome._replace(sources=sources), truth, snr, match
                )


def match_by_frequency(found: Float, true: Float) -> Int:
    """Return for each place found the true one it is taken for, -1 for none: (n,).

    The nearest pairs first, each true place once, none further apart than ``MATCH_BINS``.

    Args:
        found: (n,) frequencies in bins.
        true: (m,) likewise.
    """
    match = np.full(found.size, -1, dtype=np.int64)
    distance = np.abs(found[:, None] - true[None])
    for flat in np.argsort(distance, axis=None, kind="stable").tolist():
        i, j = divmod(flat, true.size)
        if not distance[i, j] <= MATCH_BINS:  # nor is NaN
            break
        if match[i] < 0 and j not in match:
            match[i] = j
    return match
