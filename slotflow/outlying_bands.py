"""The vectors (:mod:`slotflow.outlying_features`) of bands that search and network have read."""

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from slotflow.batches import Tensors
from slotflow.checkpoint import Model
from slotflow.componentcache import cache_path, read_components
from slotflow.errors import InputError
from slotflow.labels import window_edges
from slotflow.model import Reading, distinct_slots
from slotflow.outlying_features import BandVectors, Slots, band_vectors, content
from slotflow.response import Float
from slotflow.store import TrainingSet
from slotflow.tokencache import band_sigma, open_tokens
from slotflow.tokendata import TokenData
from slotflow.tokens import BandTokens

BATCH: Final = 250  # bands that the network reads at a time

Progress = Callable[[int, int], None]


class ReadBand(NamedTuple):
    """A band after the search.

    ``data`` (3, K) whitened A, E, T; ``components`` (C,) and ``level`` (2,) as
    :class:`slotflow.components.ComponentSet` has them; ``sigma`` (2,) the whitening's divisor at
    the band's centre.
    """

    first_bin: int
    data: NDArray[np.complexfloating]
    components: NDArray[np.void]
    level: Float
    sigma: Float
    tokens: BandTokens


def vectors(model: Model, band: ReadBand, reading: Reading, row: int) -> BandVectors:
    """Return the vectors of a band that the network has read.

    Args:
        model: whose network that is.
        band: after the search.
        reading: of a batch.
        row: of the band in it.
    """
    prior, duration = model.preset.prior, model.preset.observation.duration
    count = len(band.components)
    probability = model.calibration(reading.existence[row].double().numpy())
    one = Reading(*(None if x is None else x[row : row + 1] for x in reading))  # type: ignore[arg-type]
    distinct = distinct_slots(one)[0].numpy()
    slots = Slots(
        np.where(distinct & (count > 0), probability, 0.0),
        reading.context[row].double().numpy(),
        reading.component[row, :count].double().numpy(),
    )
    held = content(
        band.data, band.components, band.level, band.first_bin, band.sigma,
        window_edges(band.first_bin, prior, duration), model.grid,
    )  # fmt: skip
    frequency = (band.first_bin + prior.bins // 2) / duration
    return band_vectors(band.tokens, held, slots, frequency, prior)


def set_vectors(
    model: Model, data: TrainingSet, most: int | None = None, progress: Progress | None = None
) -> list[BandVectors]:
    """Return the vectors of a set's bands under their first noise draw, in their order.

    Args:
        model: that reads them.
        data: a set that was searched for this model
            (:func:`slotflow.tokencache.ensure_searched`).
        most: bands, from the first on; all where None.
        progress: called with (bands done, bands).

    Raises:
        InputError: components or tokens that are missing or damaged, or a damaged shard.
    """
    settings = model.preset.components
    number = len(data) if most is None else min(most, len(data))
    found: list[BandVectors] = []
    with open_tokens(data, settings, 1) as tokens:
        for shard, (start, stop) in enumerate(data.shard_ranges()):
            if start >= number:
                break
            kept = read_components(cache_path(data, shard, settings, 0), stop - start,
                                   settings.max_components)  # fmt: skip
            if kept is None:
                raise InputError(
                    f"{data.directory}: components of {data.manifest.shards[shard].name} are"
                    " missing or damaged: search again"
                )
            for low in range(start, min(stop, number), BATCH):
                high = min(low + BATCH, stop, number)
                rows = slice(low - start, high - start)
                part = Part(
                    low, high, tokens.rows(np.arange(low, high)), kept.counts[rows],
                    kept.levels[rows], kept.records[rows],
                )  # fmt: skip
                found += _part_vectors(model, data, part)
                if progress is not None:
                    progress(len(found), number)
    return found


class Part(NamedTuple):
    """Bands ``low`` to ``high`` - 1 of a set, with what the search found."""

    low: int
    high: int
    tokens: TokenData
    counts: NDArray[np.int64]
    levels: Float
    records: NDArray[np.void]


def _part_vectors(model: Model, data: TrainingSet, part: Part) -> list[BandVectors]:
    bands = data.standard_bands(part.low, part.high)
    batch = Tensors.of(part.tokens, bands if model.network.needs_data else None).batch
    with torch.no_grad():
        reading = model.network.read(batch)
    found = []
    for row, (band, first) in enumerate(zip(bands, part.tokens.first_bin.tolist(), strict=True)):
        tokens = BandTokens(*(getattr(part.tokens, name)[row] for name in BandTokens._fields))
        count = int(part.counts[row])
        sigma = band_sigma(data.observation, first, band.shape[1])
        one = ReadBand(first, band, part.records[row, :count], part.levels[row], sigma, tokens)
        found.append(vectors(model, one, reading, row))
    return found
