"""What each slot of a band attended to, and what evidence it left to the next."""

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from slotflow.plot_style import LABEL, SMALL, new_figure
from slotflow.results import BandView

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Float = NDArray[np.float64]

WRITTEN: Final = 10  # components up to which each cell's number is written in it


def plot_slots(view: BandView) -> "Figure":
    """Draw the slots' attention over the components, and the evidence after each slot.

    Components stand in the order of their frequency; the probability that a slot holds a source
    stands beside its row.
    """
    seen = np.flatnonzero(np.isfinite(view.places))
    order = seen[np.argsort(view.places[seen])]
    slots = len(view.existence)
    rows = [f"slot {i}\np = {p:.2f}" for i, p in enumerate(view.existence)]
    steps = ["start", *(f"after slot {i}" for i in range(slots))]
    places = [f"{place:.1f}" for place in view.places[order]]
    figure = new_figure(7.0, 2.6 + 0.9 * slots)
    axes = figure.subplots(2, 1)
    figure.suptitle(f"Band from bin {view.first_bin}", fontsize=LABEL + 1.0)
    _cells(axes[0], view.attention[:, order], rows, places, "attention")
    _cells(axes[1], view.evidence[:, order], steps, places, "evidence left")
    axes[1].set_xlabel("component, at bin of the band", fontsize=LABEL)
    return figure


def _short(value: float) -> str:
    """Two digits, fewer where they say nothing."""
    text = f"{value:.2f}"
    return {"0.00": "0", "1.00": "1"}.get(text, text)


def _cells(ax: "Axes", values: Float, rows: list[str], columns: list[str], name: str) -> None:
    ax.set_title(name, fontsize=LABEL)
    ax.set_yticks(np.arange(len(rows)), rows, fontsize=SMALL)
    if not columns:
        ax.set_xticks([])
        ax.set_ylim(len(rows) - 0.5, -0.5)
        ax.text(0.5, 0.5, "no component", transform=ax.transAxes, ha="center", fontsize=LABEL)
        return
    ax.set_xticks(
        np.arange(len(columns)), columns, fontsize=SMALL, rotation=0 if len(columns) < 9 else 60
    )
    image = ax.imshow(values, cmap="cividis", vmin=0.0, vmax=1.0, aspect="auto")
    colours = ax.figure.colorbar(image, ax=ax, pad=0.02, aspect=14)
    colours.ax.tick_params(labelsize=SMALL)
    if len(columns) <= WRITTEN:
        for (row, column), value in np.ndenumerate(values):
            ax.text(
                column, row, _short(float(value)), ha="center", va="center", fontsize=SMALL,
                color="black" if value > 0.55 else "white",
            )  # fmt: skip
