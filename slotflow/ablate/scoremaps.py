"""What the four score maps of Hamilton attention have to do with each other, on LISA's bands."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import ks_2samp, wasserstein_distance
from torch import Tensor

from slotflow.batches import Tensors
from slotflow.config import LossSettings
from slotflow.mixers.quaternion import ScoreMaps
from slotflow.model import SlotFlow
from slotflow.objective import loss_parts


class Maps(NamedTuple):
    """Of one network: ``agreement`` of the four maps' largest scores, ``chance`` for maps that
    have nothing to do with each other, and ``correlation`` of their gradients' norms."""

    agreement: float
    chance: float
    correlation: float


@contextmanager
def watched(network: torch.nn.Module) -> Iterator[list[Tensor]]:
    """Collect the score maps, (B, 4, H, L, L) each, of every pass within, with their gradients."""
    found: list[Tensor] = []

    def keep(_: torch.nn.Module, __: Any, maps: Tensor) -> None:
        maps.retain_grad()
        found.append(maps)

    hooks = [m.register_forward_hook(keep) for m in network.modules() if isinstance(m, ScoreMaps)]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def argmax_agreement(maps: Tensor, valid: Tensor) -> tuple[float, float]:
    """Return the share of rows whose four maps have the same largest score, and its chance.

    Args:
        maps: (B, 4, H, L, L).
        valid: (B, L) bool; rows and columns of others, and rows of one column, do not count.
    """
    best = maps.masked_fill(~valid[:, None, None, None], float("-inf")).argmax(dim=-1)
    same = (best == best[:, :1]).all(dim=1)
    count = valid.sum(dim=1)
    rows = (valid & (count > 1)[:, None])[:, None].expand_as(same)
    chance = (count.double() ** -3)[:, None, None].expand_as(rows)
    return float(same[rows].double().mean()), float(chance[rows].mean())


def norm_correlation(norms: Tensor) -> float:
    """Return the mean Pearson correlation of the columns' pairs: (B, 4) -> a number."""
    matrix = np.corrcoef(norms.detach().double().numpy().T)
    return float(np.mean([matrix[a, b] for a, b in combinations(range(norms.shape[1]), 2)]))


def score_maps(network: SlotFlow, rows: Tensors, loss: LossSettings) -> Maps:
    """Return what the maps of a network with Hamilton scores have in common on some bands.

    The gradients are those of the training loss; norms are taken for each band, map by map, of
    bands with two components or more.
    """
    network.eval()
    with watched(network) as found:
        reading = network.read(rows.batch, torch.Generator().manual_seed(1))
        total = loss_parts(network, rows.batch, reading, rows.targets, loss).terms().total(loss)
        total.backward()  # type: ignore[no-untyped-call]
    network.zero_grad()
    valid = rows.batch.valid
    shares = [argmax_agreement(maps.detach(), valid) for maps in found]
    some = valid.sum(dim=1) > 1
    norms = [
        norm_correlation(maps.grad[some].flatten(2).norm(dim=2))
        for maps in found
        if maps.grad is not None
    ]
    agreement, chance = np.mean(shares, axis=0)
    return Maps(float(agreement), float(chance), float(np.mean(norms)))


def distances(first: Tensor, second: Tensor) -> tuple[float, float]:
    """Return the Kolmogorov-Smirnov and the Wasserstein distance of all numbers of two outputs."""
    a, b = (x.detach().double().flatten().numpy() for x in (first, second))
    return float(ks_2samp(a, b).statistic), float(wasserstein_distance(a, b))
