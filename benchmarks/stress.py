"""What the main job makes of bands that its model was not trained for: flags and false confidence.

    ./run python benchmarks/stress.py [--quick] [--model data/model.safetensors] [--bands 100]

Bands of the model's own training prior (another seed) are changed, one way after another, and go
through the search, the network and the score of :mod:`slotflow.outlying`. One row a stress: the
share of bands that are flagged as outside the training distribution and the median score (1 is the
threshold); recall above SNR 10; false reports with a probability above 0.9 a band; the coverage of
the 90% intervals of matched sources, mean over the parameters; and the last two again over the
bands that are not flagged. A report is false where it stands for no true source (within one bin,
waveform overlap above 0.8). SNRs are against the noise that is there. --quick takes a fifth of the
bands. The last line is one JSON object.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import torch
from numpy.typing import NDArray
from stressed_bands import LOUD, SEED, STRESSES, Given, Maker, Stressed, made

from slotflow.assumptions import LEVEL_RANGE
from slotflow.checkpoint import Model, load_model
from slotflow.detection import Detection, detection, match, overlaps
from slotflow.inference import BandReader
from slotflow.merging import Comparison
from slotflow.metrics import covered
from slotflow.parameters import SCORED, to_scored
from slotflow.results import BandOutcome, PosteriorSettings

Float = NDArray[np.float64]

MODEL = Path(__file__).resolve().parent.parent / "data" / "model.safetensors"
SAMPLES = 300  # draws a source
SURE = 0.9
PERIODS = tuple(1.0 if name == "psi" else period for name, period in SCORED)


class Row(NamedTuple):
    """What one stress did to a set of bands."""

    bands: int
    false_sure: int
    reports: int
    inside: Float  # (matched, parameters)
    found: Detection | None


def judged(
    outcomes: Sequence[BandOutcome], bands: Sequence[Stressed], model: Model, comparison: Comparison
) -> Row:
    """Compare reports with the truth."""
    if not outcomes:
        return Row(0, 0, 0, np.empty((0, len(PERIODS))), None)
    duration, bins = model.preset.observation.duration, model.preset.prior.bins
    reports = [(row, source) for row, one in enumerate(outcomes) for source in one.sources]
    rows = np.array([row for row, _ in reports], dtype=np.int64)
    sources = [source for _, source in reports]
    truths = np.concatenate([one.truths for one in bands])
    snr = np.concatenate([one.snr for one in bands])
    owner = np.repeat(np.arange(len(bands)), [len(one.snr) for one in bands])
    matches = match(overlaps(sources, truths, comparison, (rows, owner)), len(sources))
    found = detection(matches, snr, [s.snr for s in sources], (LOUD,), len(bands))
    false = (matches.truth < 0) & ~matches.duplicate
    sure = np.array([source.probability > SURE for source in sources], dtype=bool)
    inside = []
    for source, truth in zip(sources, matches.truth.tolist(), strict=True):
        if truth >= 0:
            first = float(source.first_bin)
            draws = to_scored(source.samples, np.float64(first), bins, duration)
            true = to_scored(truths[truth], np.float64(first), bins, duration)
            inside.append([
                bool(covered(draws[:, j], true[j], 0.9, period))
                for j, period in enumerate(PERIODS)
            ])  # fmt: skip
    kept = np.array(inside, dtype=np.float64).reshape(-1, len(PERIODS))
    return Row(len(bands), int((false & sure).sum()), len(sources), kept, found)


def figures(
    outcomes: Sequence[BandOutcome], bands: Sequence[Stressed], model: Model, comparison: Comparison
) -> dict[str, Any]:
    """Return the figures of one stress."""
    score = np.array([one.record.outlying or 0.0 for one in outcomes])
    flagged = np.array([one.record.outside for one in outcomes])
    odd = [_odd(one.measured) for one in outcomes]
    silent = [i for i in range(len(bands)) if not flagged[i]]
    whole = judged(outcomes, bands, model, comparison)
    quiet = judged([outcomes[i] for i in silent], [bands[i] for i in silent], model, comparison)
    recall = whole.found.recall if whole.found else None
    return {
        "bands": len(bands),
        "flagged": int(flagged.sum()),
        "score": None if model.outlying is None else _or_none(np.median(score)),
        "level_noted": int(sum(odd)),
        "gaps_noted": int(sum(one.gap_fraction > 0.0 for one in bands)),
        "reports": whole.reports,
        "recall_snr10": recall.share if recall else None,
        "sources_snr10": recall.number if recall else 0,
        **_confidence(whole, ""),
        **_confidence(quiet, "silent_"),
    }  # fmt: skip


def _odd(measured: Float) -> bool:
    low, high = LEVEL_RANGE
    return bool(((measured < low) | (measured > high)).any())


def _confidence(row: Row, prefix: str) -> dict[str, Any]:
    """Return false reports a band and the coverage, with standard errors."""
    matched = len(row.inside)
    by_parameter = {
        name: _or_none(row.inside[:, j].mean()) if matched else None
        for j, (name, _) in enumerate(SCORED)
    }
    each = row.inside.mean(axis=1) if matched else np.empty(0)
    error = each.std(ddof=1) / math.sqrt(matched) if matched > 1 else None
    return {
        f"{prefix}bands": row.bands,
        f"{prefix}false_sure": row.false_sure,
        f"{prefix}false_sure_per_band": _or_none(row.false_sure / row.bands) if row.bands else None,
        f"{prefix}matched": matched,
        f"{prefix}coverage90": _or_none(each.mean()) if matched else None,
        f"{prefix}coverage90_error": _or_none(error) if error is not None else None,
        f"{prefix}coverage90_by_parameter": by_parameter,
    }


def _or_none(value: float) -> float | None:
    return round(float(value), 4) if math.isfinite(value) else None


HEADING = (
    "stress", "flagged", "score", "recall", "false, sure", "coverage 90%", "silent", "false, sure",
    "coverage 90%",
)  # fmt: skip


def cells(name: str, row: dict[str, Any]) -> tuple[str, ...]:
    """Return a row of the table."""

    def coverage(prefix: str) -> str:
        value, error = row[f"{prefix}coverage90"], row[f"{prefix}coverage90_error"]
        return "-" if value is None else f"{value:.3f}" + (f" +- {error:.3f}" if error else "")

    def false(prefix: str) -> str:
        value = row[f"{prefix}false_sure_per_band"]
        return "-" if value is None else f"{value:.2f}"

    score, recall = row["score"], row["recall_snr10"]
    return (
        name, f"{row['flagged']} of {row['bands']}", "-" if score is None else f"{score:.2f}",
        "-" if recall is None else f"{recall:.3f} of {row['sources_snr10']}", false(""),
        coverage(""), str(row["silent_bands"]), false("silent_"), coverage("silent_"),
    )  # fmt: skip


@click.command()
@click.option("--model", "path", type=click.Path(path_type=Path), default=MODEL)
@click.option("--bands", default=100, help="Of each stress.")
@click.option("--only", multiple=True, type=click.Choice(list(STRESSES)), help="Some stresses.")
@click.option("--quick", is_flag=True, help="20 bands of each stress.")
def main(path: Path, bands: int, only: tuple[str, ...], quick: bool) -> None:
    """Stress a model's inference."""
    torch.set_num_threads(1)
    model = load_model(path)
    number = 20 if quick else bands
    maker, comparison = Maker(model.preset), Comparison(model.grid)
    if model.outlying is None:
        click.echo(f"{path}: without a score of the training distribution: nothing is flagged")
    click.echo("| " + " | ".join(HEADING) + " |")
    click.echo("|" + "---|" * len(HEADING))
    rows: dict[str, Any] = {}
    for name in only or STRESSES:
        tiles, stressed = made(maker, name, number)
        settings = PosteriorSettings(0.0, 0.0, SAMPLES, SEED, "data", 0.5)
        reader = BandReader(model, Given(model.preset, stressed), settings, False)
        rows[name] = figures(list(reader(tiles)), stressed, model, comparison)
        click.echo("| " + " | ".join(cells(name, rows[name])) + " |")
    click.echo(json.dumps({"model": path.name, "bands": number, "stresses": rows}))


if __name__ == "__main__":
    main()
