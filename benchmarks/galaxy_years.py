"""What a catalogue of a whole simulated Galaxy is worth: found, missed, false, by SNR.

    ./run python benchmarks/galaxy_years.py [--quick] [--years 2] [--model data/models.json]

Each year is simulated anew (all binaries above 0.5 mHz and noise, another seed each) and goes
through the main job with a model, or the models of an index, over all that they are trained on,
or between --fmin and --fmax (Hz). A report stands for a true source
within one bin of it whose waveform overlaps by more than 0.8 with its own; duplicates are
reports of one source, or pairs of reports that overlap so. The last line is one JSON object.
"""

import itertools
import json
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from slotflow.checkpoint import load_model
from slotflow.cli.common import cores
from slotflow.detection import Detection, detection, match, overlaps
from slotflow.family import Family, family_posterior, read_family
from slotflow.merging import Comparison
from slotflow.parameters import F0
from slotflow.readers import read_observation, read_truth
from slotflow.simulate.observation import GalaxySettings, simulate_observation

MODEL = Path(__file__).resolve().parent.parent / "data" / "model.safetensors"
EDGES = (4.0, 5.0, 7.0, 10.0, 20.0)
FIRST_SEED = 101  # not that of the example
SAME = 0.8


def one_year(
    family: Family, path: Path, seed: int, ends: tuple[float | None, float | None], workers: int
) -> Any:
    """Return the detection figures of one year, and those beside them."""
    begin = time.perf_counter()
    model = family.models[-1]  # whose grid is the finest
    summary = simulate_observation(path, model.preset.observation, seed, galaxy=GalaxySettings())
    simulated = time.perf_counter()
    result = family_posterior(
        read_observation(path), family, fmin=ends[0], fmax=ends[1], samples=400, processes=workers
    )
    done = time.perf_counter()
    truth = read_truth(path)
    if truth is None:
        raise click.ClickException(f"{path}: keeps no truth")
    comparison = Comparison(model.grid)
    # a little beyond the range: what is found at its edges has its truth there
    margin = 1.0 / model.grid.duration
    f0 = truth.sources[:, F0]
    near = (f0 >= result.settings.fmin - margin) & (f0 <= result.settings.fmax + margin)
    snr = truth.snr[near]
    matches = match(overlaps(result.sources, truth.sources[near], comparison), len(result.sources))
    found = detection(
        matches, snr, [source.snr for source in result.sources], EDGES, len(result.tiles)
    )
    same = sum(
        comparison.near(a, b) and comparison.overlap(a, b) > SAME
        for a, b in itertools.combinations(result.sources, 2)
    )
    false = (matches.truth < 0) & ~matches.duplicate
    sure = np.array([source.probability > 0.9 for source in result.sources], dtype=bool)
    click.echo(f"seed {seed}: {summary.binaries} binaries; simulated in {simulated - begin:.0f} s,"
               f" read in {done - simulated:.0f} s")  # fmt: skip
    show(found)
    return asdict(found) | {
        "seed": seed, "pairs_alike": same, "reports_above_0.9": int(sure.sum()),
        "false_above_0.9": int((sure & false).sum()), "seconds": round(done - simulated, 1),
    }  # fmt: skip


def show(found: Detection) -> None:
    """Print the table of one year."""
    click.echo("SNR        found of true    right of reported")
    for row in found.rows:
        upper = "" if row.high is None else f"{row.high:g}"
        recall, precision = row.recall, row.precision
        click.echo(
            f"{row.low:g}-{upper:<6} {recall.hits:6d} of {recall.number:<6d}"
            f" {precision.hits:6d} of {precision.number:<6d}"
        )
    click.echo(
        f"{found.reports} reports in {found.bands} bands: {found.false_alarms} of nothing above"
        f" SNR {EDGES[0]:g}, {found.weak} of weaker sources, {found.duplicates} duplicates"
    )


@click.command()
@click.option("--years", default=2, help="Simulated years.")
@click.option("--workers", default=cores())
@click.option("--model", "path", type=click.Path(path_type=Path), default=MODEL,
              help="A model, or an index of models.")  # fmt: skip
@click.option("--fmin", type=float, default=None)
@click.option("--fmax", type=float, default=None)
@click.option("--quick", is_flag=True, help="One year, 1.5-1.6 mHz.")
def main(
    years: int, workers: int, path: Path, fmin: float | None, fmax: float | None, quick: bool
) -> None:
    """Simulate, search, and compare."""
    torch.set_num_threads(1)
    if path.suffix == ".json":
        family = read_family(path)
    else:
        family = Family.of([load_model(path)], [path.name])
    records = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1 if quick else years):
            year = Path(folder) / f"year-{number}.h5"
            ends = (1.5e-3, 1.6e-3) if quick else (fmin, fmax)
            records.append(one_year(family, year, FIRST_SEED + number, ends, workers))
            year.unlink()
    total = {
        "years": records,
        "duplicates": sum(record["duplicates"] + record["pairs_alike"] for record in records),
    }
    click.echo(json.dumps(total))


if __name__ == "__main__":
    main()
