"""A file that ends the process which reads it: one error here, and the next file is read."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

from slotflow import hdf5, hdf5_process
from slotflow.cli.main import run
from slotflow.errors import InputError
from slotflow.hdf5_process import CrashedError
from slotflow.store import TrainingSet
from tests.damaged_hdf5 import damaged
from tests.elsewhere import ROOT, until
from tests.stored_set import write_stored_set

DATA = np.arange(12.0).reshape(3, 4)
#: What the other process does instead of looking at a file named "bad...".
WAYS = {
    "crashes": "os.kill(os.getpid(), signal.SIGSEGV)",
    "aborts": "os.abort()",
    "hangs": "[0 for _ in iter(int, 1)]",
    "takes all memory": "[bytes(1 << 26) for _ in iter(int, 1)]",
    "is killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "has a fault": "1 / 0",
}
SAID = {
    "crashes": r"bad\.h5: libhdf5 crashed on it \(SIGSEGV\): damaged",
    "aborts": r"bad\.h5: libhdf5 crashed on it \(SIGABRT\): damaged",
    "hangs": r"bad\.h5: libhdf5 came to no end on it within 1 s of the processor: damaged",
    "takes all memory": r"bad\.h5: needs more memory than there is",
    "is killed": r"bad\.h5: the process that read it was killed",
}


@pytest.fixture(autouse=True)
def _none_is_kept() -> Iterator[None]:
    hdf5_process._kept.end()
    yield
    hdf5_process._kept.end()


def spoil(monkeypatch: pytest.MonkeyPatch, way: str, where: str = "find") -> None:
    """Let the other process come to its end over files named "bad..."."""
    code = f"""
import os, signal
from slotflow import hdf5_local
plain = hdf5_local.{where}
def spoilt(file, *more):
    name = os.path.basename(file if isinstance(file, str) else file.filename)
    if name.startswith(("bad", "shard-00001")):
        {WAYS[way]}
    return plain(file, *more)
hdf5_local.{where} = spoilt
"""
    before, after = hdf5_process._CODE.split("serve()\n")[0], "serve()\n"
    monkeypatch.setattr(hdf5_process, "_CODE", before + code + after)
    monkeypatch.setattr(hdf5_process, "SECONDS", 1)


def write(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        file["data"] = DATA
    return path


def read(path: Path) -> object:
    with hdf5.open_checked(path) as file:
        return hdf5.read_dataset(file, "data")


@pytest.mark.parametrize("way", SAID)
def test_one_error_and_the_next_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    spoil(monkeypatch, way)
    bad, good = write(tmp_path / "bad.h5"), write(tmp_path / "good.h5")
    for _ in range(2):
        np.testing.assert_array_equal(read(good), DATA)
        with pytest.raises(InputError, match=SAID[way]) as caught:
            read(bad)
        assert "\n" not in str(caught.value)
        assert hdf5_process._kept.take() is None  # not used for another file


def test_opening_is_within_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, "crashes", "opened")
    with pytest.raises(CrashedError, match="SIGSEGV"):
        read(write(tmp_path / "bad.h5"))


def test_a_fault_of_ours_is_no_fault_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, "has a fault")
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        read(write(tmp_path / "bad.h5"))


def test_a_command_ends_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(monkeypatch, "crashes")
    path = write(tmp_path / "bad.h5")
    assert run(["posterior", str(path), "-o", str(tmp_path / "out")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"slotflow: error: {path}: libhdf5 crashed on it (SIGSEGV): damaged"]


def test_a_training_set_is_tried_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_stored_set(tmp_path / "set")
    data = TrainingSet(tmp_path / "set")
    whole = data.bands(0, len(data))
    hdf5._tried.clear()
    hdf5_process._kept.end()
    spoil(monkeypatch, "crashes")
    again = TrainingSet(tmp_path / "set")
    first = data.manifest.shards[0].rows
    np.testing.assert_array_equal(again.bands(0, first), whole[:first])
    with pytest.raises(CrashedError, match=r"shard-00001\.h5: libhdf5 crashed on it"):
        again.bands(0, len(data))
    assert run(["simulate", "--check", str(tmp_path / "set")]) != 0
    assert "libhdf5 crashed on it (SIGSEGV): damaged" in "".join(capsys.readouterr())


def test_a_shard_is_tried_once_unless_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, asked = write(tmp_path / "a.h5"), []
    plain = hdf5_process.started
    monkeypatch.setattr(hdf5_process, "started", lambda r: asked.append(r) or plain(r))
    for _ in range(3):
        hdf5.trial(path, ["data"])
    assert len(asked) == 1
    os.utime(path, ns=(1, 1))
    hdf5.trial(path, ["data"])
    assert len(asked) == 2


def test_one_process_reads_file_after_file(tmp_path: Path) -> None:
    ids = set()
    for number in range(3):
        read(write(tmp_path / f"{number}.h5"))
        process = hdf5_process._kept.take()
        assert process is not None
        ids.add(process._process.pid)
        hdf5_process.keep(process)
    assert len(ids) == 1


def test_two_files_at_a_time(tmp_path: Path) -> None:
    one, two = (write(tmp_path / f"{number}.h5") for number in range(2))
    with hdf5.open_checked(one) as first, hdf5.open_checked(two) as second:
        np.testing.assert_array_equal(hdf5.read_dataset(first, "data"), DATA)
        np.testing.assert_array_equal(hdf5.read_dataset(second, "data"), DATA)
        assert (first.filename, second.filename) == (str(one), str(two))


def test_a_process_of_which_libhdf5_complained_is_not_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5")
    with pytest.raises(InputError, match="no such data set"), hdf5.open_checked(path) as file:
        hdf5.read_dataset(file, "absent")  # a refusal of ours: nothing is wrong with the process
    process = hdf5_process._kept.take()
    assert process is not None
    hdf5_process.keep(process)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match="truncated"):
        read(path)
    assert hdf5_process._kept.take() is None


def test_one_that_has_waited_for_too_long_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdf5_process, "IDLE", 0.01)
    path = write(tmp_path / "a.h5")
    read(path)
    process = hdf5_process._kept.take()
    assert process is not None
    until(lambda: process._process.poll() is not None)
    assert process._process.returncode == 0
    hdf5_process.keep(process)
    np.testing.assert_array_equal(read(path), DATA)


def test_names_and_folders_are_those_of_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        with h5py.File(tmp_path / name / "a.h5", "w") as file:
            file["data"] = np.bytes_(name)
        monkeypatch.chdir(tmp_path / name)
        assert read(Path("a.h5")) == name.encode()
    with pytest.raises(InputError, match=r"^a\.h5: absent: no such data set"), (
        hdf5.open_checked("a.h5")
    ) as file:  # fmt: skip
        hdf5.read_dataset(file, "absent")


USER = """
import os, sys, time
from slotflow import hdf5
with hdf5.open_checked(sys.argv[1]) as file:
    print(file._process._process.pid, flush=True)
    if sys.argv[2] == "forks":
        if not os.fork():
            with hdf5.open_checked(sys.argv[1]) as own:
                os._exit(int(hdf5.read_dataset(own, "data")[2, 3]))
        print(os.waitstatus_to_exitcode(os.wait()[1]), hdf5.read_dataset(file, "data")[2, 3])
    else:
        time.sleep(60)
"""


def user(path: Path, way: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", USER, str(path), way], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    with user(write(tmp_path / "a.h5"), "waits") as process:
        assert process.stdout is not None
        reader = int(process.stdout.readline())
        os.kill(reader, signal.SIGTERM)  # of a whole group, say: it leaves when the other does
        os.kill(reader, signal.SIGINT)
        assert Path(f"/proc/{reader}").exists()
        process.kill()
    until(lambda: not Path(f"/proc/{reader}").exists())
    assert not Path(f"/proc/{reader}").exists()


def test_a_forked_process_starts_its_own(tmp_path: Path) -> None:
    with user(write(tmp_path / "a.h5"), "forks") as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert process.stdout.read().split() == ["11", "11.0"]
    assert process.returncode == 0


ASKED = {
    "endless": lambda file: [hdf5.read_attribute(file, "g", name) for name in ("a0", "a2", "s")],
    "segment": lambda file: hdf5.read_dataset(file, "g/data"),
    "abort": lambda file: hdf5.read_dataset(file, "g/data"),
}


@pytest.mark.parametrize("name", ASKED)
def test_bytes_that_end_libhdf5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Asked here, each would end this process (another libhdf5 may refuse them instead)."""
    monkeypatch.setattr(hdf5_process, "SECONDS", 1)
    path = tmp_path / "input.h5"
    path.write_bytes(damaged(name))
    with pytest.raises(InputError, match=r"input\.h5: ") as caught:  # noqa: SIM117
        with hdf5.open_checked(path) as file:
            ASKED[name](file)
    assert "\n" not in str(caught.value)
