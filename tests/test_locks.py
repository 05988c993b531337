"""One run at a time in a folder, by a lock that a killed process does not leave behind."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slotflow.atomic import remove_leftovers
from slotflow.cli.main import run
from slotflow.errors import InputError
from slotflow.locks import held
from tests.elsewhere import ROOT

HOLDER = """
import sys, time
from pathlib import Path
from slotflow.locks import held
with held(Path(sys.argv[1]), "held"):
    print("holding", flush=True)
    time.sleep(60)
"""


def test_it_is_held_once_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with held(path, "refused: x"):
        with pytest.raises(InputError, match="refused: x"), held(path, "refused: x"):
            raise AssertionError
        assert path.exists()  # the one who was refused has not removed it
    assert not path.exists()
    with held(path, "", keep=True):
        pass
    assert path.exists()
    with held(path, ""):  # left over, and nobody holds it
        pass
    assert not path.exists()


def test_an_error_lets_go_of_it(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="inside"), held(tmp_path / ".lock", ""):
        raise RuntimeError("inside")
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_is_killed_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "holding\n"
        with pytest.raises(InputError, match="elsewhere"), held(path, "elsewhere"):
            raise AssertionError
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert path.exists()
    with held(path, "elsewhere"):
        pass


def test_a_file_that_was_removed_meanwhile_guards_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening and locking the file, its holder ends and removes it."""
    path, plain, calls = tmp_path / ".lock", fcntl.flock, []

    def flock(handle: int, operation: int) -> None:
        plain(handle, operation)
        if not calls:
            path.unlink()
        calls.append(os.fstat(handle).st_ino)

    monkeypatch.setattr(fcntl, "flock", flock)
    with held(path, ""):
        assert len(calls) == 2
        assert path.stat().st_ino == calls[1]


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    said = r"absent/\.lock: cannot be written: No such file"
    with pytest.raises(InputError, match=said), held(tmp_path / "absent" / ".lock", ""):
        raise AssertionError


@pytest.mark.parametrize(
    ("command", "lock", "said"),
    [
        (["train", "{}/data", "--preset", "tiny", "-o", "{}/out"], ".run.lock", "training in it"),
        (["ablate", "synthetic", "--quick", "--epochs", "1", "-o", "{}/out"], ".run.lock",
         "another comparison is running in it"),
        (["simulate", "--samples", "2", "-o", "{}/out"], ".lock", "another run is simulating"),
    ],
)  # fmt: skip
def test_the_second_run_in_a_folder_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str], lock: str, said: str
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with (out / lock).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert run([part.format(tmp_path) for part in command]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert said in lines[-1]
    assert [path.name for path in out.iterdir()] == [lock]
    assert not (tmp_path / "data").exists()


def test_only_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    ours = [".a.nc.123.tmp", ".b.ecsv.7.tmp"]
    theirs = [
        ".a.nc.x1.tmp",
        ".a.nc.tmp",
        "a.nc.123.tmp",
        ".c.nc.123.tmp",
        ".a.nc.12.3.tmp",
        "a.nc",
    ]
    for name in ours + theirs:
        (tmp_path / name).write_text("half")
    remove_leftovers(tmp_path, ("a.nc", "b.ecsv"))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(theirs)
    remove_leftovers(tmp_path / "absent", ("a.nc",))
