"""The learning rate over a run: a linear warm-up, then half a cosine, plateaus or nothing."""

import math

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from slotflow.config import TrainSettings


def learning_rate(step: int, steps: int, warmup: float) -> float:
    """Return the factor on the learning rate: linear warm-up, then half a cosine to 0."""
    rise = max(1.0, warmup * steps)
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1.0 + math.cos(math.pi * (step - rise) / max(1.0, steps - rise)))


class Plateau:
    """The factor of PyTorch's ReduceLROnPlateau, apart from an optimiser: the warm-up has its own.

    Args:
        patience: validations without gain that are waited for.
        factor: by which the rate is then multiplied.
    """

    def __init__(self, patience: int, factor: float) -> None:
        holder = torch.optim.SGD([torch.zeros(1)], lr=1.0)
        self._scheduler = ReduceLROnPlateau(holder, factor=factor, patience=patience)

    @property
    def scale(self) -> float:
        """The product of the factors so far."""
        return float(self._scheduler.optimizer.param_groups[0]["lr"])

    def see(self, loss: float) -> None:
        """Take in the held-out loss of a validation."""
        self._scheduler.step(loss)

    def state(self) -> dict[str, float]:
        """Return what :meth:`restore` needs."""
        own = self._scheduler
        return {"best": float(own.best), "bad": float(own.num_bad_epochs), "scale": self.scale}

    def restore(self, state: dict[str, float]) -> None:
        """Go on from a state."""
        self._scheduler.best = state["best"]
        self._scheduler.num_bad_epochs = int(state["bad"])
        self._scheduler.optimizer.param_groups[0]["lr"] = state["scale"]


def rate_factor(settings: TrainSettings, step: int, steps: int, plateau: Plateau) -> float:
    """Return the factor on the learning rate at a step."""
    if settings.schedule == "cosine":
        return learning_rate(step, steps, settings.warmup)
    rise = min(1.0, (step + 1) / max(1.0, settings.warmup * steps))
    return rise * (plateau.scale if settings.schedule == "plateau" else 1.0)
