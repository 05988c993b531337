"""The objective: slots matched to sources, then every loss term of the match."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from slotflow.config import LossSettings
from slotflow.context import pick
from slotflow.coordinates import to_local
from slotflow.losses import (
    Part,
    Parts,
    Terms,
    attention_cost,
    cardinality_loss,
    component_loss,
    diversity_loss,
    existence_loss,
    orthogonality_loss,
    regression_loss,
    sky_loss,
)
from slotflow.matching import assign
from slotflow.model import Reading, SlotFlow, TokenBatch

EXISTENCE_SHARE = 0.1  # of -ln q(exists) in the matching cost


class Targets(NamedTuple):
    """The truth of a batch, padded to K sources.

    ``sources`` (B, K, 8) float64 in the form of :func:`slotflow.coordinates.to_local`,
    ``component`` (B, K) int64: which component stands for each source, -1 for a source
    without any (or padding).
    """

    sources: Tensor
    component: Tensor


def matched_slots(reading: Reading, targets: Targets, pairs: Tensor | None = None) -> Tensor:
    """Return the slot of each source, -1 for a source without a component: (B, K).

    The cost is that of the attention, or the flow's -ln q where ``pairs`` (B, S, K) are given;
    where slots are alike (a band of one component) the small share of the existence
    decides, for the slot that already says yes.
    """
    with torch.no_grad():
        cost = attention_cost(reading.attention, targets.component) if pairs is None else -pairs
        doubt = functional.softplus(-reading.existence)
        return assign(cost + EXISTENCE_SHARE * doubt[..., None], targets.component >= 0)


def flow_pairs(model: SlotFlow, reading: Reading, targets: Targets) -> Tensor:
    """Return ln q of every slot for every source that can be matched, without gradient."""
    with torch.no_grad():
        return model.pair_log_prob(
            targets.sources, targets.component >= 0, reading.context, reading.reference
        )


def loss_parts(
    model: SlotFlow,
    batch: TokenBatch,
    reading: Reading,
    targets: Targets,
    settings: LossSettings | None = None,
    matching: str = "attention",
) -> Parts:
    """Match slots and sources, then return every term of the loss as a sum and a number.

    The match needs no gradient, so with ``matching`` "flow" the grid of all pairs is
    evaluated without, and then the matched pairs with: the gradient is that of the grid.

    Args:
        model: the network.
        batch: what it read.
        reading: what its slots made of it.
        targets: the truth.
        settings: form of the existence term; cross-entropy where None.
        matching: "attention" or "flow".
    """
    settings = LossSettings() if settings is None else settings
    pairs = flow_pairs(model, reading, targets) if matching == "flow" else None
    slot = matched_slots(reading, targets, pairs)
    valid = slot >= 0
    held = slot.clamp(min=0)
    exists = torch.zeros_like(reading.existence, dtype=torch.bool)
    # a source without a slot must not reset the slot of another: write those that have one
    band, _ = torch.nonzero(valid, as_tuple=True)
    exists[band, slot[valid]] = True
    context = pick(reading.context, held)[valid]
    reference = pick(reading.reference, held)[valid]
    log_q = model.log_prob(targets.sources[valid], context, reference)
    count = len(log_q)
    cost = attention_cost(reading.attention, targets.component)
    chosen = torch.gather(cost, 1, held[:, None, :]).squeeze(1)[valid]
    frequency, amplitude, sky = _auxiliary(model, reading, targets, held, valid)
    return Parts(
        nll=Part(-log_q[:, 0].sum(), count),
        psi=Part(-log_q[:, 1].sum(), count),
        existence=existence_loss(
            reading.existence, exists, settings.focal_gamma, settings.label_smoothing
        ),
        attention=Part(chosen.sum(), count),
        component=component_loss(reading.component, targets.component, batch.valid),
        diversity=diversity_loss(reading.attention, exists),
        orthogonality=orthogonality_loss(reading.attention, exists),
        frequency=frequency,
        cardinality=cardinality_loss(reading.existence, exists),
        amplitude=amplitude,
        sky=sky,
    )


def loss_terms(
    model: SlotFlow,
    batch: TokenBatch,
    reading: Reading,
    targets: Targets,
    settings: LossSettings | None = None,
    matching: str = "attention",
) -> Terms:
    """Return every term of the loss of a whole batch; arguments as for :func:`loss_parts`."""
    return loss_parts(model, batch, reading, targets, settings, matching).terms()


def _auxiliary(
    model: SlotFlow, reading: Reading, targets: Targets, held: Tensor, valid: Tensor
) -> tuple[Part, Part, Part]:
    """Return the regression terms of frequency, amplitude and sky; 0 without their heads."""
    if reading.auxiliary is None:
        nothing = Part(reading.context.new_zeros(()), 0)
        return nothing, nothing, nothing
    predicted = pick(reading.auxiliary, held)[valid]
    reference = pick(reading.reference, held)[valid]
    sources = targets.sources[valid]
    z = to_local(sources, reference, model.bins, model.frame).z
    cos_dec = torch.sqrt((1.0 - sources[:, 4] ** 2).clamp(min=0.0))
    truth = torch.stack(
        [cos_dec * torch.cos(sources[:, 3]), cos_dec * torch.sin(sources[:, 3]), sources[:, 4]], -1
    )
    ra, dec = reference[:, 1], reference[:, 2]
    start = torch.stack([torch.cos(dec) * torch.cos(ra), torch.cos(dec) * torch.sin(ra),
                         torch.sin(dec)], -1)  # fmt: skip
    return (
        regression_loss(predicted[:, 0], z[:, 0]),
        regression_loss(predicted[:, 1], z[:, 2]),
        sky_loss(predicted[:, 2:], start, truth),
    )
