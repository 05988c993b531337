"""Pictures of calibration: rank histograms, curves with bands, the learned discriminator.

Every function takes the same statistic of one model or of several, as :class:`Named`, and an
identifier that is unique in the page. Several models share a panel: each has a colour, a dash
pattern and a marker of its own, and the description has the numbers of all.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from slotflow.c2st import C2st
from slotflow.report import svg, text
from slotflow.uniformity import EcdfTest, HistogramTest

Value = tuple[float, float | None, float | None]  # with the ends of its interval


class Named[T](NamedTuple):
    """A statistic of one model: ``style`` its line and marker, ``name`` as in the legend."""

    style: int
    name: str
    value: T


class Excursion(NamedTuple):
    """Where a curve is outside its band, and its largest difference from the diagonal."""

    points: tuple[int, ...]
    largest: float
    at: float


class Row(NamedTuple):
    """A row of :func:`rows_panel`: of every model (value, low, high), and marks on the row.

    ``ticks`` are (class, value); ``null`` the range of what is expected, or None.
    """

    label: str
    values: tuple[Named[Value], ...]
    ticks: tuple[tuple[str, float], ...] = ()
    null: tuple[float, float] | None = None


def excursion(test: EcdfTest) -> Excursion:
    """Return the points of a curve that are outside its band, and its largest difference."""
    rows = list(zip(test.nominal, test.observed, test.lower, test.upper, strict=True))
    points = tuple(i for i, (_, y, low, high) in enumerate(rows) if not low <= y <= high)
    largest, at = max(((y - x, x) for x, y, _, _ in rows), key=lambda pair: abs(pair[0]))
    return Excursion(points, largest, at)


def bins_outside(test: HistogramTest) -> tuple[int, ...]:
    """Return the bins of a histogram that are outside its band."""
    rows = enumerate(zip(test.counts, test.lower, test.upper, strict=True))
    return tuple(i for i, (c, low, high) in rows if not low <= c <= high)


def prefix(name: str, several: bool) -> str:
    """Return a model's name before its numbers in a description of several."""
    return f"{name}: " if several else ""


def histogram_panel(ident: str, title: str, tests: Sequence[Named[HistogramTest]]) -> Markup:
    """Draw rank histograms, counts over what is expected, with the simultaneous band.

    One model has bars, several have outlines; a bin outside the band has a cross over it.
    """
    tops = [1.6]
    for _, _, test in tests:
        tops += _ratios(test, test.counts) + _ratios(test, test.upper)
    frame = svg.Frame(svg.linear(0.0, 1.0, 4), svg.linear(0.0, 1.1 * max(tops), 4))
    body = [svg.axes(frame, "rank of the truth / draws", "count / expected", grid=False)]
    body += [_bins_band(frame, test) for test in _distinct([named.value for named in tests])]
    body.append(svg.line(frame, [0.0, 1.0], [1.0, 1.0], "expected"))
    for style, _, test in tests:
        ratio = _ratios(test, test.counts)
        if len(tests) == 1:
            body.append(svg.bars(frame, _edges(test), ratio, svg.style(style)))
        body.append(svg.steps(frame, _edges(test), ratio, svg.style(style)))
        for i in bins_outside(test):
            x, y = (i + 0.5) / len(test.counts), ratio[i] + 0.05 * frame.y.high
            body.append(svg.marker(frame, x, y, 5, "out"))
    said = " ".join(_histogram_words(named, len(tests) > 1) for named in tests)
    return svg.picture(ident, title, said, body)


def _bins_band(frame: svg.Frame, test: HistogramTest) -> Markup:
    edges = _edges(test)
    xs = [e for pair in itertools.pairwise(edges) for e in pair]
    sides = [_doubled(_ratios(test, bounds)) for bounds in (test.lower, test.upper)]
    return svg.area(frame, xs, sides[0], sides[1], "band")


def _edges(test: HistogramTest) -> list[float]:
    bins = len(test.counts)
    return [i / bins for i in range(bins + 1)]


def _ratios(test: HistogramTest, counts: Sequence[int]) -> list[float]:
    return [c / e for c, e in zip(counts, test.expected, strict=True)]


def _doubled(values: Sequence[float]) -> list[float]:
    return [v for v in values for _ in (0, 1)]


def _distinct(tests: Sequence[HistogramTest]) -> list[HistogramTest]:
    """One test of each band, as models that saw the same sources share theirs."""
    return list({(t.expected, t.lower, t.upper): t for t in tests}.values())


def _histogram_words(named: Named[HistogramTest], several: bool) -> str:
    test = named.value
    bins, out = len(test.counts), bins_outside(test)
    edge = max(bins // 10, 1)
    ends = sum(test.counts[:edge] + test.counts[-edge:])
    wanted = sum(test.expected[:edge] + test.expected[-edge:])
    lower = sum(test.counts[: bins // 2]) / sum(test.expected[: bins // 2])
    where = f"{len(out)} of {bins} bins are outside the band" if out else "all are in the band"
    return (
        f"{prefix(named.name, several)}{text.count(test.number)} ranks in {bins} bins:"
        f" chi² {text.number(test.chi2)}, p = {text.p_value(test.p_value)}; {where}."
        f" The outer {2 * edge} bins hold {text.fixed(ends / wanted, 2)} times what is expected,"
        f" the lower half {text.fixed(lower, 2)} times."
    )


def curve_panel(
    ident: str, title: str, tests: Sequence[Named[EcdfTest]], across: str, up: str
) -> Markup:
    """Draw curves less the diagonal, observed - nominal, with their simultaneous bands.

    Crosses are where a curve is outside its band.
    """
    heights = [0.0]
    for _, _, test in tests:
        for side in (test.observed, test.lower, test.upper):
            heights += _differences(test, side)
    reach = 1.08 * max(abs(h) for h in heights) or 0.1
    frame = svg.Frame(svg.linear(0.0, 1.0, 4), svg.linear(-reach, reach, 4))
    body, bands = [svg.axes(frame, across, up, grid=False)], set()
    for _, _, test in tests:
        if (test.nominal, test.lower) not in bands:
            bands.add((test.nominal, test.lower))
            sides = [_differences(test, side) for side in (test.lower, test.upper)]
            body.append(svg.area(frame, _ended(test), sides[0], sides[1], "band"))
    body.append(svg.line(frame, [0.0, 1.0], [0.0, 0.0], "expected"))
    for style, _, test in tests:
        ys = _differences(test, test.observed)
        body.append(svg.line(frame, _ended(test), ys, svg.style(style)))
        for i in excursion(test).points[::5]:
            body.append(svg.marker(frame, test.nominal[i], ys[i + 1], 5, "out"))
    said = " ".join(_curve_words(named, len(tests) > 1) for named in tests)
    return svg.picture(ident, title, said, body)


def _ended(test: EcdfTest) -> list[float]:
    """The points with both ends, where every curve is on the diagonal."""
    return [0.0, *test.nominal, 1.0]


def _differences(test: EcdfTest, side: Sequence[float]) -> list[float]:
    return [0.0, *(y - x for x, y in zip(test.nominal, side, strict=True)), 0.0]


def _curve_words(named: Named[EcdfTest], several: bool) -> str:
    test = named.value
    out = excursion(test)
    where = "it leaves the band" if out.points else "it stays in the band"
    sign = "+" if out.largest > 0.0 else ""
    return (
        f"{prefix(named.name, several)}{text.count(test.number)} values, largest difference from"
        f" nominal {sign}{text.fixed(out.largest, 3)} at {text.fixed(out.at, 2)},"
        f" p = {text.p_value(test.p_value)}; {where}."
    )


def c2st_panel(
    ident: str, title: str, tests: Sequence[Named[C2st]], groups: Sequence[str]
) -> Markup:
    """Draw the discriminator's AUC on all held-out sources and on each group of them.

    The shaded range holds it in 90% of tests of exact posteriors: beyond its upper end p < 5%.
    """
    draws = tests[0].value.draws
    labels = {-1: "all"} | dict(enumerate(groups))
    rows = []
    for group, label in labels.items():
        found = [Named(t.style, t.name, _auc(t.value, group)) for t in tests]
        there = [Named(t.style, t.name, t.value) for t in found if t.value is not None]
        if not there:
            continue
        reach = 1.645 * math.sqrt((draws + 2.0) / (12.0 * draws * there[0].value[1]))
        values: list[Named[Value]] = [
            Named(t.style, t.name, (t.value[0], None, None)) for t in there
        ]
        rows.append(Row(label, tuple(values), (), (0.5 - reach, 0.5 + reach)))
    ends = [0.45, 0.55, *(v for row in rows for v in row.null or ())]
    ends += [named.value[0] for row in rows for named in row.values]
    said = " ".join(_c2st_words(named, labels, len(tests) > 1) for named in tests)
    axis = svg.linear(min(ends) - 0.02, max(ends) + 0.02, 4)
    return rows_panel(ident, title, said, rows, axis, "AUC of the discriminator", 0.5)


def _auc(test: C2st, group: int) -> tuple[float, int] | None:
    """AUC and number of sources of a group, -1 for all."""
    if group < 0:
        return test.auc, test.number
    return next(((g.auc, g.number) for g in test.groups if g.group == group), None)


def _c2st_words(named: Named[C2st], labels: dict[int, str], several: bool) -> str:
    test = named.value
    parts = [f"all {text.fixed(test.auc, 3)} (p = {text.p_value(test.p_value)})"]
    parts += [
        f"{labels.get(g.group, str(g.group))} {text.fixed(g.auc, 3)}"
        f" (p = {text.p_value(g.p_value)})"
        for g in test.groups
    ]
    return f"{prefix(named.name, several)}AUC of {', '.join(parts)}; 0.5 if the posterior is exact."


def rows_panel(
    ident: str, title: str, description: str, rows: Sequence[Row], axis: svg.Axis, across: str,
    expected: float | None = None,
) -> Markup:  # fmt: skip
    """Draw values with intervals in labelled rows, from top to bottom, on a common axis."""
    models = max(len(row.values) for row in rows)
    height = (12.0 * models + 12.0) * len(rows) + 42.0
    longest = max(len(row.label) for row in rows)
    left = min(max(6.2 * longest + 12.0, 40.0), 170.0)
    up = svg.Axis(float(len(rows)), 0.0, ())
    frame = svg.Frame(axis, up, 340.0, height, left, 12.0, 6.0, 36.0)
    body = [svg.axes(frame, across, "")]
    for i, row in enumerate(rows):
        if row.null is not None:
            low, high = (max(v, axis.low) for v in row.null)
            body.append(svg.area(frame, [low, high], [i + 0.85] * 2, [i + 0.15] * 2, "band"))
    if expected is not None:
        body.append(svg.line(frame, [expected] * 2, [0.0, float(len(rows))], "expected"))
    for i, row in enumerate(rows):
        body.append(svg.label(frame, axis.low, i + 0.5, row.label, "tick end row", -6.0))
        body += [svg.line(frame, [v, v], [i + 0.12, i + 0.88], kind) for kind, v in row.ticks]
        for place, (style, _, (value, low_, high_)) in enumerate(row.values):
            y = i + (place + 1.0) / (len(row.values) + 1.0)
            if low_ is not None and high_ is not None:
                body.append(svg.line(frame, [low_, high_], [y, y], f"whisker {svg.style(style)}"))
            body.append(svg.marker(frame, value, y, style))
    return svg.picture(ident, title, description, body, 340.0, height)
