"""Pictures of a comparison, made from its records alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from slotflow.ablate.table import grouped
from slotflow.atomic import written

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Record = dict[str, Any]

# Okabe and Ito's colours, told apart by colour-blind readers
BLUE: Final = "#0072B2"
ORANGE: Final = "#D55E00"
GREY: Final = "#666666"


def collapse(records: Sequence[Record]) -> "Figure":
    """Peak overlap of each method, a panel a task: bars are means, points are seeds.

    The dashed line is the overlap of slots that look anywhere.
    """
    tasks = list(dict.fromkeys(record["task"] for record in records))
    groups = grouped(records)
    most = max(sum(t == task for t, _ in groups) for task in tasks)
    width = max(4.0, 0.55 * most) * len(tasks)
    figure = _figure(width, 4.2)
    axes = figure.subplots(1, len(tasks), squeeze=False, sharey=True)[0]
    for axis, task in zip(axes, tasks, strict=True):
        _collapse(axis, [(m, g) for (t, m), g in groups.items() if t == task])
        axis.set_title(task)
    axes[0].set_ylabel("peak overlap (0: no two slots look alike)")
    return figure


def _collapse(axis: "Axes", groups: Sequence[tuple[str, list[Record]]]) -> None:
    for place, (_, group) in enumerate(groups):
        values = [record["peak_overlap"] for record in group]
        axis.bar(place, np.mean(values), color=BLUE, width=0.7)
        axis.plot([place] * len(values), values, "o", color=ORANGE, markersize=4, zorder=3)
    chance = float(np.mean([record["chance"] for _, group in groups for record in group]))
    axis.axhline(chance, color=GREY, linestyle="--", linewidth=1, label=f"chance {chance:.2f}")
    names = [name.replace(" ", "\n") for name, _ in groups]
    axis.set_xticks(range(len(groups)), names, rotation=40, ha="right", fontsize=8)
    axis.set_ylim(0.0, 1.05)
    axis.legend(fontsize=8, frameon=False)


def looks(records: Sequence[Record], what: str) -> "Figure":
    """``attention`` or ``evidence`` of one mixture, a row a method: slots (steps) against tokens.

    Of the first seed of each method; one task only. Evidence of the methods that deplete it alone,
    where there are any.
    """
    first = {record["method"]: record for record in reversed(records) if record.get("examples")}
    methods = [name for name in dict.fromkeys(r["method"] for r in records) if name in first]
    shown = {name: _shown(first[name]["examples"][0], what) for name in methods}
    if what == "evidence":
        methods = [name for name in methods if shown[name].min() < 1.0] or methods
    most = 1.0 if what == "evidence" else max(shown[name].max() for name in methods)
    figure = _figure(6.5, 0.9 + 1.25 * len(methods))
    axes = figure.subplots(len(methods), 1, squeeze=False, sharex=True)[:, 0]
    for axis, method in zip(axes, methods, strict=True):
        values = shown[method]
        image = axis.imshow(values, aspect="auto", cmap="cividis", vmin=0.0, vmax=most)
        axis.set_ylabel(method.replace(" ", "\n"), fontsize=8)
        axis.set_yticks(range(len(values)))
        axis.tick_params(labelsize=7)
    axes[-1].set_xlabel("token")
    number = first[methods[0]]["examples"][0]["number"]
    rows = "slot" if what == "attention" else "slots read so far"
    figure.suptitle(f"{what} by {rows}, a mixture of {number} ({records[0]['task']})", fontsize=10)
    figure.colorbar(image, ax=list(axes), shrink=0.6, label=what)
    return figure


def _shown(example: Record, what: str) -> NDArray[np.float64]:
    """The values of one mixture; attention, where it is shared out over slots, as weights over
    tokens, too."""
    values = np.asarray(example[what], dtype=np.float64)
    if what == "attention":
        values = values / np.maximum(values.sum(axis=1, keepdims=True), 1e-12)
    return values


def write_figures(records: Sequence[Record], folder: Path) -> list[Path]:
    """Write all pictures that the records allow, over those of an earlier call."""
    figures = {"collapse": collapse(records)}
    for task in dict.fromkeys(record["task"] for record in records):
        own = [record for record in records if record["task"] == task]
        if any(record.get("examples") for record in own):
            for what in ("attention", "evidence"):
                figures[f"{what}-{task}"] = looks(own, what)
    paths = []
    for name, figure in figures.items():
        path = folder / f"{name}.png"
        with written(path) as temporary:
            figure.savefig(temporary, format="png", dpi=120)
        paths.append(path)
    return paths


def _figure(width: float, height: float) -> "Figure":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
