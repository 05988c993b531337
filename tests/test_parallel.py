"""Processes that train together, against one that trains alone."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from slotflow.checkpoint import load_model
from slotflow.cli.main import run
from slotflow.config import Preset, load_preset
from slotflow.errors import InputError, NonFiniteError
from slotflow.parallel import Launch, Parallel, launch
from slotflow.response import ResponseGrid
from slotflow.runlog import LOG_FILE
from slotflow.runstate import BEFORE_FILE, STATE_FILE
from slotflow.simulate.orbits import response_grid
from slotflow.store import TrainingSet
from slotflow.tokencache import open_tokens
from slotflow.train import BEST_FILE, MODEL_FILE, Trainer
from tests import gloo
from tests.elsewhere import ROOT, spawned
from tests.synthetic import token_data
from tests.test_losses import SMALL

TWO = Launch(processes=2)


@pytest.fixture(autouse=True)
def _spawned_find_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is started takes the path from here, where pytest puts no folder."""
    monkeypatch.syspath_prepend(str(ROOT))


def preset(passes: int, **train: object) -> Preset:
    base = load_preset("tiny")
    settings = base.train.model_copy(update={"passes": passes, "batch": 32} | train)
    return base.model_copy(update={"train": settings, "model": SMALL})


def test_two_processes_are_as_one_and_an_uneven_set_ends(
    tmp_path: Path, slow_grid: ResponseGrid
) -> None:
    """101 training bands in batches of 10; the first batch's gradient is that of one process."""
    data, settings = token_data(2, 165), preset(250, batch=10, validation_fraction=0.34)
    gloo.one_gradient(Parallel(), settings, data, slow_grid, tmp_path)
    launch(TWO, gloo.gradient_and_run, settings, data, slow_grid, tmp_path)
    load = [torch.load(tmp_path / f"gradient-{n}.pt") for n in ("0-of-1", "0-of-2", "1-of-2")]
    largest = max(float(g.abs().max()) for g in load[0].values())
    assert largest > 0.0
    for name, expected in load[0].items():
        for other in load[1:]:
            assert torch.allclose(other[name], expected, rtol=1e-9, atol=1e-12 * largest), name
    own = [json.loads((tmp_path / f"own-{n}-of-2.json").read_text()) for n in (0, 1)]
    whole = json.loads((tmp_path / "own-0-of-1.json").read_text())
    assert sorted(own[0]["index"] + own[1]["index"]) == sorted(whole["index"])
    assert own[0]["draw"] != own[1]["draw"]
    training = load_model(tmp_path / "run" / MODEL_FILE).card["training"]
    assert (training["bands"], training["steps"], training["processes"]) == (101, 25, 2)


def test_what_is_not_finite_ends_all_with_one_error(
    tmp_path: Path, slow_grid: ResponseGrid
) -> None:
    data = token_data(4, 160)
    data.features[100, 0, 0] = float("nan")
    data.valid[100, 0] = True
    with pytest.raises(NonFiniteError, match=r"step \d+: .*samples"):
        launch(TWO, gloo.train, preset(640), data, slow_grid, tmp_path)


def test_a_broken_off_run_equals_the_whole_with_every_schedule(
    tmp_path: Path, slow_grid: ResponseGrid
) -> None:
    """Plateau, accumulation and dropout: 2 + 2 epochs are 4, bit for bit, and logged once."""
    data = token_data(5, 160)
    model = SMALL.model_copy(update={"dropout": 0.2, "stream_dropout": 0.2})
    settings = preset(
        384, schedule="plateau", patience=0, accumulate=2, optimiser="adam", validations=6,
        batch=16,
    ).model_copy(update={"model": model})  # fmt: skip
    whole = Trainer(settings, data, slow_grid, tmp_path / "whole")
    whole.run()
    for _ in range(100):
        parts = Trainer(settings, data, slow_grid, tmp_path / "parts")
        parts.run(stop_after=0.0)
        if parts.step == parts.steps:
            break
    assert parts.steps == 12
    for a, b in ((whole.network, parts.network), (whole.average, parts.average)):
        for name, value in a.state_dict().items():
            assert torch.equal(value, b.state_dict()[name]), name
    assert whole.plateau.state() == parts.plateau.state()
    assert whole.plateau.scale < 1.0
    rows = [
        [line.split(",")[0] for line in (tmp_path / n / LOG_FILE).read_text().splitlines()]
        for n in ("whole", "parts")
    ]
    assert rows[0] == rows[1] == ["step", "2", "4", "6", "8", "10", "12"]
    assert load_model(tmp_path / "parts" / BEST_FILE).card["training"]["steps"] >= 2


def test_a_damaged_state_falls_back_to_the_one_before(
    tmp_path: Path, slow_grid: ResponseGrid
) -> None:
    data, settings = token_data(6, 160), preset(320)
    for step in (1, 2, 3):
        trainer = Trainer(settings, data, slow_grid, tmp_path)
        trainer.run(stop_after=0.0)
        assert trainer.step == step
    whole = Trainer(settings, data, slow_grid, tmp_path / "whole")
    whole.run()
    (tmp_path / STATE_FILE).write_bytes((tmp_path / STATE_FILE).read_bytes()[:1000])
    again = Trainer(settings, data, slow_grid, tmp_path)
    assert again.step == 2
    assert STATE_FILE in again.note
    assert BEFORE_FILE in again.note
    again.run()
    for name, value in whole.network.state_dict().items():
        assert torch.equal(value, again.network.state_dict()[name]), name
    (tmp_path / STATE_FILE).write_bytes(b"")
    (tmp_path / BEFORE_FILE).write_bytes(b"")
    with pytest.raises(InputError, match="not the state of a run"):
        Trainer(settings, data, slow_grid, tmp_path)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training set with its components."""
    folder = tmp_path_factory.mktemp("searched")
    arguments = ["train", str(folder / "data"), "--preset", "tiny", "-o", str(folder / "run")]
    assert run([*arguments, "--workers", "1", "--passes", "64"]) == 0
    return folder / "data"


def training(searched: Path, folder: Path, processes: int) -> "subprocess.Popen[str]":
    """Start a command that trains for long."""
    call = "if __name__ == '__main__':\n import sys\n from slotflow.cli.main import run\n"
    arguments = ["train", str(searched), "--preset", "tiny", "-o", str(folder), "--workers", "1",
                 "--processes", str(processes), "--passes", "4000000"]  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-c", call + " sys.exit(run(sys.argv[1:]))", *arguments],
        cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_sigterm_saves_and_the_same_command_goes_on(
    searched: Path, tmp_path: Path, processes: int
) -> None:
    folder = tmp_path / "run"
    child = training(searched, folder, processes)
    deadline = time.monotonic() + 120
    # with two processes a third waits for the signal, too: the one that hands it on to them
    waiting = processes + (processes > 1)
    while not (folder / "tensorboard").exists() or trainers(child.pid) < waiting:
        assert time.monotonic() < deadline
        assert child.poll() is None, child.communicate()
        time.sleep(0.1)
    time.sleep(2.0)
    child.send_signal(signal.SIGTERM)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 75, (out, err)
    step = int(err.split("stopped by SIGTERM at step ")[1].split(" ")[0])
    assert torch.load(folder / STATE_FILE, weights_only=True)["step"] == step
    preset = load_preset("tiny")
    train = preset.train.model_copy(update={"passes": 4_000_000})
    settings = preset.model_copy(update={"train": train})
    data = TrainingSet(searched)
    grid = response_grid(data.observation, settings.components.slow_samples)
    tokens = open_tokens(data, settings.components, 1)
    assert Trainer(settings, tokens, grid, folder).step == step


@pytest.mark.slow
def test_sigterm_while_processes_start(searched: Path, tmp_path: Path) -> None:
    """They do not take note of signals yet: it ends them, and the run is one that was stopped."""
    child = training(searched, tmp_path / "run", 2)
    deadline = time.monotonic() + 120
    while len(spawned(child.pid)) < 2:
        assert time.monotonic() < deadline
        assert child.poll() is None, child.communicate()
        time.sleep(0.02)
    child.send_signal(signal.SIGTERM)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 75, (out, err)
    assert "stopped by SIGTERM" in err
    assert "Traceback" not in err


def trainers(parent: int) -> int:
    """How many of a process and its children wait for SIGTERM, as a training loop does."""
    number = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            rows = dict(line.split(":", 1) for line in status.read_text().splitlines())
        except OSError:  # it has ended
            continue
        ours = parent in (int(status.parent.name), int(rows["PPid"]))
        number += ours and bool(int(rows["SigCgt"], 16) & 1 << (signal.SIGTERM - 1))
    return number


def test_what_this_machine_does_not_have() -> None:
    with pytest.raises(InputError, match="--gpus 99"):
        launch(Launch(gpus=99), gloo.train)
    with pytest.raises(InputError, match="--processes 4096"):
        launch(Launch(processes=4096), gloo.train)
    assert run(["train", "--gpus", "99"]) == 2


def test_bf16_keeps_the_density_in_float32(tmp_path: Path, slow_grid: ResponseGrid) -> None:
    """Autocast moves ln q by its products' rounding, not by the splines' (0.9 nat)."""
    trainer = Trainer(preset(3200), token_data(7, 160), slow_grid, tmp_path)
    trainer.run()

    rows = trainer._load(trainer.held, np.arange(60))
    network = trainer.network.eval()
    with torch.no_grad():
        reading = network.read(rows.batch)
        plain = network.pair_log_prob(
            rows.targets.sources, rows.targets.component >= 0, reading.context, reading.reference
        )
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cast = network.pair_log_prob(
                rows.targets.sources, rows.targets.component >= 0, reading.context,
                reading.reference,
            )  # fmt: skip
    assert cast.dtype == torch.float32
    near = plain > -50.0
    assert float((plain - cast).abs()[near].median()) < 0.05
