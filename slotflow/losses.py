"""The loss terms, each a function of its own.

Flow NLL, psi NLL, existence, frequency from attention, slot diversity and attention
orthogonality, in the sense of arXiv:2605.02323; the exact forms are our choice where its
text does not give them. Direct frequency, cardinality, amplitude, sky and the component term
are ours. Each returns a sum and the number of what it goes over, whose ratio is the term: processes
that share a batch add both up before they divide, so that they train as one would.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from slotflow.config import LossSettings


class Part(NamedTuple):
    """A term as a sum (a scalar, with its gradient) and the number of what it goes over."""

    total: Tensor
    number: Tensor | int

    def mean(self) -> Tensor:
        """Return the term: 0 where there is nothing."""
        return self.total / torch.as_tensor(self.number, device=self.total.device).clamp(min=1)


class Parts(NamedTuple):
    """The loss terms of a batch, not yet divided."""

    nll: Part
    psi: Part
    existence: Part
    attention: Part
    component: Part
    diversity: Part
    orthogonality: Part
    frequency: Part
    cardinality: Part
    amplitude: Part
    sky: Part

    def numbers(self) -> Tensor:
        """Return the numbers: (terms,) float64."""
        return torch.tensor([float(part.number) for part in self], dtype=torch.float64)

    def terms(self, numbers: Tensor | None = None) -> "Terms":
        """Divide, by the given numbers (terms,) where several processes share the batch."""
        if numbers is None:
            return Terms(*(part.mean() for part in self))
        divisors = [number if number > 0.0 else 1.0 for number in numbers.tolist()]
        return Terms(*(part.total / d for part, d in zip(self, divisors, strict=True)))


class Terms(NamedTuple):
    """Loss terms, each a scalar; weights are those of :class:`slotflow.config.LossSettings`."""

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
) -> Part:
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
    return Part(each.sum(), each.numel())


def cardinality_loss(logits: Tensor, exists: Tensor) -> Part:
    """-ln p(K) of the number of matched slots, over the batch.

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
    return Part(-torch.gather(log_p, 1, number).sum(), batch)


def regression_loss(predicted: Tensor, target: Tensor) -> Part:
    """Huber loss of (N,) predictions of a local coordinate, of targets held to +-4."""
    held = target.clamp(-4.0, 4.0).to(predicted.dtype)
    total = functional.smooth_l1_loss(predicted, held, reduction="sum")
    return Part(total, len(predicted))


def sky_loss(offset: Tensor, start: Tensor, truth: Tensor) -> Part:
    """1 - cos of the angle to the truth: (N, 3) each.

    Args:
        offset: predicted, from the component's direction; not normalised.
        start: unit vector of the component's direction.
        truth: unit vector.
    """
    direction = functional.normalize(start.to(offset.dtype) + offset, dim=-1, eps=1e-6)
    cosine = (direction * truth.to(offset.dtype)).sum(dim=-1)
    return Part((1.0 - cosine).sum(), len(offset))


def component_loss(logits: Tensor, standing: Tensor, valid: Tensor) -> Part:
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
    return Part((each * valid).sum(), valid.sum())


def diversity_loss(attention: Tensor, exists: Tensor) -> Part:
    """Overlap sum_l min(a_l, b_l) of the attentions of pairs of matched slots."""
    overlap = torch.minimum(attention[:, :, None], attention[:, None]).sum(dim=-1)
    return _pairs(overlap, exists)


def orthogonality_loss(attention: Tensor, exists: Tensor) -> Part:
    """Squared cosine between the attentions of pairs of matched slots."""
    unit = functional.normalize(attention, dim=-1, eps=1e-8)
    return _pairs((unit @ unit.transpose(1, 2)) ** 2, exists)


def _pairs(values: Tensor, exists: Tensor) -> Part:
    both = (exists[:, :, None] & exists[:, None]).triu(diagonal=1)
    return Part((values * both).sum(), both.sum())
