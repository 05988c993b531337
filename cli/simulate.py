"""``slotflow simulate``: bands to train on, a check of them, or one full observation."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from slotflow.cli.common import check_folder, cores, progress

if TYPE_CHECKING:
    from slotflow.simulate.distribute import Distribution

TRAINING_DATA = Path("training-data")
_WAYS = ("scheduler", "slurm", "gpus")


@click.command()
@click.option("-o", "--output", type=click.Path(path_type=Path), default=TRAINING_DATA,
              metavar="DIR", help="Folder of the training set.")  # fmt: skip
@click.option("--samples", type=click.IntRange(min=1), default=None,
              show_default="what the preset trains on", help="Bands to simulate.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=1, help="Of everything random.")
@click.option("--workers", type=click.IntRange(min=1), default=None,
              show_default="the cores of this machine",
              help="Processes; with --slurm, jobs.")  # fmt: skip
@click.option("--scheduler", default=None, metavar="ADDRESS",
              help="Give the shards to the workers of this dask scheduler.")  # fmt: skip
@click.option("--slurm", is_flag=True, help="Give the shards to SLURM jobs, submitted from here.")
@click.option("--slurm-option", multiple=True, metavar="KEY=VALUE",
              help="Of dask_jobqueue's SLURMCluster: queue, account, walltime, memory, ...;"
              " several times.")  # fmt: skip
@click.option("--gpus", type=click.IntRange(min=1), default=None,
              help="One process beside each of so many GPUs of this machine.")  # fmt: skip
@click.option("--preset", default="small", metavar="NAME|FILE",
              help="Settings: tiny, small, shipped, crowded, high, paper, or a YAML"
                   " file.")  # fmt: skip
@click.option("--observation", type=click.Path(path_type=Path), default=None, metavar="FILE",
              help="Write one full observation instead.")  # fmt: skip
@click.option("--layout", type=click.Choice(["sangria", "mojito"]), default="sangria",
              help="Of the observation: LDC2 Sangria, or Mojito L1 (TDI 2).")  # fmt: skip
@click.option("--catalogue", type=click.Path(path_type=Path), default=None, metavar="CSV",
              help="Sources to put into the observation.")  # fmt: skip
@click.option("--no-galaxy", is_flag=True, help="Leave the Galaxy out of the observation.")
@click.option("--compact", is_flag=True, help="Observation in single precision, compressed.")
@click.option("--check", type=click.Path(path_type=Path), default=None, metavar="DIR",
              help="Verify a training set instead: which shards to make again.")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace what stands there.")
@click.pass_context
def simulate(
    context: click.Context, output: Path, samples: int | None, seed: int, workers: int | None,
    scheduler: str | None, slurm: bool, slurm_option: tuple[str, ...], gpus: int | None,
    preset: str, observation: Path | None, layout: Literal["sangria", "mojito"],
    catalogue: Path | None, no_galaxy: bool, compact: bool, check: Path | None, force: bool,
) -> None:  # fmt: skip
    """Simulate bands to train on, or one full observation.

    A training set is a folder of shards; band i depends on the seed and i alone. A run that was
    broken off goes on where it stopped. The default takes about half a minute on two cores. Files
    are the same with --workers, --scheduler, --slurm or --gpus (docs/distribution.md).

    With --check, nothing is simulated: each shard of a set is compared with the manifest and its
    values looked through. Exit code 0: whole; 2: some must be made again.

    With --observation, one year of X, Y, Z: the sources of the catalogue, a Galaxy drawn from
    the population above 0.5 mHz (half a minute), and the instrument's noise, by the preset's
    orbit, noise and gaps. --layout mojito writes TDI 2, as a preset may ask of the other layout.

    \b
    Example:
      slotflow simulate
      slotflow simulate -o data --samples 20000 --seed 3 --workers 8
      slotflow simulate -o /shared/data --scheduler tcp://head:8786
      slotflow simulate -o /shared/data --slurm --workers 20 --slurm-option queue=short
      slotflow simulate -o data --gpus 2
      slotflow simulate --check data
      slotflow simulate --observation input.h5 --catalogue sources.csv
    """
    _check_combination(context, observation, check)
    if check is not None:
        _check_set(check)
    elif observation is None:
        ways = None
        if scheduler is not None or slurm or gpus is not None:
            ways = _distribution(scheduler, slurm, slurm_option, workers, gpus)
        simulate_bands(output, samples, seed, workers, preset, force, ways)
    else:
        _simulate_observation(
            observation, catalogue, preset, seed, not no_galaxy, layout, compact, force
        )


def _check_combination(
    context: click.Context, observation: Path | None, check: Path | None
) -> None:
    """Refuse options that have no effect in this mode."""
    given = click.core.ParameterSource.COMMANDLINE
    if check is not None:
        for name in context.params:
            if name != "check" and context.get_parameter_source(name) is given:
                option = f"--{name.replace('_', '-')}"
                raise click.UsageError(f"{option} does not go with --check", context)
        return
    others: tuple[str, ...] = ("layout", "catalogue", "no_galaxy", "compact")
    if observation is not None:
        others = ("output", "samples", "workers", *_WAYS, "slurm_option")
    for name in others:
        if context.get_parameter_source(name) is given:
            option = f"--{name.replace('_', '-')}"
            verb = "needs" if observation is None else "does not go with"
            raise click.UsageError(f"{option} {verb} --observation", context)
    if context.params["layout"] == "mojito" and context.params["compact"]:
        raise click.UsageError("--compact does not go with --layout mojito", context)
    _check_ways(context)


def _check_ways(context: click.Context) -> None:
    """Refuse several ways to run at once, and options of a way that is not gone."""
    values = context.params
    ways = [f"--{name}" for name in _WAYS if values[name]]
    if len(ways) > 1:
        raise click.UsageError(f"{ways[1]} does not go with {ways[0]}", context)
    if values["workers"] is not None and ways in (["--scheduler"], ["--gpus"]):
        raise click.UsageError(f"--workers does not go with {ways[0]}", context)
    if values["slurm"] and values["workers"] is None:
        raise click.UsageError("--slurm needs --workers, the number of jobs", context)
    if values["slurm_option"] and not values["slurm"]:
        raise click.UsageError("--slurm-option needs --slurm", context)


def _distribution(
    scheduler: str | None, slurm: bool, options: tuple[str, ...], workers: int | None,
    gpus: int | None,
) -> "Distribution":  # fmt: skip
    """Return the way to run that was asked for."""
    from slotflow.simulate.cluster import Scheduler, Slurm, slurm_options
    from slotflow.simulate.distribute import Devices

    ways: Distribution
    if scheduler is not None:
        ways = Scheduler(scheduler)
    elif slurm:
        ways = Slurm(workers or 1, slurm_options(options))
    else:
        ways = Devices(gpus or 1)
    return ways


def simulate_bands(
    output: Path, samples: int | None, seed: int, workers: int | None, preset_name: str,
    force: bool, distribution: "Distribution | None" = None,
) -> None:  # fmt: skip
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
            distribution=distribution, force=force, progress=report,
        )  # fmt: skip
    seconds = time.monotonic() - started
    click.echo(f"{output}: {number} bands, seed {seed}, in {seconds:.1f} s")


def _check_set(directory: Path) -> None:
    """Print a line for each shard that must be made again, and a summary."""
    from slotflow.errors import InputError
    from slotflow.setcheck import check_shards, checked_manifest, remedy, shard_count

    manifest = checked_manifest(directory)
    total, bad, bands = shard_count(manifest), [], 0
    with progress("checking", "shards") as report:
        for done, found in enumerate(check_shards(directory, manifest), start=1):
            if found.problem:
                bad.append(found)
            else:
                bands += found.rows
            report(done, total)
    for found in bad:
        first = " (a rerun keeps it: delete it first)" if found.kept else ""
        click.echo(f"{directory / found.name}: {found.problem}{first}")
    click.echo(
        f"{directory}: {total - len(bad)} of {total} shards whole,"
        f" {bands} of {manifest.samples} bands, seed {manifest.seed}"
    )
    if bad:
        raise InputError(
            f"{directory}: {len(bad)} of {total} shards must be made again:"
            f" {remedy(directory, manifest, bad)}"
        )


def _simulate_observation(
    path: Path, catalogue: Path | None, preset_name: str, seed: int, galaxy: bool,
    layout: Literal["sangria", "mojito"], compact: bool, force: bool,
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
    with progress("simulating", "sources") as report:
        summary = simulate_observation(
            path, preset.observation, seed, sources, names if sources is not None else None,
            galaxy=GalaxySettings() if galaxy else None, population=preset.population,
            layout=layout, compact=compact, force=force, progress=report,
        )  # fmt: skip
    click.echo(
        f"{summary.path}: {len(names)} sources, {summary.binaries} binaries of the Galaxy, seed"
        f" {seed}, {path.stat().st_size / 1e6:.1f} MB in {time.monotonic() - started:.1f} s"
    )
