"""Tables of tests, numbers of sources, detection and slots."""

from collections.abc import Mapping, Sequence
from typing import Final

from slotflow.cardinality import CountTests, Reliability
from slotflow.report import text
from slotflow.report.outlying import QUANTILES
from slotflow.report.record import ModelReport, PValue, SlotFigures
from slotflow.report.tables import (
    Cell,
    Table,
    integer,
    number,
    p_value,
    percent,
    share,
    words,
)

#: Tests by their keys, in words.
TESTS: Final = {
    "sbc": "rank histogram",
    "pit": "P-P curve",
    "coverage": "coverage",
    "density": "density coverage",
    "tarp": "TARP",
    "c2st": "C2ST",
    "k_reliability": "reliability of q(K)",
    "k_pit": "PIT of K",
}
_OF_PARAMETERS: Final = ("sbc", "pit", "coverage")


def in_words(found: PValue, labels: Mapping[str, str]) -> str:
    """Return a test in words: ``rank histogram of f0``, ``TARP``."""
    name = TESTS.get(found.test, found.test)
    if found.parameter is None:
        return name
    return f"{name} of {labels.get(found.parameter, found.parameter)}"


def parameter_tests_table(ident: str, caption: str, model: ModelReport,
                          labels: Mapping[str, str]) -> Table:  # fmt: skip
    """Return p-values, as they are and adjusted, of the tests of each parameter."""
    found = {(p.test, p.parameter): p for p in model.calibration.p_values}
    rows = []
    for test in model.calibration.parameters:
        cells: list[Cell] = []
        for name in _OF_PARAMETERS:
            one = found.get((name, test.name))
            cells += _p_cells(one)
        rows.append((labels.get(test.name, test.name), tuple(cells)))
    groups = tuple((TESTS[name], 2) for name in _OF_PARAMETERS)
    return Table(ident, caption, "parameter", ("p", "adjusted") * 3, tuple(rows), groups)


def joint_tests_table(ident: str, caption: str, model: ModelReport) -> Table:
    """Return p-values of the tests of the joint posterior and of the number of sources."""
    found = [p for p in model.calibration.p_values if p.test not in _OF_PARAMETERS]
    rows = tuple((TESTS.get(p.test, p.test), _p_cells(p)) for p in found)
    return Table(ident, caption, "test", ("p", "adjusted"), rows)


def _p_cells(one: PValue | None) -> tuple[Cell, Cell]:
    if one is None:
        return Cell(text.DASH), Cell(text.DASH)
    return p_value(one.value, 0.0), p_value(one.adjusted)


def c2st_table(ident: str, models: Sequence[ModelReport]) -> Table:
    """Return the discriminator on all held-out sources and on groups of them."""
    rows = []
    for model in models:
        test, several = model.calibration.c2st, f"{model.model.name}, " * (len(models) > 1)
        if test is None:
            continue
        null = f"[{text.percent(test.null_lower)}, {text.percent(test.null_upper)}]"
        rows.append((f"{several}all", (
            integer(test.number), number(test.auc), p_value(test.p_value, 0.0),
            percent(test.accuracy), Cell(null),
        )))  # fmt: skip
        for group in test.groups:
            names = model.calibration.groups
            name = names[group.group] if group.group < len(names) else str(group.group)
            dashes = (Cell(text.DASH), Cell(text.DASH))
            cells = (integer(group.number), number(group.auc), p_value(group.p_value, 0.0), *dashes)
            rows.append((several + name, cells))
    columns = ("sources", "AUC", "p", "accuracy", "90% of its null")
    caption = "The discriminator on sources that it has not seen"
    return Table(ident, caption, "sources", columns, tuple(rows))


def numbers_table(ident: str, models: Sequence[ModelReport]) -> Table:
    """Return the figures of the number of sources, a column a model."""
    rows: list[tuple[str, tuple[Cell, ...]]] = []
    found = [model.numbers for model in models]
    rows.append(("bands", tuple(integer(n.confusion.bands) for n in found)))
    for name, tables in (
        ("reports counted", [n.confusion for n in found]),
        ("likeliest K", [n.likeliest for n in found]),
        ("bands of loud sources only", [n.loud for n in found]),
    ):
        rows.append((f"exact, {name}", tuple(percent(c.exact if c else None) for c in tables)))
        rows.append(
            (f"within one, {name}", tuple(percent(c.within_one if c else None) for c in tables))
        )
        rows.append((f"bias, {name}", tuple(number(c.bias if c else None) for c in tables)))
    rows += _q_k_rows([n.q_k for n in found])
    rows += _existence_rows([n.existence for n in found])
    areas = [None if n.roc is None else n.roc.auc for n in found]
    rows.append(("existence, area under ROC", tuple(number(area) for area in areas)))
    names = tuple(model.model.name for model in models)
    return Table(ident, "Number of sources and existence", "figure", names, tuple(rows))


def _q_k_rows(found: Sequence[CountTests]) -> list[tuple[str, tuple[Cell, ...]]]:
    reliability = [q.reliability for q in found]
    return [
        ("log score of q(K)", tuple(number(q.log_score) for q in found)),
        ("ranked probability score of q(K)", tuple(number(q.rps) for q in found)),
        ("q(K), distance from the diagonal", tuple(percent(r.error) for r in reliability)),
        ("q(K), reliability, p", tuple(p_value(r.p_value, 0.0) for r in reliability)),
        ("PIT of K, p", tuple(p_value(q.pit.p_value, 0.0) for q in found)),
    ]


def _existence_rows(found: Sequence[Reliability | None]) -> list[tuple[str, tuple[Cell, ...]]]:
    return [
        ("existence, distance from the diagonal", tuple(
            percent(r.error if r else None) for r in found
        )),
        ("existence, Brier score", tuple(number(r.brier if r else None) for r in found)),
        ("existence, reliability, p", tuple(
            p_value(r.p_value if r else None, 0.0) for r in found
        )),
    ]  # fmt: skip


def detection_table(ident: str, caption: str, model: ModelReport) -> Table:
    """Return recall, precision and F1 against SNR."""
    found = model.detection
    rows = []
    for row in found.rows:
        cells = (*share(row.recall), *share(row.precision), percent(row.f1))
        rows.append((text.between(row.low, row.high), cells))
    rows.append(("all", (*share(found.recall), *share(found.precision), percent(found.f1))))
    columns = ("share", "interval", "of", "share", "interval", "of", "share")
    groups = (("recall", 3), ("precision", 3), ("F1", 1))
    return Table(ident, caption, "SNR", columns, tuple(rows), groups)


def alarms_table(ident: str, models: Sequence[ModelReport]) -> Table:
    """Return what is wrong among the reports: duplicates and false alarms."""
    rows = []
    for model in models:
        found = model.detection
        ends = (found.false_alarms_lower, found.false_alarms_upper)
        cells = (
            integer(found.bands), integer(found.truths), integer(found.reports),
            integer(found.weak), integer(found.duplicates), integer(found.false_alarms),
            number(found.false_alarms_per_band), Cell(text.interval(*ends)),
        )  # fmt: skip
        rows.append((model.model.name, cells))
    columns = (
        "bands", "true sources", "reports", "of weaker sources", "duplicates", "false alarms",
        "a band", "interval",
    )  # fmt: skip
    return Table(ident, "Reports, duplicates and false alarms", "model", columns, tuple(rows))


def outlying_table(ident: str, models: Sequence[ModelReport], level: str) -> Table:
    """Return how many bands are outside the training distribution, and the scores' quantiles."""
    rows, names = [], tuple(QUANTILES)
    for model in models:
        found = model.outlying
        if found is not None:
            kinds = ", ".join(f"{kind} {count}" for kind, count in found.kinds)
            scores = (number(score) for _, score in found.quantiles)
            cells = (*share(found.outside), percent(found.nominal), *scores, words(kinds))
            rows.append((model.model.name, cells))
    shown = (*(f"{QUANTILES[name]:.0%}" for name in names[:-1]), "largest")
    columns = ("share", level, "of", "of simulated ones", *shown, "furthest in")
    groups = (("score above 1", 4), ("quantiles of the score", len(names)), ("", 1))
    caption = "Bands and the training distribution"
    return Table(ident, caption, "model", columns, tuple(rows), groups)


def slots_table(ident: str, models: Sequence[ModelReport]) -> Table:
    """Return the overlaps of the slots' attention, beside chance."""
    rows = []
    for model in models:
        found = model.slots
        if found is not None:
            cells = (
                integer(found.bands), percent(found.peak_overlap), percent(found.peak_chance),
                number(found.cosine_overlap), number(found.cosine_chance),
            )  # fmt: skip
            rows.append((model.model.name, cells))
    columns = ("bands", "peak overlap", "by chance", "cosine overlap", "by chance")
    return Table(ident, "Overlap of the slots' attention", "model", columns, tuple(rows))


def attention_table(ident: str, models: Sequence[ModelReport]) -> Table:
    """Return where slots that found a source look, beside attention spread evenly."""
    rows = []
    for model in models:
        found: SlotFigures | None = model.slots
        if found is None or found.attention is None:
            continue
        seen = found.attention
        shares = (seen.own, seen.near, seen.elsewhere, seen.others)
        several = f"{model.model.name}, " * (len(models) > 1)
        rows.append((f"{several}the slots", (integer(seen.slots), *map(percent, shares))))
        rows.append((f"{several}spread evenly", (Cell(text.DASH), *map(percent, seen.even))))
    columns = ("slots", "on its own", "near it", "elsewhere", "on other sources'")
    caption = "Shares of attention on a band's components, of slots that found a source"
    return Table(ident, caption, "attention", columns, tuple(rows))
