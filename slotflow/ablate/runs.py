"""A comparison as a folder of runs: each one JSON file, so that what is done is done.

A run's name holds its task, method and seed; its file also holds the settings that it was made
with, and a folder takes up runs of the same settings only.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Protocol

from slotflow.atomic import written
from slotflow.errors import InputError, OutputExistsError
from slotflow.plain import parse_json
from slotflow.processes import work_off

RESULTS: Final = "results.json"
#: What every record of ``results.json`` has; null where it does not apply.
KEYS: Final = (
    "task", "method", "seed", "peak_overlap", "chance", "cosine_overlap", "nll", "crps",
    "recovery", "seconds",
)  # fmt: skip
#: What a run keeps beside its record, and ``results.json`` leaves out.
OWN: Final = ("settings", "examples")

Record = dict[str, Any]
Progress = Callable[[int, int, str], None]


class Job(Protocol):
    """One run: what it is called, what it was asked for, and how it is done.

    ``settings`` are plain values; ``work`` returns the record without task, method and seed.
    """

    @property
    def task(self) -> str: ...
    @property
    def method(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def settings(self) -> Record: ...
    def work(self) -> Record: ...


def path_of(folder: Path, job: Job) -> Path:
    """Return where a run's record is kept."""
    method = job.method.replace(" ", "-").replace(",", "")
    return folder / "runs" / f"{job.task}.{method}.seed{job.seed}.json"


def run_all(
    folder: Path, jobs: Sequence[Job], workers: int, progress: Progress | None = None
) -> list[Record]:
    """Do the runs that are not there yet; return the records of all, in the order of the jobs.

    Args:
        folder: of the comparison, made if need be.
        jobs: the runs, each picklable.
        workers: processes, each with one thread; 1: this one.
        progress: called with (runs done, runs in all, the latest one's name).

    Raises:
        OutputExistsError: a run of other settings stands there.
        InputError: a file there is no record, or cannot be written.
    """
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    places = [path_of(folder, job) for job in jobs]
    found = {place: stored(place, job) for place, job in zip(places, jobs, strict=True)}
    done = {place: record for place, record in found.items() if record is not None}
    left = [job for place, job in zip(places, jobs, strict=True) if place not in done]
    if left:
        _work_off(folder, left, done, len(jobs), min(workers, len(left)), progress)
    records = [done[place] for place in places]
    write_results(folder, records)
    return records


def _work_off(
    folder: Path, left: list[Job], done: dict[Path, Record], total: int, workers: int,
    progress: Progress | None,
) -> None:  # fmt: skip
    def keep(job: Job, found: Record) -> None:
        place = path_of(folder, job)
        done[place] = _keep(place, job, found)
        if progress is not None:
            progress(len(done), total, place.stem)

    if workers == 1:
        _one_thread()
        for job in left:
            keep(job, job.work())
        return
    # linear algebra that threads on its own is slower here: the tensors are small
    with closing(work_off(_work, left, workers, _one_thread)) as records:
        for number, record in records:
            keep(left[number], record)


def _work(job: Job) -> Record:
    return job.work()


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _keep(place: Path, job: Job, found: Record) -> Record:
    record = {"task": job.task, "method": job.method, "seed": job.seed}
    record |= {key: found.get(key) for key in KEYS if key not in record}
    record |= found | {"settings": job.settings}
    with written(place) as path:
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return record


def stored(path: Path, job: Job) -> Record | None:
    """Return the record at ``path`` of a run that was done, None where there is none.

    Raises:
        OutputExistsError: it was done with other settings.
        InputError: the file is no record.
    """
    if not path.exists():
        return None
    try:
        record = parse_json(path.read_bytes(), str(path))
        settings = dict(record["settings"])
    except (OSError, ValueError, KeyError, TypeError, InputError) as error:
        raise InputError(f"{path}: not the record of a run; remove it ({error})") from error
    wanted = json.loads(json.dumps(job.settings))
    for name in sorted(wanted.keys() | settings.keys()):
        if settings.get(name) != wanted.get(name):
            raise OutputExistsError(
                f"{path}: a run with {name} {settings.get(name)!r}, now {wanted.get(name)!r};"
                " give another -o DIR"
            )
    return dict(record)


def write_results(folder: Path, records: Sequence[Record]) -> Path:
    """Write ``results.json``, the list of all records without what is only for the pictures."""
    path = folder / RESULTS
    shown = [{k: v for k, v in record.items() if k not in OWN} for record in records]
    with written(path) as temporary:
        temporary.write_text(json.dumps(shown, indent=1) + "\n", encoding="utf-8")
    return path
