"""Models on disk: they come back equal, and what is not one is refused by name."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from slotflow.batches import Tensors
from slotflow.calibration import Calibration
from slotflow.checkpoint import Model, load_model, save_model
from slotflow.config import load_preset
from slotflow.errors import InputError
from slotflow.model import SlotFlow
from slotflow.response import ResponseGrid
from tests.outlying_example import WIDTHS, example_score, gaussian_bands
from tests.synthetic import BINS, token_data
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


def test_the_widths_of_the_base_come_back(saved: Path) -> None:
    model = load_model(saved)
    assert (model.network.flow.base_scale == 1.0).all()
    scale = torch.linspace(0.9, 1.2, model.network.flow.features)
    model.network.flow.base_scale.copy_(scale)
    save_model(saved, model)
    torch.testing.assert_close(load_model(saved).network.flow.base_scale, scale, rtol=0, atol=0)


def test_the_share_of_the_component_comes_back_and_acts(saved: Path) -> None:
    model = load_model(saved)
    data = Tensors.of(token_data(3, bands=12))
    with torch.no_grad():
        before = model.network.read(data.batch)
        model.network.component_share = 0.25
        save_model(saved, model)
        after = load_model(saved).network.read(data.batch)
    stands = torch.gather(before.component, 1, before.choice)
    some = data.batch.valid.any(dim=1)
    expected = 0.75 * before.existence + 0.25 * stands
    torch.testing.assert_close(after.existence[some], expected[some])


@pytest.mark.parametrize("found", [-0.1, 1.5, float("nan"), "a", None])
def test_a_share_that_is_none_is_refused(saved: Path, found: object) -> None:
    def wild(metadata: dict[str, str]) -> dict[str, str]:
        content = json.loads(metadata["slotflow"]) | {"component_share": found}
        return {"slotflow": json.dumps(content)}

    rewrite(saved, metadata=wild)
    with pytest.raises(InputError, match="metadata"):
        load_model(saved)


@pytest.mark.parametrize("found", [[1.0], [1.0] * 6 + [0.0], [1.0] * 6 + ["a"], [1.0] * 6 + [1e3]])
def test_widths_that_are_none_are_refused(saved: Path, found: list[object]) -> None:
    def wild(metadata: dict[str, str]) -> dict[str, str]:
        content = json.loads(metadata["slotflow"]) | {"base_scale": found}
        return {"slotflow": json.dumps(content)}

    rewrite(saved, metadata=wild)
    with pytest.raises(InputError, match=r"metadata: base_scale: expected 7 numbers of 0\.5 to 2"):
        load_model(saved)


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
    refused(
        r"expected \(1, 16\) F32; got \(1, 16\) F64",
        **{name: torch.zeros(1, 16, dtype=torch.float64)},
    )
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


def edited(**changes: object) -> Callable[[dict[str, str]], dict[str, str]]:
    """Change entries of the metadata; those of ``preset`` by their dotted names."""

    def change(metadata: dict[str, str]) -> dict[str, str]:
        content = json.loads(metadata["slotflow"])
        for name, value in changes.items():
            place, last = content, name
            if "__" in name:
                *path, last = name.split("__")
                for part in path:
                    place = place[part]
            place[last] = value
        return {"slotflow": json.dumps(content)}

    return change


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"preset__model__width": 65_536}, "layers, width: a network far larger than"),
        ({"preset__model__context": 10**9}, "width, context: a network far larger"),
        ({"preset__model__flow_layers": 10**9}, "flow_layers, flow_hidden.*: a network far larger"),
        ({"preset__model__layers": 10**9}, "layers, width: a network far larger than"),
        ({"preset__prior__bins": 2**40}, "prior.bins: a network far larger"),
        ({"calibration": [1.0, 2.0]}, "metadata: field missing or wrong"),
        ({"calibration": {"slope": 10**400, "offset": 0.0}}, "metadata: field missing or wrong"),
        ({"card": 5}, "metadata: field missing or wrong"),
        ({"grid": None}, "metadata: field missing or wrong"),
        ({"grid__t0": float("nan")}, "grid: t0 nan s"),
        ({"grid__arm_length": 0.0}, "arm 0.0 m"),
        ({"grid__duration": 1e6}, "grid: of 1000000.0 s; the observation has"),
        ({"preset": "x" * 10_000}, "valid dictionary"),
    ],
)
def test_metadata_of_a_stranger(saved: Path, changes: dict[str, object], said: str) -> None:
    rewrite(saved, metadata=edited(**changes))
    with pytest.raises(InputError, match=said) as refused:
        load_model(saved)
    assert str(saved) in str(refused.value)
    assert len(str(refused.value)) < 2000


@pytest.mark.parametrize("text", ["[" * 50_000, "9" * 5000, "[1]", "null"])
def test_metadata_that_are_no_object(saved: Path, text: str) -> None:
    rewrite(saved, metadata={"slotflow": text})
    with pytest.raises(InputError, match="metadata: field missing or wrong"):
        load_model(saved)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (torch.full((64,), float("nan"), dtype=torch.float64), "'grid.times': holds numbers that"),
        (torch.zeros(64, dtype=torch.bfloat16), "'grid.times': expected F64, of a grid"),
        (torch.zeros(5, dtype=torch.float64), "grid: expected an even number"),
        (torch.zeros(1 << 21, dtype=torch.float64), "'grid.times': expected F64, of a grid"),
    ],
)
def test_a_grid_of_a_stranger(saved: Path, value: torch.Tensor, said: str) -> None:
    rewrite(saved, **{"grid.times": value})
    with pytest.raises(InputError, match=said):
        load_model(saved)


def test_a_header_that_announces_more_than_there_is(saved: Path) -> None:
    """A hole of 4 TB as one more tensor: it is refused, and never read."""
    whole = saved.read_bytes()
    (size,) = struct.unpack("<Q", whole[:8])
    header = json.loads(whole[8 : 8 + size])
    end = max(entry["data_offsets"][1] for name, entry in header.items() if name[0] != "_")
    header["hole"] = {"dtype": "F32", "shape": [2**40], "data_offsets": [end, end + 2**42]}
    text = json.dumps(header).encode()
    with saved.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + whole[8 + size :])
        file.truncate(8 + len(text) + end + 2**42)
    # where the system maps so much, the tensor is named; else the system's own words are given
    said = r"(tensor 'hole' is not part of the model|unable to mmap)"
    with pytest.raises(InputError, match=said):
        load_model(saved)
    with saved.open("wb") as file:
        file.write(struct.pack("<Q", 2**62) + text)
    with pytest.raises(InputError, match="not a readable safetensors file"):
        load_model(saved)


@pytest.fixture
def scored(saved: Path) -> Path:
    """A model file with the score of a band against the training distribution."""
    assert load_model(saved).outlying is None  # a file without it is as good as ever
    model = load_model(saved)
    model.outlying = example_score(SMALL.context)
    save_model(saved, model)
    return saved


def test_a_score_comes_back(scored: Path) -> None:
    found, wanted = load_model(scored).outlying, example_score(SMALL.context)
    assert found is not None
    for band in gaussian_bands(3, 10, WIDTHS | {"slots": SMALL.context}):
        assert found(band) == wanted(band)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("outlying.level.slope", None, "tensor 'outlying.level.slope' is missing"),
        ("outlying.level.whiten", torch.eye(3).double(), r"expected \(2, 2\) F64; got \(3, 3\)"),
        ("outlying.shape.whiten", torch.eye(8), r"expected \(8, 8\) F64; got \(8, 8\) F32"),
        ("outlying.level.whiten", torch.full((2, 2), float("nan")).double(), "not finite"),
        ("outlying.more.whiten", torch.eye(2).double(), "is not part of the model"),
    ],
)
def test_a_score_with_damaged_arrays(scored: Path, name: str, value: object, said: str) -> None:
    rewrite(scored, **{name: value})
    with pytest.raises(InputError, match=said) as refused:
        load_model(scored)
    assert str(scored) in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"outlying": None}, "metadata: field missing or wrong"),
        ({"outlying": [1]}, "metadata: field missing or wrong"),
        ({"outlying": {}}, "outlying: 'version'"),
        ({"outlying__version": 99}, "outlying: version 99 of the score"),
        ({"outlying__parts": ["level"]}, "outlying: parts"),
        ({"outlying__threshold": -1.0}, "outlying: expected a spread and a threshold above 0"),
        ({"outlying__threshold": 10**400}, "outlying: "),
        ({"outlying__centre": "x"}, "outlying: "),
        ({"outlying__spread": [1.0]}, "outlying: expected centre and spread"),
        ({"outlying__values": [float("nan")] * 12}, "outlying: "),
        ({"outlying__calibrated": "many"}, "outlying: "),
    ],
)
def test_a_score_with_damaged_numbers(scored: Path, changes: dict[str, object], said: str) -> None:
    rewrite(scored, metadata=edited(**changes))
    with pytest.raises(InputError, match=said) as refused:
        load_model(scored)
    assert str(scored) in str(refused.value)


def test_arrays_of_a_score_that_is_not_there(scored: Path) -> None:
    def without(metadata: dict[str, str]) -> dict[str, str]:
        content = json.loads(metadata["slotflow"])
        del content["outlying"]
        return {"slotflow": json.dumps(content)}

    rewrite(scored, metadata=without)
    with pytest.raises(InputError, match=r"'outlying\..*' is not part of the model"):
        load_model(scored)
