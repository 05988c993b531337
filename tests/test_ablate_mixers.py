"""The comparison of mixers: what differs between runs, their figures, and the score maps'."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from slotflow.ablate.mixers import METHODS, balanced, mixer_jobs, parameters, preset_of, sharpness
from slotflow.ablate.scoremaps import argmax_agreement, distances, norm_correlation, score_maps
from slotflow.batches import Tensors
from slotflow.cli.ablate import ablate
from slotflow.config import MIXER_OPTIONS, Preset, load_preset
from slotflow.mixers.quaternion import ScoreMaps
from slotflow.model import SlotFlow
from slotflow.response import ResponseGrid
from slotflow.simulate.dataset import simulate_dataset
from slotflow.simulate.orbits import response_grid
from slotflow.store import TrainingSet
from slotflow.tokencache import ensure_searched, open_tokens


@pytest.fixture(scope="module")
def preset() -> Preset:
    tiny = load_preset("tiny")
    train = tiny.train.model_copy(update={"passes": 64, "noise_draws": 1})
    return tiny.model_copy(update={"train": train})


@pytest.fixture(scope="module")
def grid(preset: Preset) -> ResponseGrid:
    return response_grid(preset.observation, preset.components.slow_samples)


@pytest.fixture(scope="module")
def searched(preset: Preset, grid: ResponseGrid, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixers") / "data"
    simulate_dataset(preset, folder, 130, seed=3)
    ensure_searched(TrainingSet(folder), grid, preset.components, 1, 1)
    return folder


@pytest.mark.parametrize("method", METHODS)
def test_all_have_one_budget_and_differ_in_their_mixer(method: str, preset: Preset) -> None:
    own = preset_of(load_preset("shipped"), method, 7)
    budget = parameters(load_preset("shipped").model)
    if method == "collapsed":  # the same function, with more parameters
        assert parameters(own.model) > budget
    else:
        assert abs(parameters(own.model) / budget - 1.0) < 0.002
    changed = {"mixer", "mlp_width", "parameterisation", *MIXER_OPTIONS}
    plain = preset_of(load_preset("shipped"), "softmax", 7)
    assert own.model.model_dump(exclude=changed) == plain.model.model_dump(exclude=changed)
    assert own.loss == plain.loss
    assert own.train.seed == 7
    ratio = {"qk_learning_rate_ratio"}
    assert own.train.model_dump(exclude=ratio) == plain.train.model_dump(exclude=ratio)
    assert (own == plain) == (method == "softmax")
    tiny = preset_of(preset, method, 1)  # smaller sizes too
    SlotFlow(tiny.model, tiny.prior.bins)


def test_a_width_that_is_the_usual_one_is_not_named(preset: Preset) -> None:
    assert balanced(preset.model, parameters(preset.model)) == preset.model
    wider = balanced(preset.model, 2 * parameters(preset.model))
    assert parameters(wider) == pytest.approx(2 * parameters(preset.model), rel=0.01)


@pytest.mark.parametrize("method", ["quaternion", "dice-streams", "qk-4"])
def test_a_run_has_its_figures_and_goes_on(
    method: str, preset: Preset, grid: ResponseGrid, searched: Path, tmp_path: Path
) -> None:
    job = next(mixer_jobs(preset, searched, tmp_path, grid, 1, (method,)))
    found = job.work()
    assert found["crps"]["f0"] > 0.0
    assert 0.0 <= found["peak_overlap"] <= 1.0
    assert found["encoder_parameters"] < found["parameters"]
    assert found["encoder_parameters"] == parameters(job.run_preset().model)
    if found["largest_attention"] is not None:
        assert 0.0 < found["largest_attention"] <= 1.0
        assert 0.0 <= found["attention_entropy"] <= 1.0
    assert job.work()["nll"] == found["nll"]  # the run in its folder is done


def test_the_command_compares_and_resumes(searched: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    arguments = [
        "mixers", str(searched), "--preset", "tiny", "--samples", "130", "--epochs", "1",
        "--methods", "softmax,kuramoto", "--seeds", "1", "--workers", "1", "-o", str(folder),
    ]  # fmt: skip
    first = CliRunner().invoke(ablate, arguments)
    assert first.exit_code == 0, first.output
    records = json.loads((folder / "results.json").read_text())
    assert [record["method"] for record in records] == ["softmax", "kuramoto"]
    keys = {"nll", "crps", "peak_overlap", "chance", "parameters", "seconds"}
    assert all(record.keys() >= keys for record in records)
    changed = (folder / "runs" / "mixers.kuramoto.seed1.json").stat().st_mtime_ns
    again = CliRunner().invoke(ablate, arguments)
    assert again.exit_code == 0, again.output
    assert (folder / "runs" / "mixers.kuramoto.seed1.json").stat().st_mtime_ns == changed
    wrong = CliRunner().invoke(ablate, ["mixers", "--methods", "mamba"])
    assert wrong.exit_code != 0
    assert "mamba" in wrong.output


def test_sharpness_of_one_and_of_even_looks(
    preset: Preset, searched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = open_tokens(TrainingSet(searched), preset.components, 1)
    torch.manual_seed(1)
    network = SlotFlow(preset.model, preset.prior.bins)
    read = network.read
    for even in (True, False):

        def given(batch: object, even: bool = even) -> object:
            reading = read(batch)  # type: ignore[arg-type]
            valid = batch.valid[:, None].expand_as(reading.attention)  # type: ignore[attr-defined]
            weights = valid.float() / valid.sum(dim=2, keepdim=True).clamp(min=1)
            if not even:
                weights = torch.zeros_like(weights)
                weights[..., 0] = 1.0
            exists = torch.ones_like(reading.existence)
            return reading._replace(attention=weights, existence=exists)

        monkeypatch.setattr(network, "read", given)
        found = sharpness(network, tokens)
        assert found["attention_entropy"] == pytest.approx(1.0 if even else 0.0, abs=1e-4)
        if not even:
            assert found["largest_attention"] == 1.0


def test_agreement_of_maps_and_its_chance() -> None:
    g = torch.Generator().manual_seed(1)
    valid = torch.ones(400, 4, dtype=torch.bool)
    valid[:, 3] = False
    maps = torch.randn(400, 4, 2, 4, 4, generator=g)
    same, chance = argmax_agreement(maps, valid)
    assert chance == pytest.approx(3.0**-3)
    assert same == pytest.approx(chance, abs=0.015)
    alike = maps[:, :1].expand(-1, 4, -1, -1, -1) * torch.tensor([1.0, 2.0, 3.0, 4.0]).view(
        4, 1, 1, 1
    )
    assert argmax_agreement(alike, valid)[0] == 1.0


def test_correlation_of_norms() -> None:
    g = torch.Generator().manual_seed(2)
    common = torch.randn(5000, 1, generator=g)
    assert norm_correlation(common * torch.arange(1.0, 5.0)) == pytest.approx(1.0)
    mixed = common + torch.randn(5000, 4, generator=g)
    assert norm_correlation(mixed) == pytest.approx(0.5, abs=0.03)


def test_distances_of_shifted_outputs() -> None:
    x = torch.linspace(0.0, 1.0, 2001)
    ks, wasserstein = distances(x, x + 0.25)
    assert ks == pytest.approx(0.25, abs=1e-3)
    assert wasserstein == pytest.approx(0.25)


def test_the_maps_of_a_network(preset: Preset, searched: Path) -> None:
    tokens = open_tokens(TrainingSet(searched), preset.components, 1)
    rows = Tensors.of(tokens.rows(np.arange(64)))
    own = preset_of(preset, "hamilton", 1)
    torch.manual_seed(1)
    network = SlotFlow(own.model, own.prior.bins)
    found = score_maps(network, rows, own.loss)
    assert 0.0 <= found.agreement <= 1.0
    assert 0.0 < found.chance < 0.2
    assert -1.0 <= found.correlation <= 1.0
    assert all(parameter.grad is None for parameter in network.parameters())
    hooks = [m._forward_hooks for m in network.modules() if isinstance(m, ScoreMaps)]
    assert hooks
    assert not any(hooks)
