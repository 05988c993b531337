"""Quaternion self-attention: one real score for all four components, and four Hamilton scores.

A token of width D is D / 4 quaternions a + bi + cj + dk, laid out (4, D / 4): all real parts
first, then all i, j, k. A quaternion linear map is y = W x, W a matrix of quaternions that
multiply from the left by Hamilton's product: a quarter of the weights of a real map. With queries
q and keys k of d_h quaternions a head,

    shared:    s = sum Re(q k*) / sqrt(4 d_h), one softmax for all four components of the values
    Hamilton:  S = sum q k* / sqrt(4 d_h), a softmax of each of its four components, which weighs
               that component of the values

(arXiv:2605.24920, of which only the summary was at hand: the scale of the second, the weighing of
values by components, QRMSNorm before the projections and the real two-layer network after them,
which all mixers have, are our choice.) Re(q k*) is the dot product of four numbers, so the shared
scores are an ordinary attention with heads of width 4 d_h, each of whole quaternions.
"""

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

Scores = Literal["shared", "hamilton"]

#: Component c of the product w x is the sum over x's components p of SIGN[c][p] w[PART[c][p]] x[p].
PART: Final = ((0, 1, 2, 3), (1, 0, 3, 2), (2, 3, 0, 1), (3, 2, 1, 0))
SIGN: Final = ((1, -1, -1, -1), (1, 1, -1, 1), (1, 1, 1, -1), (1, -1, 1, 1))


def left_matrix(w: Tensor) -> Tensor:
    """Return the real matrices of x -> w x: (4, ...) -> (4, 4, ...)."""
    sign = w.new_tensor(SIGN).view(4, 4, *([1] * (w.dim() - 1)))
    return w[torch.tensor(PART, device=w.device)] * sign


class QuaternionLinear(nn.Module):
    """A map of quaternions, with a bias: (..., 4 inputs) -> (..., 4 outputs).

    Args:
        inputs, outputs: numbers of quaternions.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = (4 * inputs) ** -0.5  # as a real layer of that many inputs
        self.weight = nn.Parameter(torch.empty(4, outputs, inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(4 * outputs).uniform_(-bound, bound))

    def matrix(self) -> Tensor:
        """Return the map as a real matrix, (4 outputs, 4 inputs)."""
        _, outputs, inputs = self.weight.shape
        return left_matrix(self.weight).transpose(1, 2).reshape(4 * outputs, 4 * inputs)

    def forward(self, x: Tensor) -> Tensor:
        """Map, as one real product."""
        return functional.linear(x, self.matrix(), self.bias)


class QRMSNorm(nn.Module):
    """Divide each quaternion by the root mean square of its components, times a learned scale.

    Args:
        count: number of quaternions.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(count))

    def forward(self, x: Tensor) -> Tensor:
        """(..., 4 count) -> the same."""
        parts = split(x, 4, -1)
        size = torch.rsqrt(parts.square().mean(dim=-2, keepdim=True) + 1e-6)
        return torch.as_tensor((parts * size * self.scale).flatten(-2))


class ScoreMaps(nn.Module):
    """The four components of sum q k* / sqrt(4 d_h); a module, so that they can be watched."""

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """(B, H, L, 4, d) and the same -> (B, 4, H, L, L)."""
        return torch.stack([q.flatten(3) @ part.mT for part in conjugate_keys(k)], dim=1)


def conjugate_keys(k: Tensor) -> Tensor:
    """Return, for each component c, keys whose dot product with q is that of q k*.

    (B, H, L, 4, d) -> (4, B, H, L, 4 d), divided by sqrt(4 d).
    """
    parts = (k / (4 * k.shape[-1]) ** 0.5).unbind(-2)
    # q k* = sum_p q[p] e_p k*, and e_p k* has in place c a component of k with a sign
    conjugate = (parts[0], -parts[1], -parts[2], -parts[3])
    rows = []
    for component in range(4):
        row = []
        for p in range(4):
            source = PART[component].index(p)
            row.append(SIGN[component][source] * conjugate[source])
        rows.append(torch.cat(row, dim=-1))
    return torch.stack(rows)


class QuaternionAttention(nn.Module):
    """Attention of tokens of D / 4 quaternions: (B, L, D) -> (B, L, D).

    Args:
        width: D, of which each head has a share of whole quaternions.
        heads: H.
        scores: ``shared`` or ``hamilton``.
    """

    def __init__(self, width: int, heads: int, scores: Scores = "shared") -> None:
        super().__init__()
        check_heads(width, heads, 4)
        self.heads = heads
        self.query, self.key, self.value, self.out = (
            QuaternionLinear(width // 4, width // 4) for _ in range(4)
        )
        self.score_maps = ScoreMaps() if scores == "hamilton" else None

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Attend; ``bias`` (B, H, L, L) is added to every score."""
        shape = (*x.shape[:2], 4, self.heads, -1)
        q, k, v = (
            part(x).view(shape).permute(0, 3, 1, 2, 4)
            for part in (self.query, self.key, self.value)
        )
        if self.score_maps is None:
            mixed = split(fused(q.flatten(3), k.flatten(3), v.flatten(3), bias), 4, -1)
        else:
            scores = self.score_maps(q, k)
            every = None if bias is None else bias[:, None]
            mixed = attend(scores, v.permute(0, 3, 1, 2, 4), every).permute(0, 2, 3, 1, 4)
        return torch.as_tensor(self.out(mixed.permute(0, 2, 3, 1, 4).reshape(x.shape)))

    def query_key(self) -> QueryKey:
        """The maps of queries and keys."""
        return all_of(self.query, self.key)


class QuaternionLayer(TokenLayer):
    """A token layer with quaternion attention.

    Args: as :class:`slotflow.mixers.softmax.SoftmaxLayer`, and ``scores``.
    """

    def __init__(
        self, width: int, heads: int, dropout: float, hidden: int | None = None,
        scores: Scores = "shared",
    ) -> None:  # fmt: skip
        super().__init__()
        self.attention = QuaternionAttention(width, heads, scores)
        self.norm_attention = QRMSNorm(width // 4)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = self.make_mlp(width, hidden, dropout)

    def mix(self, tokens: Tensor, pairs: Pairs) -> Tensor:
        """Add what the heads read."""
        return torch.as_tensor(tokens + self.attention(self.norm_attention(tokens), pairs.bias))

    def query_key(self) -> QueryKey:
        """The maps of queries and keys."""
        return self.attention.query_key()
