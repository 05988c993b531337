"""slotflow.processes: work in processes that nobody waits for in vain."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from slotflow.errors import InputError
from slotflow.processes import work_off
from tests.elsewhere import ROOT, spawned

_begun = 0


@pytest.fixture(autouse=True)
def found_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that are started find this module, too."""
    monkeypatch.syspath_prepend(ROOT)


def begin(value: int) -> None:
    global _begun
    _begun = value


def tripled(job: int) -> int:
    return 3 * job + _begun


def slow(job: tuple[str, float]) -> str:
    """Leave a mark before and after some seconds."""
    path, seconds = job
    Path(path + ".begun").touch()
    time.sleep(seconds)
    Path(path + ".done").touch()
    return path


def refuse(job: tuple[str, float]) -> str:
    if job[0].endswith("1"):
        raise InputError("job 1")
    return slow(job)


def die(job: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return job


def jobs(folder: Path, number: int, seconds: float) -> list[tuple[str, float]]:
    return [(str(folder / str(i)), seconds) for i in range(number)]


def test_every_job_is_done_once_with_its_number() -> None:
    found = dict(work_off(tripled, range(7), 2, begin, (1,)))
    assert found == {i: 3 * i + 1 for i in range(7)}
    assert not multiprocessing.active_children()


def test_what_breaks_off_ends_the_processes(tmp_path: Path) -> None:
    """A caller who stops, and a job that raises: what is left is not done, and not waited for."""
    started = time.monotonic()
    with closing(work_off(slow, [*jobs(tmp_path, 1, 0.0), *jobs(tmp_path / "x", 9, 60.0)], 2,
                          begin, (0,))) as found:  # fmt: skip
        (tmp_path / "x").mkdir()
        assert next(found)[0] == 0
    with pytest.raises(InputError, match=r"^job 1$"):
        list(work_off(refuse, jobs(tmp_path, 9, 60.0), 2, begin, (0,)))
    assert time.monotonic() - started < 50
    assert not multiprocessing.active_children()
    assert not list((tmp_path / "x").glob("*.done"))


def test_a_process_that_was_killed_is_one_error() -> None:
    with pytest.raises(InputError, match=r"a worker process ended .*: run again to go on"):
        list(work_off(die, range(4), 2, begin, (0,)))


SCRIPT = """
import sys
from pathlib import Path
from tests.test_processes import begin, jobs, slow
from slotflow.processes import work_off
if __name__ == "__main__":
    try:
        for number, path in work_off(slow, jobs(Path(sys.argv[1]), 20, 1.0), 2, begin, (0,)):
            pass
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("early", [True, False])
def test_an_interruption_of_the_whole_group(tmp_path: Path, early: bool) -> None:
    """Ctrl-C reaches processes that start as well as those that work: one line, and an end."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    child = subprocess.Popen(
        [sys.executable, script, tmp_path], cwd=ROOT, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not (list(tmp_path.glob("*.begun")) or (early and spawned(child.pid))):
        assert time.monotonic() < deadline
        assert child.poll() is None, child.communicate()
        time.sleep(0.01)
    time.sleep(0.05)
    os.killpg(child.pid, signal.SIGINT)
    sent = time.monotonic()
    out, err = child.communicate(timeout=60)
    assert (out, err, child.returncode) == ("interrupted\n", "", 0)
    assert time.monotonic() - sent < 20
    assert len(list(tmp_path.glob("*.done"))) < 10


@pytest.mark.slow
def test_they_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    child = subprocess.Popen(
        [sys.executable, script, tmp_path], cwd=ROOT, start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("*.begun")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    started = spawned(child.pid)
    child.kill()
    child.wait()
    while any(Path(f"/proc/{pid}").exists() for pid in started):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert len(list(tmp_path.glob("*.begun"))) < 6
