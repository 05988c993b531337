"""The sections of a page: what was tested, scores, breakdowns; the rest from their own file."""

from collections.abc import Mapping, Sequence
from typing import Final

from slotflow.report import svg, text
from slotflow.report.blocks import Block, Figure, Folded, Part, Said, Section
from slotflow.report.charts import Named, Value
from slotflow.report.charts_found import ScoreRow, groups_panel, scores_panel
from slotflow.report.record import Breakdown, ModelReport, Report
from slotflow.report.sections_tests import (
    calibration,
    detection,
    numbers,
    outlying,
    slots,
    tail,
)
from slotflow.report.tables import (
    Table,
    breakdown_table,
    comparison_table,
    differences_table,
    interval_name,
    joint_table,
    pairs_table,
    published_table,
    refined_table,
    scores_table,
)

Labels = Mapping[str, str]

FEW: Final = ("energy", "nll", "f0", "ln_amplitude")  # drawn where not all scores are
_QUANTITIES: Final = {
    "snr": "By SNR",
    "sources": "By number of sources",
    "f0": "By frequency",
    "separation": "By distance to the nearest source",
}


def sections(report: Report, labels: Labels) -> tuple[Section, ...]:
    """Return all sections that the report has something for."""
    found = [
        tested(report), scores(report, labels), breakdowns(report, labels),
        calibration(report, labels), numbers(report), detection(report), slots(report),
        timings(report),
    ]  # fmt: skip
    return tuple(section for section in found if section.parts)


def tested(report: Report) -> Section:
    """Return what was tested: models, data, settings, and how."""
    names = [model.model.name for model in report.models]
    blocks: list[Block] = [
        pairs_table("models", "Models", "of the model", names, _model_rows(report)),
        pairs_table("data", "Data", "of the bands", ("value",), _data_rows(report)),
        pairs_table(
            "settings", "How the figures were made", "setting", ("value",), _settings(report)
        ),
    ]
    blocks.append(Folded("Observation and prior of the data",
                         (dict(report.data.observation), dict(report.data.prior))))  # fmt: skip
    for model in report.models:
        of = tail(model, report)
        blocks.append(Folded(f"Preset{of}", (dict(model.model.preset),)))
        blocks.append(Folded(f"Model card{of}", (dict(model.model.card),)))
    notes = [*report.notes]
    for model in report.models:
        head = f"{model.model.name}: " if len(names) > 1 else ""
        notes += [head + note for note in model.notes]
    parts = [Part("tested-what", "", "", tuple(blocks)), *outlying(report)]
    if notes:
        parts.append(Part("notes", "Notes", "", tuple(Said(note) for note in notes)))
    return Section("tested", "What was tested", "", tuple(parts))


def _model_rows(report: Report) -> list[tuple[str, list[object]]]:
    models = [model.model for model in report.models]
    return [
        ("file", [m.path for m in models]),
        ("SHA-256", [m.sha256 for m in models]),
        ("parameters", [text.count(m.parameters) for m in models]),
        ("seeds of the training data", [_listed(m.training_seeds) for m in models]),
        ("calibration", [
            ", ".join(f"{k} {text.number(v)}" for k, v in m.calibration.items()) for m in models
        ]),
    ]  # fmt: skip


def _listed(values: tuple[int, ...]) -> str:
    return ", ".join(str(v) for v in values)


def _data_rows(report: Report) -> list[tuple[str, list[object]]]:
    data, loud = report.data, report.settings.loud_snr
    origin = "simulated for this report" if data.origin == "simulated" else "from a folder"
    return [
        ("origin", [origin]), ("folder", [data.path]), ("seed", [data.seed]),
        ("identity", [data.identity]),
        ("bands", [f"{text.count(data.bands)}, {text.count(data.empty)} of them without a source"]),
        ("sources", [
            f"{text.count(data.sources)}, {text.count(data.loud)} of them above SNR {loud:g}"
        ]),
        ("centres of bands", [
            f"{text.number(1e3 * data.fmin)} to {text.number(1e3 * data.fmax)} mHz"
        ]),
    ]  # fmt: skip


def _settings(report: Report) -> list[tuple[str, list[object]]]:
    s = report.settings
    rows: list[tuple[str, list[object]]] = [
        ("command", [report.command]), ("version of slotflow", [report.version]),
        ("made at", [report.created]), ("seed", [s.seed]),
        ("draws a source", [
            f"{text.count(s.draws)}, of which {text.count(s.test_draws)} go into tests of the joint"
        ]),
        ("intervals", [f"{s.level:.0%}, from {text.count(s.resamples)} resamples of bands"]),
        ("simultaneous bands", [f"{s.band_level:.0%}"]),
        ("a report is", [f"a slot whose probability is above {s.min_probability:g}"]),
        ("it stands for a source", [
            f"within {s.bins:g} bin if waveforms overlap by more than {s.overlap:g}"
        ]),
        ("bands refined", [f"{text.count(s.refine)} at most"]),
    ]  # fmt: skip
    return rows if s.refine else rows[:-1]


def scores(report: Report, labels: Labels) -> Section:
    """Return the scores of all sources and of the loud ones."""
    how = (
        "CRPS is the distance of draws from the truth less half their distance from each other,"
        " in units of the prior's range; smaller is better, and a wrong width costs as a wrong"
        " place does. Compression is 1 − CRPS / CRPS of the prior on the same truths: 0 has"
        " learned nothing, 100% is exact. Means count every source, missed ones too, so that"
        " few misses can set them: compare the median."
    )
    parts = [Part("crps", "CRPS of each parameter", "", (_scores_figure(report, labels),))]
    if len(report.models) > 1:
        compared: list[Block] = [comparison_table("crps-compared", report, labels)]
        if report.differences:
            compared.append(differences_table("differences", report, labels))
        parts.append(Part("side-by-side", "Side by side", "", tuple(compared)))
    tables = tuple(t for i, m in enumerate(report.models) for t in _tables(i, m, report))
    units = pairs_table("units", "Units of the scores", "parameter", ("one is",),
                        [(p.label, [p.scaled_by]) for p in report.parameters])  # fmt: skip
    parts.append(Part("crps-tables", "Every parameter", "", (*tables, units)))
    loud = f"{report.settings.loud_snr:g}"
    joint = joint_table("joint-scores", report.models, interval_name(report), loud)
    parts.append(Part("joint", "Joint posterior", _JOINT, (joint,)))
    parts += [refined(i, m, report, labels) for i, m in enumerate(report.models)
              if m.refined is not None]  # fmt: skip
    published = tuple(
        published_table(f"published-{i}", m, labels, loud, tail(m, report))
        for i, m in enumerate(report.models)
        if m.published
    )
    if published:
        parts.append(Part("published", "Published values", "", published))
    return Section("scores", "Scores", how, tuple(parts))


_JOINT: Final = (
    "The energy score is the CRPS of all parameters together; NLL is the mean of −ln q at the"
    " truth, in units of the ranges: lower is better. A source is missed where its slot stands on"
    " a component more than a bin away."
)


_REFINED: Final = (
    "Of some bands the draws were led to the exact posterior: the training prior times the"
    " likelihood of all sources of the band together. On the same sources, those that the model"
    " found, a ratio of 1 is as good as can be, and what is above 1 is lost by the model. The"
    " likelihood takes the foreground as white noise, at the level of the band, and knows no"
    " source that the model does not report: where unresolved or unreported ones are loud it is"
    " too sure, covers less than 90%, and the ratio can be below 1."
)


def refined(i: int, model: ModelReport, report: Report, labels: Labels) -> Part:
    """Return the model's draws beside those of the exact posterior."""
    found, name = model.refined, f"refined-{i}"
    assert found is not None
    counts: list[tuple[str, list[object]]] = [
        ("bands", [
            f"{text.count(found.bands)}, the first with one to three reports"
            f" ({text.count(report.settings.refine)} asked for)"
        ]),
        ("sources scored", [text.count(found.sources)]),
        ("not found by the model", [text.count(found.not_found)]),
        ("found, but not refined", [text.count(found.not_refined)]),
        ("bands with warnings", [text.count(found.warned)]),
        ("time", [text.seconds(found.seconds)]),
    ]  # fmt: skip
    of = tail(model, report)
    blocks: list[Block] = [
        pairs_table(f"{name}-counts", f"What was refined{of}", "of the bands", ("value",), counts)
    ]
    if found.parameters:
        caption = f"The model and the exact posterior on {text.count(found.sources)} sources{of}"
        table = refined_table(f"{name}-crps", caption, found, labels, interval_name(report))
        blocks.insert(0, table)
    blocks += [Said(line) for line in found.warnings]
    return Part(name, f"Beside the exact posterior{of}", _REFINED, tuple(blocks))


def _scores_figure(report: Report, labels: Labels) -> Figure:
    known = {p.parameter: p.value for m in report.models for p in m.published
             if p.quantity == "crps"}  # fmt: skip
    rows = []
    for j, score in enumerate(report.models[0].scores.parameters):
        found = tuple(
            Named(i, m.model.name, m.scores.parameters[j]) for i, m in enumerate(report.models)
        )
        rows.append(ScoreRow(labels[score.name], found, known.get(score.name)))
    panel = scores_panel("fig-crps", "CRPS of each parameter", rows)
    key = ((svg.key("prior"), "prior"), (svg.key("published"), "published value"))
    name = interval_name(report)
    return Figure("figure-crps", f"Mean CRPS of all sources with its {name}; logarithmic scale.",
                  (("", panel),), True, key, True)  # fmt: skip


def _tables(i: int, model: ModelReport, report: Report) -> tuple[Table, ...]:
    level, of = interval_name(report), tail(model, report)
    found = [
        scores_table(f"scores-{i}", f"All {text.count(model.scores.sources)} sources{of}",
                     model.scores, report.parameters, level)
    ]  # fmt: skip
    if model.loud is not None:
        loud = f"{report.settings.loud_snr:g}"
        caption = f"The {text.count(model.loud.sources)} sources above SNR {loud}{of}"
        found.append(
            scores_table(f"scores-loud-{i}", caption, model.loud, report.parameters, level)
        )
    return tuple(found)


def breakdowns(report: Report, labels: Labels) -> Section:
    """Return the scores in intervals of each quantity."""
    how = (
        "Mean scores in groups of sources, on a logarithmic scale where they are positive. Scores"
        " should fall with SNR and rise with the number of sources and towards small separations;"
        " a group that stands out shows where the model fails."
    )
    parts = [_breakdown(report, one, labels) for one in report.models[0].breakdowns if one.rows]
    return Section("breakdowns", "Where it is good and where it is not", how, tuple(parts))


def _breakdown(report: Report, first: Breakdown, labels: Labels) -> Part:
    title = _QUANTITIES.get(first.by, f"By {first.label}")
    found = [
        Named(i, m.model.name, next(b for b in m.breakdowns if b.by == first.by))
        for i, m in enumerate(report.models)
        if any(b.by == first.by for b in m.breakdowns)
    ]
    chosen = first.columns if first.by == "snr" else tuple(c for c in FEW if c in first.columns)
    groups = [
        text.briefly(r.low, r.high, first.by == "sources") if r.known else "alone"
        for r in first.rows
    ]
    panels = []
    for column in chosen:
        curves: list[Named[Sequence[Value | None]]] = [
            Named(n.style, n.name, _means(n.value, first, column)) for n in found
        ]
        name = labels.get(column, column)
        up = name if column in ("nll", "energy") else "CRPS"
        made = groups_panel(
            f"fig-by-{first.by}-{column}", f"{name}, {title.lower()}", groups, curves,
            first.label, up,
        )  # fmt: skip
        panels.append((name, made))
    caption = f"Mean scores and {interval_name(report)}s by {first.label}."
    blocks: list[Block] = [Figure(f"figure-by-{first.by}", caption, tuple(panels), True)]
    for named in found:
        of = tail(report.models[named.style], report)
        blocks.append(
            breakdown_table(f"by-{first.by}-{named.style}", f"Mean scores by {first.label}{of}",
                            named.value, labels, "no other source in the band")
        )  # fmt: skip
    return Part(f"by-{first.by}", title, "", tuple(blocks))


def _means(found: Breakdown, like: Breakdown, column: str) -> tuple[Value | None, ...]:
    """A column's means and intervals in the rows of another breakdown."""
    rows = {(r.low, r.high, r.known): r for r in found.rows}
    if column not in found.columns:
        return (None,) * len(like.rows)
    at = found.columns.index(column)
    values: list[Value | None] = []
    for row in like.rows:
        same = rows.get((row.low, row.high, row.known))
        e = None if same is None else same.estimates[at]
        values.append(None if e is None else (e.mean, e.mean_lower, e.mean_upper))
    return tuple(values)


def timings(report: Report) -> Section:
    """Return how long everything took."""
    shared = [(name, [text.seconds(value)]) for name, value in report.seconds.items()]
    tables = [pairs_table("seconds", "Time for the data", "step", ("time",), shared)]
    names = [m.model.name for m in report.models]
    steps = dict.fromkeys(step for m in report.models for step in m.seconds)
    own = [(step, [text.seconds(m.seconds.get(step)) for m in report.models]) for step in steps]
    tables.append(pairs_table("seconds-models", "Time for the models", "step", names, own))
    found = tuple(table for table in tables if table.rows)
    return Section("timings", "Time", "", (Part("timings-all", "", "", found),) * bool(found))
