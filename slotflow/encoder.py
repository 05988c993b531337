"""Components to tokens: embedding, pair features, a few layers in which tokens see each other.

What tells a source from the ghost of a loud neighbour is the neighbour, so every pair of
components has features of its own, weighted by exp(-(df / scale)^2): they are pooled into
each token and bias the attention scores.
"""

from typing import Final

import torch
from torch import Tensor, nn

from slotflow.config import ModelSettings
from slotflow.mixers import Pairs, spectrum_reader, token_layer
from slotflow.tokens import BAND_WIDTH, TOKEN_WIDTH

PAIR_WIDTH: Final = 8


def pair_features(reference: Tensor, direction: Tensor, scale: float) -> Tensor:
    """Return features of each ordered pair of components: (B, C, C, PAIR_WIDTH).

    Args:
        reference: (B, C, R) float64, columns of :data:`slotflow.tokens.REFERENCE`.
        direction: (B, C, 3) unit vectors.
        scale: bins over which a neighbour matters.
    """
    place = reference[..., 0]
    offset = place[:, None, :] - place[:, :, None]
    loudness = torch.log(reference[..., 7])
    ratio = loudness[:, None, :] - loudness[:, :, None]
    cosine = direction @ direction.transpose(1, 2)
    nearness = torch.exp(-((offset / scale) ** 2))
    columns = (
        torch.asinh(2.0 * offset),
        offset / scale,
        nearness,
        torch.exp(-((offset / 4.0) ** 2)),
        torch.exp(-((offset / 1.0) ** 2)),
        ratio,
        ratio * nearness,
        cosine.to(offset.dtype),
    )
    return torch.stack(columns, dim=-1).to(direction.dtype)


class Encoder(nn.Module):
    """Token features to tokens."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        width = settings.width
        self.scale = settings.neighbour_scale
        self.embed = nn.Sequential(
            nn.Linear(TOKEN_WIDTH + BAND_WIDTH, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.pair = nn.Sequential(nn.Linear(PAIR_WIDTH, 32), nn.GELU())
        self.pair_to_token = nn.Linear(32, width)
        self.pair_to_bias = nn.Linear(32, settings.heads)
        self.layers = nn.ModuleList(token_layer(settings) for _ in range(settings.layers))
        self.norm = nn.LayerNorm(width)
        self.spectrum = spectrum_reader(settings)

    def forward(
        self, features: Tensor, band: Tensor, reference: Tensor, valid: Tensor,
        data: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Return tokens (B, C, D); those of missing components are 0.

        Args:
            features: (B, C, TOKEN_WIDTH).
            band: (B, BAND_WIDTH).
            reference: (B, C, R) float64.
            valid: (B, C) bool.
            data: (B, 3, K) complex, the band's, with ``mixer_spectrum`` alone.
        """
        count = features.shape[1]
        everywhere = band[:, None, :].expand(-1, count, -1)
        tokens = self.embed(torch.cat([features, everywhere], dim=-1))
        direction = features[..., 4:7]  # TOKEN_FEATURES: place, two edges, log F, direction
        pairs = self.pair(pair_features(reference, direction, self.scale))
        both = valid[:, :, None] & valid[:, None, :]
        other = both & ~torch.eye(count, dtype=torch.bool, device=valid.device)
        offset = reference[:, None, :, 0] - reference[:, :, None, 0]
        weight = torch.exp(-((offset / self.scale) ** 2)).to(pairs.dtype) * other
        tokens = tokens + self.pair_to_token((weight[..., None] * pairs).sum(dim=2))
        if self.spectrum is not None:
            if data is None:
                raise ValueError("expected the bands' data for mixer_spectrum; got None")
            tokens = tokens + self.spectrum(data, reference[..., 0], tokens)
        # a token always sees itself, so that no row of scores is empty
        seen = both | torch.eye(count, dtype=torch.bool, device=valid.device)
        bias = self.pair_to_bias(pairs).permute(0, 3, 1, 2)
        bias = bias.masked_fill(~seen[:, None], float("-inf"))
        known = Pairs(bias, reference[..., 0])
        for layer in self.layers:
            tokens = layer(tokens, known)
        return torch.as_tensor(self.norm(tokens) * valid[..., None])
