"""``slotflow ablate``: evidence depletion against the slots it is compared with."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slotflow.cli.common import check_folder, cores, held_folder, progress, say

if TYPE_CHECKING:
    from slotflow.ablate.runs import Job
    from slotflow.config import Preset
    from slotflow.response import ResponseGrid

#: Columns of the printed tables.
MIXTURES = ("peak_overlap", "chance", "cosine_overlap", "existence", "k_exact")
LISA = (
    "peak_overlap", "chance", "hit", "nll", "nll_snr10", "missed_snr10", "crps_snr10.f0",
    "crps_snr10.ln_amplitude", "k_exact", "seconds",
)  # fmt: skip
MIXERS = (
    "nll", "nll_snr10", "missed_snr10", "crps_snr10.f0", "crps_snr10.ln_amplitude",
    "peak_overlap", "hit", "k_exact", "largest_attention", "attention_entropy",
    "encoder_parameters", "seconds",
)  # fmt: skip
DEFAULTS = "vanilla,sequential,linear"


def common(default_seeds: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Options that the comparisons share."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        for option in (
            click.option("--workers", type=click.IntRange(min=1), default=None,
                         show_default="the cores of this machine",
                         help="Runs at a time, each on one core."),
            click.option("--seeds", type=click.IntRange(min=1), default=None,
                         show_default=str(default_seeds), help="Seeds of each method."),
            click.option("-o", "--output", type=click.Path(path_type=Path), default=None,
                         metavar="DIR", show_default="ablate-NAME",
                         help="Folder of the comparison; what is done there is not done again."),
        ):  # fmt: skip
            function = option(function)
        return function

    return decorate


@click.group(short_help="Compare slot mechanisms.")
def ablate() -> None:
    """Train networks that differ in their slots alone, and compare them.

    Each run is a file in the folder of the comparison (runs/TASK.METHOD.seedN.json); one that was
    broken off goes on. results.json lists all, table.md has means and deviations, and the
    pictures show collapse, attention and evidence.
    """


@ablate.command(short_help="On sinusoids, bumps and multiscale mixtures.")
@click.option("--methods", default=DEFAULTS,
              help="Of vanilla, sequential, linear, quadratic, cubic, binary.")  # fmt: skip
@click.option("--tasks", default="sinusoids,bumps,multiscale", help="Kinds of mixtures.")
@click.option("--epochs", type=click.IntRange(min=1), default=None,
              show_default="200; 40 with --quick")  # fmt: skip
@click.option("--quick", is_flag=True, help="40 epochs and 3 seeds: minutes instead of hours.")
@common(5)
def synthetic(
    methods: str, tasks: str, epochs: int | None, quick: bool, output: Path | None,
    seeds: int | None, workers: int | None,
) -> None:  # fmt: skip
    """Mixtures of 1-4 simple sources of which one dominates (arXiv:2605.02323, section 3.1).

    256 samples in 16 tokens, 5 slots, noise 0.1, 5,000 mixtures to train on and 1,000 to test,
    200 epochs, 5 seeds.

    \b
    Example:
      slotflow ablate synthetic --quick
      slotflow ablate synthetic --methods linear,quadratic,cubic,binary
    """
    from slotflow.ablate.methods import METHODS
    from slotflow.ablate.mixtures import KINDS
    from slotflow.ablate.synthetic import Budget, SyntheticJob

    chosen = _chosen("--methods", methods, METHODS)
    kinds = _chosen("--tasks", tasks, KINDS)
    budget = Budget(epochs=epochs or (40 if quick else 200))
    folder = output or Path("ablate-synthetic-quick" if quick else "ablate-synthetic")
    jobs = [
        SyntheticJob(kind, method, seed, METHODS[method], budget)
        for seed in range(seeds or (3 if quick else 5))
        for kind in kinds
        for method in chosen
    ]
    _run(folder, jobs, workers, MIXTURES)


@ablate.command(short_help="On mixtures of recorded sounds.")
@click.argument("data", type=click.Path(path_type=Path), metavar="FOLDER")
@click.option("--recordings", is_flag=True,
              help="FOLDER holds any recordings, of which mixtures are made; else it is the"
                   " folder ssdata of FUSS.")  # fmt: skip
@click.option("--methods", default=DEFAULTS,
              help="Of vanilla, sequential, linear, quadratic, cubic, binary.")  # fmt: skip
@click.option("--training", type=click.IntRange(min=1), default=20_000,
              help="Mixtures to train on, at most.")  # fmt: skip
@click.option("--test", type=click.IntRange(min=1), default=1_000,
              help="Mixtures to test on, at most.")  # fmt: skip
@click.option("--epochs", type=click.IntRange(min=1), default=200)
@common(5)
def audio(
    data: Path, recordings: bool, methods: str, training: int, test: int, epochs: int,
    output: Path | None, seeds: int | None, workers: int | None,
) -> None:  # fmt: skip
    """Mixtures of 1-4 sounds, 4 s at 16 kHz in 32 tokens, 5 slots (arXiv:2605.02323, section 3.2).

    FOLDER is the folder ssdata of FUSS (train/ and eval/), or, with --recordings, any folder
    of WAV, FLAC or OGG files.

    \b
    Example:
      slotflow ablate audio fuss/ssdata
      slotflow ablate audio /usr/share/sounds --recordings --training 2000 --test 500 --epochs 40
    """
    from slotflow.ablate.audio_job import AudioBudget, AudioJob
    from slotflow.ablate.methods import METHODS

    chosen = _chosen("--methods", methods, METHODS)
    budget = AudioBudget(training, test, epochs)
    jobs = [
        AudioJob(method, seed, METHODS[method], data, recordings, budget)
        for seed in range(seeds or 5)
        for method in chosen
    ]
    _run(output or Path("ablate-audio"), jobs, workers, MIXTURES)


@ablate.command(short_help="On LISA's data, in the model itself.")
@click.argument("directory", type=click.Path(path_type=Path), required=False, metavar="[DIR]")
@click.option("--preset", default="shipped", metavar="NAME|FILE", help="All but the slots.")
@click.option("--samples", type=click.IntRange(min=64), default=20_000,
              help="Bands that are simulated where DIR holds none.")  # fmt: skip
@click.option("--epochs", type=click.IntRange(min=1), default=5,
              help="Passes over the bands.")  # fmt: skip
@click.option("--kinds", default="vanilla,sequential,linear,quadratic,stopped",
              help="Kinds of slots.")  # fmt: skip
@click.option("--settings", default="exchangeable,guided", help="What slots are told.")
@click.option("--diversity", type=click.Choice(["both", "with", "without"]), default="both",
              help="With and without the losses of diversity and orthogonality.")  # fmt: skip
@common(3)
def lisa(
    directory: Path | None, preset: str, samples: int, epochs: int, kinds: str, settings: str,
    diversity: str, output: Path | None, seeds: int | None, workers: int | None,
) -> None:  # fmt: skip
    """The whole model with each kind of slots, on the training set in DIR (made if need be).

    Each kind in two settings, with and without the diversity and orthogonality losses:
    exchangeable slots that no loss tells where to look, and guided ones, with learned starts
    and the attention loss. The paper's sizes are --preset paper --samples 100000 --epochs 30.

    \b
    Example:
      slotflow ablate lisa
      slotflow ablate lisa --samples 2000 --epochs 2 --seeds 1
    """
    from slotflow.ablate.lisa import KINDS, SETTINGS, lisa_jobs
    from slotflow.store import TrainingSet

    chosen = tuple(_chosen("--kinds", kinds, KINDS))
    told = tuple(_chosen("--settings", settings, SETTINGS))
    losses = {"both": (True, False), "with": (True,), "without": (False,)}[diversity]
    folder = output or Path("ablate-lisa")
    place = directory if directory is not None else folder / "data"
    own, grid = _searched(place, folder, preset, samples, epochs, workers)
    data = TrainingSet(place).directory
    jobs = list(lisa_jobs(own, data, folder, grid, seeds or 3, chosen, told, losses))
    _run(folder, jobs, workers, LISA)


@ablate.command(short_help="Token mixers, on LISA's data.")
@click.argument("directory", type=click.Path(path_type=Path), required=False, metavar="[DIR]")
@click.option("--preset", default="shipped", metavar="NAME|FILE", help="All but the mixer.")
@click.option("--samples", type=click.IntRange(min=64), default=20_000,
              help="Bands that are simulated where DIR holds none.")  # fmt: skip
@click.option("--epochs", type=click.IntRange(min=1), default=5,
              help="Passes over the bands.")  # fmt: skip
@click.option("--methods", default=None, show_default="all",
              help="Of softmax, quaternion, hamilton, conformer, kuramoto, kuramoto-causal, dice,"
                   " dice-linear, dice-binary, dice-streams, collapsed, qk-0.25, qk-4,"
                   " qk-16.")  # fmt: skip
@common(3)
def mixers(
    directory: Path | None, preset: str, samples: int, epochs: int, methods: str | None,
    output: Path | None, seeds: int | None, workers: int | None,
) -> None:  # fmt: skip
    """The whole model with each token mixer, on the training set in DIR (made if need be).

    Same bands, steps and number of parameters: NLL, CRPS, overlap, parameters and time of softmax,
    quaternion, Kuramoto and Dice attention, of collapsed circuits, and of other ratios of the
    learning rates of queries and keys.

    \b
    Example:
      slotflow ablate mixers
      slotflow ablate mixers training-data --methods softmax,dice --seeds 1
    """
    from slotflow.ablate.mixers import METHODS, mixer_jobs
    from slotflow.store import TrainingSet

    given = ",".join(METHODS) if methods is None else methods
    chosen = tuple(_chosen("--methods", given, METHODS))
    folder = output or Path("ablate-mixers")
    place = directory if directory is not None else folder / "data"
    settings, grid = _searched(place, folder, preset, samples, epochs, workers)
    found = TrainingSet(place).directory
    jobs = list(mixer_jobs(settings, found, folder, grid, seeds or 3, chosen))
    _run(folder, jobs, workers, MIXERS)


def _searched(
    place: Path, folder: Path, preset: str, samples: int, epochs: int, workers: int | None
) -> "tuple[Preset, ResponseGrid]":
    """Make the training set if need be and search it; return the settings and the response."""
    from slotflow.cli import train
    from slotflow.config import load_preset
    from slotflow.simulate.orbits import response_grid

    check_folder(folder, "the comparison")
    settings = _sized(load_preset(preset), samples, epochs)
    train.simulate_if_needed(place, settings, preset, workers)
    data = train.open_set(place, settings, preset)
    train.search(data, settings, workers)
    settings = settings.model_copy(update={"observation": data.observation})
    return settings, response_grid(data.observation, settings.components.slow_samples)


def _sized(preset: "Preset", samples: int, epochs: int) -> "Preset":
    """Return the preset with so many bands, of which a tenth is held out, and so many passes."""
    train = preset.train.model_copy(
        update={"samples": samples, "passes": samples * epochs, "validation_fraction": 0.1}
    )
    return preset.model_copy(update={"train": train})


def _chosen[Name: str](option: str, given: str, known: Iterable[Name]) -> list[Name]:
    """Return the names in a list with commas, each once.

    Raises:
        click.BadParameter: one is not known, or there is none.
    """
    by_name = {str(name): name for name in known}
    names = [name.strip() for name in given.split(",") if name.strip()]
    if unknown := [name for name in names if name not in by_name]:
        raise click.BadParameter(f"{unknown[0]!r}; known: {', '.join(by_name)}", param_hint=option)
    if not names:
        raise click.BadParameter("none given", param_hint=option)
    return [by_name[name] for name in dict.fromkeys(names)]


def _run(folder: Path, jobs: "Sequence[Job]", workers: int | None, shown: Sequence[str]) -> None:
    """Do what is left to do; write and print what came out."""
    from slotflow.ablate.figures import write_figures
    from slotflow.ablate.runs import RESULTS, path_of, run_all
    from slotflow.ablate.table import markdown
    from slotflow.atomic import remove_leftovers, written

    refusal = f"{folder}: another comparison is running in it; let it end, or give another -o DIR"
    with held_folder(folder, ".run.lock", "the comparison", refusal):
        remove_leftovers(folder / "runs", {path_of(folder, job).name for job in jobs})
        remove_leftovers(folder, (RESULTS, "table.md"))
        say(f"{folder}: {len(jobs)} runs")
        with progress("comparing", "runs") as report:
            records = run_all(folder, jobs, workers or cores(), report)
        with written(folder / "table.md") as path:
            path.write_text(markdown(records), encoding="utf-8")
        pictures = write_figures(records, folder)
    click.echo(markdown(records, shown), nl=False)
    click.echo(f"results: {folder / RESULTS}")
    click.echo(f"table:   {folder / 'table.md'}")
    for path in pictures:
        click.echo(f"picture: {path}")
