"""The density of one source from which a refinement starts: a slot's flow."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slotflow.model import SlotFlow
from slotflow.refine_space import Space, folded

Float = NDArray[np.float64]


class FlowReference:
    """A slot's posterior by the network, before anything is folded at the prior's bounds.

    Args:
        network: the model's.
        context: (1, context) of the slot.
        reference: (1, R) of the slot.
        space: the band's coordinates.
    """

    def __init__(self, network: SlotFlow, context: Tensor, reference: Tensor, space: Space) -> None:
        self.network, self.context, self.reference = network, context, reference
        self.space = space

    def draw(self, number: int, rng: np.random.Generator) -> tuple[Float, Float]:
        """Return draws, (number, 8), and ln density there, (number,)."""
        generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
        with torch.no_grad():
            x, log_q = self.network.sample(self.context, self.reference, number, generator)
        density = log_q[0].double().cpu().numpy() - self.space.log_unit
        return folded(x[0].double().cpu().numpy()), density

    def log_density(self, x: Float) -> Float:
        """Return ln density: (n, 8) -> (n,)."""
        here = torch.from_numpy(np.ascontiguousarray(x)).to(self.reference.device)
        rows = len(x)
        with torch.no_grad():
            value = self.network.log_prob(
                here, self.context.expand(rows, -1), self.reference.expand(rows, -1)
            ).sum(dim=-1)
        return np.asarray(value.double().cpu().numpy() - self.space.log_unit)
