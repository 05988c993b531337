"""The learning rate over a run: a linear warm-up, then half a cosine, plateaus or nothing."""

import math
from dataclasses import dataclass

from slotflow.config import TrainSettings


def learning_rate(step: int, steps: int, warmup: float) -> float:
    """Return the factor on the learning rate: linear warm-up, then half a cosine to 0."""
    rise = max(1.0, warmup * steps)
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1.0 + math.cos(math.pi * (step - rise) / max(1.0, steps - rise)))


@dataclass
class Plateau:
    """Lowers the rate where the held-out loss no longer falls (as PyTorch's ReduceLROnPlateau).

    Attributes:
        patience: validations without gain that are waited for.
        factor: by which the rate is then multiplied.
        best: lowest loss seen.
        bad: validations since.
        scale: product of the factors so far.
    """

    patience: int
    factor: float
    best: float = math.inf
    bad: int = 0
    scale: float = 1.0

    def see(self, loss: float) -> None:
        """Take in the loss of a validation; a gain is one of at least 1e-4 of it."""
        if loss < self.best - 1e-4 * abs(self.best) or not math.isfinite(self.best):
            self.best, self.bad = loss, 0
            return
        self.bad += 1
        if self.bad > self.patience:
            self.scale, self.bad = self.scale * self.factor, 0


def rate_factor(settings: TrainSettings, step: int, steps: int, plateau: Plateau) -> float:
    """Return the factor on the learning rate at a step."""
    if settings.schedule == "cosine":
        return learning_rate(step, steps, settings.warmup)
    rise = min(1.0, (step + 1) / max(1.0, settings.warmup * steps))
    return rise * (plateau.scale if settings.schedule == "plateau" else 1.0)
