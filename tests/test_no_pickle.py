"""Nothing that is read can run code: by the source, and by files made to try."""

import ast
import os
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from slotflow.checkpoint import load_model
from slotflow.cli.main import run
from slotflow.componentcache import read_components
from slotflow.errors import InputError
from slotflow.resume import Partial
from slotflow.runstate import load_state
from tests.elsewhere import ROOT
from tests.test_resume import FIRSTS, _outcomes

FORBIDDEN = (
    "pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "joblib",
    "shelve",
    "marshal",
    "jsonpickle",
)
#: Calls that read code, and what makes them harmless.
ARGUMENTS = {"torch.load": ("weights_only", True), "np.load": ("allow_pickle", False),
             "numpy.load": ("allow_pickle", False)}  # fmt: skip
NEVER = ("eval", "exec", "compile", "yaml.unsafe_load", "yaml.full_load", "pd.read_pickle",
         "pd.read_hdf", "pickle.loads", "pickle.load", "os.system", "yaml.load_all")  # fmt: skip


def sources() -> Iterator[tuple[str, ast.AST]]:
    for folder in ("slotflow", "simulate", "cli"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text("utf-8"))


def problems(name: str, tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (
                f"{name}: {a.name}" for a in node.names if a.name.split(".")[0] in FORBIDDEN
            )
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in FORBIDDEN:
            yield f"{name}: from {node.module}"
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            given = {k.arg: getattr(k.value, "value", None) for k in node.keywords}
            if called in NEVER:
                yield f"{name}:{node.lineno}: {called}"
            if called in ARGUMENTS and given.get(ARGUMENTS[called][0]) is not ARGUMENTS[called][1]:
                yield f"{name}:{node.lineno}: {called} without {ARGUMENTS[called]}"
            if given.get("allow_pickle") or given.get("shell"):
                yield f"{name}:{node.lineno}: {called}"
            if called == "yaml.load" and ast.unparse(node.args[1]) != "_Loader":
                yield f"{name}:{node.lineno}: yaml.load"


def test_the_source_reads_no_pickles() -> None:
    found = [problem for name, tree in sources() for problem in problems(name, tree)]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "import pickle", "from pickle import loads", "import joblib.memory", "torch.load(path)",
        "torch.load(path, weights_only=False)", "np.load(path)", "np.load(path, allow_pickle=True)",
        "eval(text)", "yaml.load(text, yaml.Loader)", "run(call, shell=True)", "os.system(call)",
    ],
)  # fmt: skip
def test_each_way_would_be_seen(line: str) -> None:
    assert list(problems("slotflow/x.py", ast.parse(line)))


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.mark}",)


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "it-ran"
    yield path
    assert not path.exists()


def test_it_would_run(tmp_path: Path) -> None:
    """What the other tests try does what it should, where a pickle is read."""
    path = tmp_path / "ran"
    pickle.loads(pickle.dumps(Evil(path)))
    assert path.exists()


def test_a_model_file(tmp_path: Path, mark: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, write in enumerate(("pickle", "torch", "numpy")):
        path = tmp_path / f"{number}.safetensors"
        if write == "pickle":
            path.write_bytes(pickle.dumps(Evil(mark)))
        elif write == "torch":
            torch.save({"weights": Evil(mark)}, path)
        else:
            with path.open("wb") as file:
                np.save(file, np.array([Evil(mark)], dtype=object), allow_pickle=True)
        with pytest.raises(InputError, match="not a readable safetensors file"):
            load_model(path)
        assert run(["posterior", "--model", str(path), "-o", str(tmp_path / "out")]) == 2
    assert "not a readable safetensors file" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_the_state_of_a_run(tmp_path: Path, mark: Path) -> None:
    torch.save({"identity": "run", "step": Evil(mark)}, tmp_path / "state.pt")
    with pytest.raises(InputError, match=r"state\.pt: not the state of a run"):
        load_state(tmp_path, "run")
    (tmp_path / "state.pt").write_bytes(pickle.dumps(Evil(mark)))
    with pytest.raises(InputError, match=r"state\.pt: not the state of a run"):
        load_state(tmp_path, "run")


def test_archives_of_arrays(tmp_path: Path, mark: Path) -> None:
    partial = Partial(tmp_path / "partial", "run")
    partial.open("plan")
    partial.save(0, _outcomes())
    path = next((tmp_path / "partial").glob("batch-*.npz"))
    evil = np.array([Evil(mark)], dtype=object)
    np.savez(path, records=evil, allow_pickle=True)
    assert zipfile.is_zipfile(path)
    assert partial.load(0, FIRSTS) is None
    path.write_bytes(pickle.dumps(Evil(mark)))
    assert partial.load(0, FIRSTS) is None
    np.savez(tmp_path / "components.npz", counts=evil, allow_pickle=True)
    assert read_components(tmp_path / "components.npz", 1, 4) is None
    (tmp_path / "components.npz").write_bytes(pickle.dumps(Evil(mark)))
    assert read_components(tmp_path / "components.npz", 1, 4) is None
