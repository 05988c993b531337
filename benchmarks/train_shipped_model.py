"""Make a model that ships: simulate, search, train, score on fresh bands, write the card.

    ./run python benchmarks/train_shipped_model.py
    ./run python benchmarks/train_shipped_model.py --preset crowded --held-out 1000
    ./run python benchmarks/train_shipped_model.py --preset high --held-out 1000

Everything follows from the preset and fixed seeds. Each stage keeps what it has in
``--workdir``; a run that was broken off goes on where it stopped. CPU seconds of each stage
are added up over the runs. With more than one model in the folder, their index is written, too.
"""

import itertools
import json
import resource
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from slotflow.checkpoint import Model, load_model, save_model
from slotflow.config import Preset, PriorSettings, load_preset
from slotflow.evaluation import evaluate, summary
from slotflow.family import write_family
from slotflow.simulate.dataset import simulate_dataset
from slotflow.simulate.orbits import response_grid
from slotflow.store import TrainingSet
from slotflow.tokencache import ensure_searched, open_tokens
from slotflow.tokenstore import TokenStore
from slotflow.train import BEST_FILE, Trainer

TRAINING_SEED = 1
HELD_OUT_SEED = 2
DATA = Path(__file__).resolve().parent.parent / "data"
INDEX = "models.json"
#: By preset, in order of frequency.
FILES = {"shipped": "model", "crowded": "crowded", "high": "high"}


@contextmanager
def stage(workdir: Path, name: str) -> Iterator[None]:
    """Add the CPU seconds of this stage, children included, to ``cpu_seconds.json``."""
    path = workdir / "cpu_seconds.json"
    begin, wall = _cpu(), time.monotonic()
    try:
        yield
    finally:
        spent = json.loads(path.read_text("utf-8")) if path.exists() else {}
        spent[name] = round(spent.get(name, 0.0) + _cpu() - begin, 1)
        path.write_text(json.dumps(spent, indent=1), "utf-8")
        click.echo(f"{name}: {time.monotonic() - wall:.0f} s; CPU seconds so far: {spent}")


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def searched(
    preset: Preset, folder: Path, samples: int, seed: int, workers: int, workdir: Path, name: str
) -> tuple[TrainingSet, TokenStore]:
    """Return a simulated and searched set."""
    with stage(workdir, f"simulate {name}"):
        simulate_dataset(preset, folder, samples, seed, workers)
    data = TrainingSet(folder)
    grid = response_grid(preset.observation, preset.components.slow_samples)
    with stage(workdir, f"search {name}"):
        ensure_searched(data, grid, preset.components, preset.train.noise_draws, workers)
    return data, open_tokens(data, preset.components, preset.train.noise_draws)


def report(number: int, of: int, terms: dict[str, float]) -> None:
    """Print a line now and then."""
    if number % 500 == 0 or number == of:
        values = ", ".join(f"{name} {value:.3f}" for name, value in terms.items())
        click.echo(f"step {number} of {of}: {values}")


@click.command()
@click.option("--workdir", type=click.Path(path_type=Path), default=None,
              show_default="run-PRESET")  # fmt: skip
@click.option("--output", type=click.Path(path_type=Path), default=DATA, help="Folder.")
@click.option("--preset", "name", default="shipped", type=click.Choice(list(FILES)))
@click.option("--held-out", default=2000, help="Fresh bands to score on.")
@click.option("--workers", default=2, help="Processes that simulate and search.")
@click.option("--quick", is_flag=True, help="A tiny set and network: a smoke test.")
def main(
    workdir: Path | None, output: Path, name: str, held_out: int, workers: int, quick: bool
) -> None:
    """Make a model that ships."""
    torch.set_num_threads(1)
    workdir = Path(f"run-{name}") if workdir is None else workdir
    preset = small(load_preset(name)) if quick else load_preset(name)
    held_out = 64 if quick else held_out
    workdir.mkdir(parents=True, exist_ok=True)
    output.mkdir(parents=True, exist_ok=True)
    _, training = searched(
        preset, workdir / "training", preset.train.samples, TRAINING_SEED, workers, workdir,
        "training",
    )  # fmt: skip
    grid = response_grid(preset.observation, preset.components.slow_samples)
    with stage(workdir, "train"):
        Trainer(preset, training, grid, workdir / "run").run(report)
        # of the validations, the weights of the lowest loss on bands that were left out
        model = load_model(workdir / "run" / BEST_FILE)
    data, fresh = searched(
        preset, workdir / "held-out", held_out, HELD_OUT_SEED, workers, workdir, "held out"
    )
    with stage(workdir, "score"):
        scores = summary(evaluate(model.network, fresh, data.observation.duration, draws=500))
    model.card["held_out"] = scores
    model.card["seeds"] = {"training": TRAINING_SEED, "held_out": HELD_OUT_SEED}
    model.card["cpu_seconds"] = json.loads((workdir / "cpu_seconds.json").read_text("utf-8"))
    save_model(output / f"{FILES[name]}.safetensors", model)
    (output / f"{FILES[name]}_card.md").write_text(card_text(model, fresh, name), "utf-8")
    write_index(output)
    click.echo(json.dumps(scores))


def small(preset: Preset) -> Preset:
    """Return a preset with the network and the training set of ``tiny``."""
    tiny = load_preset("tiny")
    model = tiny.model.model_copy(update={"slots": preset.model.slots})
    return preset.model_copy(update={"model": model, "train": tiny.train})


def write_index(folder: Path) -> None:
    """Write the index of the models that are there, from the lowest frequency on."""
    files = [folder / f"{stem}.safetensors" for stem in FILES.values()]
    there = list(itertools.takewhile(Path.is_file, files))
    if len(there) > 1:
        write_family(folder / INDEX, there)
        click.echo(f"written: {folder / INDEX}")


def prior_text(prior: PriorSettings) -> list[str]:
    """Return what a band of the prior holds, in lines of the card."""
    windows = ", ".join(f"{width} bins from {f * 1e3:g} mHz" for f, width in prior.windows)
    if prior.density:
        peak = max(prior.density, key=lambda row: row[1])
        number = (
            f"a Poisson number of targets, up to {prior.max_sources}, by a table of densities (at"
            f" most {peak[1]:g} a bin, at {peak[0] * 1e3:g} mHz) times the rate scale,"
        )
    else:
        number = f"1-{prior.max_sources} targets, none in {prior.empty_fraction:.0%} of the bands,"
    lines = [
        f"{prior.fmin * 1e3:g}-{prior.fmax * 1e3:g} mHz; {number}",
        f"in the window of interest ({windows});",
    ]
    return [line for part in lines for line in textwrap.wrap(part, 98)]


def noise_text(prior: PriorSettings) -> str:
    """Return what noise SNRs are against."""
    if not prior.confusion_share:
        return "total noise"
    shares = ", ".join(f"{100 * share:g}% at {f * 1e3:g} mHz" for f, share in prior.confusion_share)
    return f"instrument and a share of the confusion fit ({shares})"


def card_text(model: Model, fresh: TokenStore, name: str = "shipped") -> str:
    """Return the model card."""
    card, preset = model.card, model.preset
    prior, training = preset.prior, card["training"]
    seconds = card["cpu_seconds"]
    parameters = sum(training["parameters"].values())
    made = sum(v for stage_name, v in seconds.items() if stage_name.endswith("training"))
    whole = made + seconds.get("train", 0.0)
    snr = fresh.rows(np.arange(len(fresh))).snr
    ends = sorted({width / prior.bins / 6.0 for _, width in prior.windows})
    share = f"{ends[0]:.3f}" + (f" to {ends[-1]:.3f}" if len(ends) > 1 else "")
    loud = float(np.mean(np.nan_to_num(snr, nan=-1.0) > 10.0) * snr.shape[1])
    lines = [
        f"# The model {FILES[name]}.safetensors",
        "",
        f"Made by `./run python benchmarks/train_shipped_model.py --preset {name}"
        f" --held-out {card['held_out']['bands']}`:",
        f"{training['bands']} bands of",
        f"the training set (seed {card['seeds']['training']}), {training['steps']} steps of",
        f"{training['batch']} (of {training['of']}: the loss on bands left out was least there),",
        f"{parameters / 1e6:.2f} M parameters. CPU seconds: {seconds};",
        f"simulation, search and training of the model together {whole / 60:.1f} CPU minutes.",
        "",
        "**Data.** One-year TDI 1.5 (A, E, T), equal-arm orbit of lisaorbits at its default phase,",
        f"t0 = {preset.observation.t0:g} s, Tukey({preset.observation.tukey:g}) window, bands of",
        f"{prior.bins} Fourier bins. **Prior** (our choice): band centres",
        *prior_text(prior),
        f"SNR log-uniform {prior.snr_min:g}-{prior.snr_max:g}, against {noise_text(prior)};",
        f"fdot T^2 uniform in [{prior.fdot_t2_min:g}, {prior.fdot_t2_max:g}],",
        "times (f / 3 mHz)^(11/3) above 3 mHz; sky isotropic;",
        "bright sources outside the window at the same density; a Poisson foreground, rate",
        f"scale log-uniform {prior.rate_scale_min:g}-{prior.rate_scale_max:g}.",
        "",
        f"**Held out.** {card['held_out']['bands']} fresh bands (seed"
        f" {card['seeds']['held_out']}), {card['held_out']['sources']} sources,"
        f" {loud:.2f} above SNR 10 a band; 500 draws each. Every source is assigned to",
        "a slot by the Hungarian cost -ln q(source | slot), none left out; *missed*: the slot's",
        "component is more than one bin away. Parameters are scaled to [0, 1]; a uniform density",
        "there has CRPS 1/6 (1/8 for ra and phi0, circular) and NLL 0. The prior itself fills the",
        f"window of interest only (CRPS of f0 {share}) and is not uniform in ln amplitude.",
        "",
        *_tables(card["held_out"]),
    ]
    return "\n".join(lines) + "\n"


def _tables(scores: dict[str, Any]) -> list[str]:
    rows = {"all": scores["all"], "SNR > 10": scores["snr_above_10"]}
    rows |= {f"SNR {name}": row for name, row in scores["by_snr"].items()}
    near = scores["by_nearest_above_snr_10"]
    rows |= {f"SNR > 10, nearest source {name}": row for name, row in near.items()}
    rows = {name: row for name, row in rows.items() if row["sources"]}
    names = list(scores["all"]["crps"])
    out = []
    for title, key in (
        ("CRPS, mean", "crps"), ("CRPS, median", "crps_median"), ("coverage of 90%", "coverage90")
    ):  # fmt: skip
        out += [f"| {title} | n | missed | NLL | {' | '.join(names)} |"]
        out += ["|" + "---|" * (len(names) + 4)]
        for name, row in rows.items():
            values = " | ".join(f"{row[key][n]:.4f}" for n in names)
            out += [
                f"| {name} | {row['sources']} | {row['missed']:.2%} | {row['nll']:.2f} | {values} |"
            ]
        out += [""]
    out += [
        f"Number of sources exact: {scores['k_exact']:.1%} of all bands,"
        f" {scores['k_exact_all_above_10']:.1%} of those with every source above SNR 10; within"
        f" one: {scores['k_within_one']:.1%}, {scores['k_within_one_all_above_10']:.1%}."
        f" Peak overlap of matched slots {scores['peak_overlap']:.4f} (chance"
        f" {scores['peak_overlap_chance']:.3f}).",
    ]
    return out


if __name__ == "__main__":
    main()
