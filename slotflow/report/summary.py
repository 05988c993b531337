"""The figures by which models are told apart, side by side."""

from slotflow.report.record import ModelReport, Report
from slotflow.report.tables import Cell, Table, integer, number, p_value, percent
from slotflow.report.text import DASH, seconds
from slotflow.report.verdict import LEVEL, loud_recall


def summary_table(ident: str, report: Report) -> Table:
    """Return the figures that matter most, a column a model."""
    columns = [_figures(model, report.settings.loud_snr) for model in report.models]
    if any(model.outlying is not None for model in report.models):
        for column, model in zip(columns, report.models, strict=True):
            scores = model.outlying
            outside = None if scores is None else scores.outside.share
            column["outside the training distribution"] = percent(outside)
    rows = tuple((name, tuple(column[name] for column in columns)) for name in columns[0])
    names = tuple(model.model.name for model in report.models)
    return Table(ident, "In short", "figure", names, rows)


def _figures(model: ModelReport, loud: float) -> dict[str, Cell]:
    tests, scores = model.calibration.p_values, model.scores
    failed = sum(p.adjusted < LEVEL for p in tests)
    least = min((p.adjusted for p in tests), default=None)
    hits, sources = loud_recall(model, loud)
    shown = Cell(f"{failed} of {len(tests)}", failed, "bad" if failed else "")
    return {
        "tests that fail": shown if tests else Cell(DASH),
        "smallest adjusted p": p_value(least, LEVEL),
        "energy score": number(scores.energy.mean),
        "NLL": number(None if scores.nll is None else scores.nll.mean),
        "missed": percent(scores.missed.share),
        "number of sources exact": percent(model.numbers.confusion.exact),
        f"recall from SNR {loud:g} on": percent(hits / sources if sources else None),
        "precision": percent(model.detection.precision.share),
        "false alarms a band": number(model.detection.false_alarms_per_band, 2),
        "parameters": integer(model.model.parameters),
        "time": Cell(seconds(sum(model.seconds.values()))),
    }
