"""The comparison in the model itself: what differs between two runs, and what does not."""

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from slotflow.ablate.lisa import KINDS, lisa_jobs
from slotflow.cli.ablate import ablate
from slotflow.config import Preset, load_preset
from slotflow.model import SlotFlow
from slotflow.simulate.dataset import simulate_dataset
from slotflow.simulate.orbits import response_grid
from slotflow.store import TrainingSet
from slotflow.tokencache import ensure_searched


@pytest.fixture(scope="module")
def preset() -> Preset:
    tiny = load_preset("tiny")
    train = tiny.train.model_copy(update={"passes": 64, "noise_draws": 1})
    return tiny.model_copy(update={"train": train})


@pytest.fixture(scope="module")
def searched(preset: Preset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lisa") / "data"
    simulate_dataset(preset, folder, 130, seed=3)
    grid = response_grid(preset.observation, preset.components.slow_samples)
    ensure_searched(TrainingSet(folder), grid, preset.components, 1, 1)
    return folder


def test_only_the_slots_differ(preset: Preset, searched: Path, tmp_path: Path) -> None:
    grid = response_grid(preset.observation, preset.components.slow_samples)
    jobs = list(lisa_jobs(preset, searched, tmp_path, grid, 2))
    assert len(jobs) == 2 * 2 * 2 * len(KINDS)
    assert len({job.folder for job in jobs}) == len({(j.method, j.seed) for j in jobs}) == len(jobs)
    encoders = []
    for job in jobs[: len(jobs) // 2]:
        own = job.run_preset()
        assert own.loss.attention == (0.0 if job.setting == "exchangeable" else 1.0)
        assert own.model.learned_starts == (job.setting == "guided")
        assert (own.loss.diversity > 0) == (own.loss.orthogonality > 0) == job.diverse
        assert own.loss.nll == preset.loss.nll
        assert own.train.matching == ("flow" if job.setting == "exchangeable" else "attention")
        assert own.train == preset.train.model_copy(update={"matching": own.train.matching})
        torch.manual_seed(own.train.seed)
        encoders.append(SlotFlow(own.model, own.prior.bins).encoder.state_dict())
    for encoder in encoders[1:]:
        assert all(torch.equal(value, encoder[name]) for name, value in encoders[0].items())


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_has_its_figures_and_goes_on(
    kind: str, preset: Preset, searched: Path, tmp_path: Path
) -> None:
    grid = response_grid(preset.observation, preset.components.slow_samples)
    job = next(lisa_jobs(preset, searched, tmp_path, grid, 1, (kind,)))
    found = job.work()
    assert 0.0 <= found["peak_overlap"] <= 1.0
    assert 0.0 <= found["hit"] <= 1.0
    assert found["crps"]["f0"] > 0.0
    assert found["passes"] == 64
    again = job.work()  # the run in its folder is done
    assert again["nll"] == found["nll"]


def test_the_command_compares_on_a_set_that_is_there(searched: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    result = CliRunner().invoke(
        ablate,
        ["lisa", str(searched), "--preset", "tiny", "--samples", "130", "--epochs", "1",
         "--kinds", "linear", "--seeds", "1", "--workers", "1", "-o", str(folder)],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    records = json.loads((folder / "results.json").read_text())
    assert [record["method"] for record in records] == [
        "linear exchangeable", "linear exchangeable without-diversity", "linear guided",
        "linear guided without-diversity",
    ]  # fmt: skip
    assert all(record["passes"] == 130 for record in records)
    assert (folder / "collapse.png").exists()
