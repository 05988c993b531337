"""Softmax attention by dot products, factorised or collapsed.

Factorised, as everywhere: scores (W_q x) . (W_k x') / sqrt(d_h), values W_o W_v x'. Collapsed
(as in arXiv:2608.06776): one matrix a head for the query-key circuit, x . (W_qk x'), and one for
the output-value circuit, W_ov x'; the scale 1 / sqrt(d_h) stays. The collapsed layer starts as
the product of the factors that a factorised one starts with: the same function, to rounding.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from slotflow.mixers.layer import Pairs, QueryKey, TokenLayer, all_of, check_heads, fused


class SoftmaxLayer(TokenLayer):
    """One pre-norm transformer layer whose scores take a bias per pair.

    Args:
        width: D.
        heads: H, which must divide it.
        dropout: of the two-layer network.
        hidden: its width; None: 2 D.
    """

    def __init__(self, width: int, heads: int, dropout: float, hidden: int | None = None) -> None:
        super().__init__()
        check_heads(width, heads)
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.norm_mlp = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = self.make_mlp(width, hidden, dropout)

    def mix(self, tokens: Tensor, pairs: Pairs) -> Tensor:
        """Add what the heads read."""
        batch, count, _ = tokens.shape
        q, k, v = (
            part.view(batch, count, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm_attention(tokens)).chunk(3, dim=-1)
        )
        mixed = fused(q, k, v, pairs.bias)
        return torch.as_tensor(tokens + self.out(mixed.transpose(1, 2).reshape_as(tokens)))

    def query_key(self) -> QueryKey:
        """The first two thirds of the rows of ``qkv``."""
        rows = 2 * self.out.in_features
        return [(parameter, rows) for parameter in self.qkv.parameters()]


class CollapsedLayer(TokenLayer):
    """The same with a full matrix a head in place of W_k^T W_q, and one for W_o W_v.

    Args: as :class:`SoftmaxLayer`.
    """

    def __init__(self, width: int, heads: int, dropout: float, hidden: int | None = None) -> None:
        super().__init__()
        factors = SoftmaxLayer(width, heads, dropout, hidden)
        self.heads = heads
        self.norm_attention = factors.norm_attention
        self.norm_mlp = factors.norm_mlp
        self.qk = nn.Linear(width, heads * width)
        self.ov = nn.Linear(heads * width, width)
        self.mlp = factors.mlp
        with torch.no_grad():
            self._multiply_out(factors)

    def _multiply_out(self, factors: SoftmaxLayer) -> None:
        """Start as the product of the factors."""
        width, heads = factors.out.in_features, self.heads
        query, key, value = factors.qkv.weight.view(3, heads, -1, width)
        query_bias, _, value_bias = factors.qkv.bias.view(3, heads, -1)
        out = factors.out.weight.view(width, heads, -1).transpose(0, 1)
        self.qk.weight.copy_((key.mT @ query).reshape(-1, width))
        self.qk.bias.copy_((key.mT @ query_bias[..., None]).flatten())
        self.ov.weight.copy_((out @ value).transpose(0, 1).reshape(width, -1))
        self.ov.bias.copy_(factors.out.bias + (out @ value_bias[..., None]).sum(dim=0)[:, 0])

    def mix(self, tokens: Tensor, pairs: Pairs) -> Tensor:
        """Add what the heads read; the normalised tokens are keys and values themselves."""
        batch, count, width = tokens.shape
        h = self.norm_attention(tokens)
        q = self.qk(h).view(batch, count, self.heads, width).transpose(1, 2)
        k = h[:, None].expand_as(q)
        mixed = functional.scaled_dot_product_attention(
            q, k, k, attn_mask=pairs.bias, scale=(self.heads / width) ** 0.5
        )
        return torch.as_tensor(tokens + self.ov(mixed.transpose(1, 2).flatten(2)))

    def query_key(self) -> QueryKey:
        """``qk``."""
        return all_of(self.qk)
