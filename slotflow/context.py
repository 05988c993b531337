"""The context streams: what the flow is told about a slot.

Ten named streams, of which the settings choose. They are concatenated, and mixed by a small
network or taken as they are. Which streams, and their widths, are our choice where
arXiv:2605.02323 is silent; docs/model.md has a table.
"""

import math
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from slotflow.config import ModelSettings
from slotflow.tokens import BAND_WIDTH, TOKEN_WIDTH

MOMENTS_WIDTH: Final = 6
FREQUENCY_WIDTH: Final = 23
SPECTRUM_BINS: Final = 24  # around the component
_HARMONICS: Final = 7
#: Streams that a slot can be trained without: measured numbers that the others hint at.
DROPPABLE: Final = ("measured", "attended_measured", "spectrum", "summary")


class Streams(NamedTuple):
    """One tensor (B, S, width) a stream; width 0 for those that are not wanted.

    ``slot``: the slot's state. ``attended``: tokens averaged under its attention.
    ``component``: the token of its component. ``measured``: that component's features as
    measured. ``moments``: largest attention and that on the component, entropy, spread in
    bins, evidence left there, log odds that it stands for a source. ``band``: the band's
    features, its frequency and noise level among them. ``attended_measured``: measured features
    averaged under the attention. ``frequency``: estimates of the frequency
    (:func:`frequency_estimates`). ``spectrum``: the whitened A, E, T around the component.
    ``summary``: the mean of all tokens.
    """

    slot: Tensor
    attended: Tensor
    component: Tensor
    measured: Tensor
    moments: Tensor
    band: Tensor
    attended_measured: Tensor
    frequency: Tensor
    spectrum: Tensor
    summary: Tensor


def stream_widths(width: int) -> Streams:
    """Width of each stream for tokens of the given width."""
    spectrum = 6 * SPECTRUM_BINS
    widths = (
        width, width, width, TOKEN_WIDTH, MOMENTS_WIDTH, BAND_WIDTH,
        TOKEN_WIDTH, FREQUENCY_WIDTH, spectrum, width,
    )  # fmt: skip
    return Streams(*widths)  # type: ignore[arg-type]


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


def frequency_estimates(
    attention: Tensor, reference: Tensor, valid: Tensor, choice: Tensor, bins: int
) -> Tensor:
    """Return what is known of a slot's frequency: (B, S, FREQUENCY_WIDTH).

    The component's place in the band, the attended mean's offset from it, the attention's
    spread and the component's width (logs), cosine and sine of seven harmonics of the place,
    its offset from a bin's middle, and for the nearest component on either side the
    offset and the log ratio of heights (16 bins and 0 where there is none).

    Args:
        attention: (B, S, C).
        reference: (B, C, R) float64.
        valid: (B, C) bool.
        choice: (B, S) the slot's component.
        bins: bins of a band.
    """
    kind = attention.dtype
    every, height = reference[..., 0], torch.log(reference[..., 7])
    place = torch.gather(every, 1, choice)
    mean = (attention.double() * every[:, None]).sum(dim=-1)
    spread = (attention.double() * (every[:, None] - mean[..., None]) ** 2).sum(dim=-1)
    columns = [
        2.0 * place / bins - 1.0,
        torch.asinh(mean - place),
        0.5 * torch.log1p(spread),
        torch.log(torch.gather(reference[..., 3], 1, choice)) / 2.0 + 1.0,
        place - torch.round(place),
    ]
    for order in range(_HARMONICS):
        angle = math.pi * 2.0**order * place / bins
        columns += [torch.cos(angle), torch.sin(angle)]
    offset = every[:, None] - place[..., None]
    here = torch.gather(height, 1, choice)
    for side in (-1.0, 1.0):
        distance = (side * offset).masked_fill(~valid[:, None] | (side * offset <= 0.0), math.inf)
        nearest, index = distance.min(dim=-1)
        found = torch.isfinite(nearest)
        ratio = torch.gather(height, 1, index) - here
        columns += [
            torch.where(found, nearest, torch.full_like(nearest, 16.0)).clamp(max=16.0) / 16.0,
            torch.where(found, ratio, torch.zeros_like(ratio)),
        ]
    return torch.stack(columns, dim=-1).to(kind)


def attended_spectrum(data: Tensor, reference: Tensor) -> Tensor:
    """Return the whitened data around each slot's component: (B, S, 6 SPECTRUM_BINS).

    Turned by the phase of the component's stronger circular amplitude, so that it does not
    depend on a rotation of all phases; asinh of real and imaginary parts. Zero beyond the band.

    Args:
        data: (B, 3, K) complex, whitened A, E, T of TDI 1.5.
        reference: (B, S, R) float64, of each slot's component.
    """
    bins, slots = data.shape[-1], reference.shape[1]
    first = torch.round(reference[..., 0]).long() - SPECTRUM_BINS // 2
    index = first[..., None] + torch.arange(SPECTRUM_BINS, device=data.device)
    inside = (index >= 0) & (index < bins)
    flat = index.clamp(0, bins - 1).flatten(1)[:, None].expand(-1, 3, -1)
    around = torch.gather(data, 2, flat).view(len(data), 3, slots, SPECTRUM_BINS)
    phase = torch.where(reference[..., 8] >= 0.0, reference[..., 9], reference[..., 10])
    turn = torch.polar(torch.ones_like(phase), -phase).to(data.dtype)
    turned = around.transpose(1, 2) * (turn[..., None] * inside)[:, :, None]
    return torch.asinh(torch.view_as_real(turned)).flatten(2)


class ContextNet(nn.Module):
    """Joins the streams, and mixes them where asked to: (B, S, sum of widths) -> (B, S, context).

    Raises:
        ValueError: unmixed streams whose widths do not add up to the context's.
    """

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.streams = settings.streams
        self.dropout = settings.stream_dropout
        widths = stream_widths(settings.width)
        total = sum(int(getattr(widths, name)) for name in self.streams)
        self.mix: nn.Module = nn.LayerNorm(total)
        if settings.mix:
            self.mix = nn.Sequential(
                nn.Linear(total, 2 * settings.context),
                nn.GELU(),
                nn.Dropout(settings.dropout),
                nn.Linear(2 * settings.context, settings.context),
            )
        elif total != settings.context:
            raise ValueError(
                f"model.context: the streams are {total} wide together; got {settings.context}"
            )

    def forward(self, streams: Streams, generator: torch.Generator | None = None) -> Tensor:
        """Return the context (B, S, context); ``generator`` drives the streams' dropout."""
        parts = [self._dropped(name, getattr(streams, name), generator) for name in self.streams]
        return torch.as_tensor(self.mix(torch.cat(parts, dim=-1)))

    def _dropped(self, name: str, stream: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return a stream, in training without it for some slots, as whole (no rescaling)."""
        if not (self.training and self.dropout > 0.0 and name in DROPPABLE):
            return stream
        u = torch.rand(stream.shape[:2], generator=generator, device=stream.device)
        return stream * (u >= self.dropout)[..., None]
