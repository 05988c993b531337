"""The verdict in plain words: which tests fail, what was learned, what was found."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

from slotflow.report import text
from slotflow.report.record import Difference, ModelReport, Report, Scores
from slotflow.report.tables import given, reached
from slotflow.report.tables_tests import in_words

LEVEL: Final = 0.05  # of the family of tests

Status = Literal["pass", "fail", "note"]


class Line(NamedTuple):
    """One sentence, and whether it is good news."""

    status: Status
    text: str


def verdict(model: ModelReport, report: Report, labels: Mapping[str, str]) -> tuple[Line, ...]:
    """Return what to know of a model, the tests first."""
    lines = [calibration(model, labels), *prior(model.scores, labels)]
    lines += published(model, labels)
    lines += [numbers(model), *found(model, report.settings.loud_snr), *outlying(model)]
    return tuple(lines)


def calibration(model: ModelReport, labels: Mapping[str, str]) -> Line:
    """Say which tests fail once their p-values are adjusted for their number."""
    tests = model.calibration.p_values
    if not tests:
        return Line("note", "Calibration: no test could be made, there are too few sources.")
    failed = sorted((p for p in tests if p.adjusted < LEVEL), key=lambda p: p.adjusted)
    least = min(tests, key=lambda p: (p.adjusted, p.value))
    sources = f"{text.count(model.calibration.sources)} sources, one of each band"
    if not failed:
        return Line(
            "pass",
            f"Calibration: none of {len(tests)} tests fails at 5% after adjustment for their"
            f" number (Holm), on {sources}. The smallest p is {text.p_value(least.value)},"
            f" {in_words(least, labels)}; adjusted {text.p_value(least.adjusted)}.",
        )
    named = "; ".join(f"{in_words(p, labels)} (adjusted p {_equals(p.adjusted)})" for p in failed)
    verb = "fails" if len(failed) == 1 else "fail"
    return Line(
        "fail",
        f"Calibration: {len(failed)} of {len(tests)} tests {verb} at 5% after adjustment for"
        f" their number (Holm), on {sources}: {named}.",
    )


def _equals(p: float) -> str:
    shown = text.p_value(p)
    return shown if shown.startswith("<") else f"= {shown}"


def prior(scores: Scores, labels: Mapping[str, str]) -> list[Line]:
    """Say what was learned of which parameters: whether the CRPS is below the prior's."""
    rows = scores.parameters
    low = [s.compression if s.compression_lower is None else s.compression_lower for s in rows]
    nothing = [s for s, bound in zip(rows, low, strict=True) if bound <= 0.0]
    best = max(rows, key=lambda s: s.compression)
    worst = min(rows, key=lambda s: s.compression)
    span = (
        f"Compression is from {text.percent(worst.compression)} ({labels[worst.name]}) to"
        f" {text.percent(best.compression)} ({labels[best.name]})."
    )
    if not nothing:
        head = f"Prior: the CRPS of all {len(rows)} parameters is below the prior's."
        return [Line("pass", f"{head} {span}")]
    names = ", ".join(labels[s.name] for s in nothing)
    return [
        Line(
            "fail",
            f"Prior: the CRPS of {len(nothing)} of {len(rows)} parameters is not clearly below the"
            f" prior's: {names}. {span}",
        )
    ]


def published(model: ModelReport, labels: Mapping[str, str]) -> list[Line]:
    """Say which published values are reached on all sources."""
    known = [(one, reached(one)) for one in model.published]
    rated = [(one, good) for one, good in known if good is not None]
    if not rated:
        return []
    short = [one for one, good in rated if not good]
    head = f"Published values: {len(rated) - len(short)} of {len(rated)} are reached"
    if not short:
        return [Line("pass", f"{head} (other data, another prior).")]
    parts = []
    for one in short:
        shown = text.percent if one.quantity == "compression" else text.number
        name = "CRPS" if one.quantity == "crps" else one.quantity
        ours = one.ours if one.ours is not None else 0.0
        parts.append(
            f"{name} of {labels.get(one.parameter, one.parameter)} is {shown(ours)},"
            f" published {given(one)}"
        )
    return [Line("fail", f"{head} (other data, another prior). {'; '.join(parts)}.")]


def numbers(model: ModelReport) -> Line:
    """Say how often the number of sources is right."""
    table = model.numbers.confusion
    return Line(
        "note",
        f"Number of sources: right in {text.percent(table.exact)} of {text.count(table.bands)}"
        f" bands, within one in {text.percent(table.within_one)}.",
    )


def loud_recall(model: ModelReport, loud: float) -> tuple[int, int]:
    """Return how many true sources of an SNR from ``loud`` on are found, and of how many."""
    rows = [row.recall for row in model.detection.rows if row.low >= loud]
    return sum(r.hits for r in rows), sum(r.number for r in rows)


def found(model: ModelReport, loud: float) -> list[Line]:
    """Say how many loud sources are found, and how many reports are of none."""
    hits, number = loud_recall(model, loud)
    alarms = model.detection.false_alarms_per_band
    tail = (
        f"{text.number(alarms, 2)} false alarms a band; duplicates:"
        f" {text.count(model.detection.duplicates)}."
    )
    if not number:
        return [Line("note", f"Detection: {tail}")]
    return [
        Line(
            "note",
            f"Detection: {text.percent(hits / number)} of the {text.count(number)} true sources"
            f" from SNR {text.number(loud, 2)} on are found; {tail}",
        )
    ]


def outlying(model: ModelReport) -> list[Line]:
    """Say how many bands are outside the training distribution; nothing without a score."""
    scores = model.outlying
    if scores is None or scores.outside.share is None:
        return []
    outside = scores.outside
    return [
        Line(
            "note",
            f"Training distribution: {text.percent(outside.share)} of {text.count(outside.number)}"
            f" bands are outside it; of simulated ones {scores.nominal:.0%} are.",
        )
    ]


def compared(report: Report, labels: Mapping[str, str]) -> tuple[Line, ...]:
    """Say in which scores the other models differ from the first."""
    lines = []
    for model in report.models[1:]:
        name = model.model.name
        rows = [d for d in report.differences if d.model == name]
        better = _names([d for d in rows if (d.estimate.mean_upper or 0.0) < 0.0], labels)
        worse = _names([d for d in rows if (d.estimate.mean_lower or 0.0) > 0.0], labels)
        if not rows:
            continue
        said = [f"better in {better}"] if better else []
        said += [f"worse in {worse}"] if worse else []
        told = "; ".join(said) or "these bands cannot tell them apart"
        told += f" ({100.0 * report.settings.level:g}% intervals, each score for itself)"
        lines.append(Line("note", f"{name} against {report.models[0].model.name}: {told}."))
    return tuple(lines)


def _names(rows: Sequence[Difference], labels: Mapping[str, str]) -> str:
    return ", ".join(labels.get(d.score, d.score) for d in rows)
