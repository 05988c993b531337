"""Held-out figures of a model: CRPS, coverage, NLL, hits, number of sources, overlap.

Every true source is assigned to a slot by the Hungarian algorithm on -ln q(source | slot),
none left out because it was missed; the misses stand beside every score.
"""

import itertools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotflow.labels import from_local_units
from slotflow.metrics import (
    chance_peak_overlap,
    cosine_overlap,
    covered,
    fair_crps,
    peak_overlap,
)
from slotflow.model import SlotFlow
from slotflow.outcomes import Batch, outcomes
from slotflow.parameters import SCORED, to_scored
from slotflow.response import Float
from slotflow.tokendata import TokenData, TokenSource

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
    parts: list[Scores] = []
    truths: list[_Truth] = []
    estimated, attention = [], []
    for one in outcomes(network, data, draws, seed, batch):
        truths.append(_truth(one))
        parts.append(_score(one, network.bins, duration))
        estimated.append(((one.existence > 0) & one.counts).sum(axis=1))
        attention.append(matched_first(one))
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


def _truth(one: Batch) -> _Truth:
    quietest = np.full(len(one.number), np.inf)
    np.minimum.at(quietest, one.band, one.snr)
    return _Truth(one.number, quietest, one.valid.sum(axis=1))


def matched_first(one: Batch) -> Float:
    """Return the attention (B, S, C) with the slots that hold a source in front."""
    free = np.ones(one.counts.shape, dtype=bool)
    free[one.band, one.slot] = False
    order = np.argsort(free, axis=1, kind="stable")
    return np.take_along_axis(one.attention, order[..., None], axis=1)


def scored(one: Batch, bins: int, duration: float) -> tuple[Float, Float]:
    """Return draws (n, m, 8) and truths (n, 8) in the unit ranges of ``to_scored``."""
    first = one.first_bin[one.band].astype(np.float64)
    sampled = from_local_units(one.draws, first[:, None], duration)
    truths = from_local_units(one.truths, first, duration)
    return (
        to_scored(sampled, first[:, None], bins, duration), to_scored(truths, first, bins, duration)
    )  # fmt: skip


def _score(one: Batch, bins: int, duration: float) -> Scores:
    draws, target = scored(one, bins, duration)
    crps = np.empty(target.shape)
    inside = np.empty(target.shape, dtype=bool)
    for j, (_, period) in enumerate(SCORED):
        crps[:, j] = fair_crps(draws[..., j], target[:, j], period)
        inside[:, j] = covered(draws[..., j], target[:, j], 0.9, period)
    return Scores(crps, inside, -one.truth_log_q, one.snr, one.offset, one.nearest)


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
        "nll": _mean(scores.nll[chosen & np.isfinite(scores.nll)]),  # inside the support
        "nll_median": round(float(np.median(scores.nll[chosen])), 3),
        "missed": _mean(scores.offset[chosen] > 1.0),
        "crps": {n: _mean(scores.crps[chosen, j]) for j, (n, _) in enumerate(SCORED)},
        "crps_median": {
            n: round(float(np.median(scores.crps[chosen, j])), 6) for j, (n, _) in enumerate(SCORED)
        },
        "coverage90": {n: _mean(scores.inside[chosen, j]) for j, (n, _) in enumerate(SCORED)},
    }
