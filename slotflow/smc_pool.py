"""Independent runs of tempered SMC put together: their evidence, and whether they agree."""

from typing import NamedTuple

import numpy as np
import scipy.special
from numpy.typing import NDArray

from slotflow.smc import SmcRun, State

Float = NDArray[np.float64]


class Pooled(NamedTuple):
    """Several runs together.

    Attributes:
        weights: (runs,) share of each run's cloud in the whole, as its Z.
        ln_z: ln of the mean Z.
        ln_z_error: the larger of what the runs' scatter and their own weights say.
        spread: largest difference of ln Z.
        disagreement: of the clouds' means, the largest over coordinates, in units of the
            scatter of one cloud; sqrt(2 / N) or so where they agree.
    """

    weights: Float
    ln_z: float
    ln_z_error: float
    spread: float
    disagreement: float


def pool[S: State](runs: list[SmcRun[S]]) -> Pooled:
    """Put independent runs of one problem together.

    Raises:
        ValueError: no runs.
    """
    if not runs:
        raise ValueError("expected at least one run")
    ln_z = np.array([one.ln_z for one in runs])
    weights = scipy.special.softmax(ln_z)
    count = len(runs)
    scatter = float(np.std(weights, ddof=1) / np.mean(weights) / np.sqrt(count)) if count > 1 else 0
    own = float(np.sqrt(np.mean([one.ln_z_error**2 for one in runs]) / count))
    clouds = [one.state.coordinates() for one in runs]
    means = np.stack([cloud.mean(axis=0) for cloud in clouds])
    scale = np.sqrt(np.mean([cloud.var(axis=0) for cloud in clouds], axis=0))
    apart = np.ptp(means, axis=0)
    apart = np.divide(apart, scale, out=np.zeros_like(apart), where=scale > 0.0)
    return Pooled(
        weights, float(scipy.special.logsumexp(ln_z) - np.log(count)), max(scatter, own),
        float(np.ptp(ln_z)), float(np.max(apart, initial=0.0)),
    )  # fmt: skip
