"""``slotflow simulate``: bands to train on, or one full observation."""

import time
from pathlib import Path

import click

from slotflow.cli.common import check_folder, cores, progress, say

TRAINING_DATA = Path("training-data")


@click.command()
@click.option("-o", "--output", type=click.Path(path_type=Path), default=TRAINING_DATA,
              metavar="DIR", help="Folder of the training set.")  # fmt: skip
@click.option("--samples", type=click.IntRange(min=1), default=None,
              show_default="what the preset trains on", help="Bands to simulate.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=1, help="Of everything random.")
@click.option("--workers", type=click.IntRange(min=1), default=None,
              show_default="the cores of this machine", help="Processes.")  # fmt: skip
@click.option("--preset", default="small", metavar="NAME|FILE",
              help="Settings: tiny, small, shipped, paper, or a YAML file.")  # fmt: skip
@click.option("--observation", type=click.Path(path_type=Path), default=None, metavar="FILE",
              help="Write one full observation instead (Sangria layout).")  # fmt: skip
@click.option("--catalogue", type=click.Path(path_type=Path), default=None, metavar="CSV",
              help="Sources to put into the observation.")  # fmt: skip
@click.option("--no-galaxy", is_flag=True, help="Leave the Galaxy out of the observation.")
@click.option("--compact", is_flag=True, help="Observation in single precision, compressed.")
@click.option("--force", is_flag=True, help="Replace what stands there.")
@click.pass_context
def simulate(
    context: click.Context, output: Path, samples: int | None, seed: int, workers: int | None,
    preset: str, observation: Path | None, catalogue: Path | None, no_galaxy: bool,
    compact: bool, force: bool,
) -> None:  # fmt: skip
    """Simulate bands to train on, or one full observation.

    A training set is a folder of shards; band i depends on the seed and i alone. A run that was
    broken off goes on where it stopped. The default takes about half a minute on two cores.

    With --observation, one year of X, Y, Z: the sources of the catalogue, a Galaxy drawn from
    the population above 0.5 mHz (half a minute), and the instrument's noise.

    \b
    Example:
      slotflow simulate
      slotflow simulate -o data --samples 20000 --seed 3 --workers 8
      slotflow simulate --observation input.h5 --catalogue sources.csv
    """
    _check_combination(context, observation)
    if observation is None:
        simulate_bands(output, samples, seed, workers, preset, force)
    else:
        _simulate_observation(observation, catalogue, preset, seed, not no_galaxy, compact, force)


def _check_combination(context: click.Context, observation: Path | None) -> None:
    """Refuse options that have no effect in this mode."""
    given = click.core.ParameterSource.COMMANDLINE
    others = ("catalogue", "no_galaxy", "compact")
    if observation is not None:
        others = ("output", "samples", "workers")
    for name in others:
        if context.get_parameter_source(name) is given:
            option = f"--{name.replace('_', '-')}"
            verb = "needs" if observation is None else "does not go with"
            raise click.UsageError(f"{option} {verb} --observation", context)


def simulate_bands(
    output: Path, samples: int | None, seed: int, workers: int | None, preset_name: str, force: bool
) -> None:
    """Simulate a training set with a progress bar, and say what stands there then."""
    from slotflow.config import load_preset

    preset = load_preset(preset_name)
    number = preset.train.samples if samples is None else samples
    check_folder(output, "the training set")
    started = time.monotonic()
    from slotflow.simulate.dataset import simulate_dataset

    with progress("simulating", "bands") as report:
        simulate_dataset(
            preset, output, number, seed, cores() if workers is None else workers,
            force=force, progress=report,
        )  # fmt: skip
    seconds = time.monotonic() - started
    click.echo(f"{output}: {number} bands, seed {seed}, in {seconds:.1f} s")


def _simulate_observation(
    path: Path, catalogue: Path | None, preset_name: str, seed: int, galaxy: bool, compact: bool,
    force: bool,
) -> None:  # fmt: skip
    from slotflow.config import load_preset
    from slotflow.errors import OutputExistsError

    preset = load_preset(preset_name)
    if path.exists() and not force:
        raise OutputExistsError(f"{path}: exists already; --force replaces it")
    check_folder(path.parent, "the observation")
    started = time.monotonic()
    from slotflow.simulate.observation import (
        GalaxySettings,
        read_catalogue,
        simulate_observation,
    )

    names, sources = read_catalogue(catalogue) if catalogue is not None else ((), None)
    if galaxy:
        say("drawing a Galaxy above 0.5 mHz (half a minute)")
    with progress("simulating", "sources") as report:
        summary = simulate_observation(
            path, preset.observation, seed, sources, names if sources is not None else None,
            galaxy=GalaxySettings() if galaxy else None, compact=compact, force=force,
            progress=report,
        )  # fmt: skip
    click.echo(
        f"{summary.path}: {len(names)} sources, {summary.binaries} binaries of the Galaxy, seed"
        f" {seed}, {path.stat().st_size / 1e6:.1f} MB in {time.monotonic() - started:.1f} s"
    )
