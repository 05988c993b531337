"""Training: learns, resumes bit for bit, and stops at numbers that are not finite."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from slotflow.checkpoint import load_model
from slotflow.config import Preset, load_preset
from slotflow.errors import InputError, NonFiniteError
from slotflow.evaluation import evaluate, summary
from slotflow.manifest import SAMPLE_GROUP
from slotflow.response import ResponseGrid
from slotflow.train import LOG_FILE, MODEL_FILE, STATE_FILE, Trainer, learning_rate, split
from tests.synthetic import DURATION, token_data
from tests.test_losses import SMALL


def preset(passes: int, **train: object) -> Preset:
    base = load_preset("tiny")
    settings = base.train.model_copy(update={"passes": passes, "batch": 32} | train)
    return base.model_copy(update={"train": settings, "model": SMALL})


def test_learns(tmp_path: Path, slow_grid: ResponseGrid) -> None:
    """NLL falls by nats and slots find the loud components, on synthetic tokens."""
    data = token_data(0, 400)
    trainer = Trainer(preset(12_000, learning_rate=3e-3, average=0.9), data, slow_grid, tmp_path)
    before = trainer.validate()
    trainer.run()
    after = trainer.validate()
    assert after["nll"] < before["nll"] - 2.0
    assert after["hit"] > 0.8
    assert (tmp_path / LOG_FILE).read_text().startswith("step,seconds,train_nll")
    model = load_model(tmp_path / MODEL_FILE)
    result = evaluate(model.network, token_data(1, 50), DURATION, draws=64)
    figures = summary(result)
    assert figures["sources"] == sum(i % 5 for i in range(50))
    assert result.scores.crps.shape == (figures["sources"], 8)
    assert float(np.mean(result.scores.crps[:, 0])) < 0.08


def test_resumed_run_equals_the_whole(tmp_path: Path, slow_grid: ResponseGrid) -> None:
    data = token_data(2, 160)
    whole = Trainer(preset(960), data, slow_grid, tmp_path / "whole")
    whole.run()
    first = Trainer(preset(960), data, slow_grid, tmp_path / "parts")
    first.run(stop_after=0.0)
    assert first.step == 1
    second = Trainer(preset(960), data, slow_grid, tmp_path / "parts")
    assert second.step == 1
    second.run()
    for name, value in whole.network.state_dict().items():
        assert torch.equal(value, second.network.state_dict()[name]), name
    for name, value in whole.average.state_dict().items():
        assert torch.equal(value, second.average.state_dict()[name]), name


def test_other_settings_are_refused(tmp_path: Path, slow_grid: ResponseGrid) -> None:
    data = token_data(2, 160)
    Trainer(preset(64), data, slow_grid, tmp_path).run()
    with pytest.raises(InputError, match=f"{STATE_FILE}: a run with other settings"):
        Trainer(preset(128), data, slow_grid, tmp_path)


def test_non_finite_loss_names_step_and_samples(tmp_path: Path, slow_grid: ResponseGrid) -> None:
    data = token_data(3, 160)
    data.features[74] = np.nan
    trainer = Trainer(preset(1000), data, slow_grid, tmp_path)
    trainer.network.feature_mean.zero_()
    trainer.network.feature_scale.fill_(1.0)
    with pytest.raises(NonFiniteError, match=r"step \d+: .*not finite.*samples .*74"):
        trainer.run()


def test_split_holds_out_whole_groups() -> None:
    """A group's bands share foreground responses, and a band its noise draws."""
    one = token_data(4, 640)
    both = type(one)(*(np.concatenate([a, a]) for a in one))
    training, held = split(both, 0.2)
    assert len(held.number) == 2 * 128
    assert len(training.number) == 2 * 512
    groups = [set((part.sample // SAMPLE_GROUP).tolist()) for part in (training, held)]
    assert groups[1] == {0, 5}
    assert not groups[0] & groups[1]
    with pytest.raises(InputError, match="too few"):
        split(token_data(4, 60), 0.5)


def test_broken_state_is_refused_by_name(tmp_path: Path, slow_grid: ResponseGrid) -> None:
    data = token_data(2, 160)
    Trainer(preset(64), data, slow_grid, tmp_path).run()
    state = tmp_path / STATE_FILE
    whole = state.read_bytes()
    for content in (whole[:2000], b"not a state"):
        state.write_bytes(content)
        with pytest.raises(InputError, match=f"{STATE_FILE}: not the state of a run"):
            Trainer(preset(64), data, slow_grid, tmp_path)


def test_log_has_each_step_once(tmp_path: Path, slow_grid: ResponseGrid) -> None:
    data = token_data(2, 160)
    Trainer(preset(640), data, slow_grid, tmp_path).run(stop_after=0.0)
    early = (tmp_path / STATE_FILE).read_bytes()
    Trainer(preset(640), data, slow_grid, tmp_path).run()
    (tmp_path / STATE_FILE).write_bytes(early)  # as if killed before the last checkpoint
    Trainer(preset(640), data, slow_grid, tmp_path).run()
    steps = [line.split(",")[0] for line in (tmp_path / LOG_FILE).read_text().splitlines()[1:]]
    assert len(steps) == len(set(steps)) == 20


def test_learning_rate_rises_then_falls_to_nothing() -> None:
    factors = [learning_rate(step, 1000, 0.1) for step in range(1000)]
    assert factors[0] == pytest.approx(0.01)
    assert max(factors) == pytest.approx(1.0)
    assert factors[99] == pytest.approx(1.0)
    assert factors[549] == pytest.approx(0.5 * (1 + math.cos(math.pi * 449 / 900)))
    assert factors[-1] < 1e-5
