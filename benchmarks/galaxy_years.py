"""What a catalogue of a whole simulated Galaxy is worth: found, missed, false, by SNR.

    ./run python benchmarks/galaxy_years.py [--quick] [--years 2] [--model data/models.json]

Each year is simulated anew (all binaries above 0.5 mHz and noise, another seed each) and goes
through the main job with a model, or the models of an index, over all that they are trained on,
or between --fmin and --fmax (Hz). A report stands for a true source
within one bin of it whose waveform overlaps by more than 0.8 with its own; duplicates are
reports of one source, or pairs of reports that overlap so. Of the reports that stand for a source
above SNR 7, how many 90% intervals hold the truth is counted; and how many bands are flagged as
outside the training distribution, where a model has a score for that. All this for the whole range
and by model. The last line is one JSON object.
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
from slotflow.metrics import covered
from slotflow.parameters import F0, NAMES
from slotflow.readers import read_observation, read_truth
from slotflow.report.outlying import summarised
from slotflow.results import SUMMARY_PERIODS, Result
from slotflow.simulate.observation import GalaxySettings, simulate_observation

MODEL = Path(__file__).resolve().parent.parent / "data" / "models.json"
COVERED_SNR = 7.0
LEVEL = 0.9  # of intervals
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
    same = sum(
        comparison.near(a, b) and comparison.overlap(a, b) > SAME
        for a, b in itertools.pairwise(result.sources)  # by frequency
    )
    click.echo(f"seed {seed}: {summary.binaries} binaries; simulated in {simulated - begin:.0f} s,"
               f" read in {done - simulated:.0f} s")  # fmt: skip
    edges = [result.settings.fmin, *family.handovers, result.settings.fmax]
    parts = [(a, b) for a, b in itertools.pairwise(edges) if a < b]
    parts = [(edges[0], edges[-1]), *(parts if len(parts) > 1 else [])]
    figures = [share(result, truth.sources[near], snr, comparison, part) for part in parts]
    return figures[0] | {
        "seed": seed, "pairs_alike": same, "seconds": round(done - simulated, 1),
        "by_model": figures[1:],
    }  # fmt: skip


def share(
    result: Result, sources: Any, snr: Any, comparison: Comparison, ends: tuple[float, float]
) -> dict[str, Any]:
    """Return the figures of the frequencies between two (Hz), and print them."""
    margin = 1.0 / comparison.grid.duration
    reports = [s for s in result.sources if ends[0] <= s.f0 < ends[1]]
    here = (sources[:, F0] >= ends[0] - margin) & (sources[:, F0] < ends[1] + margin)
    truths, loudness = sources[here], snr[here]
    matches = match(overlaps(reports, truths, comparison), len(reports))
    tiles = [t for t in result.tiles if t.low < ends[1] and t.high > ends[0]]
    # a source just outside is no miss, though a report may stand for it
    inside = (truths[:, F0] >= ends[0]) & (truths[:, F0] < ends[1])
    counted = np.where(inside | np.isin(np.arange(len(truths)), matches.truth), loudness, 0.0)
    found = detection(matches, counted, [s.snr for s in reports], EDGES, len(tiles))
    false = (matches.truth < 0) & ~matches.duplicate
    sure = np.array([s.probability > 0.9 for s in reports], dtype=bool)
    held = coverage(reports, truths, loudness, matches.truth)
    scores = [t.outlying for t in tiles if t.outlying is not None]
    outlying = summarised(scores, [], LEVEL) if scores else None
    click.echo(f"{1e3 * ends[0]:.3f}-{1e3 * ends[1]:.3f} mHz")
    show(found)
    click.echo(
        f"probability above 0.9: {int(sure.sum())}, of nothing: {int((sure & false).sum())};"
        f" 90% intervals hold {held}"
    )
    if outlying is not None:
        out, quantiles = outlying.outside, dict(outlying.quantiles)
        click.echo(
            f"outside the training distribution: {out.hits} of {out.number} bands (of simulated"
            f" ones {outlying.nominal:.0%}); score: median {quantiles[0.5]:.2f}, 99%"
            f" {quantiles[0.99]:.2f}, largest {quantiles[1.0]:.2f}"
        )
    return asdict(found) | {
        "fmin": ends[0], "fmax": ends[1], "reports_above_0.9": int(sure.sum()),
        "false_above_0.9": int((sure & false).sum()), "coverage90": held,
        "outlying": None if outlying is None else asdict(outlying),
    }  # fmt: skip


def coverage(reports: Any, truths: Any, snr: Any, truth: Any) -> dict[str, float]:
    """Return how many 90% intervals hold the truth, and of how many (``number``)."""
    pairs = [(s, int(t)) for s, t in zip(reports, truth, strict=True)
             if t >= 0 and snr[t] >= COVERED_SNR]  # fmt: skip
    figures = {"number": float(len(pairs))}
    if not pairs:
        return figures
    draws = np.stack([s.samples for s, _ in pairs])
    right = truths[[t for _, t in pairs]]
    for i, name in enumerate(NAMES):
        inside = covered(draws[..., i], right[:, i], 0.9, SUMMARY_PERIODS.get(i))
        figures[name] = round(float(np.mean(inside)), 4)
    return figures


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
