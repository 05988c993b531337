"""The loss terms, each a function of its own.

Flow NLL, psi NLL, existence, frequency from attention, slot diversity and attention
orthogonality, in the sense of arXiv:2605.02323; the exact forms are our choice where its
text does not give them. The component term is ours. Each returns one number, the mean over
what it concerns, and 0 where there is nothing.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from slotflow.config import LossSettings


class Terms(NamedTuple):
    """Loss terms, each a scalar; weights are those of :class:`LossSettings`."""

    nll: Tensor
    psi: Tensor
    existence: Tensor
    attention: Tensor
    component: Tensor
    diversity: Tensor
    orthogonality: Tensor

    def total(self, weights: LossSettings) -> Tensor:
        """Return the weighted sum."""
        parts = [getattr(weights, name) * getattr(self, name) for name in self._fields]
        return torch.stack(parts).sum()


def attention_cost(attention: Tensor, component: Tensor) -> Tensor:
    """Return -ln of each slot's attention on each source's component: (B, S, K)."""
    index = component.clamp(min=0)[:, None, :].expand(-1, attention.shape[1], -1)
    # the floor is far below what depleted evidence leaves, so that it makes no ties
    return -torch.log(torch.gather(attention, 2, index).clamp(min=1e-30))


def existence_loss(logits: Tensor, exists: Tensor) -> Tensor:
    """Binary cross-entropy of (B, S) logits against the matched slots."""
    return functional.binary_cross_entropy_with_logits(logits, exists.to(logits.dtype))


def component_loss(logits: Tensor, standing: Tensor, valid: Tensor) -> Tensor:
    """Binary cross-entropy of each valid component: does it stand for a source?

    Args:
        logits: (B, C).
        standing: (B, K) int64, the components that do, -1 for none.
        valid: (B, C) bool.
    """
    places = torch.arange(logits.shape[1], device=logits.device)
    real = (standing[:, :, None] == places).any(dim=1)
    each = functional.binary_cross_entropy_with_logits(
        logits, real.to(logits.dtype), reduction="none"
    )
    return (each * valid).sum() / valid.sum().clamp(min=1)


def diversity_loss(attention: Tensor, exists: Tensor) -> Tensor:
    """Mean overlap sum_l min(a_l, b_l) of the attentions of pairs of matched slots."""
    overlap = torch.minimum(attention[:, :, None], attention[:, None]).sum(dim=-1)
    return _pair_mean(overlap, exists)


def orthogonality_loss(attention: Tensor, exists: Tensor) -> Tensor:
    """Mean squared cosine between the attentions of pairs of matched slots."""
    unit = functional.normalize(attention, dim=-1, eps=1e-8)
    return _pair_mean((unit @ unit.transpose(1, 2)) ** 2, exists)


def _pair_mean(values: Tensor, exists: Tensor) -> Tensor:
    both = (exists[:, :, None] & exists[:, None]).triu(diagonal=1)
    return (values * both).sum() / both.sum().clamp(min=1)
