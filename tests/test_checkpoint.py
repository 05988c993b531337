"""Models on disk: they come back equal, and what is not one is refused by name."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from slotflow.calibration import Calibration
from slotflow.checkpoint import Model, load_model, save_model
from slotflow.config import load_preset
from slotflow.errors import InputError
from slotflow.model import SlotFlow
from slotflow.response import ResponseGrid
from tests.synthetic import BINS
from tests.test_losses import SMALL


@pytest.fixture
def saved(tmp_path: Path, slow_grid: ResponseGrid) -> Path:
    torch.manual_seed(0)
    preset = load_preset("tiny").model_copy(update={"model": SMALL})
    path = tmp_path / "m.safetensors"
    save_model(path, Model(preset, SlotFlow(SMALL, BINS), slow_grid, {"note": 1}))
    return path


def rewrite(path: Path, **change: object) -> None:
    """Change tensors (by name; None removes) or the metadata (``metadata``) of a model file."""
    with safe_open(path, framework="pt") as file:
        metadata = dict(file.metadata())
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if "metadata" in change:
        new = change.pop("metadata")
        metadata = new(metadata) if callable(new) else new
    for name, value in change.items():
        if value is None:
            del tensors[name]
        else:
            tensors[name] = value
    save_file(tensors, path, metadata=metadata)


def test_round_trip(saved: Path, slow_grid: ResponseGrid) -> None:
    model = load_model(saved)
    torch.manual_seed(0)
    for name, value in SlotFlow(SMALL, BINS).state_dict().items():
        assert torch.equal(value, model.network.state_dict()[name])
    assert model.card == {"note": 1}
    assert (model.grid.positions == slow_grid.positions).all()
    assert not model.network.training


def test_a_calibration_comes_back(saved: Path, slow_grid: ResponseGrid) -> None:
    model = load_model(saved)
    assert model.calibration == Calibration()  # none is kept: the identity
    model.calibration = Calibration(0.8, -0.3)
    save_model(saved, model)
    assert load_model(saved).calibration == Calibration(0.8, -0.3)


def test_refusals(saved: Path, tmp_path: Path) -> None:
    original = saved.read_bytes()

    def refused(message: str, **change: object) -> None:
        saved.write_bytes(original)
        rewrite(saved, **change)
        with pytest.raises(InputError, match=message) as error:
            load_model(saved)
        assert str(saved) in str(error.value)

    name = "slot_bias.weight"
    refused(f"tensor '{name}' is missing", **{name: None})
    refused(f"tensor '{name}': expected \\(1, 16\\)", **{name: torch.zeros(1, 3)})
    refused("torch.float64", **{name: torch.zeros(1, 16, dtype=torch.float64)})
    refused("not finite", **{name: torch.full((1, 16), float("nan"))})
    refused("'surprise' is not part", surprise=torch.zeros(1))
    refused("'grid.times' is missing", **{"grid.times": None})
    refused("no 'slotflow' entry", metadata={})
    refused("metadata: field missing", metadata={"slotflow": "{}"})

    def other_format(metadata: dict[str, str]) -> dict[str, str]:
        return {"slotflow": json.dumps(json.loads(metadata["slotflow"]) | {"format": 99})}

    refused("format: expected 1; got 99", metadata=other_format)

    def wild_calibration(metadata: dict[str, str]) -> dict[str, str]:
        content = json.loads(metadata["slotflow"]) | {"calibration": {"slope": -1.0, "offset": 0.0}}
        return {"slotflow": json.dumps(content)}

    refused("metadata: field missing or wrong: expected a finite slope", metadata=wild_calibration)
    saved.write_bytes(original[:1000])
    with pytest.raises(InputError, match="not a readable safetensors file"):
        load_model(saved)
    with pytest.raises(InputError, match="no such model file"):
        load_model(tmp_path / "nothing")
