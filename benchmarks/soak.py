"""Many files in one process: do memory and open files stay as they are?

    OMP_NUM_THREADS=1 ./run python benchmarks/soak.py [--files 1000] [--observations 20]

Simulates a training set of 16 bands, gives it as many names as there are files, and calls
``slotflow posterior`` on one band of each, one after the other, in this process; so many of the
files are the example's year instead, of which two bands are read. Prints, on the way, resident
memory, open files and processes of this process (the one that reads HDF5 files is among them), and
a JSON line.
"""

import contextlib
import gc
import io
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import click

BANDS = 16
RANGE = ("--fmin", "1.9400e-3", "--fmax", "1.9425e-3")
EXAMPLE = Path(__file__).parents[1] / "data" / "example.h5"


def held() -> dict[str, int]:
    """Return what this process holds: megabytes, open files, processes it started."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    own = f"/proc/self/task/{os.getpid()}/children"
    return {
        "megabytes": pages * resource.getpagesize() >> 20,
        "open_files": len(list(Path("/proc/self/fd").iterdir())),
        "processes": len(Path(own).read_text().split()),
    }


def simulate(folder: Path) -> None:
    """Write the bands that all names stand for."""
    from slotflow.cli.main import run

    asked = ["--samples", str(BANDS), "--seed", "5", "--workers", "1", "--preset", "small"]
    assert run(["simulate", *asked, "-o", str(folder)]) == 0


def name(place: Path, number: int, year: bool) -> tuple[Path, list[str]]:
    """Give a file its name; return it, and what of it is read."""
    path = place / f"{number:04}"
    if year:
        path = path.with_suffix(".h5")
        path.symlink_to(EXAMPLE)
        return path, list(RANGE)
    path.mkdir()
    for file in (place / "set").iterdir():
        (path / file.name).symlink_to(file)
    band = number % BANDS
    return path, ["--bands", f"{band}:{band + 1}"]


@click.command()
@click.option("--files", default=1000)
@click.option("--observations", default=20, help="Years among them.")
@click.option("--samples", default=100)
def main(files: int, observations: int, samples: int) -> None:
    """Read the files and print what is held."""
    from slotflow.cli.main import run

    shown = [n for n in (10, 100, 200, 300, 500, 700, 1000, files) if n <= files]
    every = max(files // max(observations, 1), 1)
    rows: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        place, begun = Path(folder), time.process_time()
        simulate(place / "set")
        for number in range(files):
            year = observations > 0 and number % every == every // 2
            path, part = name(place, number, year)
            call = [
                "posterior",
                str(path),
                *part,
                "--samples",
                str(samples),
                "-o",
                str(place / "out"),
            ]
            with (
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()),
            ):
                code = run(call)
            if code != 0:
                sys.exit(f"{path}: exit code {code}")
            if number + 1 in shown and (not rows or rows[-1]["files"] != number + 1):
                rows.append({"files": number + 1} | held())
                print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
        spent = time.process_time() - begun
    print(
        json.dumps({"files": files, "years": observations, "seconds": round(spent), "rows": rows})
    )


if __name__ == "__main__":
    main()
