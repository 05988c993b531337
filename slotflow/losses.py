"""The loss terms, each a function of its own.

Flow NLL, psi NLL, existence, frequency from attention, slot diversity and attention
orthogonality, in the sense of arXiv:2605.02323; the exact forms are our choice where its
text does not give them. Direct frequency, cardinality, amplitude, sky and the component term
are ours. Each returns one number, the mean over what it concerns, and 0 where there is nothing.
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
    frequency: Tensor
    cardinality: Tensor
    amplitude: Tensor
    sky: Tensor

    def total(self, weights: LossSettings) -> Tensor:
        """Return the weighted sum."""
        parts = [getattr(weights, name) * getattr(self, name) for name in self._fields]
        return torch.stack(parts).sum()


def attention_cost(attention: Tensor, component: Tensor) -> Tensor:
    """Return -ln of each slot's attention on each source's component: (B, S, K)."""
    index = component.clamp(min=0)[:, None, :].expand(-1, attention.shape[1], -1)
    # the floor is far below what depleted evidence leaves, so that it makes no ties
    return -torch.log(torch.gather(attention, 2, index).clamp(min=1e-30))


def existence_loss(
    logits: Tensor, exists: Tensor, focal_gamma: float = 0.0, smoothing: float = 0.0
) -> Tensor:
    """Focal loss of (B, S) logits against the matched slots (arXiv:1708.02002, equation 4).

    The binary cross-entropy, each term times (1 - p)^gamma with p the probability given to
    what is true, and the labels moved by ``smoothing`` towards 1/2. Both zero: cross-entropy,
    whose minimum alone is calibrated.
    """
    target = exists.to(logits.dtype) * (1.0 - 2.0 * smoothing) + smoothing
    each = functional.binary_cross_entropy_with_logits(logits, target, reduction="none")
    if focal_gamma > 0.0:
        wrong = torch.sigmoid(torch.where(exists, -logits, logits))
        each = each * wrong**focal_gamma
    return each.mean()


def cardinality_loss(logits: Tensor, exists: Tensor) -> Tensor:
    """-ln p(K) of the number of matched slots, mean over the batch.

    The number of independent slots that exist is Poisson-binomial; its probabilities follow
    by adding one slot after the other (in logarithms).
    """
    yes, no = functional.logsigmoid(logits), functional.logsigmoid(-logits)
    batch, slots = logits.shape
    log_p = logits.new_full((batch, slots + 1), -1e4)
    log_p[:, 0] = 0.0
    for s in range(slots):
        more = functional.pad(log_p[:, :-1], (1, 0), value=-1e4) + yes[:, s : s + 1]
        log_p = torch.logaddexp(log_p + no[:, s : s + 1], more)
    number = exists.sum(dim=1, keepdim=True)
    return -torch.gather(log_p, 1, number).mean()


def regression_loss(predicted: Tensor, target: Tensor) -> Tensor:
    """Huber loss of (N,) predictions of a local coordinate, of targets held to +-4."""
    if not len(predicted):
        return predicted.sum()
    return functional.smooth_l1_loss(predicted, target.clamp(-4.0, 4.0).to(predicted.dtype))


def sky_loss(offset: Tensor, start: Tensor, truth: Tensor) -> Tensor:
    """Mean of 1 - cos of the angle to the truth: (N, 3) each.

    Args:
        offset: predicted, from the component's direction; not normalised.
        start: unit vector of the component's direction.
        truth: unit vector.
    """
    direction = functional.normalize(start.to(offset.dtype) + offset, dim=-1, eps=1e-6)
    cosine = (direction * truth.to(offset.dtype)).sum(dim=-1)
    return (1.0 - cosine).sum() / max(len(offset), 1)


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
