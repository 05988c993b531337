"""Held-out figures of a model: CRPS, coverage, NLL, hits, number of sources, overlap.

Every true source is assigned to a slot by the Hungarian algorithm on -ln q(source | slot),
none left out because it was missed; the misses stand beside every score.
"""

import itertools
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from slotflow.batches import Tensors
from slotflow.labels import from_local_units
from slotflow.matching import assign
from slotflow.metrics import (
    chance_peak_overlap,
    cosine_overlap,
    covered,
    fair_crps,
    peak_overlap,
)
from slotflow.model import Reading, SlotFlow, distinct_slots
from slotflow.parameters import SCORED, to_scored
from slotflow.response import Float
from slotflow.tokendata import TokenData, TokenSource, as_source

SNR_EDGES = (5.0, 7.0, 10.0, 20.0, 50.0, 100.0)


class Scores(NamedTuple):
    """One row a true source, n sources.

    ``crps`` (n, 8) in the order of :data:`slotflow.parameters.SCORED`, ``inside`` (n, 8)
    whether the 90% interval holds the truth, ``nll`` (n,) in the unit cube, ``snr`` (n,),
    ``offset`` (n,) bins from the slot's component to the source, ``nearest`` (n,) bins to
    the nearest other source of the band.
    """

    crps: Float
    inside: NDArray[np.bool_]
    nll: Float
    snr: Float
    offset: Float
    nearest: Float


class Evaluation(NamedTuple):
    """All that :func:`evaluate` found.

    ``scores``; ``counts`` (B, 2) true and estimated numbers of sources; ``loud`` (B,) whether
    the band has sources and all are above SNR 10; ``overlap`` and ``chance`` the peak overlap
    of the matched slots and its level for peaks anywhere; ``cosine`` their cosine overlap.
    """

    scores: Scores
    counts: NDArray[np.int64]
    loud: NDArray[np.bool_]
    overlap: float
    chance: float
    cosine: float


def evaluate(
    network: SlotFlow,
    data: TokenSource | TokenData,
    duration: float,
    draws: int = 500,
    seed: int = 0,
    batch: int = 250,
) -> Evaluation:
    """Score a network on searched and labelled bands.

    Args:
        network: in evaluation mode.
        data: B bands, in memory or read as they are needed.
        duration: observation time T, s.
        draws: posterior draws a source.
        seed: of the draws.
        batch: bands at a time.
    """
    generator = torch.Generator().manual_seed(seed)
    source = as_source(data)
    parts: list[Scores] = []
    truths: list[_Truth] = []
    estimated, attention = [], []
    for start in range(0, len(source), batch):
        index = np.arange(start, min(start + batch, len(source)))
        bands = source.rows(index)
        truths.append(_truth(bands))
        rows = Tensors.of(bands, source.bands(index) if network.needs_data else None)
        with torch.no_grad():
            reading = network.read(rows.batch)
            cost = pair_cost(network, reading, rows.targets.sources, rows.count)
            slot = assign(cost, _present(rows.count, cost.shape[2]))
            parts.append(_score(network, reading, cost, slot, bands, duration, draws, generator))
        found = (reading.existence > 0) & distinct_slots(reading)
        estimated.append(found.sum(dim=1).numpy())
        attention.append(_matched_first(reading.attention, slot).numpy())
    number, quietest, tokens = (np.concatenate(column) for column in zip(*truths, strict=True))
    # slots of a band without components attend to nothing
    several = (number >= 2) & (tokens > 0)
    chance = float("nan")
    if several.any():
        slots = network.settings.slots
        chance = chance_peak_overlap(slots, tokens[several], number[several])
    looked = np.concatenate(attention)[several]
    return Evaluation(
        Scores(*(np.concatenate(column) for column in zip(*parts, strict=True))),
        np.stack([number, np.concatenate(estimated)], axis=-1),
        (number > 0) & (quietest >= 10.0),
        peak_overlap(looked, number[several]),
        chance,
        cosine_overlap(looked, number[several]),
    )


class _Truth(NamedTuple):
    """What is kept of the bands: number of sources, SNR of the quietest, number of tokens."""

    number: NDArray[np.int64]
    quietest: Float
    tokens: NDArray[np.int64]


def _truth(data: TokenData) -> _Truth:
    quietest = np.min(np.where(np.isnan(data.snr), np.inf, data.snr), axis=1)
    return _Truth(data.number, quietest, data.valid.sum(axis=1))


def _matched_first(attention: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
    """Return the attention (B, S, C) with the slots that hold a source (B, K) in front."""
    free = torch.ones(attention.shape[:2], dtype=torch.bool)
    row, column = torch.nonzero(slot >= 0, as_tuple=True)
    free[row, slot[row, column]] = False
    order = torch.argsort(free.to(torch.int8), dim=1, stable=True)
    return torch.gather(attention, 1, order[..., None].expand(-1, -1, attention.shape[2]))


def _present(count: torch.Tensor, most: int) -> torch.Tensor:
    return torch.arange(most)[None] < count[:, None]


def pair_cost(
    network: SlotFlow, reading: Reading, sources: torch.Tensor, count: torch.Tensor
) -> torch.Tensor:
    """Return -ln q(source | slot) of every pair: (B, S, K); 0 for padding."""
    batch, slots = reading.existence.shape
    most = sources.shape[1]
    present = _present(count, most)[:, None].expand(-1, slots, -1)
    context = reading.context[:, :, None].expand(-1, -1, most, -1)[present]
    reference = reading.reference[:, :, None].expand(-1, -1, most, -1)[present]
    chosen = sources[:, None].expand(-1, slots, -1, -1)[present]
    cost = torch.zeros(batch, slots, most)
    cost[present] = -network.log_prob(chosen, context, reference).sum(dim=-1)
    return cost


def _score(
    network: SlotFlow, reading: Reading, cost: torch.Tensor, slot: torch.Tensor,
    data: TokenData, duration: float, draws: int, generator: torch.Generator,
) -> Scores:  # fmt: skip
    band, source = np.nonzero(slot.numpy() >= 0)
    chosen = slot.numpy()[band, source]
    context = reading.context[band, chosen]
    reference = reading.reference[band, chosen]
    local, _ = network.sample(context, reference, draws, generator)
    first = data.first_bin[band].astype(np.float64)
    bins = network.bins
    sampled = from_local_units(local.numpy(), first[:, None], duration)
    scored = to_scored(sampled, first[:, None], bins, duration)
    truth = data.sources[band, source]
    target = to_scored(from_local_units(truth, first, duration), first, bins, duration)
    crps = np.empty((len(band), len(SCORED)))
    inside = np.empty((len(band), len(SCORED)), dtype=bool)
    for j, (_, period) in enumerate(SCORED):
        crps[:, j] = fair_crps(scored[..., j], target[:, j], period)
        inside[:, j] = covered(scored[..., j], target[:, j], 0.9, period)
    place = np.where(np.isnan(data.snr), np.nan, data.sources[..., 0])
    distance = np.abs(place[band] - truth[:, :1])
    distance[np.arange(len(band)), source] = np.inf
    return Scores(
        crps, inside, cost.numpy()[band, chosen, source], data.snr[band, source],
        np.abs(reference[:, 0].numpy() - truth[:, 0]),
        np.nanmin(distance, axis=1),
    )  # fmt: skip


def summary(result: Evaluation) -> dict[str, object]:
    """Return the figures as plain numbers for a model card."""
    scores, counts = result.scores, result.counts
    above = scores.snr > 10.0
    rows = {}
    for low, high in itertools.pairwise(SNR_EDGES):
        rows[f"{low:g}-{high:g}"] = _row(scores, (scores.snr >= low) & (scores.snr < high))
    by_distance = {
        name: _row(scores, above & (scores.nearest >= low) & ~(scores.nearest >= high))
        for name, low, high in (
            ("under 1 bin", 0.0, 1.0), ("1-4 bins", 1.0, 4.0), ("4-16 bins", 4.0, 16.0),
            ("over 16 bins", 16.0, np.inf), ("none in the band", np.inf, np.nan),
        )
    }  # fmt: skip
    difference = np.abs(counts[:, 1] - counts[:, 0])
    return {
        "bands": len(counts),
        "sources": len(scores.snr),
        "all": _row(scores, np.ones(len(scores.snr), dtype=bool)),
        "snr_above_10": _row(scores, above),
        "by_snr": rows,
        "by_nearest_above_snr_10": by_distance,
        "k_exact": _mean(difference == 0),
        "k_exact_all_above_10": _mean(difference[result.loud] == 0),
        "k_within_one": _mean(difference <= 1),
        "k_within_one_all_above_10": _mean(difference[result.loud] <= 1),
        "peak_overlap": round(result.overlap, 4),
        "peak_overlap_chance": round(result.chance, 4),
        "cosine_overlap": round(result.cosine, 4),
    }


def _mean(values: Float | NDArray[np.bool_]) -> float:
    return round(float(np.mean(values)), 5) if len(values) else float("nan")


def _row(scores: Scores, chosen: NDArray[np.bool_]) -> dict[str, object]:
    """Means over the chosen sources."""
    if not chosen.any():
        return {"sources": 0}
    return {
        "sources": int(chosen.sum()),
        "nll": _mean(scores.nll[chosen]),
        "nll_median": round(float(np.median(scores.nll[chosen])), 3),
        "missed": _mean(scores.offset[chosen] > 1.0),
        "crps": {n: _mean(scores.crps[chosen, j]) for j, (n, _) in enumerate(SCORED)},
        "crps_median": {
            n: round(float(np.median(scores.crps[chosen, j])), 6) for j, (n, _) in enumerate(SCORED)
        },
        "coverage90": {n: _mean(scores.inside[chosen, j]) for j, (n, _) in enumerate(SCORED)},
    }
