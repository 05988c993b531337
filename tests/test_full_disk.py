"""A disk that is full, by a limit on the size of files: one clear error, nothing half-written."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slotflow.checkpoint import save_model
from slotflow.cli.main import run
from slotflow.errors import InputError
from slotflow.runlog import RunLog
from tests import mounts, small_disk
from tests.broken_disk import ReadOnly
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


@pytest.mark.slow
def test_train(tmp_path: Path) -> None:
    """File systems too small for a run, from none of its files to all but the last, and folders
    that become read-only after some changes: the checkpoints that stand are whole, and the same
    command ends, with room, with the weights of a run that nothing disturbed."""
    if not mounts.possible():
        pytest.skip("this system lets us mount nothing")
    told = mounts.apart("tests.small_disk", tmp_path)
    assert len(told) == small_disk.CASES + len(small_disk.CHANGES)
    failed = [one for one in told if one["code"]]
    for one in failed:
        assert one["code"] == 2, one
        lines = one["said"].splitlines()
        errors = [line for line in lines if line.startswith("slotflow: error: ")]
        assert len(errors) == 1, one
        assert one["out"] in errors[0]
        assert ("No space left" if one["case"] == "full" else "Read-only file") in errors[0]
        assert "Traceback" not in one["said"]
        # those that stand are of subsequent checkpoints, at every step one
        assert len(one["states"]) < 2 or one["states"][0] - one["states"][1] == 1, one
    assert all(one["left"] == [] for one in failed if one["case"] == "full")
    assert len(failed) >= len(told) - 1
    assert sum(len(one["states"]) > 0 and len(one["models"]) > 0 for one in failed) >= 2
    assert [one["again"] for one in told] == [0] * len(told)
    assert [one["different"] for one in told] == [[]] * len(told)


def test_events_for_tensorboard(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """They are written by a thread of its own, whose error comes out as ours, once."""
    log = RunLog(tmp_path, tensorboard=True)
    row = {f"held_{number}": 0.125 for number in range(8)}
    log.add({"step": 1, **row})

    def more() -> None:
        for step in range(2, 40):
            log.path.unlink()  # begun anew, so that it stays below
            log.add({"step": step, **row})

    with files_up_to(1000), pytest.raises(InputError) as caught:
        more()
    assert str(caught.value) == f"{tmp_path / 'tensorboard'}: cannot be written: File too large"
    assert "Traceback" not in capfd.readouterr().err


def test_events_after_a_checkpoint_are_left_out(tmp_path: Path) -> None:
    """A run that was broken off goes on from step 2: TensorBoard shows each step once."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = RunLog(tmp_path, tensorboard=True)
    for step in (1, 2, 3, 4):
        log.add({"step": step, "loss": float(step)})
    again = RunLog(tmp_path, tensorboard=True)
    again.forget_after(2)
    for step in (3, 4, 5):
        again.add({"step": step, "loss": 10.0 * step})
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    seen = [(event.step, event.value) for event in events.Scalars("loss")]
    assert seen == [(1, 1.0), (2, 2.0), (3, 30.0), (4, 40.0), (5, 50.0)]


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
def test_report(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The bands fit, the page does not; or the disk becomes read-only before or after the page."""
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
    for after in (0, 1, 4):
        capsys.readouterr()
        with monkeypatch.context() as patch:
            ReadOnly(out, after, patch)
            assert run([*command, "--force"]) == 2
        lines = [x for x in capsys.readouterr().err.splitlines() if x.startswith("slotflow: error")]
        assert len(lines) == 1
        assert str(out) in lines[0]
        assert "Read-only file system" in lines[0]
    assert run([*command, "--force"]) == 0


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
