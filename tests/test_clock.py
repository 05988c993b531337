"""The wall clock may step back at any time: nothing is decided by it, it is only written down."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted(
    path
    for folder in ("slotflow", "cli", "simulate")
    for path in (ROOT / folder).rglob("*.py")
    if not any(part.is_symlink() for part in path.parents)
)
#: Who writes down when something was made, and nothing else.
STAMPS = {"slotflow/report/make.py", "slotflow/export_glass.py", "simulate/folder.py"}
WALL = {"time", "time_ns", "localtime", "gmtime", "ctime", "strftime"}  # of the module time
#: Times of files, which another machine's clock may have set.
FILES = {"st_mtime", "st_mtime_ns", "st_ctime", "st_ctime_ns", "getmtime", "getctime"}


def uses(text: str) -> set[str]:
    """Return which clocks a module looks at, by the names of what it calls."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            found |= {f"time.{name.name}" for name in node.names if name.name in WALL}
        if not isinstance(node, ast.Attribute):
            continue
        owner = node.value.id if isinstance(node.value, ast.Name) else ""
        if owner == "time" and node.attr in WALL:
            found.add(f"time.{node.attr}")
        if owner in ("datetime", "date") and node.attr in ("now", "utcnow", "today"):
            found.add("datetime")
        if node.attr in FILES:
            found.add(node.attr)
    return found


def test_it_is_only_written_down() -> None:
    assert len(MODULES) > 100
    found = {str(p.relative_to(ROOT)): uses(p.read_text("utf-8")) for p in MODULES}
    found = {name: clocks for name, clocks in found.items() if clocks}
    # whether a shard was tried already: by whether its time is another, not a later one
    assert found.pop("slotflow/hdf5.py") == {"st_mtime_ns"}
    assert found == {name: {"datetime"} for name in STAMPS}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import time\ntime.time()", {"time.time"}),
        ("from time import time_ns", {"time.time_ns"}),
        ("import time\ntime.monotonic(); time.perf_counter(); time.process_time()", set()),
        ("from datetime import UTC, datetime\ndatetime.now(UTC)", {"datetime"}),
        ("path.stat().st_mtime", {"st_mtime"}),
        ("import os\nos.path.getmtime(path)", {"getmtime"}),
    ],
)
def test_what_looks_at_it_is_found(text: str, expected: set[str]) -> None:
    assert uses(text) == expected
