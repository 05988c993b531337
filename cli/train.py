"""``slotflow train``: simulate if need be, search for components, train, validate."""

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from slotflow.cli.common import check_folder, cores, held_folder, progress, say
from slotflow.cli.simulate import TRAINING_DATA, simulate_bands
from slotflow.errors import InputError, OutputExistsError

if TYPE_CHECKING:
    from slotflow.config import Preset
    from slotflow.parallel import Parallel, Precision
    from slotflow.store import TrainingSet

#: Numbers of this process in its environment, by SLURM, torchrun and Fabric's own launcher.
RANKS = ("SLURM_PROCID", "RANK", "LOCAL_RANK", "NODE_RANK")
RUN_FILES = ("state.pt", "state.before.pt", "model.safetensors", "best.safetensors", "log.csv")
LOCK = ".run.lock"  # not the training set's, which may be in the same folder
SCORED_BANDS = 1000  # held-out bands whose posteriors are scored at the end


@click.command(short_help="Train a model.")
@click.argument("directory", type=click.Path(path_type=Path), default=TRAINING_DATA,
                metavar="[DIR]")  # fmt: skip
@click.option("--preset", default="small", metavar="NAME|FILE",
              help="Settings: tiny, small, shipped, crowded, high, paper, or a YAML"
                   " file.")  # fmt: skip
@click.option("-o", "--output", type=click.Path(path_type=Path), default=None, metavar="DIR",
              show_default="run-PRESET", help="Folder of the run.")  # fmt: skip
@click.option("--passes", type=click.IntRange(min=1), default=None,
              show_default="the preset's", help="Training samples seen in all.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=None, show_default="the preset's",
              help="Of the network and its batches.")  # fmt: skip
@click.option("--workers", type=click.IntRange(min=1), default=None,
              show_default="the cores of this machine",
              help="Processes that simulate and search.")  # fmt: skip
@click.option("--gpus", type=click.IntRange(min=0), default=0,
              help="GPUs to train on, on each node; 0: the CPU.")  # fmt: skip
@click.option("--nodes", type=click.IntRange(min=1), default=1,
              help="Machines that train together, under SLURM or torchrun.")  # fmt: skip
@click.option("--processes", type=click.IntRange(min=1), default=1,
              help="Processes that train together on the CPU.")  # fmt: skip
@click.option("--precision", type=click.Choice(["32-true", "bf16-mixed"]), default="32-true",
              help="Of the network; the spline is in float32 whatever it is.")  # fmt: skip
@click.option("--tensorboard/--no-tensorboard", default=True,
              help="Also log for TensorBoard.")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace another run in the folder.")
def train(
    directory: Path, preset: str, output: Path | None, passes: int | None, seed: int | None,
    workers: int | None, gpus: int, nodes: int, processes: int, precision: str,
    tensorboard: bool, force: bool,
) -> None:  # fmt: skip
    """Train a model on the training set in DIR (training-data where none is given).

    Where DIR holds nothing yet, the bands that the preset needs are simulated first. A simulation
    or a run that was broken off goes on where it stopped. The default takes some five minutes on
    two cores without a GPU, simulation included. SIGTERM and SIGUSR1 save the run and end it with
    exit code 75; the same command goes on.

    \b
    Example:
      slotflow train
      slotflow train data --preset small -o run-small
      slotflow train data --processes 2
      slotflow train data --preset paper --gpus 8 --nodes 2 --precision bf16-mixed
      slotflow posterior input.h5 --model run-small/model.safetensors
    """
    from slotflow.atomic import remove_leftovers
    from slotflow.config import load_preset
    from slotflow.parallel import Launch, launch

    settings = _override(load_preset(preset), passes, seed)
    folder = output if output is not None else Path(f"run-{Path(preset).stem}")
    together = Launch(gpus, processes, nodes, cast("Precision", precision))
    together.check()
    ranks = (os.environ.get(name, "0") for name in RANKS)
    first = all(rank == "0" for rank in ranks)
    if not first:
        launch(together, _train, settings, directory, preset, folder, tensorboard)
        return
    _check_folder(folder, settings, force)
    refusal = f"{folder}: another run is training in it; let it end, or give another -o DIR"
    with held_folder(folder, LOCK, "the run", refusal):
        remove_leftovers(folder, RUN_FILES)
        simulate_if_needed(directory, settings, preset, workers)
        data = open_set(directory, settings, preset)
        if len(data) < (asked := settings.train.samples):
            say(f"{directory} has {len(data)} bands, the preset {preset!r} asks for {asked}")
        search(data, settings, workers)
        if force:
            _remove_run(folder)
        launch(together, _train, settings, directory, preset, folder, tensorboard)
        _report(settings, directory, folder)


def _train(
    parallel: "Parallel", settings: "Preset", directory: Path, preset_name: str, folder: Path,
    tensorboard: bool,
) -> None:  # fmt: skip
    """Train, in one of the processes that do so together."""
    import torch

    from slotflow.simulate.orbits import response_grid
    from slotflow.tokencache import open_tokens
    from slotflow.train import Trainer

    torch.set_num_threads(1)  # the tensors are small: more threads only wait for each other
    data = open_set(directory, settings, preset_name)
    tokens = open_tokens(data, settings.components, settings.train.noise_draws)
    grid = response_grid(data.observation, settings.components.slow_samples)
    settings = settings.model_copy(update={"observation": data.observation})
    trainer = Trainer(settings, tokens, grid, folder, parallel, tensorboard)
    if parallel.rank != 0:
        trainer.run()
        return
    if trainer.note:
        say(trainer.note)
    if 0 < trainer.step < trainer.steps:
        say(f"{folder}: going on from step {trainer.step} of {trainer.steps}")
    per_step = trainer.batch * settings.train.accumulate
    begin, first = time.monotonic(), trainer.step
    with progress("training", "steps") as report:

        def show(step: int, steps: int, terms: dict[str, float]) -> None:
            rate = (step - first) / max(time.monotonic() - begin, 1e-9)
            report(step, steps, training_text(terms, rate * per_step, (steps - step) / rate))

        trainer.run(show)


def training_text(terms: dict[str, float], rate: float, seconds: float) -> str:
    """Return what is shown of a run: terms of the loss, samples a second, time left."""
    shown = ", ".join(f"{name} {value:.3g}" for name, value in terms.items() if value != 0.0)
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{shown}; {rate:.0f} samples/s, {hours}:{minutes:02d}:{rest:02d} left"


def _override(preset: "Preset", passes: int | None, seed: int | None) -> "Preset":
    given = {name: v for name, v in (("passes", passes), ("seed", seed)) if v is not None}
    return preset.model_copy(update={"train": preset.train.model_copy(update=given)})


def _check_folder(folder: Path, settings: "Preset", force: bool) -> None:
    """Refuse, before any work, a folder in which this run cannot stand.

    Raises:
        InputError: the folder cannot be written to.
        OutputExistsError: it holds a model that was not trained there, or a run of other settings.
    """
    check_folder(folder, "the run")
    model = folder / "model.safetensors"
    if force or not model.exists():
        return
    # the last, or the one before it: a process may end when the last is about to take its place
    if not any((folder / name).exists() for name in ("state.pt", "state.before.pt")):
        raise OutputExistsError(f"{model}: exists already; give another -o DIR, or --force")
    from slotflow.config import first_difference

    found = _stored_preset(model)
    differs = found and first_difference(found, settings.model_dump(mode="json"))
    if differs:
        name, old, new = differs
        raise OutputExistsError(
            f"{model}: of a run with other settings: {name} {old!r}, now {new!r};"
            " give another -o DIR, or --force to replace it"
        )


def _stored_preset(model: Path) -> dict[str, Any]:
    """Return the settings in a model's header, empty where they cannot be read.

    The weights are not read, nor PyTorch imported: what is wrong with the file, the run says.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(model, framework="numpy") as file:
            preset = json.loads((file.metadata() or {})["slotflow"])["preset"]
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return preset if isinstance(preset, dict) else {}


def simulate_if_needed(
    directory: Path, settings: "Preset", preset_name: str, workers: int | None
) -> None:
    """Simulate the bands that are not there: all, or those that a broken-off run left.

    Raises:
        InputError: what stands there is not a training set, or one of other settings.
    """
    check_folder(directory, "the training set")
    if not directory.exists() or all(_leftover(path) for path in directory.iterdir()):
        say(f"{directory} holds no training set: simulating {settings.train.samples} bands first")
        simulate_bands(directory, settings.train.samples, 1, workers, preset_name, False)
        return
    from slotflow.manifest import read_manifest

    manifest = read_manifest(directory)
    there = sum(shard.rows for shard in manifest.shards)
    if there < manifest.samples:
        say(f"{directory}: {there} of {manifest.samples} bands are there: simulating the others")
        simulate_bands(directory, manifest.samples, manifest.seed, workers, preset_name, False)


def _leftover(path: Path) -> bool:
    """Whether this is what a process left when it was ended: a temporary file, lock or log."""
    hidden = path.name.startswith(".") and path.suffix == ".tmp"
    return hidden or path.name in (".lock", "simulate.log")


def open_set(directory: Path, settings: "Preset", preset_name: str) -> "TrainingSet":
    """Open a training set that was made with the preset's observation and prior.

    Raises:
        InputError: naming the first setting that differs.
    """
    from slotflow.config import first_difference
    from slotflow.manifest import complete_settings
    from slotflow.simulate.inputs import pinned_preset
    from slotflow.store import TrainingSet

    data = TrainingSet(directory)
    ours = pinned_preset(settings).model_dump(
        mode="json", include={"observation", "prior", "population"}
    )
    found = complete_settings(directory, data.manifest)
    if (differs := first_difference(found, ours)) is not None:
        name, old, new = differs
        raise InputError(
            f"{directory}: {name}: made with {old!r}, the preset {preset_name!r} has {new!r}"
        )
    return data


def search(data: "TrainingSet", settings: "Preset", workers: int | None) -> None:
    """Search all bands for components."""
    import torch

    from slotflow.simulate.orbits import response_grid
    from slotflow.tokencache import ensure_searched

    torch.set_num_threads(1)
    grid = response_grid(data.observation, settings.components.slow_samples)
    draws = settings.train.noise_draws
    started = time.monotonic()
    with progress("searching components", "files") as report:
        ensure_searched(
            data, grid, settings.components, draws, cores() if workers is None else workers, report
        )
    seconds = time.monotonic() - started
    click.echo(f"{data.directory}: {draws * len(data)} bands searched, in {seconds:.1f} s")


def _remove_run(folder: Path) -> None:
    from slotflow.runlog import EVENTS
    from slotflow.train import BEFORE_FILE, BEST_FILE, LOG_FILE, MODEL_FILE, STATE_FILE

    for name in (STATE_FILE, BEFORE_FILE, MODEL_FILE, BEST_FILE, LOG_FILE):
        (folder / name).unlink(missing_ok=True)
    for events in (folder / EVENTS).glob("events.out.tfevents.*"):
        events.unlink()


def _report(settings: "Preset", directory: Path, folder: Path) -> None:
    """Score the model on held-out bands, add that to its card, and print the figures."""
    import numpy as np

    from slotflow.batches import split
    from slotflow.checkpoint import load_model, save_model
    from slotflow.evaluation import evaluate, summary
    from slotflow.store import TrainingSet
    from slotflow.tokencache import open_tokens
    from slotflow.tokendata import TokenSubset
    from slotflow.train import MODEL_FILE, validation_figures

    model = load_model(folder / MODEL_FILE)
    data = TrainingSet(directory)
    tokens = open_tokens(data, settings.components, settings.train.noise_draws)
    _, held = split(tokens, settings.train.validation_fraction)
    figures = validation_figures(model.network, TokenSubset(held, np.arange(min(2000, len(held)))))
    scored = TokenSubset(held, np.arange(min(SCORED_BANDS, len(held))))
    scores = summary(evaluate(model.network, scored, data.observation.duration, draws=200))
    model.card["validation"] = scores
    model.card["seeds"] = {"training": data.seed}
    save_model(folder / MODEL_FILE, model)
    training = model.card["training"]
    parameters = sum(training["parameters"].values())
    click.echo(
        f"{folder}: {training['steps']} steps, {parameters / 1e6:.2f} M parameters,"
        f" trained in {training['seconds']:.1f} s"
    )
    for line in figure_lines(figures, scores):
        click.echo(line)
    click.echo(f"model: {folder / MODEL_FILE}")


def figure_lines(figures: dict[str, float], scores: dict[str, Any]) -> list[str]:
    """Return the held-out figures as lines."""
    lines = [
        f"held out: {scores['bands']} bands, {scores['sources']} sources;"
        f" slot on the right component {figures['hit']:.1%},"
        f" number of sources exact {scores['k_exact']:.1%}"
    ]
    for label, key in (("all", "all"), ("SNR > 10", "snr_above_10")):
        row = scores[key]
        if row["sources"]:
            crps = ", ".join(f"{name} {value:.4f}" for name, value in row["crps"].items())
            lines.append(
                f"{label} ({row['sources']}): NLL {row['nll']:.2f}, no component within 1 bin"
                f" {row['missed']:.1%}, CRPS (prior: 1/6, of ra and phi0 1/8) {crps}"
            )
    return lines
