"""Calls each command with an output folder on a read-only file system.

Run as a process of its own, on an empty folder; writes a JSON line for each call.
"""

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from tests import mounts

COMMANDS = (
    ["simulate", "--samples", "2", "--workers", "1"],
    ["train", "{}/data", "--preset", "tiny"],
    ["posterior", "--fmin", "1.94e-3", "--fmax", "1.944e-3"],
    ["report", "--simulate", "8"],
    ["ablate", "synthetic", "--quick"],
)


def main(place: Path) -> None:
    """Write into a folder that stands there, and into a new one beside it."""
    mounts.enter()
    from slotflow.cli.main import run
    from tests.refusal import snapshot

    disk = place / "disk"
    mounts.small(disk, 1000)
    stands = disk / "stands"
    stands.mkdir()
    (stands / "notes.txt").write_text("mine")
    mounts.read_only(disk)
    before = snapshot(place)
    for command in COMMANDS:
        for out in (stands, disk / "new"):
            given = [word.format(place) for word in command]
            with redirect_stderr(io.StringIO()) as said, redirect_stdout(io.StringIO()) as told:
                code = run([*given, "-o", str(out)])
            line = {"command": command[0], "out": str(out), "code": code, "said": said.getvalue(),
                    "told": told.getvalue(), "same": snapshot(place) == before}  # fmt: skip
            sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
