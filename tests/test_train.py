"""Training: learns, resumes bit for bit, and stops at numbers that are not finite."""

import math
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from slotflow.checkpoint import load_model
from slotflow.cli.main import run
from slotflow.config import Preset, load_preset
from slotflow.errors import InputError, NonFiniteError
from slotflow.evaluation import evaluate, summary
from slotflow.manifest import SAMPLE_GROUP
from slotflow.model import SlotFlow
from slotflow.response import ResponseGrid
from slotflow.tokendata import TokenData
from slotflow.tokenstore import TokenStore, record_dtype, write_tokens
from slotflow.train import LOG_FILE, MODEL_FILE, STATE_FILE, Trainer, learning_rate, split
from tests.synthetic import BINS, DURATION, token_data
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
    assert (tmp_path / LOG_FILE).read_text().startswith("step,seconds,rate,train_nll")
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


def on_disk(data: TokenData, folder: Path) -> TokenStore:
    """Write bands in files of 50; the last is smaller."""
    folder.mkdir(parents=True)
    number = len(data.number)
    starts = range(0, number, 50)
    paths = [folder / f"tokens-{start}.bin" for start in starts]
    rows = [min(50, number - start) for start in starts]
    for path, start, count in zip(paths, starts, rows, strict=True):
        write_tokens(path, data.rows(np.arange(start, start + count)))
    shape = data.valid.shape[1], data.snr.shape[1]
    return TokenStore(paths, rows, number, record_dtype(*shape))


def weights(network: torch.nn.Module) -> bytes:
    return b"".join(value.numpy().tobytes() for value in network.state_dict().values())


def test_streamed_run_equals_the_one_in_memory(tmp_path: Path, slow_grid: ResponseGrid) -> None:
    """Same batches, weights, validation and scores, also when broken off between."""
    data = token_data(2, 160)
    store = on_disk(data, tmp_path / "set")
    whole = Trainer(preset(960), data, slow_grid, tmp_path / "whole")
    whole.run()
    Trainer(preset(960), store, slow_grid, tmp_path / "streamed").run(stop_after=0.0)
    streamed = Trainer(preset(960), store, slow_grid, tmp_path / "streamed")
    assert streamed.step == 1
    streamed.run()
    assert weights(streamed.network) == weights(whole.network)
    assert weights(streamed.average) == weights(whole.average)
    assert streamed.validate() == whole.validate()
    scores = [
        evaluate(trainer.average.eval(), held, DURATION, draws=16, batch=7).scores
        for trainer, held in ((whole, data), (streamed, store))
    ]
    for a, b in zip(*scores, strict=True):
        assert np.array_equal(a, b)


def test_other_data_are_refused(tmp_path: Path, slow_grid: ResponseGrid) -> None:
    Trainer(preset(64), token_data(2, 160), slow_grid, tmp_path).run()
    with pytest.raises(InputError, match=f"{STATE_FILE}: a run with other settings or data"):
        Trainer(preset(64), token_data(3, 160), slow_grid, tmp_path)


def test_features_are_standardised(tmp_path: Path, slow_grid: ResponseGrid) -> None:
    """As :meth:`SlotFlow.standardise` does it with all tokens at once."""
    data = token_data(2, 320)
    trainer = Trainer(preset(64), data, slow_grid, tmp_path)
    features, valid = data.features[trainer.training.index], data.valid[trainer.training.index]
    network = SlotFlow(SMALL, BINS)
    network.standardise(torch.from_numpy(features), torch.from_numpy(valid))
    for other in (trainer.network, trainer.average):
        assert torch.equal(network.feature_mean, other.feature_mean)
        assert torch.equal(network.feature_scale, other.feature_scale)


def test_damaged_tokens_stop_the_run(tmp_path: Path, slow_grid: ResponseGrid) -> None:
    store = on_disk(token_data(2, 160), tmp_path / "set")
    trainer = Trainer(preset(960), store, slow_grid, tmp_path / "run")
    path = store.paths[1]
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(InputError, match=f"{path.name}: damaged"):
        trainer.run()


class Full:
    """Stands for a writer that meets a full disk after some bytes."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def write(self, path: Path, _: object) -> None:
        with path.open("wb") as file:
            file.write(b"half")
        raise self.error


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), OSError(30, "Read-only file system")]
)
def test_a_full_disk_leaves_the_last_checkpoint(
    tmp_path: Path, slow_grid: ResponseGrid, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    data = token_data(2, 160)
    Trainer(preset(640), data, slow_grid, tmp_path).run(stop_after=0.0)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    trainer = Trainer(preset(640), data, slow_grid, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", lambda *given: Full(error).write(*given))
        with pytest.raises(InputError, match=f"{STATE_FILE}: cannot be written: ") as caught:
            trainer.run(stop_after=0.0)
    assert str(error.args[-1]) in str(caught.value)
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert {name: after[name] for name in (STATE_FILE, MODEL_FILE)} == {
        name: before[name] for name in (STATE_FILE, MODEL_FILE)
    }
    assert after.keys() <= before.keys() | {LOG_FILE}
    again = Trainer(preset(640), data, slow_grid, tmp_path)
    assert again.step == 1
    again.run()


LIMITED = """
import pickle, resource, sys
from pathlib import Path
from slotflow.errors import InputError
from slotflow.train import Trainer
from tests.synthetic import token_data
from tests.test_train import preset

folder = Path(sys.argv[1])
grid = pickle.loads(Path(sys.argv[2]).read_bytes())
trainer = Trainer(preset(6400), token_data(2, 160), grid, folder)
trainer.run(stop_after=0.0)
for limit in (200_000, 1_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        trainer.run(stop_after=0.0)
    except InputError as error:
        print(error)
"""


def test_a_write_that_the_system_refuses(tmp_path: Path, slow_grid: ResponseGrid) -> None:
    """A limit on the size of files stands for a full disk."""
    folder, grid = tmp_path / "run", tmp_path / "grid"
    grid.write_bytes(pickle.dumps(slow_grid))
    command = [sys.executable, "-c", LIMITED, str(folder), str(grid)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all(f"{STATE_FILE}: cannot be written: " in line for line in lines)
    assert Trainer(preset(6400), token_data(2, 160), slow_grid, folder).step == 1
    assert not list(folder.glob(".*"))


@pytest.mark.parametrize(("bands", "said"), [(255, True), (256, False)])
def test_fewer_bands_than_asked_for_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    bands: int, said: bool,
) -> None:  # fmt: skip
    def stop(*_: object) -> None:
        raise InputError("enough")

    monkeypatch.setattr("slotflow.cli.train.simulate_if_needed", lambda *_: None)
    monkeypatch.setattr("slotflow.cli.train.open_set", lambda *_: range(bands))
    monkeypatch.setattr("slotflow.cli.train.search", stop)
    monkeypatch.chdir(tmp_path)
    assert run(["train", "data", "--preset", "tiny"]) == 2
    line = "data has 255 bands, the preset 'tiny' asks for 256"
    assert (line in capsys.readouterr().err) == said


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
    assert len(held) == 2 * 128
    assert len(training) == 2 * 512
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
