"""The page of a report: one HTML file with its style and pictures in it.

It loads nothing, runs no script, and says so to the browser. What comes from users, paths and
names and a model's card, is escaped wherever it stands.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from slotflow.report import svg, text
from slotflow.report.record import Report
from slotflow.report.sections import sections
from slotflow.report.summary import summary_table
from slotflow.report.verdict import compared, verdict

TEMPLATES: Final = Path(__file__).parent / "templates"

_MARKS: Final = {"pass": ("✓", "passed"), "fail": ("✗", "not passed"), "note": ("•", "note")}


def render(report: Report) -> str:
    """Return the page of a report, one model or several side by side.

    The same report gives the same page, byte for byte.
    """
    labels, names = parameter_labels(report), [m.model.name for m in report.models]
    return _environment().get_template("page.html.j2").render(
        title="Are these posteriors right? " + ", ".join(names),
        report=report, names=names, several=len(names) > 1, marks=_MARKS,
        legend=[(svg.swatch(i), name) for i, name in enumerate(names)],
        verdicts=[(m.model.name, verdict(m, report, labels)) for m in report.models],
        summary=summary_table("summary", report), compared=compared(report, labels),
        sections=sections(report, labels),
    )  # fmt: skip


def parameter_labels(report: Report) -> dict[str, str]:
    """Return how parameters and joint scores are called in the page."""
    return {p.name: p.label for p in report.parameters} | {"nll": "NLL", "energy": "energy score"}


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["json"] = as_json
    environment.filters["count"] = text.count
    return environment


def as_json(value: Mapping[str, Any]) -> str:
    """Return settings as indented JSON; what JSON has not is written as text."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, default=str)
