"""``slotflow posterior``: the main job."""

import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from slotflow.cli.common import cores, error_line, memory_left, say
from slotflow.cli.posterior_job import Job, check_extras, provenance_of, standing, stem
from slotflow.data import INDEX, shipped
from slotflow.errors import InputError, SlotflowError

MOST_WORKERS: Final = 8  # unless more are asked for
WORKER: Final = 1.3e9  # bytes that a process holds, libraries included
WORTH: Final = 4  # batches of bands, 5-13 s of work, for which a process is started in 5 s


def _psd(_: click.Context, option: click.Parameter, value: str) -> str:
    """Refuse what is neither a known word nor a file."""
    if value not in ("data", "running", "model") and not Path(value).is_file():
        raise click.BadParameter(f"{value!r}: expected data, running, model or the file of a table")
    return value


@click.command()
@click.argument("inputs", type=click.Path(path_type=Path), nargs=-1, metavar="[INPUT]...")
@click.option("--fmin", type=float, default=None, show_default="lowest trained",
              help="Lowest frequency, Hz.")  # fmt: skip
@click.option("--fmax", type=float, default=None, show_default="highest trained",
              help="Highest frequency, Hz.")  # fmt: skip
@click.option("--samples", type=click.IntRange(min=1, max=1_000_000), default=1000,
              help="Posterior samples a source.")  # fmt: skip
@click.option("--bands", default=None, metavar="A:B", show_default="all",
              help="Of a training set, the bands A to B - 1.")  # fmt: skip
@click.option("--model", "model_file", type=click.Path(path_type=Path), default=None,
              show_default="the models that ship",
              help="Model to use, or the index (JSON) of several that share the"
                   " frequencies.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Of the samples.")
@click.option("-o", "--output", type=click.Path(path_type=Path), default=None, metavar="DIR",
              show_default="beside the input", help="Folder of the results.")  # fmt: skip
@click.option("--psd", default="data", metavar="data|running|model|FILE", callback=_psd,
              help="Noise: data, the model's shape times one level per channel estimated from the"
                   " band (as in training); running, likewise with the shape by a running median"
                   " of the data; model, the model's density as it is; FILE, a table of f and S"
                   " or S_A, S_E, S_T (Hz; 1/Hz in the data's TDI generation).")  # fmt: skip
@click.option("--min-probability", type=click.FloatRange(0.0, 1.0), default=0.5,
              help="Sources less likely than this to exist are left out.")  # fmt: skip
@click.option("--refine", type=click.Choice(["importance", "smc"]), default=None,
              show_default="none",
              help="Bring the samples to the exact posterior of each band, in seconds a band, and"
                   " print its evidence: by importance weights, or by tempered SMC, which also"
                   " mends what the network has wrong.")  # fmt: skip
@click.option("--format", "form", default="auto",
              type=click.Choice(["auto", "sangria", "spritz", "radler", "mojito"]),
              help="Layout of INPUT; auto, from its content.")  # fmt: skip
@click.option("--workers", type=click.IntRange(min=1), default=None,
              show_default=f"cores, at most {MOST_WORKERS}; fewer for few bands or little memory",
              help="Processes that read bands; the results do not depend on it.")  # fmt: skip
@click.option("--gpus", type=click.IntRange(min=1), default=None,
              help="One process beside each of so many GPUs of this machine; results may differ"
                   " in the last digits.")  # fmt: skip
@click.option("--scheduler", default=None, metavar="ADDRESS|FILE",
              help="Give the bands to the workers of this dask scheduler; FILE is its"
                   " --scheduler-file.")  # fmt: skip
@click.option("--plots", type=click.Path(path_type=Path, file_okay=False), default=None,
              metavar="DIR", show_default="none",
              help="Folder for pictures of the loudest sources and their bands.")  # fmt: skip
@click.option("--export", "exports", type=click.Choice(["glass", "l3c", "bilby"]), multiple=True,
              help="Write the results for another program, too; can be repeated.")  # fmt: skip
@click.option("--csv", is_flag=True, help="Write INPUT.catalogue.csv, too.")
@click.option("--print", "printed", type=click.Choice(["table", "json"]), default="table",
              help="What to print.")  # fmt: skip
@click.option("--force", is_flag=True, help="Compute again and replace results.")
@click.pass_context
def posterior(
    context: click.Context, inputs: tuple[Path, ...], fmin: float | None, fmax: float | None,
    samples: int, bands: str | None, model_file: Path | None, seed: int, output: Path | None,
    psd: str, min_probability: float, refine: str | None, form: str, workers: int | None,
    gpus: int | None, scheduler: str | None, plots: Path | None, exports: tuple[str, ...],
    csv: bool, printed: str, force: bool,
) -> None:  # fmt: skip
    """Find the sources in each INPUT and a posterior for each source.

    INPUT is an HDF5 file with a year or more of TDI data in the layout of LDC2 Sangria, Spritz,
    Radler or Mojito L1, or a training set of slotflow simulate (its folder, or one shard), whose
    bands are read each by itself, with the true sources beside; without INPUT, the example that
    ships, whose results go to the current folder. Prints medians and 90% intervals, and writes
    INPUT.posterior.nc (samples, ArviZ) and INPUT.catalogue.ecsv. Results of the same input, model
    and settings are shown again; a run that was interrupted goes on when called again. Of several
    inputs, one that cannot be used is reported, and the others are done.

    \b
    Example:
      slotflow posterior
      slotflow posterior input.h5
      slotflow posterior input.h5 --fmin 1.9e-3 --fmax 2e-3 --samples 5000 --output results
      slotflow posterior input.h5 --plots pictures --export glass --csv
      slotflow posterior input.h5 --fmin 1.9e-3 --fmax 1.92e-3 --refine smc
      slotflow posterior year1.h5 year2.h5 year3.h5 --output results
      slotflow posterior training-data --bands 0:100
      slotflow posterior input.h5 --scheduler tcp://head:8786
    """
    way = _way(context, workers, gpus, scheduler, refine is not None)
    model_path = model_file if model_file is not None else shipped(INDEX)
    requested = {
        "fmin": fmin, "fmax": fmax, "samples": samples, "seed": seed, "psd": psd,
        "min_probability": min_probability,
    } | ({} if refine is None else {"refine": refine})  # fmt: skip
    if form != "auto":  # a file may hold two layouts
        requested["format"] = form
    command = shlex.join(["slotflow", *(context.obj or ["posterior"])])
    places = _places(inputs, output)
    several = len(places) > 1

    def one(source: Path, folder: Path) -> None:
        provenance = provenance_of(source, model_path, _wanted(source, requested, bands), command)
        pictures = plots / stem(source) if plots is not None and several else plots
        job = Job(provenance, folder, form, way, pictures, exports, force, _is_set(source))
        _do(job, csv, printed, several)

    if not several:
        one(*places[0])
        return
    bad = 0
    for source, folder in places:
        try:
            one(source, folder)
        except (SlotflowError, OSError) as error:
            click.echo(error_line(error), err=True)
            bad += 1
    if bad:
        say(f"{bad} of {len(places)} inputs could not be done")
        raise click.exceptions.Exit(2)


def _do(job: Job, csv: bool, printed: str, several: bool) -> None:
    """Compute one input's results, or find them, and print them."""
    from slotflow.atomic import remove_leftovers
    from slotflow.cli import posterior_bands, posterior_output

    if job.stored:
        posterior_bands.check_job(job)
    with job.held():
        remove_leftovers(job.folder, (job.table.name, job.csv.name, job.samples.name))
        check_extras(job, job.provenance.requested["samples"])
        found = None if job.force else standing(job.table, job.samples, job.provenance)
        if found is not None and (job.plots is not None or job.exports):
            say("computing again: pictures and exports are made of the samples, not of the table")
            found = None
        if found is not None:
            say(f"shown from {job.table} (same input, model and settings; --force computes again)")
        else:
            found = (posterior_bands if job.stored else posterior_output).compute(job)
            csv = csv or (job.force and job.csv.exists())  # else the one before would stand beside
        if csv:
            from slotflow.catalogue import write_csv

            write_csv(found.table, job.csv)
    posterior_output.show(found, job, printed, several)


def _places(inputs: Sequence[Path], output: Path | None) -> list[tuple[Path, Path]]:
    """Return each input and the folder of its results.

    Raises:
        UsageError: results of two inputs would have the same names.
    """
    if not inputs:
        return [(shipped("example.h5"), output if output is not None else Path())]
    places = [(source, output if output is not None else source.parent) for source in inputs]
    names = Counter((folder.absolute(), stem(source)) for source, folder in places)
    for (folder, name), number in names.items():
        if number > 1:
            raise click.UsageError(
                f"{number} inputs would have the results {name!r} in {folder}: give other names,"
                " or one at a time with --output"
            )
    return places


def _is_set(source: Path) -> bool:
    from slotflow.manifest import is_training_set

    return is_training_set(source)


def _wanted(source: Path, requested: dict[str, Any], bands: str | None) -> dict[str, Any]:
    """Return the settings that have a meaning for this input.

    Raises:
        InputError: bands of what is no training set.
    """
    if _is_set(source):
        return requested | {"bands": bands}
    if bands is not None:
        raise InputError(f"{source}: --bands goes with a training set only")
    return requested


def _way(
    context: click.Context,
    workers: int | None,
    gpus: int | None,
    scheduler: str | None,
    refining: bool,
) -> dict[str, Any]:
    """Return who reads the bands, as :func:`slotflow.posterior.posterior` takes it.

    Raises:
        UsageError: two at a time.
        InputError: GPUs or a package that is not there, or a scheduler's file that is none.
    """
    given = {"--workers": workers, "--gpus": gpus, "--scheduler": scheduler}
    names = [name for name, value in given.items() if value]
    if len(names) > 1:
        raise click.UsageError(f"{names[1]} does not go with {names[0]}", context)
    if gpus is not None:
        from slotflow.parallel import Launch

        Launch(gpus=gpus).check()
        return {"gpus": gpus}
    if scheduler is not None:
        from slotflow.simulate.cluster import Scheduler
        from slotflow.workers import scheduler_address

        cluster = Scheduler(scheduler_address(scheduler))
        cluster.check()
        return {"cluster": cluster}
    if workers is not None:
        return {"processes": workers}
    fitting = min(cores(), MOST_WORKERS, memory_left() // WORKER)
    return {"processes": max(1, int(fitting)), "worth": 1 if refining else WORTH}
