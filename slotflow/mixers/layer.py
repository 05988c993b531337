"""What every token layer is made of: its own mixer, then the same two-layer network for all."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

#: Parameters of the query-key circuit; with a number, only so many of the first rows are.
QueryKey = list[tuple[nn.Parameter, int | None]]


class Pairs(NamedTuple):
    """What is known of pairs of tokens, and where each token is.

    ``bias`` (B, H, L, L), added to the scores, -inf where a token does not see another; None:
    all see all. ``place`` (B, L), bins from the band's first; None: the token's number.
    """

    bias: Tensor | None = None
    place: Tensor | None = None

    def places(self, tokens: Tensor) -> Tensor:
        """Return the places, (B, L), in the type of the tokens."""
        if self.place is not None:
            return self.place.to(tokens.dtype)
        count = torch.arange(tokens.shape[1], dtype=tokens.dtype, device=tokens.device)
        return count.expand(tokens.shape[:2])


def attend(scores: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
    """Return softmax(scores + bias) values; zeros for a row that sees nothing.

    For scores that no dot product gives; else the fused attention does the same.

    Args:
        scores: (..., L, L).
        values: (..., L, d).
        bias: broadcast against the scores, or None.
    """
    if bias is None:
        return torch.softmax(scores, dim=-1) @ values
    scores = scores + bias
    empty = (scores == float("-inf")).all(dim=-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(empty, 0.0), dim=-1)
    return weights.masked_fill(empty, 0.0) @ values


def check_heads(width: int, heads: int, unit: int = 1) -> None:
    """Raise ValueError where the heads cannot share the width in whole units."""
    if width % (unit * heads):
        share = f"{heads} heads" if unit == 1 else f"{heads} heads of {unit} numbers each"
        raise ValueError(f"expected heads that divide the width {width}; got {share}")


def split(x: Tensor, *sizes: int) -> Tensor:
    """Cut the last dimension into several."""
    return x.reshape(*x.shape[:-1], *sizes)


class TokenLayer(nn.Module):
    """A layer (B, L, D) -> (B, L, D): ``mix``, then tokens + mlp(norm(tokens)).

    A subclass makes ``norm_mlp`` and ``mlp`` (:meth:`make_mlp`) and its own parts.
    """

    norm_mlp: nn.Module
    mlp: nn.Module

    @staticmethod
    def make_mlp(width: int, hidden: int | None, dropout: float) -> nn.Sequential:
        """Return the network after the mixer; ``hidden`` is twice the width where None."""
        hidden = 2 * width if hidden is None else hidden
        return nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, width)
        )

    def mix(self, tokens: Tensor, pairs: Pairs) -> Tensor:
        """Return the tokens after they have seen each other, (B, L, D)."""
        raise NotImplementedError

    def query_key(self) -> QueryKey:
        """Return the parameters that say who looks where."""
        raise NotImplementedError

    def forward(self, tokens: Tensor, pairs: Pairs | None = None) -> Tensor:
        """(B, L, D) tokens -> (B, L, D)."""
        tokens = self.mix(tokens, Pairs() if pairs is None else pairs)
        return torch.as_tensor(tokens + self.mlp(self.norm_mlp(tokens)))


def all_of(*modules: nn.Module) -> QueryKey:
    """Return all parameters of the modules, whole."""
    return [(parameter, None) for module in modules for parameter in module.parameters()]


def fused(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
    """Return fused softmax attention, scaled by the root of the queries' width."""
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
