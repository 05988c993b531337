"""Fit what a model leaves to held-out simulations, and say how right it then is.

    ./run python benchmarks/calibrate_model.py held-out-bands --model data/model.safetensors

The training set in DIR must be one that the model was not trained on (another seed). The widths of
the flow's base (slotflow.widths) and scale and shift of the existence logits are fitted on every
other group of bands, and the figures are those of the rest. Likewise the score of a band against
the training distribution (slotflow.outlying): mean and covariance are of every other group, the
threshold of 1% false alarms is found from the rest; the rate that is printed is that of thresholds
found from one half of the rest on its other half. With --write all this goes into the model file
and the card beside it. The last line is one JSON object.
"""

import json
from pathlib import Path
from typing import Any

import click
import numpy as np
import scipy.stats
import torch
from numpy.typing import NDArray

from slotflow.atomic import written
from slotflow.batches import Tensors
from slotflow.calibration import (
    Calibration,
    count_distribution,
    fit_calibration,
    fit_share,
    reliability,
    reliability_error,
)
from slotflow.checkpoint import Model, load_model, save_model
from slotflow.cli.common import cores
from slotflow.model import distinct_slots
from slotflow.objective import matched_slots
from slotflow.outlying import FALSE_ALARMS, Outlying
from slotflow.outlying_bands import set_vectors
from slotflow.outlying_features import KINDS
from slotflow.outlying_fit import FEWEST, Rate, calibrated, false_alarms, fit_part
from slotflow.store import TrainingSet
from slotflow.tokencache import ensure_searched, open_tokens
from slotflow.tokenstore import TokenStore
from slotflow.widths import fit_widths

SHIPPED = Path(__file__).resolve().parent.parent / "data" / "model.safetensors"
HEADING = "## Reliability"
BATCH = 250
GROUP = 64  # bands that share a pool of foreground responses: fitted or judged together
MOST = 8000  # bands whose vectors are held in memory


def existence(
    model: Model, tokens: TokenStore
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], NDArray[np.int64]]:
    """Return logits, whether a slot counts, whether it stands for a source, and sample numbers.

    The first three are (bands, slots). A slot counts unless another on the same component is
    likelier, or the band has no component: those are never reported.
    """
    columns: list[tuple[Any, Any, Any]] = []
    for start in range(0, len(tokens), BATCH):
        index = np.arange(start, min(start + BATCH, len(tokens)))
        rows = Tensors.of(tokens.rows(index))
        with torch.no_grad():
            reading = model.network.read(rows.batch)
        slot = matched_slots(reading, rows.targets)
        exists = torch.zeros_like(reading.existence, dtype=torch.bool)
        band, source = torch.nonzero(slot >= 0, as_tuple=True)
        exists[band, slot[band, source]] = True
        counts = distinct_slots(reading) & rows.batch.valid.any(dim=1)[:, None]
        columns.append((reading.existence.double().numpy(), counts.numpy(), exists.numpy()))
    logits, counts, exists = (np.concatenate(column) for column in zip(*columns, strict=True))
    return logits, counts, exists, tokens.sample


def set_share(model: Model, tokens: TokenStore) -> dict[str, float]:
    """Fit how much of a slot's existence is its component's, set it in the model; return it."""
    logits, counts, exists, sample = existence(model, tokens)
    model.network.component_share = 1.0
    component = existence(model, tokens)[0]
    chosen = counts & ((sample // GROUP) % 2 == 0)[:, None]
    model.network.component_share = fit_share(logits[chosen], component[chosen], exists[chosen])
    click.echo(f"existence: {model.network.component_share:.2f} of the component's logit")
    return {"component_share": model.network.component_share}


def base_points(model: Model, tokens: TokenStore) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the base points of all true sources, (N, F), and the number of each's band, (N,)."""
    points, samples = [], []
    for start in range(0, len(tokens), BATCH):
        index = np.arange(start, min(start + BATCH, len(tokens)))
        rows = Tensors.of(tokens.rows(index))
        with torch.no_grad():
            reading = model.network.read(rows.batch)
            slot = matched_slots(reading, rows.targets)
            band, source = torch.nonzero(slot >= 0, as_tuple=True)
            own = slot[band, source]
            z = model.network.base_points(
                rows.targets.sources[band, source], reading.context[band, own],
                reading.reference[band, own],
            )  # fmt: skip
        points.append(z.double().numpy())
        samples.append(tokens.sample[index][band.numpy()])
    return np.concatenate(points), np.concatenate(samples)


def held_by_regions(z: NDArray[np.float64], widths: NDArray[np.float64]) -> dict[str, Any]:
    """Return how much the flow's regions of 50, 80 and 90% hold, and the mean ln density of z.

    Regions of highest density of the base: a region of each source's flow, though not the
    smallest one.
    """
    scaled = z / widths
    radius = scipy.stats.chi2.cdf((scaled**2).sum(axis=1), z.shape[1])
    log_density = scipy.stats.norm.logpdf(scaled).sum(axis=1) - np.log(widths).sum()
    regions = {f"region_{level}": round(float(np.mean(radius < level / 100)), 4)
               for level in (50, 80, 90)}  # fmt: skip
    return regions | {"base_log_density": round(float(log_density.mean()), 4)}


def figures(
    calibration: Calibration, logits: Any, counts: Any, exists: Any, number: Any
) -> dict[str, Any]:
    """Return reliability of the slots' probabilities and of q(K), and how often K is right.

    ``number``: (bands,) sources for which a slot exists.
    """
    p = np.where(counts, calibration(logits), 0.0)
    slots = reliability(p[counts], exists[counts])
    q = count_distribution(p)
    truth = number[:, None] == np.arange(q.shape[1])
    of_k = reliability(q.ravel().clip(0.0, 1.0), truth.ravel())
    guess = q.argmax(axis=1)
    log_loss = -np.log(np.clip(np.where(exists, p, 1.0 - p)[counts], 1e-12, 1.0)).mean()
    return {
        "bands": len(number),
        "log_loss": round(float(log_loss), 5),
        "reliability_error": round(reliability_error(slots), 5),
        "reliability_error_k": round(reliability_error(of_k), 5),
        "k_exact": round(float(np.mean(guess == number)), 5),
        "k_within_one": round(float(np.mean(np.abs(guess - number) <= 1)), 5),
        "reliability": [[round(v, 5) for v in row] for row in slots],
        "reliability_k": [[round(v, 5) for v in row] for row in of_k],
    }


def outlying_score(model: Model, data: TrainingSet, most: int) -> tuple[Outlying, Rate] | None:
    """Return the score and its measured false alarms; None where the bands are too few."""
    vectors = set_vectors(model, data, min(most, MOST))
    group = np.arange(len(vectors)) // GROUP
    fitted, first, second = (
        [one for one, chosen in zip(vectors, which, strict=True) if chosen]
        for which in (group % 2 == 0, group % 4 == 1, group % 4 == 3)
    )
    if min(len(first), len(second)) < FEWEST:
        return None
    parts = [fit_part(name, fitted) for name in KINDS]
    return calibrated(parts, first + second, len(fitted)), false_alarms(parts, (first, second))


def outlying_figures(found: tuple[Outlying, Rate] | None) -> dict[str, Any] | None:
    """Return the score's figures, None where there is none."""
    if found is None:
        return None
    score, rate = found
    return {
        "fitted": score.fitted, "calibrated": score.calibrated, "wanted": FALSE_ALARMS,
        "false_alarms": round(rate.share, 5), "false_alarms_error": round(rate.error, 5),
        "judged": rate.number,
    }  # fmt: skip


def outlying_text(one: dict[str, Any] | None) -> str:
    """Return a line on the score's figures."""
    if one is None:
        return f"score against the training distribution: none, fewer than {4 * FEWEST} bands"
    return (
        f"score against the training distribution: of {one['fitted']} bands, its threshold of"
        f" {one['calibrated']} others; false alarms {one['false_alarms']:.2%} +-"
        f" {one['false_alarms_error']:.2%} on {one['judged']} (wanted {one['wanted']:.0%})"
    )


def section(
    model: Model, after: dict[str, Any], before: dict[str, Any], widths: dict[str, Any]
) -> str:
    """Return the model card's section: what was fitted, and both reliability curves."""
    c = model.calibration
    lines = [
        f"{HEADING}\n",
        f"Existence probabilities are 1 / (1 + exp(-({c.slope:.4f} x logit {c.offset:+.4f}))),"
        f" the logit {1.0 - model.network.component_share:.2f} of the slot's and"
        f" {model.network.component_share:.2f} of its component's; fitted by",
        "`./run python benchmarks/calibrate_model.py` on bands that the model was not trained on."
        f" On {after['bands']} others:",
        f"log loss {after['log_loss']:.4f} (as trained {before['log_loss']:.4f}), reliability error"
        f" {after['reliability_error']:.4f}",
        f"({before['reliability_error']:.4f}), that of q(K) {after['reliability_error_k']:.4f};"
        f" likeliest K exact in {after['k_exact']:.1%}, within",
        f"one in {after['k_within_one']:.1%} (K: sources for which there is a component).\n",
        *widths_text(widths),
        "| probability | slots | mean | exist | q(K) | number | mean | true |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for slot, k in zip(after["reliability"], after["reliability_k"], strict=True):
        cells = [
            f"{one[0]:.1f}-{one[1]:.1f} | {one[2]:.0f} | {one[3]:.3f} | {one[4]:.3f}"
            for one in (slot, k)
        ]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", outlying_text(after["outlying"]).capitalize() + "."]
    return "\n".join(lines) + "\n"


def widths_text(widths: dict[str, Any]) -> list[str]:
    """Return the card's lines on the widths of the flow's base."""
    after, before = widths["regions"], widths["regions_as_trained"]
    held = ", ".join(
        f"{level}%: {after[f'region_{level}']:.1%} ({before[f'region_{level}']:.1%})"
        for level in (50, 80, 90)
    )
    return [
        "The flow's base has the standard deviations "
        f"{', '.join(f'{v:.3f}' for v in widths['base_scale'])} (slotflow.widths), fitted on the",
        f"same bands; on the others its regions hold (as trained) {held}. The tables above are as",
        "trained.\n",
    ]


def write_card(path: Path, text: str) -> None:
    """Put the section at the end of a model card, in place of an earlier one."""
    before = path.read_text("utf-8").partition(HEADING)[0].rstrip() + "\n\n"
    with written(path) as temporary:
        temporary.write_text(before + text, "utf-8")


def set_widths(model: Model, tokens: TokenStore) -> dict[str, Any]:
    """Fit the widths of the flow's base, set them in the model; return the figures."""
    z, sample = base_points(model, tokens)
    fitted = (sample // GROUP) % 2 == 0
    found = fit_widths(z[fitted])
    before, after = (held_by_regions(z[~fitted], w) for w in (np.ones(z.shape[1]), found))
    for name, one in (("as trained", before), ("with widths", after)):
        click.echo(f"{name}: {int((~fitted).sum())} sources; {one}")
    model.network.flow.base_scale.copy_(torch.from_numpy(found))
    return {"base_scale": [round(v, 4) for v in found.tolist()], "regions": after,
            "regions_as_trained": before}  # fmt: skip


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--model", "path", type=click.Path(path_type=Path), default=SHIPPED)
@click.option("--write", is_flag=True, help="Store the calibration in the model file.")
@click.option("--quick", is_flag=True, help="The first 1,000 bands only, and no --write.")
def main(directory: Path, path: Path, write: bool, quick: bool) -> None:
    """Calibrate a model on the searched training set in DIRECTORY."""
    torch.set_num_threads(1)
    model, data = load_model(path), TrainingSet(directory)
    settings = model.preset.components
    ensure_searched(data, model.grid, settings, 1, cores())
    tokens = open_tokens(data, settings, 1)
    widths = set_widths(model, tokens)
    model.network.component_share = 0.0
    share = set_share(model, tokens)
    logits, counts, exists, sample = existence(model, tokens)
    if quick:
        chosen = sample < 1000
        logits, counts, exists, sample = (x[chosen] for x in (logits, counts, exists, sample))
    fitted = (sample // GROUP) % 2 == 0
    found = fit_calibration(logits[fitted][counts[fitted]], exists[fitted][counts[fitted]])
    number = exists.sum(axis=1)
    judged = [part[~fitted] for part in (logits, counts, exists, number)]
    before, after = figures(Calibration(), *judged), figures(found, *judged)
    for name, one in (("as trained", before), ("calibrated", after)):
        click.echo(
            f"{name}: {one['bands']} bands, log loss {one['log_loss']:.4f}, reliability error"
            f" {one['reliability_error']:.4f}, of q(K) {one['reliability_error_k']:.4f};"
            f" K exact {one['k_exact']:.1%}, within one {one['k_within_one']:.1%}"
        )
        for low, high, n, predicted, observed in one["reliability"]:
            click.echo(f"  {low:.1f}-{high:.1f}: {n:6.0f} slots, {predicted:.3f} -> {observed:.3f}")
    known = Model(model.preset, model.network, model.grid, model.card, found)
    score = outlying_score(known, data, 1000 if quick else len(data))
    after["outlying"] = outlying_figures(score)
    click.echo(outlying_text(after["outlying"]))
    if write and not quick:
        seeds = model.card.get("seeds", {}) | {"calibration": data.seed}
        card = model.card | {"seeds": seeds, "calibration": after | {"as_trained": before}}
        card |= {"widths": widths} | share
        kept = None if score is None else score[0]
        model = Model(model.preset, model.network, model.grid, card, found, kept)
        save_model(path, model)
        click.echo(f"written: {path}")
        card_path = path.with_name(f"{path.stem}_card.md")
        if card_path.exists():
            write_card(card_path, section(model, after, before, widths))
            click.echo(f"written: {card_path}")
    click.echo(json.dumps(widths | share | {"slope": found.slope, "offset": found.offset} | after))


if __name__ == "__main__":
    main()
