"""Assignment of true sources to slots: a cost matrix in, slot numbers out, nothing else."""

from functools import lru_cache
from itertools import permutations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from slotflow.errors import NonFiniteError

#: Up to this many slots all assignments are tried at once, beyond it SciPy solves them.
ENUMERATED_SLOTS = 6


def assign(cost: Tensor, valid: Tensor) -> Tensor:
    """Return the slot that each source is assigned to, at the least total cost.

    No gradient flows. Costs of invalid sources are not looked at, and may be NaN.

    Args:
        cost: (B, S, K), of giving source k to slot s.
        valid: (B, K) bool, which sources exist; at most S in each sample.

    Returns:
        (B, K) int64 on the costs' device: distinct slots in a sample, -1 where invalid.

    Raises:
        NonFiniteError: a valid source has a cost that is not finite; names the first.
        ValueError: shapes that do not fit, or more valid sources than slots.
    """
    batch, slots, sources = cost.shape
    if valid.shape != (batch, sources):
        raise ValueError(f"valid: expected shape {(batch, sources)}; got {tuple(valid.shape)}")
    if batch == 0 or sources == 0:
        return torch.empty((batch, sources), dtype=torch.int64, device=cost.device)
    costs = cost.detach().double().masked_fill(~valid.unsqueeze(1), 0.0)
    _check_finite(costs)
    if sources > slots and int(most := valid.sum(-1).max()) > slots:
        raise ValueError(f"valid: expected at most {slots} sources, one per slot; got {most}")
    if slots <= ENUMERATED_SLOTS and sources <= slots:
        chosen = _enumerate(costs)
    else:
        chosen = _solve(costs, valid)
    return chosen.masked_fill(~valid, -1)


def _check_finite(costs: Tensor) -> None:
    bad = ~costs.isfinite()
    if bad.any():
        b, s, k = (int(i) for i in bad.nonzero()[0])
        raise NonFiniteError(
            f"matching: {int(bad.sum())} costs are not finite; the first, of slot {s} and source"
            f" {k} in sample {b} of the batch, is {float(costs[b, s, k])}"
        )


@lru_cache(maxsize=32)
def _injections(slots: int, sources: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return all ways (P, K) of giving K sources distinct slots, and as 0 / 1, (P, S K)."""
    ways = np.array(list(permutations(range(slots), sources)), dtype=np.int64)
    chosen = ways[:, None, :] == np.arange(slots)[:, None]
    return ways, chosen.reshape(len(ways), -1).astype(np.float64)


def _enumerate(costs: Tensor) -> Tensor:
    """Try all assignments; invalid sources, at no cost, take what is left over."""
    _, slots, sources = costs.shape
    ways, chosen = (torch.from_numpy(a).to(costs.device) for a in _injections(slots, sources))
    return ways[(costs.flatten(1) @ chosen.T).argmin(-1)]


def _solve(costs: Tensor, valid: Tensor) -> Tensor:
    """Solve sample by sample, over the valid sources only."""
    matrices, exists = costs.cpu().numpy(), valid.cpu().numpy()
    result = np.full(exists.shape, -1, dtype=np.int64)
    for matrix, present, row in zip(matrices, exists, result, strict=True):
        slots, which = linear_sum_assignment(matrix[:, present])
        row[np.flatnonzero(present)[which]] = slots
    return torch.from_numpy(result).to(costs.device)
