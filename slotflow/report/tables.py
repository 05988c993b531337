"""Tables of a report: cells with the number as read and as it is, captions, header groups."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from slotflow.detection import Share
from slotflow.report import text
from slotflow.report.record import (
    Breakdown,
    Difference,
    ModelReport,
    ParameterInfo,
    Published,
    RefinedScores,
    Report,
    Scores,
)
from slotflow.scores import Estimate, ParameterScore


class Cell(NamedTuple):
    """What is read, and the number itself where there is one; ``mark`` is
    "bad", "good", "text" or ""."""

    shown: str
    value: float | int | None = None
    mark: str = ""


class Table(NamedTuple):
    """``columns`` name the cells of each row after its header; ``groups`` span columns.

    ``corner`` is the header of the row headers; ``groups`` (text, columns spanned), or none.
    ``wide`` cells are text, to the left.
    """

    ident: str
    caption: str
    corner: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    groups: tuple[tuple[str, int], ...] = ()
    wide: bool = False
    kind: str = "table"

    def text_columns(self) -> tuple[bool, ...]:
        """Return which columns hold text, to the left as their headers are."""
        return tuple(
            all(row[1][i].mark == "text" for row in self.rows) for i in range(len(self.columns))
        )


def words(value: object) -> Cell:
    """Return a cell of text; what is empty or None is a dash."""
    return Cell(text.DASH if value is None or value == "" else str(value), None, "text")


def number(value: float | None, digits: int = 3) -> Cell:
    """Return a cell of a number."""
    return Cell(text.number(value, digits), None if text.missing(value) else value)


def integer(value: int | None) -> Cell:
    """Return a cell of a whole number."""
    return Cell(text.count(value), value)


def percent(value: float | None, decimals: int = 1) -> Cell:
    """Return a cell of a share."""
    return Cell(text.percent(value, decimals), None if text.missing(value) else value)


def estimate(value: float | None, low: float | None, high: float | None) -> tuple[Cell, Cell]:
    """Return the cells of a number and of its interval."""
    shown = text.estimate(value, low, high)
    return Cell(shown, None if text.missing(value) else value), Cell(text.interval(low, high))


def percents(value: float | None, low: float | None, high: float | None) -> tuple[Cell, Cell]:
    """Return the cells of a share and of its interval."""
    ends = text.DASH
    if low is not None and high is not None:
        ends = f"[{text.percent(low)}, {text.percent(high)}]"
    return percent(value), Cell(ends)


def share(found: Share) -> tuple[Cell, Cell, Cell]:
    """Return the cells of a share, its interval, and how many of how many."""
    of = f"{text.count(found.hits)} of {text.count(found.number)}" if found.number else text.DASH
    return *percents(found.share, found.lower, found.upper), Cell(of)


def p_value(value: float | None, level: float = 0.05) -> Cell:
    """Return the cell of a p-value, marked where it is below the level."""
    if value is None:
        return Cell(text.DASH)
    return Cell(text.p_value(value), value, "bad" if value < level else "")


def scores_table(
    ident: str, caption: str, scores: Scores, parameters: Sequence[ParameterInfo], level: str
) -> Table:
    """Return the scores of every parameter: CRPS, prior, compression, coverage at 90%."""
    by_name = {p.name: p.label for p in parameters}
    pairs = zip(scores.parameters, scores.coverage90, strict=True)
    rows = [(by_name[score.name], _score_cells(score, inside)) for score, inside in pairs]
    columns = (
        "CRPS", level, "median", "prior", "compression", level, "inside the central 90%", level,
    )  # fmt: skip
    return Table(ident, caption, "parameter", columns, tuple(rows))


def _score_cells(score: ParameterScore, coverage: Estimate) -> tuple[Cell, ...]:
    crps = score.crps
    ends = (score.compression_lower, score.compression_upper)
    return (
        *estimate(crps.mean, crps.mean_lower, crps.mean_upper),
        Cell(text.estimate(crps.median, crps.median_lower, crps.median_upper), crps.median),
        number(score.prior), *percents(score.compression, *ends),
        *percents(coverage.mean, coverage.mean_lower, coverage.mean_upper),
    )  # fmt: skip


def joint_table(ident: str, models: Sequence[ModelReport], level: str, loud: str) -> Table:
    """Return the scores of the joint posterior of every model, all sources and the loud ones."""
    rows = []
    for model in models:
        several = f"{model.model.name}, " if len(models) > 1 else ""
        for name, scores in (("all sources", model.scores), (f"SNR above {loud}", model.loud)):
            if scores is not None:
                rows.append((several + name, _joint_cells(scores)))
    columns = (
        "sources", "energy score", level, "prior", "NLL", level, "median NLL", "outside support",
        "missed", level,
    )  # fmt: skip
    return Table(ident, "Scores of the joint posterior", "which", columns, tuple(rows))


def _joint_cells(scores: Scores) -> tuple[Cell, ...]:
    energy, nll = scores.energy, scores.nll
    missed = scores.missed
    nll_cells = (Cell(text.DASH), Cell(text.DASH), Cell(text.DASH))
    if nll is not None:
        median = text.estimate(nll.median, nll.median_lower, nll.median_upper)
        nll_cells = (
            *estimate(nll.mean, nll.mean_lower, nll.mean_upper), Cell(median, nll.median),
        )  # fmt: skip
    return (
        integer(scores.sources), *estimate(energy.mean, energy.mean_lower, energy.mean_upper),
        number(scores.energy_prior), *nll_cells, integer(scores.outside),
        *percents(missed.share, missed.lower, missed.upper),
    )  # fmt: skip


def refined_table(
    ident: str, caption: str, found: RefinedScores, labels: Mapping[str, str], level: str
) -> Table:
    """Return the CRPS and coverage of the model's draws beside those of the refined ones."""
    rows = []
    for one in found.parameters:
        cells = [*estimate(one.ratio, one.ratio_lower, one.ratio_upper)]
        for e in (one.crps, one.crps_refined):
            cells += estimate(e.mean, e.mean_lower, e.mean_upper)
        for e in (one.coverage, one.coverage_refined):
            cells += percents(e.mean, e.mean_lower, e.mean_upper)
        rows.append((labels[one.name], tuple(cells)))
    pair = ("model", level, "exact", level)
    columns = ("model / exact", level, *pair, *pair)
    groups = (("ratio of CRPS", 2), ("CRPS", 4), ("inside the central 90%", 4))
    return Table(ident, caption, "parameter", columns, tuple(rows), groups)


def published_table(
    ident: str, model: ModelReport, labels: Mapping[str, str], loud: str, of: str
) -> Table:
    """Return the published values beside the model's own."""
    rows = []
    for one in model.published:
        shown = text.percent if one.quantity == "compression" else text.number
        bound = "at most " if one.bound and one.quantity == "crps" else ""
        bound = "at least " if one.bound and not bound else bound
        met = reached(one)
        verdict = text.DASH if met is None else "reached" if met else "not reached"
        cells = (
            Cell(bound + given(one), one.value), _or_dash(shown, one.ours),
            _or_dash(shown, one.ours_loud),
            Cell(verdict, None, "" if met is None else "good" if met else "bad"),
            words(one.source),
        )  # fmt: skip
        quantity = "CRPS" if one.quantity == "crps" else one.quantity
        rows.append((f"{quantity} of {labels.get(one.parameter, one.parameter)}", cells))
    columns = ("published", "here, all", f"here, SNR above {loud}", "all sources", "source")
    caption = f"Published values of the method, on other data and another prior{of}"
    return Table(ident, caption, "quantity", columns, tuple(rows))


def _or_dash(shown: Callable[[float], str], value: float | None) -> Cell:
    return Cell(text.DASH) if value is None else Cell(shown(value), value)


def given(one: Published) -> str:
    """Return a published value as it was given, without further zeros."""
    percent = one.quantity == "compression"
    return f"{100.0 * one.value:.6g}%" if percent else f"{one.value:.6g}"


def reached(one: Published) -> bool | None:
    """Whether our value of all sources is as good as a published one; None without ours."""
    if one.ours is None:
        return None
    return one.ours <= one.value if one.quantity == "crps" else one.ours >= one.value


def comparison_table(ident: str, report: Report, labels: Mapping[str, str]) -> Table:
    """Return the CRPS of all models side by side."""
    first = report.models[0]
    rows = []
    for i, score in enumerate(first.scores.parameters):
        cells: list[Cell] = [number(score.prior)]
        for model in report.models:
            crps = model.scores.parameters[i].crps
            cells += estimate(crps.mean, crps.mean_lower, crps.mean_upper)
        rows.append((labels[score.name], tuple(cells)))
    level = interval_name(report)
    groups = (("", 1), *((m.model.name, 2) for m in report.models))
    columns = ("prior", *(c for _ in report.models for c in ("CRPS", level)))
    return Table(
        ident, "CRPS of all sources, models side by side", "parameter", columns, tuple(rows), groups
    )


def differences_table(ident: str, report: Report, labels: Mapping[str, str]) -> Table:
    """Return the other models' scores minus the first's."""
    others = [m.model.name for m in report.models[1:]]
    found = {(d.model, d.score): d for d in report.differences}
    rows = []
    for name in dict.fromkeys(d.score for d in report.differences):
        cells = [c for other in others for c in _difference(found.get((other, name)))]
        rows.append((labels.get(name, name), tuple(cells)))
    level = interval_name(report)
    columns = tuple(c for _ in others for c in ("difference", level, "says"))
    groups = tuple((name, 3) for name in others)
    caption = f"Scores minus those of {report.models[0].model.name}, source by source"
    return Table(ident, caption, "score", columns, tuple(rows), groups)


def _difference(found: Difference | None) -> tuple[Cell, ...]:
    if found is None:
        return (Cell(text.DASH),) * 3
    mean, low, high = found.estimate.mean, found.estimate.mean_lower, found.estimate.mean_upper
    if low is None or high is None:
        said = Cell(text.DASH)
    elif high < 0.0:
        said = Cell("better", None, "good")
    else:
        said = Cell("worse", None, "bad") if low > 0.0 else Cell("cannot tell")
    return *estimate(mean, low, high), said


def breakdown_table(
    ident: str, caption: str, found: Breakdown, labels: Mapping[str, str], unknown: str
) -> Table:
    """Return mean scores in intervals of a quantity."""
    rows = []
    for row in found.rows:
        name = text.between(row.low, row.high, whole=found.by == "sources")
        name = name if row.known else unknown
        cells = [integer(row.estimates[0].number)]
        cells += [number(e.mean) for e in row.estimates]
        rows.append((name, tuple(cells)))
    columns = ("sources", *(labels.get(name, name) for name in found.columns))
    return Table(ident, caption, found.label, columns, tuple(rows))


def pairs_table(
    ident: str, caption: str, corner: str, columns: Sequence[str],
    rows: Iterable[tuple[str, Sequence[object]]],
) -> Table:  # fmt: skip
    """Return a table of text, a column a model."""
    made = tuple((name, tuple(words(v) for v in values)) for name, values in rows)
    return Table(ident, caption, corner, tuple(columns), made, (), True)


def interval_name(report: Report) -> str:
    """Return what intervals are called: ``90% interval``."""
    return f"{100.0 * report.settings.level:g}% interval"
