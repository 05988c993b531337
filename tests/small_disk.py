"""Trains on file systems that are too small, and in folders that become read-only.

Run as a process of its own, on an empty folder; writes a JSON line for each case.
"""

import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import mounts

CASES = 3
CHANGES = (4,)  # that are let through before a folder is read-only
_NEEDED = ("torch", "slotflow.train", "slotflow.simulate.inputs", "slotflow.evaluation")


def main(place: Path) -> None:
    """Train undisturbed, then with each obstacle, and again without it."""
    mounts.enter()
    for name in _NEEDED:  # once, for all the runs
        importlib.import_module(name)
    from tests.killing import data
    from tests.training_place import prepare

    prepare(place)
    _warm(place)
    code, said = train(place, place / "whole")
    assert code == 0, said
    whole = data("train", place / "whole")
    kilobytes = sum(path.stat().st_size for path in (place / "whole").iterdir()) // 1024

    def tell(name: str, out: Path, first: tuple[int, str], left: dict[str, Any]) -> None:
        again, _ = train(place, out)
        found = data("train", out)
        different = [key for key in whole.keys() | found.keys() if whole.get(key) != found.get(key)]
        line = {"case": name, "out": str(out), "code": first[0], "said": first[1],
                "again": again, "different": different, **left}  # fmt: skip
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()

    for number in range(CASES):
        disk = place / f"disk-{number}"
        mounts.small(disk, 16 + kilobytes * (2 * number + 1) // (2 * CASES - 2))
        first = train(place, disk / "run")
        left = standing(disk / "run")
        mounts.resize(disk, 50_000)
        tell("full", disk / "run", first, left)
    for number in CHANGES:
        out = place / f"read-only-{number}"
        first = train(place, out, lambda out=out, number=number: _read_only(out, number))
        tell("read-only", out, first, standing(out))


def _warm(place: Path) -> None:
    """Make once what every run would make for itself."""
    from slotflow.config import load_preset
    from slotflow.simulate.orbits import response_grid

    preset = load_preset(str(place / "settings.yaml"))
    response_grid(preset.observation, preset.components.slow_samples)


def _read_only(out: Path, after: int) -> None:
    import pytest

    from tests.broken_disk import ReadOnly

    ReadOnly(out, after, pytest.MonkeyPatch())  # for good: the process ends with the run


def train(place: Path, out: Path, before: Callable[[], object] = lambda: None) -> tuple[int, str]:
    """Run the command in a process of its own; return its exit code and what it said."""
    said = place / "said"
    if not (pid := os.fork()):
        code = 70
        try:
            with said.open("w") as sys.stderr, Path(os.devnull).open("w") as sys.stdout:
                try:
                    before()
                    code = _run(place, out)
                except BaseException:  # the child must not go on as if it were the parent
                    traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), said.read_text()


def _run(place: Path, out: Path) -> int:
    from slotflow.cli.main import run

    return run(["train", str(place / "data"), "--preset", str(place / "settings.yaml"),
                "--workers", "1", "--no-tensorboard", "-o", str(out)])  # fmt: skip


def standing(out: Path) -> dict[str, Any]:
    """Return what a run that failed left: steps of its checkpoints, and temporary files."""
    import torch

    from slotflow.checkpoint import load_model

    states = [torch.load(out / name, weights_only=True)["step"]
              for name in ("state.pt", "state.before.pt") if (out / name).exists()]  # fmt: skip
    models = [load_model(path).card["training"]["steps"] for path in out.glob("*.safetensors")]
    return {"states": states, "models": models, "left": [path.name for path in out.rglob(".*")]}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
