"""A wall clock that is set back and forth all the time changes no data, and no time that is told.

Of the simulation, see test_folder.py.
"""

import csv
import io
import itertools
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from slotflow.checkpoint import save_model
from slotflow.cli.common import progress
from slotflow.cli.main import run
from slotflow.cli.train import training_text
from slotflow.response import ResponseGrid
from slotflow.train import LOG_FILE, Trainer
from tests.chain import untrained_model
from tests.jumping import Jumping
from tests.killing import data
from tests.synthetic import token_data
from tests.test_train import preset


def _trained(folder: Path, grid: ResponseGrid) -> tuple[dict[str, Any], list[dict[str, str]]]:
    settings = preset(160, validations=5, checkpoint_seconds=1e-9)
    Trainer(settings, token_data(2, 160), grid, folder).run()
    with (folder / LOG_FILE).open(newline="") as file:
        return data("train", folder), list(csv.DictReader(file))


def test_training(tmp_path: Path, slow_grid: ResponseGrid, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, rows = _trained(tmp_path / "steady", slow_grid)
    with monkeypatch.context() as patch:
        Jumping(patch)
        others, jumped = _trained(tmp_path / "jumping", slow_grid)
    assert weights == others
    assert len(rows) == 5
    seconds = [float(row.pop("seconds")) for row in jumped]
    assert all(0.0 <= a <= b < 1e4 for a, b in itertools.pairwise(seconds))
    assert jumped == [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def test_posterior(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command, with the batches that it keeps meanwhile, table and samples."""
    model = tmp_path / "model.safetensors"
    save_model(model, untrained_model())
    command = ["posterior", "--model", str(model), "--fmin", "1.940e-3", "--fmax", "1.943e-3",
               "--samples", "40", "-o"]  # fmt: skip
    assert run([*command, str(tmp_path / "steady")]) == 0
    with monkeypatch.context() as patch:
        Jumping(patch)
        assert run([*command, str(tmp_path / "jumping")]) == 0
    found = data("posterior", tmp_path / "jumping")
    assert found
    assert found == data("posterior", tmp_path / "steady")


class Terminal(io.StringIO):
    """Takes a bar."""

    def isatty(self) -> bool:
        return True


def test_a_bar_tells_how_long_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty steps of half a second: neither less than nothing nor years."""
    terminal, ticks = Terminal(), itertools.count(1000.0, 0.25)
    with monkeypatch.context() as patch:
        clock = Jumping(patch)
        patch.setattr(time, "monotonic", lambda: next(ticks))
        patch.setattr(sys, "stderr", terminal)
        with progress("training", "steps") as shown:
            for step in range(1, 41):
                shown(step, 40, "")
        assert clock.looks > 0  # of the bar itself, when it is made
    told = re.findall(r"\[([-\d:]+)<([-\d:?]+),", terminal.getvalue())
    assert len(told) > 10
    passed = [_seconds(elapsed) for elapsed, _ in told]
    assert passed == sorted(passed)
    assert passed[0] >= 0
    assert 5 < passed[-1] < 120
    left = [_seconds(rest) for _, rest in told if rest != "?"]
    assert all(0 <= rest < 120 for rest in left)


def _seconds(text: str) -> int:
    minutes, seconds = text.removeprefix("-").split(":")
    total = 60 * int(minutes) + int(seconds)
    return -total if text.startswith("-") else total


def test_time_left_of_a_training() -> None:
    assert training_text({"nll": 2.0, "psi": 0.0}, 41.6, 3725.2) == (
        "nll 2; 42 samples/s, 1:02:05 left"
    )
