"""Dice attention: scores by the overlap of two sets of features, not by their sizes.

Queries and keys are soft sets, q, k in [0, 1]^d (sigmoids; or 0 and 1 with the sigmoid's gradient,
"straight through"). With I = q . k, C(q) = sum q, S = C(q) + C(k) the scores are

    dice:    2 I / (S + eps)
    linear:  I - lambda S,   lambda >= 0 learned for each head

times a learned positive scale of the head. A dot product alone grows with C(k): tokens with many
features win whatever they are. The linear form is the first-order expansion of Dice's about
(I0, S0) up to the scale 2 / S0 and a constant, with lambda = I0 / S0 (docs/mixers.md).

("Rethinking Attention in Spiking Transformers: Overcoming Density Bias with Set Similarity", whose
text was not at hand: the sigmoids, the softmax over the scores, the scale and the starting values
are our choice.)
"""

import math
from typing import Final, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from slotflow.mixers.layer import (
    Pairs,
    QueryKey,
    TokenLayer,
    all_of,
    attend,
    check_heads,
    fused,
    split,
)

Scores = Literal["dice", "linear"]
EPSILON: Final = 1e-6
#: lambda at first: I0 / S0 where all features are 1/2, as they are about before training.
LAMBDA: Final = 0.25
SCALE: Final = 4.0


def dice_scores(query: Tensor, key: Tensor) -> Tensor:
    """Return 2 I / (C(q) + C(k) + eps): (..., L, d), (..., N, d) -> (..., L, N)."""
    sizes = query.sum(-1)[..., :, None] + key.sum(-1)[..., None, :]
    return 2.0 * (query @ key.mT) / (sizes + EPSILON)


def linear_scores(query: Tensor, key: Tensor, weight: Tensor | float) -> Tensor:
    """Return I - lambda (C(q) + C(k)), likewise."""
    sizes = query.sum(-1)[..., :, None] + key.sum(-1)[..., None, :]
    return query @ key.mT - weight * sizes


def soft_set(logits: Tensor, binary: bool) -> Tensor:
    """Return sigmoids, or 0 and 1 with the sigmoid's gradient."""
    soft = torch.sigmoid(logits)
    return soft + ((soft > 0.5).to(soft.dtype) - soft).detach() if binary else soft


class DiceAttention(nn.Module):
    """Reads values by overlap: queries of (B, L, D), keys and values of (B, N, D) -> (B, L, D).

    Args:
        width: D.
        heads: H.
        scores: ``dice`` or ``linear``.
        binary: features of 0 and 1.
    """

    def __init__(self, width: int, heads: int, scores: Scores, binary: bool) -> None:
        super().__init__()
        check_heads(width, heads)
        self.heads = heads
        self.binary = binary
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.log_scale = nn.Parameter(torch.full((heads, 1, 1), math.log(SCALE)))
        self.raw_lambda = None
        if scores == "linear":
            start = math.log(math.expm1(LAMBDA))  # softplus of it is LAMBDA
            self.raw_lambda = nn.Parameter(torch.full((heads, 1, 1), start))

    def sets(self, x: Tensor, projection: nn.Linear) -> Tensor:
        """Return the soft sets of the heads: (B, L, D) -> (B, H, L, d)."""
        logits = split(projection(x), self.heads, -1).transpose(1, 2)
        return soft_set(logits, self.binary)

    def forward(self, x: Tensor, read: Tensor, bias: Tensor | None = None) -> Tensor:
        """Attend; ``bias`` (B, H, L, N) is added to the scores."""
        q, k = self.sets(x, self.query), self.sets(read, self.key)
        v = split(self.value(read), self.heads, -1).transpose(1, 2)
        scale = torch.exp(self.log_scale)
        if self.raw_lambda is None:
            mixed = attend(scale * dice_scores(q, k), v, bias)
        else:
            # C(q) is the same along a row, which a softmax does not see
            loss = (scale * functional.softplus(self.raw_lambda)) * k.sum(-1)[..., None, :]
            loss = -loss if bias is None else bias - loss
            mixed = fused(q * scale * q.shape[-1] ** 0.5, k, v, loss)
        return torch.as_tensor(self.out(mixed.transpose(1, 2).flatten(2)))

    def query_key(self) -> QueryKey:
        """Everything that makes the scores."""
        found = [*all_of(self.query, self.key), (self.log_scale, None)]
        return found if self.raw_lambda is None else [*found, (self.raw_lambda, None)]


class DiceLayer(TokenLayer):
    """A token layer with Dice attention.

    Args: as :class:`slotflow.mixers.softmax.SoftmaxLayer`, and those of :class:`DiceAttention`.
    """

    def __init__(
        self, width: int, heads: int, dropout: float, hidden: int | None = None,
        scores: Scores = "dice", binary: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.attention = DiceAttention(width, heads, scores, binary)
        self.norm_attention = nn.LayerNorm(width)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = self.make_mlp(width, hidden, dropout)

    def mix(self, tokens: Tensor, pairs: Pairs) -> Tensor:
        """Add what the heads read."""
        h = self.norm_attention(tokens)
        return torch.as_tensor(tokens + self.attention(h, h, pairs.bias))

    def query_key(self) -> QueryKey:
        """Of the attention."""
        return self.attention.query_key()
