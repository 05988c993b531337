"""Matching slots and sources by the flow's own ln q, in two stages.

The assignment itself has no gradient. So the grid of all pairs is evaluated without, and then
the matched pairs alone with: the loss and its gradient are those of the whole grid.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from slotflow.matching import assign

#: Pairs that are evaluated at a time: more gain nothing on a CPU, and take memory.
CHUNK = 4096


class Density(Protocol):
    """What is asked of a flow: see :class:`slotflow.flow.ConditionalFlow`."""

    def project(self, context: Tensor) -> tuple[Tensor, ...]:
        """(..., C) -> (..., hidden), for each layer."""

    def log_prob_projected(self, x: Tensor, projected: tuple[Tensor, ...]) -> Tensor:
        """(..., F), (..., hidden) each -> (...)."""

    def log_prob(self, x: Tensor, context: Tensor) -> Tensor:
        """(..., F), (..., C) -> (...)."""


class Matched(NamedTuple):
    """The matched pairs, P of them, source by source.

    ``slot`` (B, K) int64, -1 where invalid; ``log_q`` (P,), with its gradient.
    """

    slot: Tensor
    log_q: Tensor


def flow_cost(
    flow: Density,
    projected: tuple[Tensor, ...],
    x: Tensor,
    valid: Tensor,
    chunk: int = CHUNK,
) -> Tensor:
    """Return -ln q of every slot for every valid source, without gradient: (B, S, K).

    0 where the source is not valid; the flow does not see those.

    Args:
        flow: the density.
        projected: the contexts of the slots, (B, S, hidden) for each layer.
        x: (B, S, K, F) where coordinates depend on the slot, or (B, K, F).
        valid: (B, K) bool.
        chunk: most pairs at a time.
    """
    with torch.no_grad():
        slots = projected[0].shape[1]
        x = x.unsqueeze(1).expand(-1, slots, -1, -1) if x.ndim == 3 else x
        band, source = torch.nonzero(valid, as_tuple=True)
        own = x[band, :, source]  # (P, S, F)
        cost = own.new_zeros(*valid.shape, slots)
        rows = max(1, chunk // slots)
        for part in torch.split(torch.arange(len(band), device=band.device), rows):
            where = band[part]
            shares = tuple(share.index_select(0, where) for share in projected)
            log_q = flow.log_prob_projected(own[part], shares)
            cost[where, source[part]] = -log_q.to(cost.dtype)
        return cost.transpose(1, 2)


def match(
    flow: Density,
    context: Tensor,
    x: Tensor,
    valid: Tensor,
    further: Tensor | None = None,
) -> Matched:
    """Match by the flow's -ln q, then evaluate the matched pairs with their gradient.

    Args:
        flow: the density.
        context: (B, S, C).
        x: (B, S, K, F) or (B, K, F).
        valid: (B, K) bool, at most S in each sample.
        further: (B, S, K), added to the cost: what else decides, ln |det| of the
            coordinates included. No gradient flows into it.

    Raises:
        NonFiniteError: the cost of a valid source is not finite.
    """
    with torch.no_grad():
        cost = flow_cost(flow, flow.project(context), x, valid)
        slot = assign(cost if further is None else cost + further, valid)
    band, source = torch.nonzero(valid, as_tuple=True)
    held = slot[band, source]
    own = x[band, source] if x.ndim == 3 else x[band, held, source]
    return Matched(slot, flow.log_prob(own, context[band, held]))


def two_stage_nll(
    flow: Density,
    context: Tensor,
    x: Tensor,
    valid: Tensor,
    further: Tensor | None = None,
) -> Tensor:
    """Return the mean of -ln q over the matched pairs, 0 without any; arguments as for match."""
    log_q = match(flow, context, x, valid, further).log_q
    return -log_q.sum() / max(len(log_q), 1)
