"""What all pictures share: figures without pyplot, colours, angles about their centre."""

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Float = NDArray[np.float64]

#: The palette of Okabe and Ito, which the colour-blind can tell apart, without black and yellow.
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
GREY: Final = "0.62"
TRUTH: Final = COLOURS[1]
SOURCES: Final = (COLOURS[0], COLOURS[5], COLOURS[2], COLOURS[3], COLOURS[4])  # not the truth's
LABEL: Final = 11.0  # pt; a page as wide as a phone shrinks a picture to 0.7
SMALL: Final = 9.5
DPI: Final = 150


class Limits(NamedTuple):
    """Ends of an axis."""

    low: float
    high: float


def new_figure(width: float, height: float, layout: str | None = "constrained") -> "Figure":
    """Return an empty figure (inches) with a canvas of its own, unknown to pyplot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DPI, layout=layout)  # type: ignore[arg-type]
    FigureCanvasAgg(figure)
    return figure


def circular_centre(values: Float, period: float) -> float:
    """Return the circular mean in [0, period); zero where the values have none."""
    turn = np.exp(2j * np.pi / period * values).mean()
    return float(np.mod(np.angle(turn) * period / (2.0 * np.pi), period))


def unwrapped(values: Float, centre: float, period: float) -> Float:
    """Return the values within half a period of the centre, so that no peak is split."""
    return centre + np.mod(values - centre + 0.5 * period, period) - 0.5 * period


def checked_truth(truth: Float | None, rows: int | None = None) -> Float | None:
    """Return the truth as float64, (8,) where ``rows`` is None, else (S, 8).

    Raises:
        ValueError: another shape, or numbers that are not finite.
    """
    if truth is None:
        return None
    values = np.asarray(truth, dtype=np.float64)
    ndim = 1 if rows is None else 2
    if values.ndim != ndim or values.shape[-1] != 8:
        raise ValueError(f"truth: expected {'(8,)' if ndim == 1 else '(S, 8)'}; got {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError("truth: holds numbers that are not finite")
    return values
