"""Two streams of Dice attention: along frequency, and along the heterodyned time axis.

Each stream has half of the width: patches of four bins (or slow samples) of A, E, T, real and
imaginary parts with asinh of the size, and their place; one Dice layer mixes them. A component
reads the first stream at its frequency, the second, which has no place for it, by one more Dice
attention with its own token as the query. Both are concatenated. (What is streamed and that the
two are concatenated is the paper's arrangement, see :mod:`slotflow.mixers.dice`; how a component
reads them is our choice.)
"""

import torch
from torch import Tensor, nn

from slotflow.mixers.dice import DiceAttention, DiceLayer, Scores
from slotflow.mixers.layer import QueryKey
from slotflow.mixers.spectrum import (
    CHANNELS,
    PATCH,
    compressed,
    heterodyned,
    patches,
    positions,
    read_at,
)


class TwoStreams(nn.Module):
    """Reads the band in frequency and in time: (B, 3, K), (B, C), (B, C, D) -> (B, C, D).

    Args:
        width: D, even.
        heads: H, of each stream.
        dropout: of the layers.
        scores, binary: of :class:`slotflow.mixers.dice.DiceAttention`.
    """

    def __init__(
        self, width: int, heads: int, dropout: float, scores: Scores, binary: bool
    ) -> None:
        super().__init__()
        half = width // 2
        self.embed_frequency = nn.Linear(2 * CHANNELS * PATCH, half)
        self.embed_time = nn.Linear(2 * CHANNELS * PATCH, half)
        self.frequency = DiceLayer(half, heads, dropout, None, scores, binary)
        self.time = DiceLayer(half, heads, dropout, None, scores, binary)
        self.ask = nn.Linear(width, half)
        self.norm_time = nn.LayerNorm(half)
        self.reader = DiceAttention(half, heads, scores, binary)
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, width)

    def forward(self, data: Tensor, place: Tensor, tokens: Tensor) -> Tensor:
        """Return what is added to the tokens.

        Args:
            data: (B, 3, K) complex, whitened.
            place: (B, C), in bins.
            tokens: (B, C, D).
        """
        frequency = self._stream(data, self.embed_frequency, self.frequency, tokens)
        time = self._stream(heterodyned(data), self.embed_time, self.time, tokens)
        read = self.reader(self.ask(tokens), self.norm_time(time))
        both = torch.cat([read_at(frequency, place), read], dim=-1)
        return torch.as_tensor(self.out(self.norm(both)))

    def _stream(self, series: Tensor, embed: nn.Linear, layer: DiceLayer, like: Tensor) -> Tensor:
        small = compressed(series)
        cut = torch.cat([patches(small.real), patches(small.imag)], dim=-1).to(like.dtype)
        embedded = embed(cut)
        return torch.as_tensor(layer(embedded + positions(embedded)))

    def query_key(self) -> QueryKey:
        """Of all three attentions."""
        parts = (self.frequency, self.time, self.reader)
        return [found for part in parts for found in part.query_key()]
