"""What reads somebody else's files, and ways to spoil such files.

A target writes one spoilt input and reads it; only the package's own errors may come out. What is
spoilt, and how, follows from choices: those of a test's strategy, of a random number generator or
of a fuzzer's bytes (benchmarks/fuzz.py), so that an input can be made again.
"""

import io
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from slotflow.errors import SlotflowError

SAMPLES = 1100
SMALL = {
    "width": 16, "layers": 1, "heads": 2, "context": 16, "flow_layers": 2, "flow_bins": 4,
    "flow_hidden": 16, "psi_bins": 4, "psi_hidden": 16,
}  # fmt: skip


class Choices(Protocol):
    """Where decisions come from."""

    def integer(self, low: int, high: int) -> int:
        """Return an integer of low..high."""


class Random:
    """Choices of a random number generator."""

    def __init__(self, *seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def integer(self, low: int, high: int) -> int:
        return int(self._rng.integers(low, high, endpoint=True))


class Bytes:
    """Choices of a fuzzer's bytes; zero when they are used up."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def integer(self, low: int, high: int) -> int:
        size = max(1, ((high - low).bit_length() + 7) // 8)
        part = self._data[self._at : self._at + size]
        self._at += size
        return low + int.from_bytes(part, "little") % (high - low + 1)


def one_of(choices: Choices, values: Sequence[Any]) -> Any:
    return values[choices.integer(0, len(values) - 1)]


@dataclass(frozen=True)
class Target:
    """``make`` writes an input below a folder and returns its path; ``read`` reads it."""

    make: Callable[[Choices, Path], Path]
    read: Callable[[Path], Any]

    def __call__(self, choices: Choices, folder: Path) -> bool:
        """Read one input; return whether it was taken. Anything but our own errors comes out."""
        path = self.make(choices, folder)
        try:
            self.read(path)
        except SlotflowError as error:
            problem = str(error)
        else:
            return True
        assert problem, "an error without a message"
        return False


# ---- bytes


def spoilt(choices: Choices, content: bytes, most: int = 4, head: int = 4096) -> bytes:
    """Change some bytes: replaced, cut, repeated, removed; half of them in the head."""
    data = bytearray(content)
    for _ in range(choices.integer(1, most)):
        if not data:
            break
        end = len(data) - 1 if choices.integer(0, 1) else min(head, len(data) - 1)
        at = choices.integer(0, end)
        kind = choices.integer(0, 9)
        if kind <= 4:
            data[at] = choices.integer(0, 255)
        elif kind == 5:
            size = one_of(choices, (2, 4, 8))
            value = one_of(choices, (0, 1, 255, 2**15, 2**31, 2**32 - 1, 2**63, 2**64 - 1))
            data[at : at + size] = int(value % 256**size).to_bytes(size, "little")
        elif kind == 6:
            del data[at:]
        elif kind == 7:
            del data[at : at + choices.integer(1, 64)]
        elif kind == 8:
            other = choices.integer(0, len(data) - 1)
            data[at:at] = data[other : other + choices.integer(1, 64)]
        else:
            data[at] ^= 1 << choices.integer(0, 7)
    return bytes(data)


def spoilt_text(choices: Choices, content: str, tokens: Sequence[str]) -> bytes:
    """Change lines and words of a text, or its bytes."""
    lines = content.splitlines()
    for _ in range(choices.integer(1, 4)):
        at, kind = choices.integer(0, max(len(lines) - 1, 0)), choices.integer(0, 5)
        if not lines or kind == 0:
            lines.insert(at, one_of(choices, tokens))
        elif kind == 1:
            del lines[at]
        elif kind == 2:
            lines.insert(at, lines[choices.integer(0, len(lines) - 1)])
        else:
            place = choices.integer(0, len(lines[at]))
            cut = place + choices.integer(0, 12)
            lines[at] = lines[at][:place] + one_of(choices, tokens) + lines[at][cut:]
    data = "\n".join(lines).encode("utf-8", errors="surrogatepass")
    return spoilt(choices, data, 2) if choices.integer(0, 3) == 0 else data


VALUES: Sequence[Any] = (
    None, True, -1, 0, 1, 2**31, 2**63, 10**30, -(10**30), 1e308, float("nan"), float("inf"), 1.5,
    "", "x", "1.5", "\x00", "nan", "9" * 5000, "\ud800", [], [[]], {}, {"a": 1}, [1, 2, 3],
    "é" * 300,
)  # fmt: skip


def spoilt_json(choices: Choices, content: Any) -> Any:
    """Replace, remove or add a value somewhere in it."""
    content = json.loads(json.dumps(content))
    here = content
    while isinstance(here, dict | list) and here:
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        key = one_of(choices, keys)
        deeper = isinstance(here[key], dict | list) and here[key]
        if deeper and choices.integer(0, 5):
            here = here[key]
            continue
        kind = choices.integer(0, 5)
        if kind == 0:
            del here[key]
        elif kind == 1 and isinstance(here, dict):
            here[one_of(choices, ("x", "", "format", "name"))] = one_of(choices, VALUES)
        elif kind == 2:
            here[key] = nested(choices.integer(1, 3))
        else:
            here[key] = one_of(choices, VALUES)
        break
    return content


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(30 * depth):
        value = [value]
    return value


def json_bytes(choices: Choices, content: Any) -> bytes:
    """A spoilt value as JSON, or JSON whose text is spoilt, or lists in lists without end."""
    kind = choices.integer(0, 19)
    if kind == 0:
        return b"[" * choices.integer(1, 200_000)
    if kind == 1:
        return b'{"schema_version": ' + b"9" * 5000 + b"}"
    text = json.dumps(spoilt_json(choices, content)).encode()
    return spoilt(choices, text) if kind < 6 else text


# ---- files that are whole


@lru_cache(maxsize=1)
def checkpoint() -> tuple[dict[str, Any], dict[str, Any]]:
    """The tensors and the metadata of a small model."""
    import tempfile

    from safetensors import safe_open

    from slotflow.checkpoint import Model, save_model
    from slotflow.model import SlotFlow
    from tests.chain import untrained_model

    whole = untrained_model()
    small = whole.preset.model.model_validate(SMALL)
    preset = whole.preset.model_copy(update={"model": small})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.safetensors"
        network = SlotFlow(small, preset.prior.bins)
        save_model(path, Model(preset, network, whole.grid, {"note": 1}))
        with safe_open(path, framework="pt") as file:
            content = json.loads(file.metadata()["slotflow"])
            return {name: file.get_tensor(name) for name in file.keys()}, content  # noqa: SIM118


def make_checkpoint(choices: Choices, folder: Path) -> Path:
    """A model file with spoilt tensors, metadata, header or bytes."""
    import torch
    from safetensors.torch import save

    tensors, content = checkpoint()
    tensors, kind = dict(tensors), choices.integer(0, 9)
    text = json.dumps(content)
    if kind <= 3:
        text = json_bytes(choices, content).decode("utf-8", errors="replace")
    elif kind <= 6:
        name = one_of(choices, sorted(tensors))
        value = tensors[name]
        ways: Mapping[int, Callable[[], Any]] = {
            0: lambda: torch.full_like(value.double(), float("nan")).to(value.dtype),
            1: lambda: value.flatten()[:-1],
            2: lambda: value[None],
            3: lambda: value.to(torch.bfloat16),
            4: lambda: value.to(torch.int64),
            5: lambda: value.to(torch.float8_e4m3fn),
            6: lambda: value.to(torch.complex64),
            7: lambda: torch.zeros(()),
            8: lambda: torch.zeros(0),
        }  # fmt: skip
        way = choices.integer(0, len(ways))
        if way in ways:
            tensors[name] = ways[way]().contiguous()
        else:
            del tensors[name]
        if choices.integer(0, 4) == 0:
            tensors[one_of(choices, ("x", "", "grid.x", "a" * 1000))] = torch.zeros(3)
    whole = save(tensors, metadata={"slotflow": text})
    if kind >= 7:
        (size,) = struct.unpack("<Q", whole[:8])
        header = whole[8 : 8 + size]
        if kind == 7:
            header = spoilt(choices, header)
        if kind == 8:
            header = json_bytes(choices, json.loads(header))
        size = len(header) if choices.integer(0, 3) else one_of(choices, (0, 2**40, 2**63, 7))
        rest = whole[8 + len(whole[8 : 8 + size]) :] if kind == 9 else whole[-1000:]
        whole = struct.pack("<Q", size) + header + rest
    path = folder / "model.safetensors"
    path.write_bytes(whole)
    return path


def make_config(choices: Choices, folder: Path) -> Path:
    from importlib import resources

    text = (resources.files("slotflow.presets") / "paper.yaml").read_text("utf-8")
    text += "\nprior: {bins: 256, sky: isotropic}\nmodel:\n  width: 96\n  layers: 2\n"
    path = folder / "settings.yaml"
    kind = choices.integer(0, 39)
    if kind == 0:
        path.write_bytes(one_of(choices, (b"[", b"{a: ", b"- ")) * choices.integer(1, 20_000))
    elif kind == 1:
        deep = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
        deep += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
        path.write_text(deep)
    else:
        path.write_bytes(spoilt_text(choices, text, YAML_TOKENS))
    return path


YAML_TOKENS = (
    "", ":", "- ", "{", "}", "[", "]", "&a ", "*a", "!!python/object/apply:os.system [ls]",
    "!!int x",
    "!!binary é", "!!timestamp 2001-99-99", "2001-13-45", "9" * 5000, "1e400", ".nan", ".inf", "-1",
    "0x", "1:99:99", "null", "~", "---", "...", "? ", "<<: 1", "prior:", "model:", "  width: 1e9",
    "\t", "\x00", "\ufeff", "é", "'", '"', "|", ">", "%YAML 9.9", "  layers: 10000000000000",
    "!!set {a, b}", "!!omap [a: 1]", "1_000", "0o777", "[]", "{}", "true",
)  # fmt: skip


def make_sources(choices: Choices, folder: Path) -> Path:
    text = "name,f0_Hz,fdot,amplitude,ra_deg,dec_deg,psi,iota,phi0\n"
    text += "a,1.9e-3,1e-17,1e-22,10,20,0.1,0.2,0.3\nb,1.8e-3,0,2e-22,359,-89,3,3.1,6.2\n"
    path = folder / "sources.csv"
    path.write_bytes(spoilt_text(choices, text, CELLS))
    return path


def make_noise(choices: Choices, folder: Path) -> Path:
    path = folder / "noise.txt"
    text = "# f S_A S_E S_T\n1e-4 1e-40 1e-40 1e-41\n1e-3,2e-40\n1e-2 3e-40\n"
    path.write_bytes(spoilt_text(choices, text, CELLS))
    return path


CELLS = (
    "", ",", '"', "'", "\n", "\r", "\x00", "nan", "inf", "-1e400", "1e999", "9" * 400, "1_0", "0x1",
    "é",
    "\ufeff", "name,", "f0,", "ra_rad,", "#", " ", "\t", "1e-320", "٣", "-0", "x" * 200_000,
)  # fmt: skip


@lru_cache(maxsize=1)
def table_text() -> str:
    """A table as ``slotflow posterior`` writes it."""
    from slotflow.catalogue import to_table
    from tests.test_catalogue import PROVENANCE, make_result

    buffer = io.StringIO()
    to_table(make_result(2), PROVENANCE).write(buffer, format="ascii.ecsv")
    return buffer.getvalue()


def make_table(choices: Choices, folder: Path) -> Path:
    path = folder / "a.catalogue.ecsv"
    path.write_bytes(spoilt_text(choices, table_text(), (*CELLS, "# meta:", "# - ", "# %ECSV 9.0")))
    return path


def make_manifest(choices: Choices, folder: Path) -> Path:
    """A training set whose manifest is spoilt; its shards are empty files."""
    from tests.stored_set import manifest_content

    (folder / "manifest.json").write_bytes(json_bytes(choices, manifest_content()))
    for name in ("shard-00000.h5", "shard-00001.h5"):
        (folder / name).touch()
    return folder


def read_manifest(folder: Path) -> None:
    """By every way in which a manifest is read."""
    from slotflow.setcheck import checked_manifest
    from slotflow.store import TrainingSet
    from slotflow.stored import open_bands

    for read in (checked_manifest, TrainingSet, open_bands):
        try:
            read(folder)
        except SlotflowError as error:
            last = error
    raise last


def make_batch(choices: Choices, folder: Path) -> Path:
    """A batch of finished bands, spoilt; None must come of it, or what was in it."""
    from slotflow.resume import Partial
    from tests.test_resume import _outcomes

    partial = Partial(folder / "partial", "run")
    partial.open("plan")
    partial.save(0, _outcomes(view=True))
    path = next((folder / "partial").glob("batch-*.npz"))
    if choices.integer(0, 1):
        path.write_bytes(spoilt(choices, path.read_bytes(), head=path.stat().st_size))
        return folder
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    name = one_of(choices, sorted(arrays))
    value = arrays[name]
    ways: Sequence[Callable[[], Any]] = (
        lambda: value[:1], lambda: value[None], lambda: value.astype("U"), lambda: value * np.nan,
        lambda: value.astype(complex), lambda: np.zeros(()), lambda: np.zeros(0),
        lambda: value.astype(">f4"), lambda: np.full_like(value, 1e300, dtype=float),
        lambda: np.full_like(value, np.inf, dtype=float), lambda: -np.ones_like(value),
        lambda: np.array([b"x"]), lambda: value.reshape(-1)[::-1],
    )  # fmt: skip
    with np.errstate(all="ignore"):
        arrays[name] = one_of(choices, ways)()
    if choices.integer(0, 4) == 0:
        del arrays[name]
    np.savez(path, **arrays)
    return folder


def read_batch(folder: Path) -> None:
    from slotflow.resume import Partial
    from tests.test_resume import FIRSTS

    partial = Partial(folder / "partial", "run")
    partial.open("plan")
    for outcome in partial.load(0, FIRSTS) or ():
        for source in outcome.sources:
            assert source.samples.ndim == 2
            assert source.samples.shape == (len(source.log_q), 8)
            assert np.isfinite(source.samples).all()
        if outcome.view is not None:
            assert outcome.view.data.shape == outcome.view.psd.shape
    partial.remove()


def make_state(choices: Choices, folder: Path) -> Path:
    """The state of a training run, its bytes spoilt."""
    import torch

    buffer = io.BytesIO()
    torch.save({"identity": "run", "step": 3, "weights": {"a": torch.zeros(7)}}, buffer)
    (folder / "state.pt").write_bytes(spoilt(choices, buffer.getvalue()))
    return folder


def make_log(choices: Choices, folder: Path) -> Path:
    """The log of a training run."""
    text = "step,loss,nll\n10,1.5,2.5\n20,1.25,2.25\n30,1.0,2.0\n"
    (folder / "log.csv").write_bytes(spoilt_text(choices, text, CELLS))
    return folder


def make_record(choices: Choices, folder: Path) -> Path:
    """The record of a run of a comparison."""
    content = {"task": "t", "method": "m", "seed": 1, "settings": {"epochs": 3}, "nll": 1.5}
    path = folder / "t.m.seed1.json"
    path.write_bytes(json_bytes(choices, content))
    return path


def make_scheduler(choices: Choices, folder: Path) -> Path:
    """The file of a dask scheduler."""
    path = folder / "scheduler.json"
    path.write_bytes(json_bytes(choices, {"address": "tcp://127.0.0.1:8786", "workers": {}}))
    return path


def _read_record(path: Path) -> None:
    from types import SimpleNamespace

    from slotflow.ablate.runs import stored

    job: Any = SimpleNamespace(task="t", method="m", seed=1, settings={"epochs": 3})
    stored(path, job)


def _lazy(module: str, name: str, *more: Any, text: bool = False) -> Callable[[Path], Any]:
    """Import a reader when it is first used."""

    def read(path: Path) -> Any:
        import importlib

        function = getattr(importlib.import_module(module), name)
        return function(str(path) if text else path, *more)

    return read


def _read_log(folder: Path) -> None:
    from slotflow.runlog import RunLog

    log = RunLog(folder)
    log.forget_after(20)
    log.add({"step": 30.0, "loss": 1.0})


def _hdf5(kind: str, layout: str) -> Callable[[Choices, Path], Path]:
    def make(choices: Choices, folder: Path) -> Path:
        from tests import fuzzing_hdf5

        return fuzzing_hdf5.make(choices, folder, layout, kind)

    return make


#: All that reads files of others, by name.
TARGETS: Mapping[str, Target] = {
    **{
        f"{layout}-{kind}": Target(
            _hdf5(kind, layout), _lazy("tests.fuzzing_hdf5", f"read_{layout}")
        )
        for layout in ("sangria", "radler", "mojito", "shard")
        for kind in ("bytes", "objects")
    },
    "checkpoint": Target(make_checkpoint, _lazy("slotflow.checkpoint", "load_model")),
    "config": Target(make_config, _lazy("slotflow.config", "load_preset", text=True)),
    "sources": Target(make_sources, _lazy("slotflow.simulate.sources", "read_catalogue")),
    "noise": Target(make_noise, _lazy("slotflow.noise_table", "read_noise_table")),
    "table": Target(make_table, _lazy("slotflow.catalogue", "read_summary")),
    "manifest": Target(make_manifest, read_manifest),
    "batch": Target(make_batch, read_batch),
    "state": Target(make_state, _lazy("slotflow.runstate", "load_state", "run")),
    "log": Target(make_log, _read_log),
    "record": Target(make_record, _read_record),
    "scheduler": Target(make_scheduler, _lazy("slotflow.workers", "scheduler_address", text=True)),
}
