"""The context streams: what the flow is told about a slot.

Named streams, concatenated and mixed by a small network. Which streams, and their widths,
are our choice where arXiv:2605.02323 is silent.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from slotflow.config import ModelSettings
from slotflow.tokens import BAND_WIDTH, TOKEN_WIDTH

MOMENTS_WIDTH = 6


class Streams(NamedTuple):
    """One tensor (B, S, width) a stream.

    ``slot``: the slot's state. ``attended``: tokens averaged under its attention.
    ``component``: the token of its component. ``measured``: that component's features as
    measured. ``moments``: largest attention and that on the component, entropy, spread in
    bins, evidence left there, log odds that it stands for a source. ``band``: the band's
    features.
    """

    slot: Tensor
    attended: Tensor
    component: Tensor
    measured: Tensor
    moments: Tensor
    band: Tensor


def stream_widths(width: int) -> dict[str, int]:
    """Width of each stream for tokens of the given width."""
    widths = (width, width, width, TOKEN_WIDTH, MOMENTS_WIDTH, BAND_WIDTH)
    return dict(zip(Streams._fields, widths, strict=True))


def pick(values: Tensor, choice: Tensor) -> Tensor:
    """Return ``values[b, choice[b, s]]``: (B, C, W), (B, S) -> (B, S, W)."""
    index = choice[..., None].expand(-1, -1, values.shape[-1])
    return torch.gather(values, 1, index)


def attention_moments(
    attention: Tensor, evidence: Tensor, place: Tensor, component: Tensor, choice: Tensor
) -> Tensor:
    """Return (B, S, MOMENTS_WIDTH), in the order of :class:`Streams`' ``moments``.

    Args:
        attention: (B, S, C), normalised over components.
        evidence: (B, C) after all slots.
        place: (B, C) position in bins.
        component: (B, C) log odds that a component stands for a source.
        choice: (B, S) the slot's component.
    """
    largest = attention.amax(dim=-1)
    chosen = torch.gather(attention, 2, choice[..., None]).squeeze(-1)
    entropy = -(attention * torch.log(attention.clamp(min=1e-9))).sum(dim=-1)
    mean = (attention * place[:, None]).sum(dim=-1)
    spread = (attention * (place[:, None] - mean[..., None]) ** 2).sum(dim=-1)
    left = torch.gather(evidence, 1, choice)
    odds = torch.gather(component, 1, choice).clamp(-10.0, 10.0) / 5.0
    columns = [largest, chosen, entropy, 0.5 * torch.log1p(spread), left, odds]
    return torch.stack(columns, dim=-1)


class ContextNet(nn.Module):
    """Mixes the streams: (B, S, sum of widths) -> (B, S, context)."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        total = sum(stream_widths(settings.width).values())
        self.mix = nn.Sequential(
            nn.Linear(total, 2 * settings.context),
            nn.GELU(),
            nn.Dropout(settings.dropout),
            nn.Linear(2 * settings.context, settings.context),
        )

    def forward(self, streams: Streams) -> Tensor:
        """Return the context (B, S, context)."""
        return torch.as_tensor(self.mix(torch.cat(streams, dim=-1)))
