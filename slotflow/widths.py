"""How wide the flow's base must be for fresh data: what training makes too narrow, set right.

A flow trained on finitely many bands is a little too sure of itself on others: the base points
of their true sources spread more than the standard normal that the flow assumes. As with
temperature scaling of a classifier (Guo et al., arXiv:1706.04599) the remedy is a few numbers
fitted on held-out data: a standard deviation for each dimension of the base (our choice), after
which a draw starts from base noise times it, and ln q follows exactly.

The 80% quantile of |z| is matched, not the variance: sources whose slot looks at another
component are far out in the tails, and no width makes up for those.
"""

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm

MASS: Final = 0.8
#: What a file may hold: beyond, it is no small correction.
WIDTHS: Final = (0.5, 2.0)
_FEWEST: Final = 200  # points: the quantile is then known to some 6%


def fit_widths(z: ArrayLike) -> NDArray[np.float64]:
    """Return the standard deviation of each dimension, by its central 80%: (F,).

    Args:
        z: (N, F) base points of the true sources, by a flow whose base is the standard normal.

    Raises:
        ValueError: fewer than 200 points, numbers that are not finite, or widths outside
            ``WIDTHS``: the flow is wrong, not narrow.
    """
    points = np.asarray(z, dtype=np.float64)
    if points.ndim != 2 or len(points) < _FEWEST or not np.isfinite(points).all():
        raise ValueError(f"expected (N >= {_FEWEST}, F) finite points; got {points.shape}")
    central = np.quantile(np.abs(points), MASS, axis=0)
    found: NDArray[np.float64] = central / norm.ppf(0.5 + 0.5 * MASS)
    if not ((found >= WIDTHS[0]) & (found <= WIDTHS[1])).all():
        raise ValueError(f"expected widths of {WIDTHS[0]:g} to {WIDTHS[1]:g}; got {found}")
    return found
