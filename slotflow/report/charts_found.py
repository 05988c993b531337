"""Pictures of scores and of what is found: CRPS, breakdowns, confusion, reliability, detection."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from markupsafe import Markup

from slotflow.cardinality import Confusion, Reliability, Roc
from slotflow.detection import Detection, Share, SnrRow
from slotflow.report import svg, text
from slotflow.report.charts import Named, Row, Value, prefix, rows_panel
from slotflow.scores import ParameterScore

CELL = 34.0  # of a confusion matrix, at most


class ScoreRow(NamedTuple):
    """One parameter in the picture of scores: of every model, the prior, and what is published."""

    label: str
    scores: tuple[Named[ParameterScore], ...]
    published: float | None


def scores_panel(ident: str, title: str, rows: Sequence[ScoreRow]) -> Markup:
    """Draw the CRPS of all parameters, on a logarithmic scale, beside prior and published."""
    made, found = [], []
    for row in rows:
        values = tuple(Named(s.style, s.name, _positive(s.value)) for s in row.scores)
        prior = row.scores[0].value.prior
        ticks = [("prior", prior)]
        if row.published is not None:
            ticks.append(("published", row.published))
        made.append(Row(row.label, values, tuple(ticks)))
        found += [v for _, v in ticks]
        found += [v for named in values for v in named.value if v is not None]
    positive = [v for v in found if v > 0.0]
    axis = svg.logarithmic(0.8 * min(positive), 1.25 * max(positive))
    said = "; ".join(_score_words(row) for row in rows) + "."
    return rows_panel(ident, title, said, made, axis, "CRPS, smaller is better")


def _positive(score: ParameterScore) -> Value:
    """A fair CRPS and its interval; ends at or below zero have no place on the axis."""
    crps = score.crps
    return crps.mean, crps.mean_lower, crps.mean_upper


def _score_words(row: ScoreRow) -> str:
    several = len(row.scores) > 1
    parts = [prefix(s.name, several) + text.number(s.value.crps.mean) for s in row.scores]
    parts.append(f"prior {text.number(row.scores[0].value.prior)}")
    if row.published is not None:
        parts.append(f"published {text.number(row.published)}")
    return f"{row.label} {', '.join(parts)}"


def groups_panel(
    ident: str, title: str, groups: Sequence[str], curves: Sequence[Named[Sequence[Value | None]]],
    across: str, up: str, share: bool = False,
) -> Markup:  # fmt: skip
    """Draw values with intervals in groups; on a logarithmic scale if all means are positive.

    Args:
        ident, title: as everywhere.
        groups: their names, in order.
        curves: of each model a value per group, None where it has none.
        across, up: names of the axes.
        share: values are shares; the axis is in per cent and ends at 100%.
    """
    n = len(groups)
    ticks = tuple((i + 0.5, name) for i, name in enumerate(groups))
    up_axis = _group_axis(curves, share)
    frame = svg.Frame(svg.Axis(0.0, float(n), ticks), up_axis, left=svg.margin(up_axis))
    if svg.crowded(frame):
        frame = frame._replace(height=frame.height + 11.0, bottom=frame.bottom + 11.0)
    body = [svg.axes(frame, across, up)]
    for place, (style, _, rows) in enumerate(curves):
        shift = 0.12 * (place - 0.5 * (len(curves) - 1))
        xs = [i + 0.5 + shift for i in range(n)]
        ys = [row[0] if row else math.nan for row in rows]
        body.append(svg.line(frame, xs, ys, svg.style(style)))
        for x, row in zip(xs, rows, strict=True):
            if row is None:
                continue
            if row[1] is not None and row[2] is not None:
                ends = [row[1], row[2]]
                body.append(svg.line(frame, [x, x], ends, f"whisker {svg.style(style)}"))
            body.append(svg.marker(frame, x, row[0], style))
    said = " ".join(_group_words(groups, named, len(curves) > 1, share) for named in curves)
    return svg.picture(ident, title, said, body, frame.width, frame.height)


def _group_axis(curves: Sequence[Named[Sequence[Value | None]]], share: bool) -> svg.Axis:
    rows = [row for curve in curves for row in curve.value if row]
    ends = [v for row in rows for v in row if v is not None] or [0.0]
    if share:
        return svg.linear(max(min(*ends, 0.9) - 0.05, 0.0), 1.0, 4, percent=True)
    if min((row[0] for row in rows), default=0.0) > 0.0:
        positive = [v for v in ends if v > 0.0]
        return svg.logarithmic(0.8 * min(positive), 1.25 * max(positive))
    return svg.padded(ends)


def _group_words(
    groups: Sequence[str], named: Named[Sequence[Value | None]], several: bool, share: bool
) -> str:
    pairs = zip(groups, named.value, strict=True)
    shown: Callable[[float], str] = text.percent if share else text.number
    values = ", ".join(f"{name} {shown(row[0])}" for name, row in pairs if row)
    return f"{prefix(named.name, several)}{values or 'no values'}."


def confusion_panel(ident: str, title: str, table: Confusion, across: str) -> Markup:
    """Draw a confusion matrix: numbers of bands, shaded by their share of the row."""
    size = len(table.matrix)
    cell = min(CELL, 240.0 / size)
    width, height = 50.0 + cell * size, 46.0 + cell * size
    ticks = tuple((i + 0.5, str(i)) for i in range(size))
    frame = svg.Frame(
        svg.Axis(0.0, float(size), ticks), svg.Axis(float(size), 0.0, ticks), width, height,
        42.0, 8.0, 8.0, 38.0,
    )  # fmt: skip
    body = []
    for i, row in enumerate(table.matrix):
        for j, bands in enumerate(row):
            if bands:
                a, b = frame.at(float(j), float(i))
                body.append(
                    svg.tag("rect", x=a, y=b, width=cell, height=cell, class_="cell",
                            fill_opacity=f"{0.06 + 0.44 * bands / sum(row):.2f}")
                )  # fmt: skip
                body.append(svg.label(frame, j + 0.5, i + 0.5, str(bands), "same" * (i == j)))
    body.append(svg.axes(frame, across, "true number", grid=False))
    said = (
        f"{text.count(table.bands)} bands: {text.percent(table.exact)} exact,"
        f" {text.percent(table.within_one)} within one, bias {text.number(table.bias, 2)}."
    )
    return svg.picture(ident, title, said, body, width, height)


def reliability_panel(ident: str, title: str, tests: Sequence[Named[Reliability]]) -> Markup:
    """Draw how often what was said came true, over what was said.

    Of one model with the range about the diagonal that holds 90% of what right probabilities give.
    """
    unit = svg.linear(0.0, 1.0, 4, percent=True)
    frame = svg.Frame(unit, unit)
    body = [svg.axes(frame, "probability", "came true")]
    body.append(svg.line(frame, [0.0, 1.0], [0.0, 1.0], "expected"))
    for style, _, test in tests:
        rows = [row for row in test.rows if row.number]
        xs, ys = [r.predicted for r in rows], [r.observed for r in rows]
        if len(tests) == 1:
            for row in rows:
                p = row.predicted
                reach = 1.645 * math.sqrt(max(p * (1.0 - p), 0.0) / row.number)
                ends = [p - reach, p + reach]
                body.append(svg.line(frame, [p, p], ends, "consistent"))
        body.append(svg.line(frame, xs, ys, svg.style(style)))
        body += [svg.marker(frame, x, y, style) for x, y in zip(xs, ys, strict=True)]
    said = " ".join(_reliability_words(named, len(tests) > 1) for named in tests)
    return svg.picture(ident, title, said, body)


def _reliability_words(named: Named[Reliability], several: bool) -> str:
    test = named.value
    rows = ", ".join(
        f"{text.percent(r.predicted, 0)}: {text.percent(r.observed, 0)} of {text.count(r.number)}"
        for r in test.rows
        if r.number
    )
    return (
        f"{prefix(named.name, several)}said and came true: {rows}. Mean distance"
        f" {text.number(test.error, 2)}, p = {text.p_value(test.p_value)}."
    )


def roc_panel(ident: str, title: str, curves: Sequence[Named[Roc]]) -> Markup:
    """Draw hits over false alarms at all thresholds."""
    unit = svg.linear(0.0, 1.0, 4, percent=True)
    frame = svg.Frame(unit, unit)
    body = [svg.axes(frame, "false alarms", "hits")]
    body.append(svg.line(frame, [0.0, 1.0], [0.0, 1.0], "expected"))
    for style, _, roc in curves:
        body.append(svg.line(frame, roc.false_alarm_rate, roc.hit_rate, svg.style(style)))
    said = " ".join(
        f"{prefix(named.name, len(curves) > 1)}area {text.fixed(named.value.auc, 3)}; hits"
        f" {text.percent(hits_at(named.value, 0.01))} at 1% false alarms,"
        f" {text.percent(hits_at(named.value, 0.1))} at 10%."
        for named in curves
    )
    return svg.picture(ident, title, said, body)


def hits_at(roc: Roc, rate: float) -> float:
    """Return the rate of hits at a rate of false alarms, between the points of the curve."""
    points = list(zip(roc.false_alarm_rate, roc.hit_rate, strict=True))
    best = max(hit for alarm, hit in points if alarm <= rate)
    above = next(((a, h) for a, h in points if a > rate), None)
    if above is None:
        return best
    start = max(alarm for alarm, _ in points if alarm <= rate)
    return best + (above[1] - best) * (rate - start) / (above[0] - start)


def detection_panel(ident: str, title: str, found: Sequence[Named[Detection]], what: str) -> Markup:
    """Draw "recall", "precision" or "f1" against SNR, in per cent."""
    rows = found[0].value.rows
    groups = [text.briefly(row.low, row.high) for row in rows]
    curves: list[Named[Sequence[Value | None]]] = [
        Named(n.style, n.name, tuple(_detected(row, what) for row in n.value.rows)) for n in found
    ]
    return groups_panel(ident, title, groups, curves, "SNR", what.replace("f1", "F1"), share=True)


def _detected(row: SnrRow, what: str) -> Value | None:
    if what == "f1":
        return None if row.f1 is None else (row.f1, None, None)
    share: Share = row.recall if what == "recall" else row.precision
    return None if share.share is None else (share.share, share.lower, share.upper)


def evidence_panel(
    ident: str, title: str, sources: Sequence[float], others: Sequence[float]
) -> Markup:
    """Draw the evidence left on components of sources, and on others, after each slot."""
    n = len(sources)
    ticks = tuple((float(i), str(i)) for i in range(n))
    frame = svg.Frame(
        svg.Axis(0.0, float(max(n - 1, 1)), ticks), svg.linear(0.0, 1.0, 4, percent=True)
    )
    body = [svg.axes(frame, "slots used", "evidence left")]
    xs = [float(i) for i in range(n)]
    for style, values in enumerate((sources, others)):
        body.append(svg.line(frame, xs, values, svg.style(style)))
        body += [svg.marker(frame, x, y, style) for x, y in zip(xs, values, strict=True)]
    said = (
        f"On components of sources {_listed(sources)}; on the others {_listed(others)}: at the"
        f" start and after each of {n - 1} slots."
    )
    return svg.picture(ident, title, said, body)


def _listed(values: Sequence[float]) -> str:
    return ", ".join(text.percent(v) for v in values)
