"""The example year against its truth: sources found and missed by SNR, the known binaries.

    ./run python benchmarks/example_year.py

A true source counts as found where a reported one lies within one Fourier bin (each reported
source stands for one true one at most, nearest first by SNR). The truth's SNR is against the
model's total noise. Prints a table and, as its last line, one JSON object.
"""

import itertools
import json
from importlib import resources
from pathlib import Path

import click
import numpy as np
import torch

from slotflow.bands import trained_range
from slotflow.checkpoint import load_model
from slotflow.parameters import AMPLITUDE, DEC, F0, IOTA, PARAMETERS, RA
from slotflow.posterior import posterior
from slotflow.readers import read_observation, read_truth
from slotflow.results import Result, SourcePosterior

EDGES = (4.0, 5.0, 7.0, 10.0, 20.0, np.inf)
COMPARED = (F0, AMPLITUDE, RA, DEC, IOTA)


def match(result: Result, f0: np.ndarray, snr: np.ndarray, duration: float) -> np.ndarray:
    """Return the reported source of each true one, -1 for none: (n,) int."""
    places = np.array([s.f0 for s in result.sources])
    found = np.full(len(f0), -1)
    free = np.ones(len(places), dtype=bool)
    for i in np.argsort(-snr):
        distance = np.where(free, np.abs(places - f0[i]) * duration, np.inf)
        if len(distance) and distance.min() < 1.0:
            found[i] = int(np.argmin(distance))
            free[found[i]] = False
    return found


def inside(source: SourcePosterior, truth: np.ndarray, mass: float) -> dict[str, bool]:
    """Return whether the interval of that mass holds the truth, for the compared parameters."""
    span = source.interval(mass)
    held = {}
    for index in COMPARED:
        low, high, value = span.lower[index], span.upper[index], truth[index]
        across = low > high  # the interval runs through zero
        within = value >= low or value <= high if across else low <= value <= high
        held[PARAMETERS[index].name] = bool(within)
    return held


@click.command()
@click.option("--model", type=click.Path(path_type=Path), default=None, help="A model file.")
@click.option("--samples", default=1000)
@click.option("--quick", is_flag=True, help="1.9-2.0 mHz only.")
def main(model: Path | None, samples: int, quick: bool) -> None:
    """Compare the example's catalogue with its truth."""
    torch.set_num_threads(1)
    data = Path(str(resources.files("slotflow.data")))
    trained = load_model(model if model is not None else data / "model.safetensors")
    duration = trained.preset.observation.duration
    low, high = (1.9e-3, 2.0e-3) if quick else trained_range(trained.preset.prior, duration)
    path = data / "example.h5"
    result = posterior(read_observation(path), trained, fmin=low, fmax=high, samples=samples)
    truth = read_truth(path)
    if truth is None:
        raise click.ClickException(f"{path}: holds no truth")
    chosen = (truth.sources[:, F0] >= low) & (truth.sources[:, F0] < high) & (truth.snr >= 4.0)
    sources, snr = truth.sources[chosen], truth.snr[chosen]
    names = np.array(truth.names)[chosen]
    found = match(result, sources[:, F0], snr, duration)
    table = {}
    for a, b in itertools.pairwise(EDGES):
        row = (snr >= a) & (snr < b)
        table[f"{a:g}-{b:g}"] = [int((found[row] >= 0).sum()), int(row.sum())]
        click.echo(f"SNR {a:g}-{b:g}: {table[f'{a:g}-{b:g}'][0]} of {row.sum()} found")
    matched = np.isin(np.arange(len(result.sources)), found[found >= 0])
    sure = np.array([s.probability > 0.9 for s in result.sources])
    loud = (found >= 0) & (snr >= 7.0)
    held = [inside(result.sources[found[i]], sources[i], 0.9) for i in np.flatnonzero(loud)]
    coverage = {name: round(float(np.mean([h[name] for h in held])), 4) for name in held[0]}
    known = {}
    for i in [i for i, name in enumerate(names) if name and not name.startswith("galaxy")]:
        row = {"snr": round(float(snr[i]), 1), "found": bool(found[i] >= 0)}
        if row["found"]:
            source = result.sources[found[i]]
            row["bins_off"] = round(float((source.f0 - sources[i, F0]) * duration), 3)
            row["probability"] = round(source.probability, 3)
            row["in_90"], row["in_99"] = (
                [n for n, yes in inside(source, sources[i], mass).items() if yes]
                for mass in (0.9, 0.99)
            )
        known[str(names[i])] = row
        click.echo(f"{names[i]}: {row}")
    figures = {
        "reported": len(result.sources),
        "found_by_snr": table,
        "reported_without_truth_above_snr_4": int((~matched).sum()),
        "reported_above_0.9": int(sure.sum()),
        "above_0.9_without_truth": int((sure & ~matched).sum()),
        "coverage90_found_above_snr_7": coverage,
        "known": known,
        "seconds": {name: round(value, 2) for name, value in result.seconds.items()},
    }
    click.echo(json.dumps(figures))


if __name__ == "__main__":
    main()
