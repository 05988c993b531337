"""Models on disk: safetensors for the numbers, JSON in its header for the rest.

One file holds the weights, the observation's orbit as the response needs it, and the
settings and versions. No pickle is ever loaded.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

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
from slotflow.outlying import Outlying, from_json, shapes
from slotflow.outlying_features import widths
from slotflow.plain import parse_json, shortened
from slotflow.response import ResponseGrid
from slotflow.widths import WIDTHS

FORMAT = 1
_GRID = ("times", "positions", "window")
_OUTLYING: Final = "outlying."  # what the names of the score's arrays begin with
_LARGEST_GRID: Final = 1 << 20  # numbers in one of its arrays
_MARGIN: Final = 4  # a part of a network over all its weights, at most
#: What safetensors calls the types that a network has.
_DTYPES: Final = {
    torch.float32: "F32", torch.float64: "F64", torch.complex64: "C64", torch.int64: "I64",
    torch.int32: "I32", torch.bool: "BOOL",
}  # fmt: skip


@dataclass
class Model:
    """A trained network with everything needed to use it.

    Attributes:
        preset: the settings of its data, shape and training.
        network: the network, in evaluation mode.
        grid: the observation it was trained on, sampled for the component search.
        card: what is known about it: training, data, validation figures.
        calibration: of the existence probabilities; the identity where none was fitted.
        outlying: the score of a band against the training distribution, where one was fitted.
    """

    preset: Preset
    network: SlotFlow
    grid: ResponseGrid
    card: dict[str, Any] = field(default_factory=dict)
    calibration: Calibration = field(default_factory=Calibration)
    outlying: Outlying | None = None


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
    scale = model.network.flow.base_scale.tolist()
    if any(one != 1.0 for one in scale):
        content["base_scale"] = scale
    if model.network.component_share != 0.0:
        content["component_share"] = model.network.component_share
    if model.outlying is not None:
        content["outlying"] = model.outlying.to_json()
        arrays = model.outlying.arrays().items()
        tensors |= {f"{_OUTLYING}{n}": torch.from_numpy(a.copy()) for n, a in arrays}
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
            header = _header(path, (file.metadata() or {}).get("slotflow"))
            names = sorted(file.keys())
            slices = {name: file.get_slice(name) for name in names}  # nothing is read yet
            kinds = {n: _Kind(tuple(s.get_shape()), s.get_dtype()) for n, s in slices.items()}
            network = _network(path, header, kinds)
            tensors = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError, RuntimeError, MemoryError) as error:
        # RuntimeError: of PyTorch, for a file that it cannot map
        raise InputError(f"{path}: not a readable safetensors file: {shortened(error)}") from error
    for name, value in tensors.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise InputError(f"{path}: tensor {name!r}: holds numbers that are not finite")
    grid = _grid(path, {name: tensors.pop(f"grid.{name}") for name in _GRID}, header)
    scored = [name for name in tensors if name.startswith(_OUTLYING)]
    outlying = _outlying(path, {name: tensors.pop(name) for name in scored}, header)
    network.load_state_dict(tensors)
    _set_widths(path, network, header.base_scale)
    network.component_share = header.component_share
    network.eval()
    return Model(header.preset, network, grid, header.card, header.calibration, outlying)


class _Header(NamedTuple):
    preset: Preset
    scalars: dict[str, Any]
    card: dict[str, Any]
    calibration: Calibration
    outlying: dict[str, Any] | None
    base_scale: list[Any] | None
    component_share: float


def _header(path: Path, metadata: str | None) -> _Header:
    """Return what a model's metadata say."""
    if metadata is None:
        raise InputError(f"{path}: metadata: no 'slotflow' entry: not a slotflow model")
    content = parse_json(metadata, f"{path}: metadata: field missing or wrong")
    try:
        version, search = content["format"], content["search"]
        preset = parse_preset(content["preset"], str(path))
        scalars, card = dict(content["grid"]), dict(content["card"])
        calibration = Calibration.from_json(dict(content.get("calibration", {})))
        outlying = dict(content["outlying"]) if "outlying" in content else None
        base_scale = list(content["base_scale"]) if "base_scale" in content else None
        share = float(content.get("component_share", 0.0))
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"component_share: expected a number of 0 to 1; got {share!r}")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{path}: metadata: field missing or wrong: {shortened(error)}") from error
    if version != FORMAT:
        raise InputError(f"{path}: format: expected {FORMAT}; got {version!r:.80}")
    if search != SEARCH_VERSION:
        raise InputError(
            f"{path}: search: trained on component search {search!r:.80}; this version has"
            f" {SEARCH_VERSION!r}: train the model again"
        )
    return _Header(preset, scalars, card, calibration, outlying, base_scale, share)


def _set_widths(path: Path, network: SlotFlow, found: list[Any] | None) -> None:
    """Set the flow's base to what the metadata say.

    Raises:
        InputError: not one sensible number for each of its dimensions.
    """
    if found is None:
        return
    low, high = WIDTHS
    wanted = network.flow.features
    if len(found) != wanted or not all(isinstance(v, float) and low <= v <= high for v in found):
        raise InputError(
            f"{path}: metadata: base_scale: expected {wanted} numbers of {low:g} to {high:g};"
            f" got {found!r:.80}"
        )
    network.flow.base_scale.copy_(torch.tensor(found))


class _Kind(NamedTuple):
    """Shape of a tensor, and its type by the name that safetensors has for it."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.shape} {self.dtype}"


def _network(path: Path, header: _Header, found: Mapping[str, _Kind]) -> SlotFlow:
    """Return the network of these settings once the file's tensors are seen to be its own.

    Raises:
        InputError: naming the setting or the tensor that does not fit.
    """
    preset = header.preset
    _check_size(path, preset, sum(math.prod(kind.shape) for kind in found.values()))
    network = SlotFlow(preset.model, preset.prior.bins)
    wanted = {
        name: _Kind(tuple(value.shape), _DTYPES.get(value.dtype, str(value.dtype)))
        for name, value in network.state_dict().items()
    }
    if header.outlying is not None:
        of_score = shapes(widths(preset.model)).items()
        wanted |= {f"{_OUTLYING}{name}": _Kind(shape, "F64") for name, shape in of_score}
    grid = {f"grid.{name}": _Kind((), "F64") for name in _GRID}
    if missing := sorted((wanted | grid).keys() - found.keys()):
        raise InputError(f"{path}: tensor {missing[0]!r} is missing")
    if extra := sorted(found.keys() - (wanted | grid).keys()):
        raise InputError(f"{path}: tensor {extra[0]!r:.80} is not part of the model")
    for name, kind in wanted.items():
        if found[name] != kind:
            raise InputError(f"{path}: tensor {name!r}: expected {kind}; got {found[name]}")
    for name in grid:
        kind = found[name]
        if kind.dtype != "F64" or math.prod(kind.shape) > _LARGEST_GRID:
            raise InputError(f"{path}: tensor {name!r}: expected F64, of a grid; got {kind}")
    return network


def _check_size(path: Path, preset: Preset, numbers: int) -> None:
    """Refuse settings of a network that is far larger than the file, before it is made.

    Each product is of sizes of one layer, or of many alike: a part of the weights that there
    must be.
    """
    m = preset.model
    flow = m.flow_hidden * max(m.flow_hidden * m.flow_blocks, m.context, m.flow_bins)
    products = {
        "layers, width": m.layers * m.width**2,
        "width, context": m.width * max(m.width, m.context),
        "slots, width": m.slots * m.width,
        "flow_layers, flow_hidden, flow_blocks, flow_bins, context": m.flow_layers * flow,
        "psi_hidden, psi_bins": m.psi_hidden * max(m.psi_hidden, m.psi_bins),
        "prior.bins": preset.prior.bins,
    }
    for names, product in products.items():
        if product > _MARGIN * max(numbers, 1):
            raise InputError(f"{path}: {names}: a network far larger than the file's weights")


def _grid(path: Path, arrays: Mapping[str, torch.Tensor], header: _Header) -> ResponseGrid:
    scalars = header.scalars
    parts = {name: np.ascontiguousarray(value.numpy()) for name, value in arrays.items()}
    try:
        grid = ResponseGrid(
            float(scalars["duration"]), float(scalars["t0"]), parts["times"], parts["positions"],
            float(scalars["arm_length"]), parts["window"],
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{path}: grid: {shortened(error)}") from error
    if not (np.isfinite([grid.t0, grid.arm_length]).all() and grid.arm_length > 0.0):
        raise InputError(f"{path}: grid: t0 {grid.t0!r} s, arm {grid.arm_length!r} m")
    if grid.duration != (duration := header.preset.observation.duration):
        raise InputError(f"{path}: grid: of {grid.duration!r} s; the observation has {duration!r}")
    return grid


def _outlying(path: Path, tensors: Mapping[str, torch.Tensor], header: _Header) -> Outlying | None:
    """Return the score of bands against the training distribution, None where there is none."""
    if header.outlying is None:
        return None
    arrays = {name.removeprefix(_OUTLYING): value.numpy() for name, value in tensors.items()}
    try:
        return from_json(header.outlying, arrays)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{path}: outlying: {shortened(error)}") from error
