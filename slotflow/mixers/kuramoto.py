"""Kuramoto attention: tokens are banks of phases that are drawn towards those they attend.

A token of width D is P = D / 2 pairs (x, y) = rho (cos theta, sin theta), laid out (2, P), each
head with P / H of them. With gates a, b > 0 made of the amplitudes, and a drift omega times the
token's place in the band (in bins), the scores and the step are

    s_tu = sum_p a_tp b_up cos(theta_u - theta_t + omega_p (x_u - x_t)) / sqrt(2 P / H)
    theta_t <- theta_t + eta sum_u A_tu sin(theta_u - theta_t),        A = softmax(s + bias)

For fixed A and other tokens the sum is the gradient of sum_u A_tu cos(theta_u - theta_t). A step
turns each pair, so its norm stays; gates do not see phases, so a rotation of all phases by one
angle turns the result by the same.

(arXiv:2606.11585, of which only the summary was at hand: there the tokens are phases alone and the
attention is causal. That pairs keep an amplitude, which makes the gates, and that the step eta is
learned for each phase are our choice. The drift acts on scores alone, as there.)
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from slotflow.mixers.layer import Pairs, QueryKey, TokenLayer, all_of, check_heads, fused, split


def coupling(unit: Tensor, mean: Tensor) -> Tensor:
    """Return sum_u A_tu sin(theta_u - theta_t).

    Args:
        unit: (..., 2, p), cos and sin of theta_t.
        mean: (..., 2, p), their mean under the attention, sum_u A_tu (cos, sin) theta_u.
    """
    (cos, sin), (mean_cos, mean_sin) = unit.unbind(-2), mean.unbind(-2)
    return mean_sin * cos - mean_cos * sin


def rotate(pairs: Tensor, angle: Tensor) -> Tensor:
    """Turn pairs (..., 2, p) by angles (..., p)."""
    x, y = pairs.unbind(-2)
    cos, sin = torch.cos(angle), torch.sin(angle)
    return torch.stack([x * cos - y * sin, x * sin + y * cos], dim=-2)


class KuramotoLayer(TokenLayer):
    """A token layer that synchronises phases.

    Args:
        width: D, of which each head has a share of whole pairs.
        heads: H.
        dropout, hidden: of the two-layer network.
        causal: a token sees those at its place or below it alone; else all.
        span: largest distance in bins, which the slowest drift turns by about one radian.
    """

    def __init__(
        self, width: int, heads: int, dropout: float, hidden: int | None = None,
        causal: bool = False, span: float = 256.0,
    ) -> None:  # fmt: skip
        super().__init__()
        check_heads(width, heads, 2)
        phases = width // 2
        self.heads = heads
        self.causal = causal
        self.norm_gate = nn.LayerNorm(phases)
        self.gate = nn.Linear(phases, 2 * phases)
        # each head has drifts of all speeds
        speeds = torch.logspace(0.0, 1.0, phases // heads, base=1.0 / span)
        self.drift = nn.Parameter(speeds.repeat(heads))
        self.step = nn.Parameter(torch.zeros(phases))
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = self.make_mlp(width, hidden, dropout)

    def mix(self, tokens: Tensor, pairs: Pairs) -> Tensor:
        """Turn each pair of each token."""
        state = split(tokens, 2, -1)
        size = torch.sqrt(state.square().sum(dim=-2) + 1e-12)
        unit = state / size[..., None, :]
        mean = self._mean_field(unit, size, pairs)
        step = functional.softplus(self.step)
        return rotate(state, step * coupling(unit, mean)).flatten(-2)

    def _mean_field(self, unit: Tensor, size: Tensor, pairs: Pairs) -> Tensor:
        """Return (B, L, 2, P): what each head reads of the raw phases."""
        place = pairs.places(unit)
        gates = functional.softplus(self.gate(self.norm_gate(size))).chunk(2, dim=-1)
        drifted = rotate(unit, self.drift * place[..., None])
        q, k, v = (
            split(part, self.heads, -1).permute(0, 3, 1, 2, 4).flatten(3)
            for part in (gates[0][..., None, :] * drifted, gates[1][..., None, :] * drifted, unit)
        )
        mixed = fused(q, k, v, self._bias(place, pairs.bias))
        return split(mixed, 2, -1).permute(0, 2, 3, 1, 4).flatten(3)

    def _bias(self, place: Tensor, bias: Tensor | None) -> Tensor | None:
        if not self.causal:
            return bias
        later = (place[:, None, :] > place[:, :, None])[:, None]
        if bias is None:
            bias = place.new_zeros(1, 1, 1, 1)
        return bias.masked_fill(later, float("-inf"))

    def query_key(self) -> QueryKey:
        """The gates and the drift; what is read is the phases themselves."""
        return [*all_of(self.norm_gate, self.gate), (self.drift, None)]
