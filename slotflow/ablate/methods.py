"""The slots that are compared, by name."""

from typing import Final

from torch import nn

from slotflow.ablate.decomposition import MakeSlots
from slotflow.slots import (
    Depletion,
    EvidenceDepletion,
    SequentialSlotAttention,
    VanillaSlotAttention,
)


def linear(slots: int, width: int) -> nn.Module:
    """Evidence depletion, f(alpha) = alpha."""
    return _depletion(slots, width, "linear")


def quadratic(slots: int, width: int) -> nn.Module:
    """Evidence depletion, f(alpha) = alpha^2."""
    return _depletion(slots, width, "quadratic")


def cubic(slots: int, width: int) -> nn.Module:
    """Evidence depletion, f(alpha) = alpha^3."""
    return _depletion(slots, width, "cubic")


def binary(slots: int, width: int) -> nn.Module:
    """Evidence depletion, f(alpha) = 1 where alpha >= 1/2."""
    return _depletion(slots, width, "binary")


def vanilla(slots: int, width: int) -> nn.Module:
    """Slots that compete for each token (Locatello et al. 2020)."""
    return VanillaSlotAttention(slots, width)


def sequential(slots: int, width: int) -> nn.Module:
    """One slot after the other, without evidence."""
    return SequentialSlotAttention(slots, width)


def _depletion(slots: int, width: int, form: Depletion) -> nn.Module:
    return EvidenceDepletion(slots, width, depletion=form)


#: Functions at the top level of a module, so that a process that is started can find them.
METHODS: Final[dict[str, MakeSlots]] = {
    "vanilla": vanilla,
    "sequential": sequential,
    "linear": linear,
    "quadratic": quadratic,
    "cubic": cubic,
    "binary": binary,
}
