"""The sections of tests and of what is found: calibration, numbers, detection, slots."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from markupsafe import Markup

from slotflow.report import svg
from slotflow.report.blocks import Block, Figure, Part, Said, Section
from slotflow.report.charts import Named, c2st_panel, curve_panel, histogram_panel
from slotflow.report.charts_found import (
    confusion_panel,
    detection_panel,
    evidence_panel,
    reliability_panel,
    roc_panel,
)
from slotflow.report.record import ModelReport, Report
from slotflow.report.tables import Table, interval_name
from slotflow.report.tables_tests import (
    alarms_table,
    attention_table,
    c2st_table,
    detection_table,
    joint_tests_table,
    numbers_table,
    outlying_table,
    parameter_tests_table,
    slots_table,
)
from slotflow.sbc import ParameterTests
from slotflow.uniformity import EcdfTest

Labels = Mapping[str, str]

_BAND: Final = (svg.key("band"), "simultaneous band: an exact posterior leaves it once in 20")
_OUT: Final = (svg.key("out"), "outside the band")
_EXPECTED: Final = (svg.key("expected"), "expected")
_KEY: Final = (_BAND, _EXPECTED, _OUT)

_BELOW: Final = ("quantile", "share below − quantile")
_INSIDE: Final = ("level", "share inside − level")

_CALIBRATION: Final = (
    "Were the draws from the exact posterior, a truth would be one more draw. Every test is of"
    " that. p is the probability of so large a deviation if it holds; among many tests some p are"
    " small by chance, so that judgement is by the adjusted ones (Holm): below 5% anywhere once in"
    " 20 reports of exact posteriors. Passing says nothing of what was learned: the prior passes"
    " too. Compression tells."
)
_RANKS: Final = (
    "Flat is right. High at both ends: posteriors are too narrow; high in the middle: too wide;"
    " sloping: shifted."
)
_PIT: Final = (
    "The share of truths below each quantile of their posterior, minus the quantile's level. Zero"
    " is right. Above zero all along: posteriors lie too high; an S that first rises: too narrow."
)
_COVERAGE: Final = (
    "The share of truths inside each central interval, minus its level. Zero is right. Below:"
    " posteriors are too narrow; above: too wide."
)
_JOINT: Final = (
    "The same for all parameters together: regions of highest density, and balls about random"
    " points (TARP). Below zero: too narrow; above: too wide."
)
_C2ST: Final = (
    "A discriminator learns from half the sources to tell truths from draws and is tested on the"
    " others. AUC 0.5 is right; beyond the shaded range it found something."
)
_NUMBERS: Final = (
    "A slot is counted where it holds a source with a probability of 0.5 or more. Rows of the"
    " matrix are true numbers, columns reported ones; the diagonal is right. In reliability"
    " diagrams what is said with 80% should come true in 80%."
)
_DETECTION: Final = (
    "Recall: which share of true sources is reported, by their SNR. Precision: which share of"
    " reports stands for a true source, by the reports' own SNR. A second report of the same"
    " source is a duplicate, any other wrong one a false alarm."
)
_OUTLYING: Final = (
    "A score compares what search and network make of a band, its noise too, with simulated bands"
    " that the model was not trained on. Above 1, as few of these have it, a band is flagged: it is"
    " outside the training distribution. Where many are, the bands are not what the model was"
    " trained for, and its probabilities and widths are not calibrated on them."
)
_SLOTS: Final = (
    "Each slot should attend to one source and use its evidence up. Overlap is how far slots look"
    " at the same components: 0 is best, chance beside it. Evidence on sources should fall to"
    " nothing, that on the rest stay."
)


def named[T](report: Report, get: Callable[[ModelReport], T | None]) -> list[Named[T]]:
    """Return a statistic of all models that have it."""
    found = [(i, m.model.name, get(m)) for i, m in enumerate(report.models)]
    return [Named(i, name, value) for i, name, value in found if value is not None]


def tail(model: ModelReport, report: Report) -> str:
    """Return the model's name for the end of a caption, where there are several."""
    return f", {model.model.name}" if len(report.models) > 1 else ""


def outlying(report: Report) -> tuple[Part, ...]:
    """Return how far the bands lie from the training distributions; nothing without a score."""
    table = outlying_table("outlying-scores", report.models, interval_name(report))
    title = "Against the training distribution"
    return (Part("outlying", title, _OUTLYING, (table,)),) * bool(table.rows)


def calibration(report: Report, labels: Labels) -> Section:
    """Return the tests and their curves."""
    tables: list[Block] = []
    for i, model in enumerate(report.models):
        of = tail(model, report)
        if model.calibration.parameters:
            tables.append(
                parameter_tests_table(f"p-{i}", f"Tests of each parameter{of}", model, labels)
            )
        joint = joint_tests_table(f"p-joint-{i}", f"Other tests{of}", model)
        tables += [joint] * bool(joint.rows)
    if not tables:
        tables.append(Said("There are too few sources for any test."))
    parts = [Part("p-values", "Tests", "", tuple(tables)), *_curves(report, labels)]
    joint_figure = _joint_figure(report)
    if joint_figure.panels:
        parts.append(Part("joint-coverage", "Coverage of the joint", _JOINT, (joint_figure,)))
    learned = named(report, lambda m: m.calibration.c2st)
    if learned:
        groups = report.models[learned[0].style].calibration.groups
        panel = c2st_panel("fig-c2st", "AUC of the discriminator", learned, groups)
        key = ((svg.key("band"), "90% of tests of exact posteriors"), _EXPECTED)
        figure = Figure("figure-c2st", "A learned discriminator on held-out sources.",
                        (("", panel),), True, key, True)  # fmt: skip
        blocks: tuple[Block, ...] = (figure, c2st_table("c2st-table", report.models))
        parts.append(Part("c2st", "Learned discriminator (C2ST)", _C2ST, blocks))
    return Section("calibration", "Calibration", _CALIBRATION, tuple(parts))


def _curves(report: Report, labels: Labels) -> list[Part]:
    names = dict.fromkeys(t.name for m in report.models for t in m.calibration.parameters)
    if not names:
        return []
    found = {name: named(report, partial(_tests, name)) for name in names}
    ranks = []
    for name, tests in found.items():
        label = labels.get(name, name)
        rows = [Named(f.style, f.name, f.value.histogram) for f in tests]
        ranks.append((label, histogram_panel(f"fig-sbc-{name}", f"Ranks of {label}", rows)))
    pits, insides = [], []
    for name, tests in found.items():
        label = labels.get(name, name)
        curves = [Named(f.style, f.name, f.value.pit) for f in tests]
        made = curve_panel(f"fig-pit-{name}", f"P-P curve of {label}", curves, *_BELOW)
        pits.append((label, made))
        curves = [Named(f.style, f.name, f.value.coverage) for f in tests]
        made = curve_panel(f"fig-coverage-{name}", f"Coverage of {label}", curves, *_INSIDE)
        insides.append((label, made))
    return [
        _part("sbc", "Rank histograms (SBC)", _RANKS, "Ranks of truths among their draws.", ranks),
        _part("pit", "P-P curves (PIT)", _PIT, "Truths below each quantile.", pits),
        _part("coverage", "Coverage", _COVERAGE, "Truths inside each central interval.", insides),
    ]


def _part(ident: str, title: str, how: str, caption: str, panels: list[tuple[str, Markup]]) -> Part:
    figure = Figure(f"figure-{ident}", caption, tuple(panels), True, _KEY)
    return Part(ident, title, how, (figure,))


def _tests(name: str, model: ModelReport) -> ParameterTests | None:
    return next((t for t in model.calibration.parameters if t.name == name), None)


def _joint_figure(report: Report) -> Figure:
    panels = []
    both: tuple[tuple[str, Callable[[ModelReport], EcdfTest | None]], ...] = (
        ("density", lambda m: m.calibration.density), ("tarp", lambda m: m.calibration.tarp),
    )  # fmt: skip
    for ident, get in both:
        curves = named(report, get)
        title = "Regions of highest density" if ident == "density" else "Balls about points (TARP)"
        if curves:
            made = curve_panel(f"fig-{ident}", title, curves, *_INSIDE)
            panels.append((title, made))
    return Figure("figure-joint", "Truths inside regions of the joint posterior.", tuple(panels),
                  True, _KEY)  # fmt: skip


def numbers(report: Report) -> Section:
    """Return what is said of the number of sources, and of their existence."""
    matrices = []
    for i, model in enumerate(report.models):
        found, of = model.numbers, tail(model, report)
        for ident, name, table, across in (
            ("count", "Reports counted", found.confusion, "number of reports"),
            ("likeliest", "Likeliest K", found.likeliest, "K of the largest q(K)"),
            ("loud", "Loud sources only", found.loud, "number of reports"),
        ):
            if table is not None:
                title = f"{name}{of}"
                made = confusion_panel(f"fig-{ident}-{i}", title, table, across)
                matrices.append((title, made))
    caption = "Bands by true and reported number of sources; shade is the share of the row."
    figure = Figure("figure-confusion", caption, tuple(matrices), False)
    parts = [
        Part("confusion", "Confusion matrix", "", (figure, numbers_table("k", report.models))),
        Part("reliability", "Reliability, ROC and PIT", "", (_probabilities(report),)),
    ]
    return Section("numbers", "Number of sources", _NUMBERS, tuple(parts))


def _probabilities(report: Report) -> Figure:
    panels = []
    exists = named(report, lambda m: m.numbers.existence)
    if exists:
        title = "That a slot holds a source"
        panels.append((title, reliability_panel("fig-existence", title, exists)))
    said = named(report, lambda m: m.numbers.q_k.reliability)
    title = "That a band holds K"
    panels.append((title, reliability_panel("fig-q-k", title, said)))
    curves = named(report, lambda m: m.numbers.roc)
    if curves:
        panels.append(("ROC of existence", roc_panel("fig-roc", "ROC of existence", curves)))
    pits = named(report, lambda m: m.numbers.q_k.pit)
    made = curve_panel("fig-k-pit", "PIT of K", pits, *_BELOW)
    panels.append(("PIT of K", made))
    key = list(_KEY)
    if len(report.models) == 1:
        key.append((svg.key("consistent"), "90% of what right probabilities give"))
    caption = "Probabilities against what came true, ROC, and the PIT of q(K)."
    return Figure("figure-probabilities", caption, tuple(panels), True, tuple(key))


def detection(report: Report) -> Section:
    """Return recall, precision, F1, duplicates and false alarms."""
    found = named(report, lambda m: m.detection)
    panels = tuple(
        (title, detection_panel(f"fig-{what}", f"{title} by SNR", found, what))
        for what, title in (("recall", "Recall"), ("precision", "Precision"), ("f1", "F1"))
    )
    caption = f"Recall, precision and F1 by SNR, with {interval_name(report)}s."
    tables: list[Table] = [
        detection_table(f"detection-{i}", f"Detection by SNR{tail(m, report)}", m)
        for i, m in enumerate(report.models)
    ]
    blocks: tuple[Block, ...] = (
        Figure("figure-detection", caption, panels, True), *tables,
        alarms_table("alarms", report.models),
    )  # fmt: skip
    return Section("detection", "Detection", _DETECTION, (Part("by-loudness", "", "", blocks),))


def slots(report: Report) -> Section:
    """Return what the slots attend to and leave."""
    found = named(report, lambda m: m.slots)
    if not found:
        return Section("slots", "Slots", _SLOTS, ())
    panels = tuple(
        (n.name if len(found) > 1 else "",
         evidence_panel(f"fig-evidence-{n.style}", f"Evidence left, {n.name}",
                        n.value.evidence_sources, n.value.evidence_others))
        for n in found
    )  # fmt: skip
    key = ((svg.swatch(0), "components of sources"), (svg.swatch(1), "other components"))
    figure = Figure("figure-evidence", "Mean evidence left after each slot.", panels, False, key,
                    len(panels) == 1)  # fmt: skip
    tables = (slots_table("overlap", report.models), attention_table("attention", report.models))
    blocks: tuple[Block, ...] = (figure, *(table for table in tables if table.rows))
    return Section("slots", "Slots", _SLOTS, (Part("slots-all", "", "", blocks),))
