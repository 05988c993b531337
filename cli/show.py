"""A result as text: an aligned table of medians and 90% intervals, or JSON."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slotflow.catalogue import COLUMNS, Written

DEGREE = math.pi / 180.0
HEADER = (
    "", "f0 [mHz]", "90% [nHz]", "amplitude [1e-22]", "ra [deg]", "dec [deg]", "iota [deg]",
    "exists", "SNR",
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
    lines = _align([HEADER, *rows])
    expected = sum(float(row["probability"]) for row in found.table)
    plural = "s" if len(rows) > 1 else ""
    return [
        *lines,
        f"{len(rows)} source{plural} from {where} (sum of probabilities {expected:.1f});"
        " medians and 90% intervals",
    ]


def _cells(number: int, row: Any) -> tuple[str, ...]:
    """Return one source's cells; f0's interval is given as its distance from the median."""
    f0 = float(row["f0"])
    low, high = ((float(row[f"f0_{end}"]) - f0) * 1e9 for end in ("lower", "upper"))
    return (
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


def as_json(found: Written, table_path: Path, samples_path: Path) -> str:
    """Return the result as one JSON object, in SI units and radians."""
    names = [name + end for name, _, _ in COLUMNS for end in ("", "_lower", "_upper")]
    names += ["probability", "snr"]
    content = {
        "sources": [{name: float(row[name]) for name in names} for row in found.table],
        "settings": json.loads(found.meta["settings"]),
        "notes": notes(found),
        "input_sha256": found.meta.get("input_sha256"),
        "model_sha256": found.meta.get("model_sha256"),
        "samples": str(samples_path),
        "table": str(table_path),
    }
    return json.dumps(content, indent=1)
