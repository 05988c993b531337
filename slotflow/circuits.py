"""A learning rate of its own for queries and keys (the query-key circuit of arXiv:2608.06776).

A part of the network that has such parameters says which they are: a module with a method
``query_key`` that returns pairs of a parameter and, where only its first rows are meant, their
number. Whole parameters make a group of the optimiser. Of one in which queries, keys and values
lie in one matrix, the step of the first rows is scaled afterwards, which for Adam and AdamW,
whose every step is proportional to the learning rate, is the same.
"""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import nn


@runtime_checkable
class HasQueryKey(Protocol):
    """A module that names its query-key parameters."""

    def query_key(self) -> list[tuple[nn.Parameter, int | None]]: ...


class Circuits(NamedTuple):
    """The parameters of a network: ``whole`` and ``rows`` are queries' and keys', ``other`` not."""

    whole: list[nn.Parameter]
    rows: list[tuple[nn.Parameter, int]]
    other: list[nn.Parameter]


def circuits(network: nn.Module) -> Circuits:
    """Return the network's parameters by circuit; those of ``rows`` are among ``other``, too."""
    whole: dict[int, nn.Parameter] = {}
    rows: dict[int, tuple[nn.Parameter, int]] = {}
    for module in network.modules():
        if isinstance(module, HasQueryKey):
            for parameter, count in module.query_key():
                if count is None:
                    whole[id(parameter)] = parameter
                else:
                    rows[id(parameter)] = (parameter, count)
    other = [parameter for parameter in network.parameters() if id(parameter) not in whole]
    return Circuits(list(whole.values()), list(rows.values()), other)


class QueryKeyRate:
    """What the optimiser needs to know of the ratio.

    Args:
        network: whose parameters are trained.
        ratio: of the rate of queries and keys to that of all else.
    """

    def __init__(self, network: nn.Module, ratio: float) -> None:
        self.ratio = ratio
        self._network = network
        self._rows = circuits(network).rows if ratio != 1.0 else []

    def groups(self) -> list[dict[str, Any]]:
        """Return the optimiser's groups: one where the ratio is 1; ``ratio`` is set in each."""
        if self.ratio == 1.0:
            return [{"params": list(self._network.parameters()), "ratio": 1.0}]
        found = circuits(self._network)
        return [
            {"params": found.other, "ratio": 1.0},
            {"params": found.whole, "ratio": self.ratio},
        ]

    def set_rates(self, optimiser: torch.optim.Optimizer, rate: float) -> None:
        """Set the rate of each group."""
        for group in optimiser.param_groups:
            group["lr"] = rate * group.get("ratio", 1.0)

    @torch.no_grad()
    def step(self, optimiser: torch.optim.Optimizer) -> None:
        """Step, and scale what the first rows of shared matrices did."""
        before = [parameter[:count].clone() for parameter, count in self._rows]
        optimiser.step()
        for (parameter, count), old in zip(self._rows, before, strict=True):
            parameter[:count] = old + self.ratio * (parameter[:count] - old)
