"""A quaternion Conformer over the band's spectrum.

As in the speech model QC-GAN (arXiv:2606.18611) a bin of a channel enters as the pure quaternion
0 + |d| i + Re d j + Im d k (here with asinh of the size, the phase kept), and a block is

    x <- x + F(x) / 2,   x <- x + attention(norm x),   x <- x + convolution(x),
    x <- norm(x + F(x) / 2)

of quaternion maps alone, with a depth-wise quaternion convolution over 31 positions. Only the
paper's summary was at hand: the order within the block is the Conformer's (Gulati et al. 2020);
patches of four bins, one block, the norm inside the convolution and the reading of the result at
each component's place are our choice.
"""

from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from slotflow.mixers.layer import QueryKey, split
from slotflow.mixers.quaternion import (
    QRMSNorm,
    QuaternionAttention,
    QuaternionLinear,
    Scores,
    left_matrix,
)
from slotflow.mixers.spectrum import CHANNELS, PATCH, compressed, patches, read_at

KERNEL: Final = 31


def pure_quaternions(data: Tensor) -> Tensor:
    """Return the patches of a band as pure quaternions: (B, 3, K) complex -> (B, N, 4 x 12)."""
    small = compressed(data)
    parts = (small.abs(), small.real, small.imag)
    cut = torch.stack([patches(part) for part in parts], dim=2)
    return functional.pad(cut, (0, 0, 1, 0)).flatten(2)


class QuaternionConvolution(nn.Module):
    """Each quaternion channel convolved with a kernel of its own: (B, L, 4 Q) -> the same.

    y[t] = sum_s w[s] x[t + s - 15], with zeros beyond both ends; w multiplies from the left.

    Args:
        count: Q.
        kernel: an odd number of positions.
    """

    def __init__(self, count: int, kernel: int = KERNEL) -> None:
        super().__init__()
        bound = (4 * kernel) ** -0.5
        self.weight = nn.Parameter(torch.empty(4, count, kernel).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """Convolve."""
        _, count, kernel = self.weight.shape
        by_channel = split(x, 4, count).permute(0, 3, 2, 1).flatten(1, 2)
        weight = left_matrix(self.weight).permute(2, 0, 1, 3).flatten(0, 1)
        y = functional.conv1d(by_channel, weight, padding=kernel // 2, groups=count)
        return split(y.transpose(1, 2), count, 4).transpose(2, 3).flatten(2)


class _FeedForward(nn.Sequential):
    def __init__(self, count: int) -> None:
        super().__init__(
            QRMSNorm(count),
            QuaternionLinear(count, 2 * count),
            nn.SiLU(),
            QuaternionLinear(2 * count, count),
        )


class _ConvolutionModule(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.norm = QRMSNorm(count)
        self.values = QuaternionLinear(count, count)
        self.gates = QuaternionLinear(count, count)
        self.convolution = QuaternionConvolution(count)
        self.norm_inner = QRMSNorm(count)
        self.out = QuaternionLinear(count, count)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        gated = self.values(h) * torch.sigmoid(self.gates(h))
        h = functional.silu(self.norm_inner(self.convolution(gated)))
        return torch.as_tensor(self.out(h))


class ConformerBlock(nn.Module):
    """One block, (B, L, D) -> (B, L, D).

    Args:
        width: D, of D / 4 quaternions.
        heads, scores: of its attention.
    """

    def __init__(self, width: int, heads: int, scores: Scores = "shared") -> None:
        super().__init__()
        count = width // 4
        self.first = _FeedForward(count)
        self.norm_attention = QRMSNorm(count)
        self.attention = QuaternionAttention(width, heads, scores)
        self.convolution = _ConvolutionModule(count)
        self.second = _FeedForward(count)
        self.norm = QRMSNorm(count)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Pass through; ``bias`` (B, H, L, L) is added to the scores."""
        x = x + 0.5 * self.first(x)
        x = x + self.attention(self.norm_attention(x), bias)
        x = x + self.convolution(x)
        return torch.as_tensor(self.norm(x + 0.5 * self.second(x)))


class SpectrumConformer(nn.Module):
    """Reads the band's spectrum at the components: (B, 3, K), (B, C) -> (B, C, D).

    Args:
        width, heads, scores: see :class:`ConformerBlock`.
    """

    def __init__(self, width: int, heads: int, scores: Scores = "shared") -> None:
        super().__init__()
        self.embed = QuaternionLinear(CHANNELS * PATCH, width // 4)
        self.block = ConformerBlock(width, heads, scores)
        self.out = nn.Linear(width, width)

    def forward(self, data: Tensor, place: Tensor, tokens: Tensor) -> Tensor:
        """Return what is added to the tokens.

        Args:
            data: (B, 3, K) complex, whitened.
            place: (B, C), in bins.
            tokens: (B, C, D), for their type alone.
        """
        features = self.block(self.embed(pure_quaternions(data).to(tokens.dtype)))
        return torch.as_tensor(self.out(read_at(features, place)))

    def query_key(self) -> QueryKey:
        """Of the attention."""
        return self.block.attention.query_key()
