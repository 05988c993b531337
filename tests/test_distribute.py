"""Ways to run: each gives the files of an undisturbed run, bit for bit, and fails in one line."""

import contextlib
import json
import os
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import pytest

from slotflow import __version__, store
from slotflow.cli.main import run
from slotflow.config import Preset
from slotflow.errors import InputError
from slotflow.manifest import read_manifest
from slotflow.simulate import cluster, dataset, folder, shard
from slotflow.simulate.distribute import Devices, Place, Processes, run_in_places
from tests.test_store import make_band

ROOT = Path(__file__).parents[1]
SAMPLES, SEED, SIZE = 12, 5, 2


def simulate(directory: Path, **options: Any) -> None:
    options = {"shard_size": SIZE} | options
    dataset.simulate_dataset(Preset(), directory, SAMPLES, SEED, **options)


def contents(directory: Path) -> dict[str, bytes]:
    """The manifest and the shards."""
    return {p.name: p.read_bytes() for p in directory.iterdir() if p.suffix in (".h5", ".json")}


def different(directory: Path, expected: dict[str, bytes]) -> list[str]:
    """Names of the files that are not as expected, on either side."""
    found = contents(directory)
    return sorted(n for n in found.keys() | expected if found.get(n) != expected.get(n))


def log(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / folder.LOG).read_text().splitlines()]


def shards(directory: Path) -> list[dict[str, Any]]:
    return [line for line in log(directory) if line["event"] == "shard"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """By this process alone."""
    directory = tmp_path_factory.mktemp("undisturbed")
    simulate(directory)
    files = contents(directory)
    assert sorted(files) == ["manifest.json", *(f"shard-0000{n}.h5" for n in range(6))]
    return files


# ---- processes and devices of this machine


@pytest.mark.slow
def test_two_processes_write_the_same_files(undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    simulate(tmp_path, workers=2)
    assert different(tmp_path, undisturbed) == []
    assert len({line["pid"] for line in shards(tmp_path)} - {os.getpid()}) == 2


@pytest.mark.slow
def test_a_process_for_each_device(
    undisturbed: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two of JAX's CPU devices; a third is not there."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
    simulate(tmp_path, distribution=Devices(2, "cpu"))
    assert different(tmp_path, undisturbed) == []
    assert {line["device"] for line in shards(tmp_path)} == {"cpu:0", "cpu:1"}
    assert len({line["pid"] for line in shards(tmp_path)}) == 2
    with pytest.raises(InputError, match=r"gpus: 3 asked for; devices on this machine: 2"):
        simulate(tmp_path / "none", distribution=Devices(3, "cpu"))
    assert not (tmp_path / "none").exists()


def test_more_gpus_than_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "-o", str(tmp_path / "set"), "--samples", "2", "--gpus", "99"]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("slotflow: error: gpus: 99 asked for; GPUs that JAX can use")
    assert (out, err.count("\n")) == ("", 1)
    assert not (tmp_path / "set").exists()


def test_each_gpu_is_the_only_one_its_process_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    def seen(number: int) -> list[tuple[str, str | None, int]]:
        return [(p.variables["CUDA_VISIBLE_DEVICES"], p.platform, p.device)
                for p in Devices(number).places()]  # fmt: skip

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert seen(2) == [("0", "cuda", 0), ("1", "cuda", 0)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7,6")
    assert seen(2) == [("4", "cuda", 0), ("7", "cuda", 0)]


def test_a_process_has_its_environment_from_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """So before it imports anything; ours is as before."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    places = [Place({"CUDA_VISIBLE_DEVICES": name}) for name in "47"]
    names = ["CUDA_VISIBLE_DEVICES"] * 2
    assert sorted(run_in_places(os.getenv, names, places)) == ["4", "7"]
    assert list(run_in_places(os.getenv, ["OMP_NUM_THREADS"], places)) == ["1"]
    [flags] = run_in_places(os.getenv, ["XLA_FLAGS"], places)
    assert "intra_op_parallelism_threads=1" in flags
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,7"
    assert os.environ["OMP_NUM_THREADS"] == "3"


def test_every_job_is_done_once_and_errors_come_through() -> None:
    jobs = [-(i**2) for i in range(9)]
    assert sorted(run_in_places(abs, jobs, [Place()] * 2)) == [i**2 for i in range(9)]
    with pytest.raises(ValueError, match="invalid literal"):
        list(run_in_places(int, ["1", "2", "x", "3"], [Place()] * 2))


def test_a_process_that_is_killed_is_one_line() -> None:
    with pytest.raises(InputError, match="a worker process ended"):
        list(run_in_places(os._exit, [9], [Place()]))


# ---- dask


@pytest.fixture(scope="module")
def local_cluster() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None,
    ) as running:  # fmt: skip
        yield running


@pytest.mark.slow
def test_dask_workers_write_the_same_files_though_one_is_killed(
    undisturbed: dict[str, bytes], tmp_path: Path, local_cluster: Any
) -> None:
    ways = cluster.Scheduler(local_cluster.scheduler_address)
    with distributed_client(local_cluster) as client:
        pids = set(client.run(os.getpid).values())
    assert len(pids) == 2
    killed = []

    def kill_the_other(done: int, _: int) -> None:
        """After the first shard: the other worker is at work on its own."""
        if done and not killed:
            [first] = {line["pid"] for line in shards(tmp_path / "killed")}
            killed.extend(pids - {first})
            os.kill(killed[0], signal.SIGKILL)

    simulate(tmp_path / "killed", distribution=ways, progress=kill_the_other)
    assert different(tmp_path / "killed", undisturbed) == []
    assert len(killed) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(killed[0], 0)
    by = {line["pid"] for line in shards(tmp_path / "killed")}
    assert os.getpid() not in by
    simulate(tmp_path / "again", distribution=ways)
    assert different(tmp_path / "again", undisturbed) == []


@contextlib.contextmanager
def distributed_client(scheduler: Any) -> Iterator[Any]:
    from distributed import Client

    with Client(scheduler, set_as_default=False) as client:
        yield client


@pytest.mark.slow
def test_errors_of_dask_are_one_line(tmp_path: Path, local_cluster: Any) -> None:
    ways = cluster.Scheduler(local_cluster.scheduler_address)
    with pytest.raises(ValueError, match="invalid literal"):
        list(ways.run(int, ["1", "x"]))
    with pytest.raises(InputError, match="gave a job up after several workers died"):
        list(ways.run(os._exit, [9]))


def test_a_dask_worker_of_several_threads_is_refused() -> None:
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None
        ) as running,
        pytest.raises(InputError, match="several threads: start workers with --nthreads 1"),
    ):
        list(cluster.Scheduler(running.scheduler_address).run(abs, [-1]))


def test_no_scheduler_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 1)
    arguments = ["simulate", "-o", str(tmp_path / "set"), "--samples", "2"]
    for address in ("tcp://127.0.0.1:9", "nonsense://x", "tcp://127.0.0.1:port"):
        assert run([*arguments, "--scheduler", address]) == 2
        err = capsys.readouterr().err
        assert f"error: {address}: no dask scheduler answers there" in err
        assert len([line for line in err.splitlines() if line.startswith("slotflow")]) == 1


@pytest.mark.parametrize(
    ("options", "package"),
    [(["--scheduler", "x:1"], "distributed"), (["--slurm", "--workers", "2"], "dask-jobqueue")],
)
def test_without_the_extra(
    tmp_path: Path, options: list[str], package: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, package.replace("-", "_"), None)
    assert run(["simulate", "-o", str(tmp_path / "set"), *options]) == 2
    err = capsys.readouterr().err
    assert err.endswith(
        f"needs the package {package}, of the extra 'cluster': pip install 'slotflow-gw[cluster]'\n"
    )
    assert err.count("\n") == 1
    assert not (tmp_path / "set").exists()


def test_a_shards_bytes_do_not_depend_on_when_handles_are_let_go_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask's profiler, a thread, keeps objects alive for a moment, now and then."""
    bands, kept = [make_band(i) for i in range(5)], []
    create = h5py.Group.create_dataset
    for number, held in enumerate([(), ("signal",), ("snr", "outside"), ("first_bin", "sources")]):

        def keep(self: Any, name: str, *, held: Any = held, **options: Any) -> Any:
            made = create(self, name, **options)
            kept.extend([made] if name in held else [])
            return made

        with monkeypatch.context() as patch:
            patch.setattr(h5py.Group, "create_dataset", keep)
            store.write_shard(tmp_path / f"shard-{number:05d}.h5", bands, {"seed": 1})
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1


# ---- workers elsewhere, stood for by functions


class Elsewhere(Processes):
    """Workers on another machine: ``change`` alters what they did."""

    remote = True

    def __init__(self, change: Callable[[Any, shard.ShardResult], shard.ShardResult]) -> None:
        object.__setattr__(self, "change", change)
        super().__init__(1)

    def run(self, work: Any, jobs: Any) -> Iterator[Any]:
        for job in jobs:
            yield self.change(job, work(job))  # type: ignore[attr-defined]


def lose(job: shard.ShardJob, result: shard.ShardResult) -> shard.ShardResult:
    (Path(job.directory) / result.entry.name).unlink()
    return result


def alter(job: shard.ShardJob, result: shard.ShardResult) -> shard.ShardResult:
    with (Path(job.directory) / result.entry.name).open("ab") as file:
        file.write(b"x")
    return result


def age(job: shard.ShardJob, result: shard.ShardResult) -> shard.ShardResult:
    return result._replace(version="0.0.1")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lose, r"shard-00000\.h5: written on .*, but missing or another file here"),
        (alter, r"shard-00000\.h5: written on .*, but missing or another file here"),
        (age, rf"a worker with slotflow 0\.0\.1; here it is {__version__}"),
    ],
)
def test_a_shard_that_is_not_seen_here(
    tmp_path: Path, change: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset, "VISIBLE_SECONDS", 0.3)
    with pytest.raises(InputError, match=words):
        simulate(tmp_path, distribution=Elsewhere(change))
    assert read_manifest(tmp_path).shards == ()
    assert log(tmp_path)[-1]["event"] == "stopped"


def test_a_folder_that_a_worker_does_not_see(tmp_path: Path) -> None:
    job = shard.ShardJob(Preset(), str(tmp_path / "absent"), 1, 0, 0, 2)
    with pytest.raises(InputError, match=r"absent: no such folder on .* shared file system"):
        shard.simulate_shard(job)
    assert not (tmp_path / "absent").exists()


# ---- SLURM, without one


def test_options_arrive_in_the_job_script() -> None:
    pytest.importorskip("dask_jobqueue")
    options = cluster.slurm_options(
        ["queue=short", "account=lisa=1", "walltime=01:30:00", "memory=6GB",
         "job_extra_directives=--constraint=cpu", "job-extra-directives=--nice",
         "job_script_prologue=module load python", "death_timeout=60"]
    )  # fmt: skip
    with cluster.Slurm(3, options).cluster() as running:
        script = running.job_script().splitlines()
    for line in ("-p short", "-A lisa=1", "-t 01:30:00", "--mem=6G", "--constraint=cpu", "--nice"):
        assert f"#SBATCH {line}" in script
    assert "#SBATCH --cpus-per-task=1" in script
    assert "module load python" in script
    [command] = [line for line in script if "distributed.cli.dask_worker" in line]
    assert command.startswith(sys.executable)
    assert "--nthreads 1 " in command
    assert "--death-timeout 60" in command


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["queue"], "expected KEY=VALUE; got 'queue'"),
        (["=x"], "expected KEY=VALUE"),
        (["queue=a", "queue=b"], "queue is given twice"),
        (["cores=many"], "cores: expected a number; got 'many'"),
        (["cores=2"], "cores and processes must be equal"),
        (["quue=a"], "unexpected keyword argument 'quue'"),
        (["memory=much"], "--slurm-option: "),
    ],
)
def test_bad_slurm_options(
    tmp_path: Path, options: list[str], words: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    pytest.importorskip("dask_jobqueue")
    monkeypatch.setenv("PATH", f"{fake_slurm(tmp_path)}:{os.environ['PATH']}")
    given = [part for option in options for part in ("--slurm-option", option)]
    base = ["simulate", "-o", str(tmp_path / "set"), "--samples", "2", "--slurm", "--workers", "1"]
    assert run([*base, *given]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert len([line for line in err.splitlines() if line.startswith("slotflow")]) == 1


def test_no_slurm_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="no sbatch here"):
        cluster.Slurm(2).check()


def fake_slurm(directory: Path) -> Path:
    """Return a folder of commands that stand for SLURM's: a job is a process of this machine."""
    commands = {
        "sbatch": f'cp "$1" {directory}/job.sh\n'
        f'setsid bash {directory}/job.sh >{directory}/job.log 2>&1 & echo "$!" >>{directory}/jobs\n'
        'echo "Submitted batch job $!"\n',
        "scancel": 'kill -- "-$1"\n',
    }
    for name, body in commands.items():
        path = directory / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/usr/bin/env bash\n{body}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return directory / "bin"


@pytest.mark.slow
def test_jobs_of_something_like_slurm(
    undisturbed: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sbatch starts the job script here: what dask-jobqueue writes does run, and ends."""
    pytest.importorskip("dask_jobqueue")
    monkeypatch.setenv("PATH", f"{fake_slurm(tmp_path)}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    options = cluster.slurm_options(["memory=1GB", f"local_directory={tmp_path / 'dask'}"])
    simulate(tmp_path / "set", distribution=cluster.Slurm(1, options))
    assert different(tmp_path / "set", undisturbed) == []
    [job] = (tmp_path / "jobs").read_text().split()
    assert os.getpid() not in {line["pid"] for line in shards(tmp_path / "set")}
    deadline = time.monotonic() + 10
    while alive(int(job)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive(int(job))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


# ---- options that exclude one another


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--scheduler", "x:1", "--slurm"], "--slurm does not go with --scheduler"),
        (["--slurm", "--workers", "2", "--gpus", "1"], "--gpus does not go with --slurm"),
        (["--scheduler", "x:1", "--gpus", "1"], "--gpus does not go with --scheduler"),
        (["--scheduler", "x:1", "--workers", "2"], "--workers does not go with --scheduler"),
        (["--gpus", "1", "--workers", "2"], "--workers does not go with --gpus"),
        (["--slurm"], "--slurm needs --workers, the number of jobs"),
        (["--slurm-option", "queue=a"], "--slurm-option needs --slurm"),
        (["--observation", "x.h5", "--gpus", "1"], "--gpus does not go with --observation"),
        (["--observation", "x.h5", "--slurm"], "--slurm does not go with --observation"),
        (["--check", ".", "--scheduler", "x:1"], "--scheduler does not go with --check"),
        (["--gpus", "0"], "--gpus"),
    ],
)
def test_options_that_exclude_one_another(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["simulate", *options]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1
