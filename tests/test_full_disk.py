"""A disk that is full, by a limit on the size of files: one clear error, nothing half-written."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slotflow.checkpoint import save_model
from slotflow.cli.main import run
from tests.chain import untrained_model
from tests.stored_set import write_stored_set


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Let no file grow beyond this; Python itself ignores the signal that comes with it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    save_model(folder / "model.safetensors", untrained_model())
    write_stored_set(folder / "bands")
    return folder


SHORT = ("--fmin", "1.9400e-3", "--fmax", "1.9440e-3", "--samples", "400")


@pytest.mark.parametrize("what", ["observation", "training set"])
def test_posterior(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    out = tmp_path / "out"
    given = list(SHORT) if what == "observation" else [str(place / "bands"), "--samples", "400"]
    command = ["posterior", "--model", str(place / "model.safetensors"), "-o", str(out), *given]
    with files_up_to(10_000):
        assert run(command) == 2
    lines = [x for x in capsys.readouterr().err.splitlines() if x.startswith("slotflow: error")]
    assert len(lines) == 1
    assert "cannot be written: File too large" in lines[0]
    assert str(out) in lines[0]
    assert [p.name for p in out.rglob("*") if p.name.endswith((".tmp", ".lock", ".nc"))] == []
    assert run(command) == 0  # there is room again


@pytest.mark.slow
def test_report(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The bands fit, the page does not."""
    out, bands = tmp_path / "out", tmp_path / "bands"
    assert run(["simulate", "--samples", "64", "--workers", "1", "-o", str(bands)]) == 0
    command = ["report", "--model", str(place / "model.safetensors"), "--data", str(bands),
               "--draws", "40", "--workers", "1", "-o", str(out)]  # fmt: skip
    assert run([*command, "--json-only"]) == 0  # the bands are searched, too
    (out / "report.json").unlink()
    capsys.readouterr()
    with files_up_to(5_000):
        assert run(command) == 2
    lines = [x for x in capsys.readouterr().err.splitlines() if x.startswith("slotflow: error")]
    assert len(lines) == 1
    assert "cannot be written: File too large" in lines[0]
    assert str(out) in lines[0]
    assert [p.name for p in out.rglob("*")] == []
    assert run(command) == 0


@pytest.mark.slow
def test_ablate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["ablate", "synthetic", "--quick", "--epochs", "1", "--tasks", "bumps", "--methods",
               "linear", "--seeds", "1", "--workers", "1", "-o", str(tmp_path)]  # fmt: skip
    with files_up_to(200):
        assert run(command) == 2
    lines = [x for x in capsys.readouterr().err.splitlines() if x.startswith("slotflow: error")]
    assert len(lines) == 1
    assert "cannot be written: File too large" in lines[0]
    assert [p.name for p in tmp_path.rglob("*.tmp")] == []
    assert run(command) == 0


def test_a_folder_in_which_nobody_can_write(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The system's own folder of processes: root cannot write there either."""
    model = ["--model", str(place / "model.safetensors")]
    settings = tmp_path / "data"
    for command in (
        ["posterior", *model, "-o", "/proc/slotflow", *SHORT],
        ["train", str(settings), "--preset", "tiny", "-o", "/proc/slotflow"],
        ["ablate", "synthetic", "--quick", "-o", "/proc/slotflow"],
        ["simulate", "--samples", "2", "--workers", "1", "-o", "/proc/slotflow"],
        ["report", *model, "--simulate", "8", "-o", "/proc/slotflow"],
    ):
        assert run(command) == 2
        error = capsys.readouterr().err.splitlines()
        assert len(error) == 1
        assert error[0].startswith("slotflow: error: ")
        assert "/proc/slotflow" in error[0]
    assert not settings.exists()
