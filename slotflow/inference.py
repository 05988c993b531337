"""Bands through the search and the network: what each is found to hold.

Each band is whitened, searched for components and read, exactly as in training; each slot that
is likely to hold a source gives samples. Numbers do not depend on which other bands are asked
for: floating-point sums depend on an array's shape and on the row, so the network always reads
``BLOCK`` bands of the fixed tiling at a time, each in its own row, with empty ones for those
that are not wanted; and each slot is sampled by itself with a generator of its own.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from slotflow.bands import MARGIN_BINS, Tile, level
from slotflow.bounds import Bound, bounded
from slotflow.calibration import count_distribution
from slotflow.checkpoint import Model
from slotflow.components import ComponentSearch, ComponentSet
from slotflow.errors import NonFiniteError
from slotflow.merging import Comparison, distinct_in_band
from slotflow.model import Reading, TokenBatch, distinct_slots
from slotflow.outlying_bands import ReadBand, vectors
from slotflow.parameters import FDOT_T2_PRIOR, PARAMETERS, other_image, wrap
from slotflow.refined import Refinement, RefineSettings
from slotflow.results import BandOutcome, BandView, PosteriorSettings, SourcePosterior, TileRecord
from slotflow.tokencache import from_local_units, window_edges
from slotflow.tokens import BandTokens, band_tokens
from slotflow.whitening import WhiteBand, WhiteBands

Float = NDArray[np.float64]

BLOCK: Final = 16  # consecutive bands of the tiling that the network reads together
_CPU: Final = torch.device("cpu")
_REFINE: Final = 1 << 20  # of the random numbers of a refinement; those of slots are below


def _moved[T: (TokenBatch, Reading)](record: T, device: torch.device) -> T:
    """Return the record with its tensors on the device; those that are there stay as they are."""
    return record._replace(
        **{k: v.to(device) for k, v in record._asdict().items() if v is not None}
    )


class _Searched(NamedTuple):
    tile: Tile
    white: WhiteBand
    found: ComponentSet
    tokens: BandTokens


class BandReader:
    """Reads bands of one observation, or of a training set.

    Args:
        model: the trained model.
        whitening: where the bands are from.
        settings: what is asked for.
        keep_bands: whether outcomes hold a :class:`slotflow.results.BandView`.
        refine: whether and how samples are brought to the exact posterior.

    Attributes:
        seconds: time spent so far, by part.
        device: of the network; whitening and search are the processor's.
    """

    def __init__(
        self, model: Model, whitening: WhiteBands, settings: PosteriorSettings, keep_bands: bool,
        refine: RefineSettings | None = None,
    ) -> None:  # fmt: skip
        self.model, self.whitening, self.settings = model, whitening, settings
        self.keep_bands, self.refine = keep_bands, refine
        self.device = _CPU
        self.seconds = {"whitening": 0.0, "search": 0.0, "network": 0.0}
        if refine is not None:
            self.seconds["refinement"] = 0.0

    def to(self, device: str) -> None:
        """Move the model's network to a device, by PyTorch's name of it."""
        self.device = torch.device(device)
        self.model.network.to(self.device)

    @cached_property
    def search(self) -> ComponentSearch:
        """The search with its banks, made where it is first needed."""
        return ComponentSearch(self.model.grid, self.model.preset.components)

    @cached_property
    def comparison(self) -> Comparison:
        """Compares sources by their waveforms."""
        return Comparison(self.model.grid)

    def __call__(self, tiles: Sequence[Tile]) -> Iterator[BandOutcome]:
        """Read bands of the tiling, in their order.

        Raises:
            InputError: a channel without noise, or with numbers too large.
            NonFiniteError: a sample that is not finite.
        """
        block: list[_Searched] = []
        for tile in tiles:
            if block and not self._goes_on(block[-1].tile, tile):
                yield from self._read(block)
                block = []
            block.append(self._search(tile))
        if block:
            yield from self._read(block)

    def _goes_on(self, last: Tile, tile: Tile) -> bool:
        """Whether a band is read together with the one before it."""
        return last.number < tile.number and last.number // BLOCK == tile.number // BLOCK

    def _search(self, tile: Tile) -> _Searched:
        """Whiten and search one band, as the training set's were."""
        started = time.perf_counter()
        preset, first = self.model.preset, tile.first_bin
        duration, bins = preset.observation.duration, preset.prior.bins
        white = self.whitening.of(tile)
        whitened = time.perf_counter()
        found = self.search(white.data, first, white.sigma, white.known)
        tokens = band_tokens(
            found, first, bins, duration, window_edges(first, preset.prior, duration),
            preset.components.max_components,
        )  # fmt: skip
        self.seconds["whitening"] += whitened - started
        self.seconds["search"] += time.perf_counter() - whitened
        return _Searched(tile, white, found, tokens)

    def _read(self, block: list[_Searched]) -> Iterator[BandOutcome]:
        """Let the network read bands of one block."""
        for one, row, reading in self._readings(block):
            started = time.perf_counter()
            outcome = self._outcome(one, row, reading)
            self.seconds["network"] += time.perf_counter() - started
            if outcome.refinement is not None:
                self.seconds["network"] -= outcome.refinement.seconds
                self.seconds["refinement"] += outcome.refinement.seconds
            yield outcome

    def _readings(self, block: list[_Searched]) -> Iterator[tuple[_Searched, int, Reading]]:
        started = time.perf_counter()
        rows = [one.tile.number % BLOCK for one in block]
        capacity, bins = self.model.preset.components.max_components, self.model.preset.prior.bins
        nothing = ComponentSet(block[0].found.components[:0], np.ones(2), block[0].found.residual)
        empty = band_tokens(nothing, 0, bins, 1.0, (0.0, float(bins)), capacity)
        padded = [empty] * BLOCK
        for row, one in zip(rows, block, strict=True):
            padded[row] = one.tokens
        columns = (torch.from_numpy(np.stack(column)) for column in zip(*padded, strict=True))
        batch = TokenBatch(*columns)
        if self.model.network.needs_data:
            data = np.zeros((BLOCK, *block[0].white.data.shape), dtype=np.complex64)
            data[rows] = [one.white.data for one in block]
            batch = batch._replace(data=torch.from_numpy(data))
        with torch.no_grad():
            reading = _moved(self.model.network.read(_moved(batch, self.device)), _CPU)
        self.seconds["network"] += time.perf_counter() - started
        for row, one in zip(rows, block, strict=True):
            yield one, row, reading

    def _outcome(self, one: _Searched, row: int, reading: Reading) -> BandOutcome:
        """Return what one band holds, with samples of the slots that are likely to be sources."""
        probability = self.model.calibration(reading.existence[row].double().numpy())
        distinct = distinct_slots(reading)[row].numpy()
        count = len(one.found.components)
        if not count:
            distinct[:] = False  # nothing to measure a source from
        probability = np.where(distinct, probability, 0.0)
        likely = np.flatnonzero((probability >= self.settings.min_probability) & distinct)
        sampled = [
            self._sample(one, reading, row, int(slot), float(probability[slot])) for slot in likely
        ]
        kept = distinct_in_band(sampled, self.comparison)
        repeated = {source.slot for source in sampled} - {source.slot for source in kept}
        probability[list(repeated)] = 0.0
        margin = MARGIN_BINS / self.model.preset.observation.duration
        tile, (level_a, level_e) = one.tile, map(float, one.found.level)
        seen = level_a, level_e, count, float(probability.sum())
        kept, refinement = self._refined(one, row, reading, kept)
        return BandOutcome(
            TileRecord(
                tile.first_bin, tile.low, tile.high, *seen, *self._outlying(one, row, reading)
            ),
            self._measured(one),
            count_distribution(probability),
            tuple(s for s in kept if tile.low - margin <= s.f0 < tile.high + margin),
            self._view(one, row, reading, probability) if self.keep_bands else None,
            refinement,
        )

    def _outlying(self, one: _Searched, row: int, reading: Reading) -> tuple[float, ...]:
        """Return a band's score against the training distribution and its p value, if any."""
        if self.model.outlying is None:
            return ()
        white, found = one.white, one.found
        band = ReadBand(
            one.tile.first_bin, white.data, found.components, found.level, white.sigma, one.tokens
        )
        score = self.model.outlying(vectors(self.model, band, reading, row))
        return score.value, score.p_value

    def _measured(self, one: _Searched) -> Float:
        """Return the noise power that the band tells, (2,); where sources crowd, without them."""
        measured = one.white.measured[:2]
        if not self.model.preset.components.crowded:
            return measured
        return np.asarray(measured * one.found.level / level(one.white.data[:2]))

    def _refined(
        self, one: _Searched, row: int, reading: Reading, sources: tuple[SourcePosterior, ...]
    ) -> tuple[tuple[SourcePosterior, ...], Refinement | None]:
        """Return the sources with refined samples, where that was asked for."""
        if self.refine is None:
            return sources, None
        from slotflow.refine import Refiner  # compiles: only where it is needed
        from slotflow.refine_input import band_to_refine

        first, samples = one.tile.first_bin, self.settings.samples
        refiner = Refiner(self.model, self.search.banks, self.refine, samples, self.device)
        rng = np.random.default_rng([self.settings.seed, *self.whitening.key(one.tile), _REFINE])
        found = refiner(band_to_refine(first, one.white, one.found, reading, row, sources), rng)
        place = {slot: i for i, slot in enumerate(found.record.slots)}
        return tuple(
            replace(s, samples=found.samples[place[s.slot]], log_q=found.log_q[place[s.slot]])
            if s.slot in place else s
            for s in sources
        ), found.record  # fmt: skip

    def _sample(
        self, one: _Searched, reading: Reading, row: int, slot: int, probability: float
    ) -> SourcePosterior:
        """Draw one slot's posterior with a generator of its own."""
        first, settings = one.tile.first_bin, self.settings
        entropy = np.random.SeedSequence([settings.seed, *self.whitening.key(one.tile), slot])
        generator = torch.Generator().manual_seed(int(entropy.generate_state(1, np.uint64)[0] >> 1))
        at = (slice(row, row + 1), slot)
        context = reading.context[at].clone().to(self.device)
        reference = reading.reference[at].clone().to(self.device)
        draws, network = settings.samples, self.model.network
        with torch.no_grad():
            local, log_q = network.sample(context, reference, draws, generator)
            local, log_q = local.cpu(), log_q.cpu()
            inside = bounded(
                local[0], log_q[0], self._bounds(first, local[0, :, 0]),
                lambda x: network.log_prob(
                    x.to(self.device), context.expand(len(x), -1), reference.expand(len(x), -1)
                ).sum(dim=-1).double().cpu(),
            )  # fmt: skip
        duration = self.model.preset.observation.duration
        samples = from_local_units(inside.draws.numpy(), first, duration)
        density = inside.log_q.numpy().astype(np.float64) - np.log(2.0)
        if not (np.isfinite(samples).all() and np.isfinite(density).all()):
            raise NonFiniteError(f"band from bin {first}, slot {slot}: samples are not finite")
        other = torch.rand(settings.samples, generator=generator).numpy() < 0.5
        samples[other] = other_image(samples[other])
        for index, parameter in enumerate(PARAMETERS):
            if parameter.period is not None:
                samples[:, index] = wrap(samples[:, index], parameter.period)
        component = one.found.components[int(reading.choice[row, slot])]
        snr = float(np.sqrt(2.0 * max(float(component["f_statistic"]), 0.0)))
        return SourcePosterior(samples, density, probability, first, slot, snr)

    def _bounds(self, first_bin: int, places: torch.Tensor) -> list[Bound]:
        """The prior's, of the place in the band and of fdot T^2."""
        prior = self.model.preset.prior
        low, high = window_edges(first_bin, prior, self.model.preset.observation.duration)
        bounds = [Bound(1, prior.fdot_t2_min, prior.fdot_t2_max, *FDOT_T2_PRIOR)]
        # a slot on a neighbour's source stays there, and is not reported from here
        if low <= float(places.median()) <= high:
            bounds.append(Bound(0, low, high, 0.0, float(prior.bins)))
        return bounds

    def _view(self, one: _Searched, row: int, reading: Reading, probability: Float) -> BandView:
        """Return the band as the network saw it, by unit noise."""
        count = len(one.found.components)
        level = np.array([*one.found.level, one.white.level_t])[:, None]
        return BandView(
            first_bin=one.tile.first_bin,
            data=(one.white.data / np.sqrt(level)).astype(np.complex64),
            psd=one.white.density * level,
            attention=reading.attention[row, :, :count].double().numpy(),
            evidence=reading.evidence[row, :, :count].double().numpy(),
            places=one.found.components["bin"].copy(),
            existence=probability,
            sources=(),
            gap_fraction=one.white.gap_fraction,
            gain=one.white.gain,
        )
