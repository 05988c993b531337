"""A comparison as a table: mean and deviation over the seeds."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Record = dict[str, Any]


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and population deviation (as the published figures have it)."""
    return float(np.mean(values)), float(np.std(values))


def grouped(records: Sequence[Record]) -> dict[tuple[str, str], list[Record]]:
    """Return the records by task and method, in the order in which they come."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record["task"], record["method"]), []).append(record)
    return groups


def flat(record: Record) -> dict[str, float]:
    """Return the numbers of a record, nested ones with their names joined by a dot."""
    found: dict[str, float] = {}
    for key, value in record.items():
        if isinstance(value, dict):
            found |= {f"{key}.{name}": v for name, v in flat(value).items()}
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[key] = float(value)
    return found


def columns(records: Sequence[Record]) -> list[str]:
    """Return the names of the numbers that some record has, seed and sizes apart."""
    names: dict[str, None] = {}
    for record in records:
        own = {k: v for k, v in record.items() if k not in ("settings", "examples", "seed")}
        names |= dict.fromkeys(flat(own))
    return list(names)


def markdown(records: Sequence[Record], shown: Sequence[str] | None = None) -> str:
    """Return a table with a row for each task and method: mean ± deviation over the seeds.

    Args:
        records: of all runs.
        shown: columns, by the names of :func:`columns`; all where None.
    """
    chosen = columns(records) if shown is None else list(shown)
    lines = [
        "| task | method | seeds | " + " | ".join(chosen) + " |",
        "|---" * (len(chosen) + 3) + "|",
    ]
    for (task, method), group in grouped(records).items():
        cells = [_cell([flat(record).get(name, math.nan) for record in group]) for name in chosen]
        lines.append(f"| {task} | {method} | {len(group)} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(values: Sequence[float]) -> str:
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return "-"
    mean, deviation = spread(known)
    digits = max(2, 2 - math.floor(math.log10(abs(mean)))) if 0 < abs(mean) < 1 else 2
    return f"{mean:.{digits}f} ± {deviation:.{digits}f}" if len(known) > 1 else f"{mean:.{digits}f}"
