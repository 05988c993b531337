"""Bands as PyTorch wants them: batches, training and held-out parts, moments of the features."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slotflow.errors import InputError
from slotflow.manifest import SAMPLE_GROUP
from slotflow.model import TokenBatch
from slotflow.objective import Targets
from slotflow.tokendata import TokenData, TokenSource, TokenSubset, as_source


@dataclass
class Tensors:
    """Token data as tensors, N bands."""

    batch: TokenBatch
    targets: Targets
    count: Tensor
    sample: Tensor

    @classmethod
    def of(cls, data: TokenData, bands: NDArray[np.complex64] | None = None) -> "Tensors":
        """Convert arrays without copying where possible; ``bands`` (N, 3, bins) if wanted."""
        t = torch.from_numpy
        own = None if bands is None else t(bands)
        return cls(
            TokenBatch(t(data.features), t(data.band), t(data.reference), t(data.valid), own),
            Targets(t(data.sources), t(data.component)),
            t(data.number),
            t(data.sample),
        )

    def to(self, device: torch.device) -> "Tensors":
        """Return the same on a device."""
        if device.type == "cpu":
            return self
        b, t = self.batch, self.targets
        data = None if b.data is None else b.data.to(device)
        batch = TokenBatch(
            b.features.to(device), b.band.to(device), b.reference.to(device), b.valid.to(device),
            data,
        )  # fmt: skip
        targets = Targets(t.sources.to(device), t.component.to(device))
        return Tensors(batch, targets, self.count.to(device), self.sample.to(device))

    def rows(self, index: Tensor) -> "Tensors":
        """Return the chosen bands."""
        targets = Targets(self.targets.sources[index], self.targets.component[index])
        return Tensors(self.batch.rows(index), targets, self.count[index], self.sample[index])

    def __len__(self) -> int:
        return len(self.count)


def split(data: TokenSource | TokenData, fraction: float) -> tuple[TokenSubset, TokenSubset]:
    """Split by groups of samples: training, validation.

    A group's bands share a pool of foreground responses (and a band its noise draws), so whole
    groups are held out, evenly spread.

    Raises:
        InputError: too few samples for a group on each side.
    """
    source = as_source(data)
    group = source.sample // SAMPLE_GROUP
    groups = int(group.max()) + 1
    held = max(1, round(fraction * groups))
    if held >= groups:
        raise InputError(
            f"training data: {int(source.sample.max()) + 1} samples are too few to hold out"
            f" {fraction:g} of them in groups of {SAMPLE_GROUP}"
        )
    chosen = np.linspace(0, groups, held, endpoint=False).astype(np.int64)
    validation = np.isin(group, chosen)
    return (
        TokenSubset(source, np.flatnonzero(~validation)),
        TokenSubset(source, np.flatnonzero(validation)),
    )


def token_moments(data: TokenSource, chunk: int = 2048) -> tuple[Tensor, Tensor] | None:
    """Return mean and standard deviation of all tokens' features, float64: (W,) each.

    The bands are read ``chunk`` at a time, the moments of the parts put together by the rule
    of Chan, Golub and LeVeque. None for fewer than two tokens.
    """
    count, mean, squares = 0, torch.zeros(()), torch.zeros(())
    for start in range(0, len(data), chunk):
        rows = data.rows(np.arange(start, min(start + chunk, len(data))))
        part = torch.from_numpy(rows.features[rows.valid]).double()
        if not len(part):
            continue
        own = part.mean(dim=0)
        offset, both = own - mean, count + len(part)
        squares = squares + ((part - own) ** 2).sum(dim=0) + offset**2 * (count * len(part) / both)
        mean = mean + offset * (len(part) / both)
        count = both
    return (mean, torch.sqrt(squares / (count - 1))) if count > 1 else None
