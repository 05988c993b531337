"""Draws held to the prior's bounds by mirrors, and the density that belongs to them.

The flow's coordinates hold for the whole band and the widest range of fdot; a model's prior may
be narrower. The few draws beyond are folded back at the bound, which needs no second try, and
the density of what results is the sum over everything that is folded onto a place.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Density = Callable[[Tensor], Tensor]


class Bound(NamedTuple):
    """Of one column: where draws have to be, and outside what the density is zero anyway."""

    column: int
    low: float
    high: float
    least: float
    most: float


class Bounded(NamedTuple):
    """Draws (n, 8) inside the bounds, and their ln q (n,)."""

    draws: Tensor
    log_q: Tensor


def bounded(draws: Tensor, log_q: Tensor, bounds: Sequence[Bound], density: Density) -> Bounded:
    """Fold draws into their bounds; those that are inside throughout are returned as they are.

    Args:
        draws: (n, 8).
        log_q: (n,) their log density.
        bounds: of some columns.
        density: ln q of draws (n, 8): (n,).
    """
    folded = draws
    for bound in bounds:
        values = folded[:, bound.column]
        if bool(((values >= bound.low) & (values <= bound.high)).all()):
            continue
        folded = _replaced(folded, bound.column, mirrored(values, bound.low, bound.high))
        density = _with_images(density, bound)
    return Bounded(draws, log_q) if folded is draws else Bounded(folded, density(folded))


def mirrored(values: Tensor, low: float, high: float) -> Tensor:
    """Fold values into [low, high] by mirrors at both ends."""
    width = high - low
    turn = torch.remainder(values - low, 2.0 * width)
    return (low + torch.where(turn > width, 2.0 * width - turn, turn)).clamp(low, high)


def _with_images(density: Density, bound: Bound) -> Density:
    """Return the density after folding: that of a place and of its images in the two mirrors."""

    def total(draws: Tensor) -> Tensor:
        here = draws[:, bound.column]
        parts = []
        for image in (here, 2.0 * bound.low - here, 2.0 * bound.high - here):
            reached = (image > bound.least) & (image < bound.most)
            part = density(_replaced(draws, bound.column, image))
            parts.append(torch.where(reached, part, float("-inf")))
        return torch.logsumexp(torch.stack(parts), dim=0)

    return total


def _replaced(draws: Tensor, column: int, values: Tensor) -> Tensor:
    changed = draws.clone()
    changed[:, column] = values
    return changed
