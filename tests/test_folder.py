"""The folder of a set in the making: log, lock, leftovers, a full disk, and kills at any moment."""

import contextlib
import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slotflow.cli.common import error_line
from slotflow.cli.main import run
from slotflow.config import Preset
from slotflow.errors import InputError
from slotflow.manifest import read_manifest, write_manifest
from slotflow.setcheck import check_shards, checked_manifest
from slotflow.simulate import dataset, folder
from slotflow.simulate.distribute import Processes
from tests.broken_disk import ReadOnly
from tests.jumping import Jumping
from tests.test_distribute import (  # noqa: F401  (undisturbed: a fixture)
    ROOT,
    SAMPLES,
    SEED,
    SIZE,
    alive,
    contents,
    different,
    log,
    shards,
    simulate,
    undisturbed,
)

# ---- the folder: log, lock, leftovers, errors of the disk


def test_the_log_tells_who_did_what(undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    simulate(tmp_path)
    (tmp_path / "shard-00003.h5").unlink()
    simulate(tmp_path)
    lines = log(tmp_path)
    assert [line["event"] for line in lines] == ["start", *["shard"] * 6, "end", "start", "shard",
                                                 "end"]  # fmt: skip
    assert lines[0]["standing"] == 0
    assert lines[8]["standing"] == 5
    assert lines[0]["by"] == "processes"
    assert lines[9]["name"] == "shard-00003.h5"
    assert all(line["pid"] == os.getpid() for line in shards(tmp_path))
    assert different(tmp_path, undisturbed) == []
    found = list(check_shards(tmp_path, checked_manifest(tmp_path)))
    assert [report.problem for report in found] == [""] * 6


def test_only_our_leftovers_are_removed(tmp_path: Path) -> None:
    ours = [".shard-00003.h5.123.tmp", ".manifest.json.77.tmp", ".shard-00001.h5.node-7.9.tmp"]
    theirs = [".shard-3.h5.tmp", "shard-00003.h5.123.tmp", ".other.h5.123.tmp", "notes.tmp",
              ".components-abc.npz.12.tmp"]  # fmt: skip
    for name in ours + theirs:
        (tmp_path / name).write_text("half")
    simulate(tmp_path)
    assert [name for name in ours if (tmp_path / name).exists()] == []
    assert [name for name in theirs if (tmp_path / name).read_text() != "half"] == []


def test_force_removes_the_old_set_and_its_searches(
    undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    dataset.simulate_dataset(Preset(), tmp_path, 16, SEED + 1, shard_size=2)
    cache = tmp_path / f"components-{'a1' * 6}-{'0f' * 6}-1.npz"
    mine = [tmp_path / name for name in ("components-mine.npz", "shard-old.h5", "notes.txt")]
    for path in (cache, *mine):
        path.write_text("x")
    with pytest.raises(InputError, match="seed: made with 6, now 5"):
        simulate(tmp_path)
    assert cache.exists()
    simulate(tmp_path, force=True)
    assert not cache.exists()
    assert all(path.read_text() == "x" for path in mine)
    assert {k: v for k, v in contents(tmp_path).items() if k != "shard-old.h5"} == undisturbed


def test_an_older_manifest_is_the_same_set(undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    """A setting that came later counts as its default; one that cannot be is named."""
    simulate(tmp_path)
    found = read_manifest(tmp_path)
    old = json.loads(json.dumps(found.settings))
    del old["population"], old["prior"]["snr_law"]
    write_manifest(tmp_path, found._replace(settings=old))
    standing = {p.name: p.stat().st_ino for p in tmp_path.glob("shard-*")}
    simulate(tmp_path)
    assert {p.name: p.stat().st_ino for p in tmp_path.glob("shard-*")} == standing
    assert different(tmp_path, undisturbed) == []
    old["prior"]["snr_law"] = "cubic"
    write_manifest(tmp_path, found._replace(settings=old))
    with pytest.raises(InputError, match=r"manifest\.json: settings: prior\.snr_law: .*'cubic'"):
        simulate(tmp_path)


def test_a_second_run_in_the_same_folder_is_refused(
    undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    with (tmp_path / folder.LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        (tmp_path / ".shard-00000.h5.1.tmp").write_text("being written")
        with pytest.raises(InputError, match="another run is simulating into it"):
            simulate(tmp_path)
        assert (tmp_path / ".shard-00000.h5.1.tmp").exists()
    simulate(tmp_path)
    assert different(tmp_path, undisturbed) == []


def test_the_manifest_is_not_written_after_every_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    real = write_manifest

    def count(directory: Path, manifest: Any) -> None:
        written.append(len(manifest.shards))
        real(directory, manifest)

    monkeypatch.setattr(dataset, "write_manifest", count)
    monkeypatch.setattr(dataset, "MANIFEST_SECONDS", 3600.0)
    simulate(tmp_path, shard_size=1)
    assert written == [0, 12]


def test_what_is_done_is_listed_when_a_run_fails(tmp_path: Path) -> None:
    """Also within the second in which the manifest is not written."""

    class Failing(Processes):
        def run(self, work: Any, jobs: Any) -> Iterator[Any]:
            yield from map(work, jobs[:2])
            raise InputError("enough")

    with pytest.raises(InputError, match="enough"):
        simulate(tmp_path, distribution=Failing())
    assert [s.name for s in read_manifest(tmp_path).shards] == ["shard-00000.h5", "shard-00001.h5"]
    assert [line["event"] for line in log(tmp_path)] == ["start", "shard", "shard", "stopped"]
    assert log(tmp_path)[-1]["error"] == "InputError: enough"


LIMITED = """
import resource, signal, sys
from slotflow.cli.main import run
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
sys.exit(run(sys.argv[2:]))
"""


@pytest.mark.parametrize("limit", [20_000, 60_000])
def test_a_file_that_cannot_be_written_to_the_end(tmp_path: Path, limit: int) -> None:
    """As on a full disk: in the middle of a shard, by a limit on the size of files."""
    (tmp_path / "notes.txt").write_text("mine")
    arguments = ["simulate", "-o", str(tmp_path), "--samples", "40", "--workers", "1"]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(limit), *arguments],
        capture_output=True, text=True, cwd=ROOT, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "shard-00000.h5: cannot be written: File too large" in done.stderr
    assert done.stderr.count("\n") == 1
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        ".lock", "manifest.json", "notes.txt", "simulate.log"
    ]  # fmt: skip


@pytest.mark.parametrize("after", [0, 2, 7, 12])
def test_a_disk_that_becomes_read_only(
    undisturbed: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """One error, naming what cannot be written; what stands counts, the rerun adds the rest."""
    out = tmp_path / "out"
    out.mkdir()
    with monkeypatch.context() as patch:
        ReadOnly(out, after, patch)
        with pytest.raises((InputError, OSError)) as caught:
            simulate(out)
    line = error_line(caught.value)
    assert str(out) in line
    assert "Read-only file system" in line
    standing = {name: c for name, c in contents(out).items() if name.endswith(".h5")}
    assert all(undisturbed[name] == content for name, content in standing.items())
    assert (len(standing) > 0) == (after > 7)
    simulate(out)
    assert different(out, undisturbed) == []


def test_a_clock_that_jumps(
    undisturbed: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Back to 1970 and on to 2100: it is in the log alone, and no time there is below zero."""
    with monkeypatch.context() as patch:
        clock = Jumping(patch)
        simulate(tmp_path)
        (tmp_path / "shard-00003.h5").unlink()
        simulate(tmp_path)
        assert clock.looks > 8
    assert different(tmp_path, undisturbed) == []
    lines = log(tmp_path)
    assert {line["time"][:4] for line in lines} >= {"1970", "2027"}
    assert all(0.0 <= line["seconds"] < 600.0 for line in lines if "seconds" in line)


def test_a_folder_that_cannot_be(capsys: pytest.CaptureFixture[str]) -> None:
    """The system's own folder of processes: nobody can make one there, root neither."""
    assert run(["simulate", "-o", "/proc/slotflow", "--samples", "2", "--workers", "1"]) == 2
    err = capsys.readouterr().err
    assert "/proc/slotflow" in err
    assert err.count("\n") == 1


# ---- killed at any moment

#: Simulates into each folder that it is told, in a process of its own (and group); says when that
#: starts and ends. What takes seconds, imports and the first band, is done once before.
TEMPLATE = """
import os, sys, time
from slotflow.config import Preset
from slotflow.simulate import dataset, sample
dataset.MANIFEST_SECONDS = 0.02
preset = Preset()
sample.simulate_group(preset, 5, range(2))
print("ready", flush=True)
for line in sys.stdin:
    started = time.monotonic()
    if not (pid := os.fork()):
        os.setpgid(0, 0)
        dataset.simulate_dataset(preset, line.strip(), 96, 5, shard_size=4)
        os._exit(0)
    print(pid, flush=True)
    _, status = os.waitpid(pid, 0)
    print(os.waitstatus_to_exitcode(status), time.monotonic() - started, flush=True)
"""


@contextlib.contextmanager
def python(code: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, text=True, bufsize=1,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.slow
def test_killed_at_ten_moments_and_run_again(tmp_path: Path) -> None:
    moments, seen = random.Random(3), set()
    with python(TEMPLATE) as template:
        assert template.stdin is not None
        assert template.stdout is not None
        reply = iter(template.stdout.readline, "")

        def start(directory: Path) -> int:
            assert template.stdin is not None
            template.stdin.write(f"{directory}\n")
            return int(next(reply))

        def end() -> tuple[int, float]:
            code, seconds = next(reply).split()
            return int(code), float(seconds)

        assert next(reply) == "ready\n"
        start(tmp_path / "whole")
        code, duration = end()
        assert code == 0
        whole = contents(tmp_path / "whole")
        assert len(whole) == 25
        codes = []
        for n in range(10):
            directory = tmp_path / str(n % 4)  # each is killed several times
            pid = start(directory)
            time.sleep(moments.uniform(0.05, 0.9) * duration)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            codes.append(end()[0])
            seen.add(frozenset(contents(directory)) if directory.exists() else frozenset())
        assert codes.count(-signal.SIGKILL) >= 6
        assert len(seen) >= 4  # broken off at different stages
        for n in range(4):
            start(tmp_path / str(n))
            assert end()[0] == 0
            assert different(tmp_path / str(n), whole) == []
            assert not list((tmp_path / str(n)).glob(".*.tmp"))


DRIVER = """
import sys
from slotflow.config import Preset
from slotflow.simulate import dataset
if __name__ == "__main__":
    dataset.simulate_dataset(Preset(), sys.argv[1], 12, 5, 2, shard_size=2)
"""


@pytest.mark.slow
@pytest.mark.parametrize("group", [True, False])
def test_workers_end_with_the_run(
    undisturbed: dict[str, bytes], tmp_path: Path, group: bool
) -> None:
    """Killed as a group, or the parent alone: no worker goes on, and a rerun ends in the same."""
    with python(DRIVER, str(tmp_path)) as driver:
        deadline = time.monotonic() + 60
        while not (workers := children(driver.pid)) or not list(tmp_path.glob("*shard-*")):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        (os.killpg if group else os.kill)(driver.pid, signal.SIGKILL)
        driver.wait(timeout=10)
        while any(alive(pid) for pid in workers):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    simulate(tmp_path)
    assert different(tmp_path, undisturbed) == []
    assert not list(tmp_path.glob(".*.tmp"))


def children(pid: int) -> list[int]:
    """Return the processes that run Python workers for this one."""
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [int(child) for child in found]
