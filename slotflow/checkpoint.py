"""Models on disk: safetensors for the numbers, JSON in its header for the rest.

One file holds the weights, the observation's orbit as the response needs it, and the
settings and versions. No pickle is ever loaded.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from slotflow import __version__
from slotflow.atomic import written
from slotflow.calibration import Calibration
from slotflow.components import SEARCH_VERSION
from slotflow.config import Preset, parse_preset
from slotflow.errors import InputError
from slotflow.model import SlotFlow
from slotflow.response import ResponseGrid

FORMAT = 1
_GRID = ("times", "positions", "window")


@dataclass
class Model:
    """A trained network with everything needed to use it.

    Attributes:
        preset: the settings of its data, shape and training.
        network: the network, in evaluation mode.
        grid: the observation it was trained on, sampled for the component search.
        card: what is known about it: training, data, validation figures.
        calibration: of the existence probabilities; the identity where none was fitted.
    """

    preset: Preset
    network: SlotFlow
    grid: ResponseGrid
    card: dict[str, Any] = field(default_factory=dict)
    calibration: Calibration = field(default_factory=Calibration)


def save_model(path: Path, model: Model) -> None:
    """Write a model under a temporary name, then rename it.

    Raises:
        InputError: the system refuses to write; what stood there stays.
    """
    grid = model.grid
    tensors = {name: value.contiguous() for name, value in model.network.state_dict().items()}
    tensors |= {f"grid.{name}": torch.from_numpy(getattr(grid, name).copy()) for name in _GRID}
    scalars = {"duration": grid.duration, "t0": grid.t0, "arm_length": grid.arm_length}
    content = {
        "format": FORMAT,
        "version": __version__,
        "search": SEARCH_VERSION,
        "preset": model.preset.model_dump(mode="json"),
        "grid": scalars,
        "card": model.card,
    }
    if model.calibration != Calibration():
        content["calibration"] = model.calibration.to_json()
    # through bytes, so that the file's mode is the user's own (save_file makes it private)
    whole = save(tensors, metadata={"slotflow": json.dumps(content)})
    with written(path) as temporary:
        temporary.write_bytes(whole)


def load_model(path: Path) -> Model:
    """Read a model, checking every tensor's name, shape and type against its settings.

    Raises:
        InputError: missing, not safetensors, not a slotflow model, or not consistent.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such model file")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = (file.metadata() or {}).get("slotflow")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: not a readable safetensors file: {error}") from error
    if metadata is None:
        raise InputError(f"{path}: metadata: no 'slotflow' entry: not a slotflow model")
    try:
        content = json.loads(metadata)
        version, search, scalars = content["format"], content["search"], content["grid"]
        preset = parse_preset(content["preset"], str(path))
        card = dict(content["card"])
        calibration = Calibration.from_json(content.get("calibration", {}))
    except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: metadata: field missing or wrong: {error}") from error
    if version != FORMAT:
        raise InputError(f"{path}: format: expected {FORMAT}; got {version!r}")
    if search != SEARCH_VERSION:
        raise InputError(
            f"{path}: search: trained on component search {search!r}; this version has"
            f" {SEARCH_VERSION!r}: train the model again"
        )
    arrays = {name: tensors.pop(f"grid.{name}", None) for name in _GRID}
    network = SlotFlow(preset.model, preset.prior.bins)
    _check(path, network, tensors)
    network.load_state_dict(tensors)
    network.eval()
    return Model(preset, network, _grid(path, arrays, scalars), card, calibration)


def _check(path: Path, network: SlotFlow, tensors: dict[str, torch.Tensor]) -> None:
    wanted = network.state_dict()
    if missing := sorted(wanted.keys() - tensors.keys()):
        raise InputError(f"{path}: tensor {missing[0]!r} is missing")
    if extra := sorted(tensors.keys() - wanted.keys()):
        raise InputError(f"{path}: tensor {extra[0]!r} is not part of the model")
    for name, value in wanted.items():
        got = tensors[name]
        if got.shape != value.shape or got.dtype != value.dtype:
            raise InputError(
                f"{path}: tensor {name!r}: expected {tuple(value.shape)} {value.dtype};"
                f" got {tuple(got.shape)} {got.dtype}"
            )
        if got.is_floating_point() and not bool(torch.isfinite(got).all()):
            raise InputError(f"{path}: tensor {name!r}: holds numbers that are not finite")


def _grid(
    path: Path, arrays: dict[str, torch.Tensor | None], scalars: dict[str, Any]
) -> ResponseGrid:
    parts = {}
    for name, value in arrays.items():
        if value is None:
            raise InputError(f"{path}: tensor 'grid.{name}' is missing")
        parts[name] = np.ascontiguousarray(value.numpy(), dtype=np.float64)
    try:
        return ResponseGrid(
            float(scalars["duration"]), float(scalars["t0"]), parts["times"], parts["positions"],
            float(scalars["arm_length"]), parts["window"],
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: grid: {error}") from error
