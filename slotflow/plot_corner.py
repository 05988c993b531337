"""A source's eight parameters, each against each."""

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotflow.parameters import AMPLITUDE, DEC, F0, FDOT, IOTA, PARAMETERS, PHI0, PSI, RA
from slotflow.plot_style import (
    COLOURS,
    LABEL,
    TRUTH,
    Limits,
    checked_truth,
    circular_centre,
    new_figure,
    unwrapped,
)
from slotflow.results import SUMMARY_PERIODS, SourcePosterior

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Float = NDArray[np.float64]

_DEGREE: Final = np.pi / 180.0
#: Unit of each axis: (its size in the parameter's own unit, its name).
_UNITS: Final = {
    F0: (1e-9, "nHz"),
    FDOT: (1e-16, r"$10^{-16}$ Hz/s"),
    AMPLITUDE: (1e-22, r"$10^{-22}$"),
    RA: (_DEGREE, "deg"),
    DEC: (_DEGREE, "deg"),
    PSI: (_DEGREE, "deg"),
    IOTA: (_DEGREE, "deg"),
    PHI0: (_DEGREE, "deg"),
}
LEVELS: Final = (0.5, 0.9)
FEWEST_DRAWS: Final = 50
_SYMBOLS: Final = {
    F0: r"$f_0 - \tilde{f}_0$",
    PSI: r"$\psi$ mod 90°",
    PHI0: r"$\phi_0$ mod 180°",
}


class CornerColumns(NamedTuple):
    """A posterior as it is drawn.

    ``values`` (n, 8) and ``truth`` (8,) or None in the axes' units, f0 from ``f0`` (Hz), the
    circular ones within half a period of their circular mean; ``labels`` with units.
    """

    values: Float
    truth: Float | None
    labels: tuple[str, ...]
    f0: float


def corner_columns(source: SourcePosterior, truth: Float | None = None) -> CornerColumns:
    """Bring a posterior and its truth (8,) to the axes of a corner plot.

    psi is taken modulo pi/2 and phi0 modulo pi, so that the two images of a signal coincide.
    """
    truth = checked_truth(truth)
    both = source.samples if truth is None else np.vstack([source.samples, truth])
    columns = np.array(both, dtype=np.float64)
    median = source.f0
    columns[:, F0] -= median
    for index, period in SUMMARY_PERIODS.items():
        centre = circular_centre(source.samples[:, index], period)
        columns[:, index] = unwrapped(columns[:, index], centre, period)
    labels = []
    for index, parameter in enumerate(PARAMETERS):
        size, name = _UNITS[index]
        columns[:, index] /= size
        labels.append(f"{_SYMBOLS.get(index, parameter.symbol)}\n[{name}]")
    n = len(source.samples)
    last = None if truth is None else columns[n]
    return CornerColumns(columns[:n], last, tuple(labels), median)


def axis_limits(values: Float, truth: float | None) -> Limits:
    """Return the ends of an axis: 99.8% of the draws, and the truth where it is near them."""
    low, high = (float(q) for q in np.quantile(values, (0.001, 0.999)))
    width = high - low
    if not width > 1e-9 * max(abs(low), abs(high)):  # all draws alike
        width = max(abs(high), 1.0) * 0.01
        low, high = low - 0.5 * width, high + 0.5 * width
    if truth is not None and low - width < truth < high + width:
        low, high = min(low, truth), max(high, truth)
    return Limits(low - 0.05 * width, high + 0.05 * width)


def plot_corner(source: SourcePosterior, truth: Float | None = None) -> "Figure":
    """Draw the eight parameters' densities, 50% and 90% regions, and a table.

    Args:
        source: the posterior.
        truth: (8,) the true parameters: lines, and a column of the table. A true value further
            from the draws than their own range is in the table only.

    Raises:
        ValueError: fewer than :data:`FEWEST_DRAWS` draws, of which no contour can be made.
    """
    import corner

    if len(source.samples) < FEWEST_DRAWS:
        raise ValueError(f"expected at least {FEWEST_DRAWS} draws; got {len(source.samples)}")
    columns = corner_columns(source, truth)
    figure = new_figure(8.5, 8.5, layout=None)
    ends = [
        axis_limits(columns.values[:, i], None if columns.truth is None else columns.truth[i])
        for i in range(len(PARAMETERS))
    ]
    corner.corner(
        columns.values, fig=figure, labels=columns.labels, range=ends, bins=20, smooth=1.0,
        levels=LEVELS, plot_datapoints=False, plot_density=False, fill_contours=True,
        color=COLOURS[0], max_n_ticks=3,
        label_kwargs={"fontsize": LABEL}, labelpad=0.2, hist_kwargs={"lw": 1.3},
        contour_kwargs={"linewidths": 1.0}, quiet=True,
    )  # fmt: skip
    if columns.truth is not None:
        corner.overplot_lines(figure, columns.truth, color=TRUTH, lw=1.3)
    figure.subplots_adjust(left=0.11, right=0.985, bottom=0.11, top=0.985)
    count = len(PARAMETERS)
    for place, ax in enumerate(figure.axes):
        row, column = divmod(place, count)
        if row >= column:
            ax.set_xticks(_ticks(ends[column]))
        if row > column:
            ax.set_yticks(_ticks(ends[row]))
        ax.tick_params(labelsize=LABEL - 2.0)
        ax.tick_params(axis="y", labelrotation=0)
        ax.yaxis.set_label_coords(-0.53, 0.5)
    _table(figure, source, columns)
    return figure


def _ticks(ends: Limits) -> Float:
    """Two or three round numbers well inside an axis, so that labels keep off its neighbours'."""
    from matplotlib.ticker import MaxNLocator

    edge = 0.1 * (ends.high - ends.low)
    for intervals in range(3, 9):
        every = MaxNLocator(intervals, steps=[1, 2, 5, 10]).tick_values(*ends)
        ticks = np.asarray(every, dtype=np.float64)
        ticks = ticks[(ticks > ends.low + edge) & (ticks < ends.high - edge)]
        if len(ticks) > 1:
            break
    return ticks if len(ticks) < 4 else ticks[::2]


def _table(figure: "Figure", source: SourcePosterior, columns: CornerColumns) -> None:
    """Medians and 90% intervals in the free upper corner."""
    figure.text(
        0.98, 0.98, rf"$\tilde{{f}}_0$ = {1e3 * columns.f0:.9f} mHz, SNR {source.snr:.1f},"
        f" P(source) {source.probability:.2f}",
        fontsize=LABEL + 1.0, ha="right", va="top",
    )  # fmt: skip
    heads = ["", "median", "90% interval"] + ([] if columns.truth is None else ["truth"])
    rows = [heads] + [_row(index, columns) for index in range(len(PARAMETERS))]
    places = (0.605, 0.70, 0.865, 0.98) if columns.truth is not None else (0.65, 0.79, 0.98)
    for line, row in enumerate(rows):
        for place, text in zip(places, row, strict=True):
            figure.text(
                place, 0.935 - 0.026 * line, text, fontsize=LABEL, ha="right", va="top",
                color=TRUTH if place == 0.98 and columns.truth is not None else "black",
            )  # fmt: skip


def _row(index: int, columns: CornerColumns) -> list[str]:
    values = columns.values[:, index]
    low, median, high = (float(q) for q in np.quantile(values, (0.05, 0.5, 0.95)))
    digits = int(np.clip(1 - np.floor(np.log10(max(high - low, 1e-6))), 0, 3))
    texts = [_number(median, digits), f"{_number(low, digits)} … {_number(high, digits)}"]
    if columns.truth is not None:
        texts.append(_number(float(columns.truth[index]), digits))
    return [columns.labels[index].replace("\n", " ").replace("deg", "°"), *texts]


def _number(value: float, digits: int) -> str:
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")
