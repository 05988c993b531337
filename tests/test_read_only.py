"""An output folder that is read-only, or becomes so: one error naming the path, nothing changed."""

import errno
from pathlib import Path

import pytest

from slotflow.atomic import written
from slotflow.checkpoint import save_model
from slotflow.cli.main import run
from slotflow.errors import InputError
from slotflow.locks import held
from tests import mounts
from tests.broken_disk import ReadOnly
from tests.chain import untrained_model
from tests.killing import data
from tests.read_only_place import COMMANDS


def test_a_read_only_file_system(tmp_path: Path) -> None:
    if not mounts.possible():
        pytest.skip("this system lets us mount nothing")
    told = mounts.apart("tests.read_only_place", tmp_path)
    assert len(told) == 2 * len(COMMANDS)
    for one in told:
        lines = one["said"].splitlines()
        assert one["code"] == 2, one
        assert len(lines) == 1, one
        assert lines[0].startswith(f"slotflow: error: {one['out']}")
        assert "not writable" in lines[0]
        assert one["told"] == ""
        assert one["same"]


@pytest.mark.parametrize("after", [0, 1])
def test_files_that_are_written_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """The first error comes out, not that of cleaning up."""
    path = tmp_path / "file"
    path.write_text("old")
    with monkeypatch.context() as patch:
        disk = ReadOnly(tmp_path, after, patch)
        with (
            pytest.raises(InputError, match=r"file: cannot be written: Read-only"),
            written(path) as temporary,
        ):
            temporary.write_text("new")
        assert disk.refused >= 1
    assert path.read_text() == "old"


def test_a_lock_that_cannot_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is left, and hinders nobody."""
    path = tmp_path / ".lock"
    with monkeypatch.context() as patch:
        ReadOnly(tmp_path, 1, patch)
        with held(path, "held"):
            assert path.exists()
    assert path.exists()
    with held(path, "held"):
        pass
    assert not path.exists()


def test_what_is_replaced_is_what_the_system_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in itself: everything that changes, and nothing else."""
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    (inside / "a").write_text("a")
    with monkeypatch.context() as patch:
        disk = ReadOnly(inside, 0, patch)
        assert (inside / "a").read_text() == "a"
        inside.mkdir(exist_ok=True)
        outside.write_text("b")
        for change in (
            lambda: (inside / "b").write_text("b"), lambda: (inside / "a").unlink(),
            lambda: (inside / "none").unlink(), lambda: (inside / "a").replace(outside),
            lambda: (inside / "c").mkdir(), lambda: inside.rmdir(),
        ):  # fmt: skip
            with pytest.raises(OSError, match="Read-only") as caught:
                change()
            assert caught.value.errno == errno.EROFS
        assert disk.refused == 6
    assert [path.name for path in inside.iterdir()] == ["a"]


def _posterior(out: Path, model: Path) -> list[str]:
    return ["posterior", "--model", str(model), "--fmin", "1.9400e-3", "--fmax", "1.9440e-3",
            "--samples", "40", "-o", str(out)]  # fmt: skip


def test_posterior_on_a_disk_that_becomes_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, whole, out = (tmp_path / name for name in ("m.safetensors", "whole", "out"))
    save_model(model, untrained_model())
    assert run(_posterior(whole, model)) == 0
    for after in (0, 1, 3, 5):
        capsys.readouterr()
        with monkeypatch.context() as patch:
            assert ReadOnly(out, after, patch).refused == 0
            assert run(_posterior(out, model)) == 2
        _one_error(capsys.readouterr().err, out)
    assert run(_posterior(out, model)) == 0
    assert data("posterior", out) == data("posterior", whole)
    assert {p.suffix for p in out.iterdir()} == {p.suffix for p in whole.iterdir()}


@pytest.mark.slow
def test_ablate_on_a_disk_that_becomes_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = ["ablate", "synthetic", "--quick", "--epochs", "1", "--tasks", "bumps", "--methods",
               "linear", "--seeds", "1", "--workers", "1", "-o", str(out)]  # fmt: skip
    for after in (0, 2, 4):
        with monkeypatch.context() as patch:
            ReadOnly(out, after, patch)
            assert run(command) == 2
        _one_error(capsys.readouterr().err, out)
    assert run(command) == 0


def _one_error(said: str, out: Path) -> None:
    lines = [line for line in said.splitlines() if line.startswith("slotflow: error")]
    assert len(lines) == 1, said
    assert "Read-only file system" in lines[0]
    assert str(out) in lines[0]
    assert "Traceback" not in said
