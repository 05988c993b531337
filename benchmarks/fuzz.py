"""Spoilt files, in numbers: what reads them must take them or refuse them in one line.

    ./run python benchmarks/fuzz.py [TARGET ...] [--inputs 10000] [--seed 1] [--seconds 60]

Each input follows from (seed, its number), so that one can be made again: --first N --inputs 1. A
process does the work; one that ends (a crash in HDF5, say) is started again after the input
that did it. With --atheris the choices are those of a fuzzer that looks for new paths through the
package (it is no dependency: install it beside). HDF5 files are read in that process, too; --apart
reads them in one of their own, as the library does (a third of a second each). Prints one JSON line
a target: inputs, how many were taken, seconds, peak memory, and what came out that must not.
"""

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).parents[1]
SECONDS = 5  # of the processor, for one input, from which on it hangs
KEPT = 20  # faults that are shown
APART = "SLOTFLOW_FUZZ_APART"
_forever = contextlib.ExitStack()


class HangError(Exception):
    """An input that took too long."""


def _hangs(*_: object) -> None:
    raise HangError(f"more than {SECONDS} s of the processor")


def _base() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def one(target: Any, choices: Any) -> tuple[bool, str]:
    """Read one input; return whether it was taken, and what came out that must not."""
    with tempfile.TemporaryDirectory(dir=_base()) as folder, _quiet():
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        limit = int(time.process_time()) + 3 * SECONDS  # ends what no signal reaches: C code
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
        try:
            return bool(target(choices, Path(folder))), ""
        except Exception as error:  # all of them: that is what is looked for
            place = traceback.extract_tb(error.__traceback__)
            ours = [f for f in place if "/slotflow/" in f.filename] or list(place)
            where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"
            return False, f"{type(error).__name__} at {where}: {str(error)[:160]}"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)


def work(name: str, first: int, stop: int, seed: int, seconds: int) -> None:
    """Read inputs and print a line for each fault, then a summary; a process of its own."""
    sys.path.insert(0, str(ROOT))
    from tests import fuzzing_hdf5
    from tests.fuzzing import TARGETS, Random

    if not os.environ.get(APART):
        _forever.enter_context(fuzzing_hdf5.here())

    signal.signal(signal.SIGPROF, _hangs)
    target, taken = TARGETS[name], 0
    for number in range(2):  # what is imported and made once takes its time
        with contextlib.suppress(Exception), tempfile.TemporaryDirectory(dir=_base()) as folder:
            target(Random(seed, stop, number), Path(folder))
    begun, number = time.process_time(), first
    for number in range(first, stop):
        if time.process_time() - begun > seconds:
            stop = number
            break
        os.write(3, f"{number}\n".encode())
        good, fault = one(target, Random(seed, number))
        taken += good
        if fault:
            print(json.dumps({"input": number, "fault": fault}), flush=True)
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)  # those that read HDF5 apart have ended
    peak = max(resource.getrusage(one).ru_maxrss for one in who) / 1024.0
    print(json.dumps({"taken": taken, "megabytes": round(peak), "stop": stop}), flush=True)


def _spent() -> float:
    """Return the processor's seconds of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(name: str, first: int, inputs: int, seed: int, seconds: int) -> dict[str, Any]:
    """Read inputs in processes that are started until all are read."""
    started, begin, stop = time.monotonic(), first, first + inputs
    before = _spent()
    found: dict[str, Any] = {"target": name, "inputs": inputs, "seed": seed, "taken": 0}
    faults: list[dict[str, Any]] = []
    found["megabytes"] = 0
    while first < stop and (left := round(seconds - _spent() + before)) > 0:
        with tempfile.TemporaryFile() as at:
            call = [
                sys.executable,
                __file__,
                "--work",
                name,
                str(first),
                str(stop),
                str(seed),
                str(left),
            ]
            code = f"exec 3<&{at.fileno()}; " + 'exec "$@"'
            done = subprocess.run(
                ["bash", "-c", code, "-", *call], stdout=subprocess.PIPE, text=True, check=False,
                pass_fds=(at.fileno(),), cwd=ROOT,
            )  # fmt: skip
            at.seek(0)
            last = int((at.read().split() or [b"-1"])[-1])
        for line in map(json.loads, done.stdout.splitlines()):
            if "input" in line:
                faults.append(line)
            else:
                found["taken"] += line["taken"]
                found["megabytes"] = max(found["megabytes"], line["megabytes"])
                found["inputs"] = line["stop"] - begin
        if done.returncode == 0:
            break
        faults.append({"input": last, "fault": f"process ended with {done.returncode}"})
        first = max(last, first) + 1
        found["inputs"] = first - begin
    kinds: dict[str, int] = {}
    for fault in faults:
        kinds[fault["fault"][:90]] = kinds.get(fault["fault"][:90], 0) + 1
    found |= {"seconds": round(time.monotonic() - started, 1), "faults": len(faults)}
    return found | {"kinds": kinds, "shown": faults[:KEPT]}


def guided(name: str, inputs: int, seed: int) -> None:
    """Let atheris choose; ends with an error of its own at the first fault."""
    import atheris

    sys.path.insert(0, str(ROOT))
    with atheris.instrument_imports(include=["slotflow"]):
        from tests import fuzzing_hdf5
        from tests.fuzzing import TARGETS, Bytes

        _forever.enter_context(fuzzing_hdf5.here())
        signal.signal(signal.SIGPROF, _hangs)
        target = TARGETS[name]
        one(target, Bytes(b""))

    def test(data: bytes) -> None:
        _, fault = one(target, Bytes(data))
        if fault:
            raise RuntimeError(fault)

    corpus = Path(tempfile.mkdtemp(dir=_base()))
    options = [f"-runs={inputs}", f"-seed={seed}", "-max_len=256", "-rss_limit_mb=4096"]
    try:
        atheris.Setup([sys.argv[0], *options, str(corpus)], test)
        atheris.Fuzz()
    finally:
        shutil.rmtree(corpus, ignore_errors=True)


@click.command()
@click.argument("targets", nargs=-1)
@click.option("--inputs", default=10_000)
@click.option("--first", default=0)
@click.option("--seed", default=1)
@click.option("--atheris", "use_atheris", is_flag=True)
@click.option("--apart", is_flag=True, help="Read HDF5 files in processes of their own.")
@click.option("--seconds", default=1_000_000, help="Of the processor, for one target.")
@click.option("--work", "worker", nargs=5, default=None, hidden=True)
def main(
    targets: tuple[str, ...], inputs: int, first: int, seed: int, use_atheris: bool, apart: bool,
    seconds: int, worker: tuple[str, str, str, str, str] | None,
) -> None:  # fmt: skip
    """Read spoilt inputs of the targets, all where none is named."""
    if worker is not None:
        work(worker[0], *(int(part) for part in worker[1:]))
        return
    if apart:
        os.environ[APART] = "1"
    if use_atheris:
        guided(targets[0], inputs, seed)
        return
    if not targets:
        sys.path.insert(0, str(ROOT))
        from tests.fuzzing import TARGETS

        targets = tuple(TARGETS)
    for name in targets:
        print(json.dumps(run(name, first, inputs, seed, seconds)), flush=True)


if __name__ == "__main__":
    main()
