"""Four known binaries in simulated years of different noise and Galaxies: found, and inside 90%?

    ./run python benchmarks/known_binaries.py [--years 10] [--quick]

Each year holds the catalogue that ships, a Galaxy and noise of its own seed, and is read around
AM CVn, HP Lib, CR Boo and V803 Cen by the models that ship. Found: a report within one bin. The
SNR is against the total noise. The last line is one JSON object.
"""

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from example_year import COMPARED, inside  # beside this file

from slotflow.data import INDEX, shipped
from slotflow.family import family_posterior, read_family
from slotflow.parameters import F0, PARAMETERS
from slotflow.readers import read_observation, read_truth
from slotflow.simulate.observation import GalaxySettings, read_catalogue, simulate_observation

NAMES = ("AM CVn", "HP Lib", "CR Boo", "V803 Cen")
FIRST_SEED = 401
AROUND = 8.0  # bins on either side that are asked for


def one_year(family: Any, path: Path, seed: int, catalogue: tuple[Any, Any]) -> dict[str, Any]:
    """Return SNR, whether found, and which intervals hold, of each binary in one year."""
    names, sources = catalogue
    settings = family.models[0].preset.observation
    simulate_observation(path, settings, seed, sources, names, galaxy=GalaxySettings())
    observation, truth = read_observation(path), read_truth(path)
    if truth is None:
        raise click.ClickException(f"{path}: keeps no truth")
    found = {}
    for name in NAMES:
        row = list(truth.names).index(name)
        true, duration = truth.sources[row], settings.duration
        ends = true[F0] + np.array([-AROUND, AROUND]) / duration
        result = family_posterior(
            observation, family, fmin=float(ends[0]), fmax=float(ends[1]), samples=2000
        )
        near = [s for s in result.sources if abs(s.f0 - true[F0]) * duration < 1.0]
        record: dict[str, Any] = {"snr": round(float(truth.snr[row]), 2), "found": bool(near)}
        if near:
            best = min(near, key=lambda s: abs(s.f0 - true[F0]))
            record["inside"] = inside(best, true, 0.9)
        found[name] = record
    return found


@click.command()
@click.option("--years", default=10, show_default=True)
@click.option("--quick", is_flag=True, help="One year.")
def main(years: int, quick: bool) -> None:
    """Simulate, read, count."""
    torch.set_num_threads(1)
    family = read_family(shipped(INDEX))
    names, sources = read_catalogue(shipped("verification_binaries.csv"))
    records = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1 if quick else years):
            begin, path = time.perf_counter(), Path(folder) / "year.h5"
            records.append(one_year(family, path, FIRST_SEED + number, (names, sources)))
            path.unlink()
            click.echo(f"seed {FIRST_SEED + number}: {time.perf_counter() - begin:.0f} s")
    figures = {}
    compared = [PARAMETERS[i].name for i in COMPARED]
    click.echo("binary     SNR (median)  found  " + "  ".join(compared))
    for name in NAMES:
        rows = [record[name] for record in records]
        held = [row["inside"] for row in rows if row["found"]]
        inside_90 = {p: sum(one[p] for one in held) for p in compared}
        snr = float(np.median([row["snr"] for row in rows]))
        figures[name] = {"snr": snr, "found": len(held), "inside_90": inside_90}
        counts = "  ".join(f"{inside_90[p]:>{len(p)}}" for p in compared)
        click.echo(f"{name:10s} {snr:12.1f}  {len(held):5d}  {counts}")
    click.echo(json.dumps({"years": len(records), "binaries": figures}))


if __name__ == "__main__":
    main()
