"""Commands that are killed at any moment and run again: what they leave in the end.

A process imports and warms up once, and forks for every run. What a run leaves is compared by its
data: bytes of shards and manifest, of weights, of samples and table, of the records of a
comparison; times, and the host, are left out.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.elsewhere import ROOT

#: Runs each command it is told (a JSON list) in a process, and a group, of its own.
TEMPLATE = """
import json, os, sys, time
from tests import killing
killing.warm(sys.argv[1], sys.argv[2])
print("ready", flush=True)
for line in sys.stdin:
    started = time.monotonic()
    if not (pid := os.fork()):
        os.setpgid(0, 0)
        sys.stdout = sys.stderr = open(os.path.join(sys.argv[2], "said"), "w")
        os._exit(killing.work(sys.argv[1], *json.loads(line)))
    print(pid, flush=True)
    _, status = os.waitpid(pid, 0)
    print(os.waitstatus_to_exitcode(status), time.monotonic() - started, flush=True)
"""
SETTINGS = """
prior: {max_sources: 2}
components: {sky_points: 48, slow_samples: 64, taps: 9, max_components: 4}
model: {width: 16, heads: 2, layers: 1, slots: 2, context: 16, flow_layers: 2, flow_bins: 4,
        flow_hidden: 16, psi_bins: 4, psi_hidden: 16}
train: {samples: 128, noise_draws: 1, batch: 32, passes: 12000, validation_fraction: 0.5,
        validations: 4, checkpoint_seconds: 0.2}
"""


def warm(command: str, place: str) -> None:
    """Import, and prepare what all runs read, below a folder."""
    import torch

    from slotflow import posterior as batches
    from slotflow.checkpoint import save_model
    from slotflow.cli.main import run
    from slotflow.simulate import dataset
    from tests.chain import untrained_model

    torch.set_num_threads(1)
    batches.BATCH = 1  # type: ignore[misc]
    dataset.MANIFEST_SECONDS = 0.02  # type: ignore[misc]
    Path(place, "settings.yaml").write_text(SETTINGS)
    if command in ("posterior", "report"):
        save_model(Path(place, "model.safetensors"), untrained_model())
    if command == "train":
        work(command, place, str(Path(place, "first")))
    if command == "ablate":
        import slotflow.ablate.synthetic  # noqa: F401
    assert callable(run)


def work(command: str, place: str, out: str) -> int:
    """Run a command into a folder; return its exit code."""
    from slotflow.cli.main import run

    if command == "simulate":
        from slotflow.config import Preset
        from slotflow.simulate.dataset import simulate_dataset

        simulate_dataset(Preset(), out, 64, 5, shard_size=4)
        return 0
    arguments: Mapping[str, list[str]] = {
        "train": ["train", f"{place}/data", "--preset", f"{place}/settings.yaml", "--workers", "1",
                  "--no-tensorboard"],
        "posterior": ["posterior", "--model", f"{place}/model.safetensors", "--fmin", "1.940e-3",
                      "--fmax", "1.949e-3", "--samples", "50"],
        "ablate": ["ablate", "synthetic", "--quick", "--epochs", "1", "--tasks", "bumps",
                   "--methods", "linear,vanilla", "--seeds", "2", "--workers", "1"],
        "report": ["report", "--model", f"{place}/model.safetensors", "--simulate", "64", "--draws",
                   "50", "--workers", "1"],
    }  # fmt: skip
    return run([*arguments[command], "-o", out])


def data(command: str, out: Path) -> dict[str, Any]:
    """Return what a run left, without times."""
    readers = {"simulate": _files, "train": _weights, "posterior": _samples, "ablate": _records,
               "report": _figures}  # fmt: skip
    return readers[command](out)


def _figures(out: Path) -> dict[str, Any]:
    """A report's figures, and what else is in its folder."""
    content: dict[str, Any] = _lasting(json.loads(Path(out, "report.json").read_text()))
    return content | {"files": sorted(path.name for path in out.iterdir())}


def _lasting(value: Any) -> Any:
    """What does not depend on when and where a report was made."""
    if isinstance(value, list):
        return [_lasting(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        name: _lasting(one)
        for name, one in value.items()
        if name not in ("created", "command", "seconds")
    }


def _files(out: Path) -> dict[str, Any]:
    return {p.name: p.read_bytes() for p in out.iterdir() if p.suffix in (".h5", ".json")}


def _weights(out: Path) -> dict[str, Any]:
    from safetensors import safe_open

    found: dict[str, Any] = {}
    for path in out.glob("*.safetensors"):
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118
                found[f"{path.name}:{name}"] = file.get_tensor(name).tobytes()
            card = json.loads(file.metadata()["slotflow"])["card"]
        found[f"{path.name}:validation"] = card.get("validation")
        found[f"{path.name}:steps"] = card["training"]["steps"]
    return found


def _samples(out: Path) -> dict[str, Any]:
    import h5py

    found: dict[str, Any] = {}
    for path in out.glob("*.nc"):
        with h5py.File(path) as file:

            def keep(name: str, item: Any) -> None:
                if isinstance(item, h5py.Dataset):
                    found[name] = np.asarray(item).tobytes()

            file.visititems(keep)
    for path in out.glob("*.ecsv"):
        lines = path.read_text().splitlines()
        found[path.name] = [line for line in lines if not line.startswith("#")]
    return found


def _records(out: Path) -> dict[str, Any]:
    found = {}
    for path in [*out.glob("runs/*.json"), out / "results.json"]:
        if path.is_file():
            found[path.name] = json.dumps(_timeless(json.loads(path.read_text())))
    return found


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _timeless(v) for k, v in value.items() if k != "seconds"}
    return [_timeless(v) for v in value] if isinstance(value, list) else value


@dataclass
class Killed:
    """What came of it.

    Attributes:
        seconds: of an undisturbed run.
        kills: how many runs were killed before they were done.
        stages: how many different states of the folder were seen after kills.
        different: names of what differs from the undisturbed run after the last.
        left: names of temporary files that are left.
    """

    seconds: float
    kills: int
    stages: int
    different: list[str]
    left: list[str]


def kill(command: str, place: Path, moments: int, folders: int, seed: int) -> Killed:
    """Kill a command at random moments, in turn in some folders; then let it end in each."""
    rng = random.Random(seed)
    place.mkdir(parents=True, exist_ok=True)
    outs = [place / f"killed-{number}" for number in range(folders)]
    different: list[str] = []
    with _template(command, place) as (start, end):
        start(place / "whole")
        code, seconds = end()
        assert code == 0, code
        whole, kills, stages, typical = data(command, place / "whole"), 0, set(), seconds
        assert whole
        for number in range(4 * moments):
            if kills == moments:
                break
            out = outs[number % folders]
            pid = start(out)
            time.sleep(rng.uniform(0.02, 0.9) * typical)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            code, took = end()
            seen = sorted(str(p) for p in out.rglob("*")) if out.exists() else []
            stages.add(tuple(seen))
            kills += code == -signal.SIGKILL
            if code == 0:  # done before the moment came: compared, and begun anew
                typical = min(typical, took)
                different += _differences(command, out, whole)
                shutil.rmtree(out)
        left = []
        for out in outs:
            start(out)
            code, _ = end()
            assert code == 0, (place / "said").read_text()
            different += _differences(command, out, whole)
            left += [p.name for p in out.rglob(".*") if p.name.endswith((".tmp", ".partial"))]
    return Killed(seconds, kills, len(stages), sorted(different), left)


def _differences(command: str, out: Path, whole: Mapping[str, Any]) -> list[str]:
    found = data(command, out)
    names = found.keys() | whole.keys()
    return [f"{out.name}/{name}" for name in names if found.get(name) != whole.get(name)]


@contextlib.contextmanager
def _template(
    command: str, place: Path
) -> Iterator[tuple[Callable[[Path], int], Callable[[], tuple[int, float]]]]:
    with subprocess.Popen(
        [sys.executable, "-c", TEMPLATE, command, str(place)], cwd=ROOT, text=True, bufsize=1,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        start_new_session=True, env=os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"},
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        reply = iter(process.stdout.readline, "")

        def start(out: Path) -> int:
            assert process.stdin is not None
            process.stdin.write(json.dumps([str(place), str(out)]) + "\n")
            return int(next(reply))

        def end() -> tuple[int, float]:
            code, seconds = next(reply).split()
            return int(code), float(seconds)

        try:
            while next(reply) != "ready\n":
                continue
            yield start, end
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
