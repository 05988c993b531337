"""A result as text: an aligned table of medians and 90% intervals, or JSON."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slotflow.catalogue import COLUMNS, Written
from slotflow.provenance import read_outlying

DEGREE = math.pi / 180.0
HEADER = (
    "", "f0 [mHz]", "90% [nHz]", "amplitude [1e-22]", "ra [deg]", "dec [deg]", "iota [deg]",
    "exists", "SNR",
)  # fmt: skip
#: And of bands whose sources are known.
TRUE_HEADER = ("band", "true f0 [nHz]", "true amplitude", "true SNR")
#: Of refined bands: sources, efficiency of the network's draws, effective draws, ln evidence over
#: noise, of one source more over these, of these over one less, largest divergence (nats).
REFINED_HEADER = (
    "from bin", "sources", "efficiency", "ESS", "k", "steps", "accepted", "evaluations", "ln Z",
    "ln B +1", "ln B -1", "max JS", "s", "",
)  # fmt: skip


def notes(found: Written) -> list[str]:
    """Return the notes kept with a result."""
    return [str(text) for text in json.loads(found.meta["notes"])]


def table_lines(found: Written) -> list[str]:
    """Return the header, one line a source, and what the columns are."""
    settings = json.loads(found.meta["settings"])
    rows = [_cells(number, row) for number, row in enumerate(found.table, start=1)]
    where = f"{settings['fmin'] * 1e3:.4f} to {settings['fmax'] * 1e3:.4f} mHz"
    if not rows:
        return [f"no sources from {where} with a probability of {settings['min_probability']:g}"]
    known = "band" in found.table.colnames
    header = (*HEADER, *TRUE_HEADER) if known else HEADER
    if any(marks := [_mark(row) for row in found.table]):
        header = (*header, "")
        rows = [(*row, mark) for row, mark in zip(rows, marks, strict=True)]
    lines = _align([header, *rows])
    expected = sum(float(row["probability"]) for row in found.table)
    plural = "s" if len(rows) > 1 else ""
    return [
        *lines,
        f"{len(rows)} source{plural} from {where} (sum of probabilities {expected:.1f});"
        " medians and 90% intervals",
    ]


def _mark(row: Any) -> str:
    """Return what stands behind a source whose band lies outside the training distribution."""
    if "outlying" not in row.colnames or not float(row["outlying"]) > 1.0:
        return ""
    return f"outside, {float(row['outlying']):.2f}"


def outlying_lines(found: Written) -> list[str]:
    """Return one line on the bands outside the training distribution; none without a score."""
    if "outlying" not in found.meta:
        return []
    known = read_outlying(found.meta["outlying"])
    outside, bands = known["outside"], known["bands"]
    expected = f"of as many simulated ones {bands / 100:.1f} would be"
    if not outside:
        return [f"outside the training distribution: none of {bands} bands ({expected})"]
    worst = max(outside, key=lambda one: one["score"])
    return [
        f"outside the training distribution: {len(outside)} of {bands} bands ({expected}), the"
        f" farthest from {worst['low'] * 1e3:.4f} mHz (score {worst['score']:.2f}, above 1"
        f" outside, p {worst['p_value']:.2g})"
    ]


def refinement_lines(found: Written) -> list[str]:
    """Return one line a band that was refined, under a header; none where none was."""
    rows = json.loads(found.meta.get("refinement", "[]"))
    if not rows:
        return []
    return _align([REFINED_HEADER, *(_refined_cells(row) for row in rows)])


def _refined_cells(row: Any) -> tuple[str, ...]:
    return (
        str(row["first_bin"]),
        str(row["sources"]),
        _or_dash(row["efficiency"], ".3f"),
        _or_dash(row["ess"], ".0f"),
        _or_dash(row["pareto_k"], ".2f"),
        str(row["temperatures"] or "-"),
        _or_dash(row["acceptance"], ".2f"),
        _or_dash(row["evaluations"], ".0f"),
        *(
            f"{_or_dash(row[name], '.1f')} +- {_or_dash(row[f'{name}_error'], '.1f')}"
            for name in ("ln_z", "more", "fewer")
        ),
        _or_dash(row["divergence"], ".3f"),
        _or_dash(row["seconds"], ".1f"),
        "" if row["reliable"] else "see the notes",
    )


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _cells(number: int, row: Any) -> tuple[str, ...]:
    """Return one source's cells; f0's interval is given as its distance from the median."""
    f0 = float(row["f0"])
    low, high = ((float(row[f"f0_{end}"]) - f0) * 1e9 for end in ("lower", "upper"))
    cells = (
        str(number),
        f"{f0 * 1e3:.7f}",
        f"{low:+.2f} {high:+.2f}",
        _interval(row, "amplitude", 1e-22, ".2f"),
        _interval(row, "ra", DEGREE, ".1f"),
        _interval(row, "dec", DEGREE, ".1f"),
        _interval(row, "iota", DEGREE, ".0f"),
        f"{float(row['probability']):.3f}",
        f"{float(row['snr']):.1f}",
    )
    return (*cells, *_true_cells(row, f0)) if "band" in row.colnames else cells


def _true_cells(row: Any, f0: float) -> tuple[str, ...]:
    """Return a source's band and the true source; its f0 is given as its distance from ours."""
    band, true = str(int(row["band"])), float(row["true_f0"])
    if not math.isfinite(true):
        return band, "none", "", ""
    return (
        band,
        f"{(true - f0) * 1e9:+.2f}",
        f"{float(row['true_amplitude']) / 1e-22:.2f}",
        f"{float(row['true_snr']):.1f}",
    )


def _interval(row: Any, name: str, unit: float, form: str) -> str:
    middle, low, high = (float(row[name + end]) / unit for end in ("", "_lower", "_upper"))
    return f"{middle:{form}} [{low:{form}}, {high:{form}}]"


def _align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Right-align the columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]


def as_json(found: Written, table_path: Path, samples_path: Path, indent: int | None = 1) -> str:
    """Return the result as one JSON object, in SI units and radians; null where not known."""
    names = [name + end for name, _, _ in COLUMNS for end in ("", "_lower", "_upper")]
    names += ["probability", "snr", *(["outlying"] if "outlying" in found.table.colnames else [])]
    if "band" in found.table.colnames:
        names += ["band", *(name for name in found.table.colnames if name.startswith("true_"))]
    content = {
        "sources": [{name: _number(row[name]) for name in names} for row in found.table],
        "settings": json.loads(found.meta["settings"]),
        "notes": notes(found),
        "outlying": read_outlying(found.meta["outlying"]) if "outlying" in found.meta else None,
        "refinement": json.loads(found.meta.get("refinement", "[]")),
        "input_sha256": found.meta.get("input_sha256"),
        "model_sha256": found.meta.get("model_sha256"),
        "samples": str(samples_path),
        "table": str(table_path),
    }
    return json.dumps(content, indent=indent)


def _number(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None
