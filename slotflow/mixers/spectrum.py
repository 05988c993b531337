"""The band's data as sequences: patches of the spectrum, and of the heterodyned time series."""

import math
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from slotflow.mixers.layer import split

#: Neighbouring bins (or samples) that make one patch.
PATCH: Final = 4
CHANNELS: Final = 3


def compressed(data: Tensor) -> Tensor:
    """Return complex numbers with the same phases and asinh of the sizes."""
    size = data.abs()
    return torch.as_tensor(data * (torch.asinh(size) / size.clamp(min=1e-12)))


def heterodyned(data: Tensor) -> Tensor:
    """Return the slow time series whose zero frequency is the band's middle: (..., K) alike."""
    return torch.as_tensor(torch.fft.ifft(torch.fft.ifftshift(data, dim=-1), norm="ortho"))


def patches(values: Tensor) -> Tensor:
    """Cut (B, 3, K) into (B, ceil(K / PATCH), 3 PATCH), the last filled up with zeros."""
    missing = -values.shape[-1] % PATCH
    cut = split(functional.pad(values, (0, missing)), -1, PATCH)
    return cut.transpose(1, 2).flatten(2)


def read_at(sequence: Tensor, place: Tensor) -> Tensor:
    """Interpolate a sequence of patches at places in bins: (B, N, W), (B, C) -> (B, C, W)."""
    last = sequence.shape[1] - 1
    at = ((place - 0.5 * (PATCH - 1)) / PATCH).clamp(0.0, float(last))
    low = at.floor().clamp(max=max(last - 1, 0))
    share = (at - low)[..., None].to(sequence.dtype)

    def rows(index: Tensor) -> Tensor:
        wide = index.long()[..., None].expand(-1, -1, sequence.shape[-1])
        return torch.gather(sequence, 1, wide)

    high = (low + 1).clamp(max=last)
    return (1.0 - share) * rows(low) + share * rows(high)


def positions(like: Tensor) -> Tensor:
    """Return sines and cosines of a patch's number, (N, W), for a sequence (B, N, W)."""
    count, width = like.shape[1:]
    number = torch.arange(count, dtype=torch.float64)[:, None]
    speed = torch.logspace(0.0, 1.0, (width + 1) // 2, base=1.0 / 256.0, dtype=torch.float64)
    angle = math.pi * number * speed
    columns = torch.stack([torch.sin(angle), torch.cos(angle)], dim=-1).flatten(1)
    return columns[:, :width].to(like)
