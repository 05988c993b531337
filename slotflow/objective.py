"""The objective: slots matched to sources, then every loss term of the match."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from slotflow.context import pick
from slotflow.losses import (
    Terms,
    attention_cost,
    component_loss,
    diversity_loss,
    existence_loss,
    orthogonality_loss,
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


def matched_slots(reading: Reading, targets: Targets) -> Tensor:
    """Return the slot of each source, -1 for a source without a component: (B, K).

    The cost is that of the attention; where slots attend alike (a band of one component)
    the small share of the existence decides, for the slot that already says yes.
    """
    with torch.no_grad():
        cost = attention_cost(reading.attention, targets.component)
        doubt = functional.softplus(-reading.existence)
        return assign(cost + EXISTENCE_SHARE * doubt[..., None], targets.component >= 0)


def loss_terms(model: SlotFlow, batch: TokenBatch, reading: Reading, targets: Targets) -> Terms:
    """Match slots and sources, then return every term of the loss."""
    slot = matched_slots(reading, targets)
    valid = slot >= 0
    held = slot.clamp(min=0)
    exists = torch.zeros_like(reading.existence, dtype=torch.bool)
    # a source without a slot must not reset the slot of another: write those that have one
    band, _ = torch.nonzero(valid, as_tuple=True)
    exists[band, slot[valid]] = True
    context = pick(reading.context, held)[valid]
    reference = pick(reading.reference, held)[valid]
    log_q = model.log_prob(targets.sources[valid], context, reference)
    count = max(len(log_q), 1)
    cost = attention_cost(reading.attention, targets.component)
    chosen = torch.gather(cost, 1, held[:, None, :]).squeeze(1)[valid]
    return Terms(
        nll=-log_q[:, 0].sum() / count,
        psi=-log_q[:, 1].sum() / count,
        existence=existence_loss(reading.existence, exists),
        attention=chosen.sum() / count,
        component=component_loss(reading.component, targets.component, batch.valid),
        diversity=diversity_loss(reading.attention, exists),
        orthogonality=orthogonality_loss(reading.attention, exists),
    )
