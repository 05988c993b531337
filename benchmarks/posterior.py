"""The main job: seconds a band, seconds for a year, and how memory grows with the bands.

    ./run python benchmarks/posterior.py [--quick]

Runs ``slotflow posterior`` on the example year (1.0 to 2.1 mHz, all bands) and on the same year
at 5 s (6,291,456 samples, as many as LDC2 Sangria has), each end to end in a process of its own
on the cores given; then reads 64 to 1024 bands (10,000 without ``--quick``) of 256 samples in one
process each, the tiling repeated, and writes their netCDF file: the peak of its resident memory,
and the log-log slope of that over the bands. Beside it, what the year's catalogue is worth: true
sources detected and missed by SNR (a report within one bin whose mean waveform has an overlap
above 0.8 with the truth's), false reports and duplicates. The last line is a JSON object.
"""

import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from importlib import resources
from pathlib import Path
from typing import Any

import click

BANDS = {True: (64, 256, 1024), False: (64, 256, 1024, 10_000)}
SAMPLES = 256
EDGES = (4.0, 5.0, 7.0, 10.0, 20.0, float("inf"))
SAME = 0.8  # waveform overlap of one signal
FINE = 12  # of the example's time step of 60 s


def example() -> Path:
    """The observation that ships."""
    return Path(str(resources.files("slotflow.data") / "example.h5"))


def write_fine(path: Path) -> None:
    """Write the example at a twelfth of its time step, by zeros in its spectrum."""
    import h5py
    import numpy as np
    import scipy.fft

    with h5py.File(example()) as file:
        rows, attributes = file["obs/tdi"][()].ravel(), dict(file["obs/tdi"].attrs)
    n = len(rows)
    fine = np.zeros((FINE * n, 1), dtype=[(name, "<f8") for name in "tXYZ"])
    fine["t"][:, 0] = rows["t"][0] + (rows["t"][1] - rows["t"][0]) / FINE * np.arange(FINE * n)
    for name in "XYZ":
        spectrum = scipy.fft.rfft(rows[name].astype(np.float64))
        fine[name][:, 0] = FINE * scipy.fft.irfft(spectrum, FINE * n)
    with h5py.File(path, "w") as file:
        data = file.create_dataset("obs/tdi", data=fine)
        data.attrs.update(attributes)


def catalogue_worth(source: Path, folder: Path) -> dict[str, Any]:
    """Compare the samples written for an observation with the truth that it keeps."""
    import numpy as np
    import xarray as xr

    from slotflow.checkpoint import load_model
    from slotflow.merging import Comparison
    from slotflow.parameters import NAMES
    from slotflow.readers import read_truth
    from slotflow.results import SourcePosterior

    comparison = Comparison(load_model(example().with_name("model.safetensors")).grid)
    with xr.open_datatree(folder / f"{source.stem}.posterior.nc", engine="h5netcdf") as tree:
        draws = np.stack([tree["posterior"][name].values[0] for name in NAMES], axis=-1)
        probability = tree["sample_stats"]["probability"].values
        settings = json.loads(tree.attrs["settings"])
    found = [
        SourcePosterior(draws[:, i], np.zeros(len(draws)), float(p), 0, i, 0.0)
        for i, p in enumerate(probability)
    ]
    truth = read_truth(source)
    if truth is None:
        raise click.ClickException(f"{source}: keeps no truth")
    f0 = truth.sources[:, 0]
    chosen = (f0 >= settings["fmin"]) & (f0 <= settings["fmax"]) & (truth.snr >= EDGES[0])
    true = [
        SourcePosterior(row[None], np.zeros(1), 1.0, 0, 0, 0.0) for row in truth.sources[chosen]
    ]
    snr = truth.snr[chosen]
    free, detected = set(range(len(found))), np.zeros(len(true), dtype=bool)
    for i in np.argsort(-snr):
        near = [j for j in free if abs(found[j].f0 - true[i].f0) * comparison.grid.duration < 1.0]
        overlaps = {j: comparison.overlap(found[j], true[i]) for j in near}
        if overlaps and max(overlaps.values()) > SAME:
            free.remove(max(overlaps, key=lambda j: overlaps[j]))
            detected[i] = True
    table = {}
    for low, high in itertools.pairwise(EDGES):
        row = (snr >= low) & (snr < high)
        table[f"{low:g}-{high:g}"] = [int(detected[row].sum()), int(row.sum())]
        click.echo(f"SNR {low:g}-{high:g}: {int(detected[row].sum())} of {row.sum()} detected")
    pairs = itertools.combinations(found, 2)
    same = [comparison.near(a, b) and comparison.overlap(a, b) > SAME for a, b in pairs]
    sure = [j for j in free if found[j].probability > 0.9]
    return {
        "reported": len(found), "detected_by_snr": table, "false": len(free),
        "false_above_0.9": len(sure), "duplicates": sum(same),
    }  # fmt: skip


def run_command(source: Path, workers: int) -> dict[str, Any]:
    """Return wall seconds, the split and the peak of one run of the command."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        command = [
            sys.executable, "-m", "slotflow.cli.main", "posterior", str(source),
            "--fmax", "2.1e-3", "--output", folder, "--workers", str(workers),
        ]  # fmt: skip
        child = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        assert child.stderr is not None
        said = child.stderr.read()
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - started
        if status:
            raise click.ClickException(said)
        worth = catalogue_worth(source, Path(folder)) if source == example() else {}
    line = next(line for line in said.splitlines() if " bands in " in line)
    click.echo(f"{source.name}: {line.removeprefix('slotflow: ')}; {seconds:.1f} s in all")
    cpu = usage.ru_utime + usage.ru_stime
    return {
        "seconds": round(seconds, 2), "cpu_seconds": round(cpu, 2),
        "bands": int(line.split()[1]), "peak_mb": round(usage.ru_maxrss / 1024, 1), "split": line,
        "worth": worth,
    }  # fmt: skip


def measure(bands: int) -> dict[str, Any]:
    """Read that many bands as the command does, merge and write; return seconds and peaks."""
    import torch

    from slotflow.bands import spectrum, tile_grid
    from slotflow.catalogue import to_datatree, write_netcdf
    from slotflow.checkpoint import load_model
    from slotflow.inference import BandReader
    from slotflow.posterior import _merged, _read_all
    from slotflow.provenance import Provenance
    from slotflow.readers import read_observation
    from slotflow.results import PosteriorSettings, Result
    from slotflow.whitening import Whitening
    from slotflow.workers import Way

    torch.set_num_threads(1)
    model = load_model(example().with_name("model.safetensors"))
    preset, observation = model.preset, read_observation(example())
    duration = preset.observation.duration
    grid = tile_grid(preset.prior, duration)
    settings = PosteriorSettings(grid[0].low, grid[-1].high, SAMPLES, 0, "data", 0.5)
    top = (grid[-1].first_bin + preset.prior.bins) / duration
    transformed = spectrum(observation, duration, preset.observation.tukey, top)
    reader = BandReader(
        model, Whitening(transformed, preset, "data", observation.path), settings, False
    )
    plan = [grid[i % len(grid)] for i in range(bands)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    started, cpu = time.perf_counter(), time.process_time()
    outcomes = _read_all(reader, plan, Way(), None, None)
    sources = _merged(plan, outcomes, settings, model.grid)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    result = Result(
        sources, tuple(outcome.record for outcome in outcomes), settings, preset.observation,
        0.0, (), {},
    )  # fmt: skip
    provenance = Provenance("example.h5", "", "model.safetensors", "", {}, "benchmark")
    with tempfile.TemporaryDirectory() as folder:
        write_netcdf(to_datatree(result, provenance), Path(folder) / "x.posterior.nc")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "bands": bands, "sources": len(sources), "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu, 2), "before_mb": round(before, 1), "peak_mb": round(peak, 1),
    }  # fmt: skip


def slope(rows: list[dict[str, Any]], name: str) -> float:
    """Log-log slope of a figure over the bands."""
    import numpy as np

    x, y = (np.log([row[key] for row in rows]) for key in ("bands", name))
    return round(float(np.polyfit(x, y, 1)[0]), 3)


@click.command()
@click.option("--quick", is_flag=True, help="No more than 1024 bands.")
@click.option("--workers", default=1, help="Processes of the command.")
@click.option("--only", type=int, default=None, hidden=True)
def main(quick: bool, workers: int, only: int | None) -> None:
    """Measure, and print the figures."""
    if only is not None:
        click.echo(json.dumps(measure(only)))
        return
    year = run_command(example(), workers)
    with tempfile.TemporaryDirectory() as folder:
        write_fine(Path(folder) / "sangria_size.h5")
        fine = run_command(Path(folder) / "sangria_size.h5", workers)
    rows = []
    for bands in BANDS[quick]:
        command = [sys.executable, __file__, "--only", str(bands)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        click.echo(str(rows[-1]))
    last = rows[-1]
    figures = {
        "seconds_per_band": round(last["seconds"] / last["bands"], 5),
        "cpu_seconds_per_band": round(last["cpu_seconds"] / last["bands"], 5),
        "year_seconds": year["seconds"],
        "year_cpu_seconds": year["cpu_seconds"],
        "year_5s_seconds": fine["seconds"],
        "year_5s_peak_mb": fine["peak_mb"],
        "bands": year["bands"],
        **year["worth"],
        "peak_memory_mb": max(row["peak_mb"] for row in rows),
        "growth_in_bands": slope(rows, "peak_mb"),
        "time_growth_in_bands": slope(rows, "cpu_seconds"),
        "memory": rows,
        "workers": workers,
    }
    click.echo(json.dumps(figures))


if __name__ == "__main__":
    main()
