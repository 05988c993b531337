"""``slotflow posterior``: the main job."""

import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slotflow.cli.common import check_folder, note, progress, say
from slotflow.errors import InputError, OutputExistsError

if TYPE_CHECKING:
    from slotflow.catalogue import Written
    from slotflow.checkpoint import Model
    from slotflow.provenance import Provenance
    from slotflow.readers import Observation
    from slotflow.results import Result
    from slotflow.resume import Partial


def _psd(_: click.Context, option: click.Parameter, value: str) -> str:
    """Refuse what is neither a known word nor a file."""
    if value not in ("data", "running", "model") and not Path(value).is_file():
        raise click.BadParameter(f"{value!r}: expected data, running, model or the file of a table")
    return value


@click.command()
@click.argument("input_file", type=click.Path(path_type=Path), required=False, metavar="[INPUT]")
@click.option("--fmin", type=float, default=None, show_default="lowest trained",
              help="Lowest frequency, Hz.")  # fmt: skip
@click.option("--fmax", type=float, default=None, show_default="highest trained",
              help="Highest frequency, Hz.")  # fmt: skip
@click.option("--samples", type=click.IntRange(min=1, max=1_000_000), default=1000,
              help="Posterior samples a source.")  # fmt: skip
@click.option("--model", "model_file", type=click.Path(path_type=Path), default=None,
              show_default="the model that ships", help="Model to use.")  # fmt: skip
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
@click.option("--format", "form", default="auto",
              type=click.Choice(["auto", "sangria", "spritz", "radler", "mojito"]),
              help="Layout of INPUT; auto, from its content.")  # fmt: skip
@click.option("--workers", type=click.IntRange(min=1), default=1,
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
    context: click.Context, input_file: Path | None, fmin: float | None, fmax: float | None,
    samples: int, model_file: Path | None, seed: int, output: Path | None, psd: str,
    min_probability: float, form: str, workers: int, gpus: int | None, scheduler: str | None,
    plots: Path | None, exports: tuple[str, ...], csv: bool, printed: str, force: bool,
) -> None:  # fmt: skip
    """Find the sources in INPUT and a posterior for each.

    INPUT is an HDF5 file with a year or more of TDI data in the layout of LDC2 Sangria, Spritz,
    Radler or Mojito L1; without INPUT, the example that ships, whose results go to the current
    folder. Prints medians and 90% intervals, and writes INPUT.posterior.nc (samples, ArviZ) and
    INPUT.catalogue.ecsv. Results of the same input, model and settings are shown again; a run
    that was interrupted goes on when called again.

    \b
    Example:
      slotflow posterior
      slotflow posterior input.h5
      slotflow posterior input.h5 --fmin 1.9e-3 --fmax 2e-3 --samples 5000 --output results
      slotflow posterior input.h5 --plots pictures --export glass --csv
      slotflow posterior input.h5 --scheduler tcp://head:8786
    """
    way = _way(context, workers, gpus, scheduler)
    source, folder = _input(input_file, output)
    model_path = model_file if model_file is not None else _shipped("model.safetensors")
    requested = {
        "fmin": fmin, "fmax": fmax, "samples": samples, "seed": seed, "psd": psd,
        "min_probability": min_probability,
    }  # fmt: skip
    command = shlex.join(["slotflow", *(context.obj or ["posterior"])])
    provenance = _provenance(source, model_path, requested, command)
    job = _Job(provenance, folder, form, way, plots, exports, force)
    check_folder(folder, "the results")
    _check_extras(job, samples)
    found = None if force else _standing(job.table, job.samples, provenance)
    if found is not None and (plots is not None or exports):
        say("computing again: pictures and exports are made of the samples, not of the table")
        found = None
    if found is not None:
        say(f"shown from {job.table} (same input, model and settings; --force computes again)")
    else:
        found = _compute(job)
    if csv:
        from slotflow.catalogue import write_csv

        write_csv(found.table, job.csv)
    _print(found, job, printed)


@dataclass(frozen=True)
class _Job:
    """What is to be computed and written where."""

    provenance: "Provenance"
    folder: Path
    form: str
    way: Mapping[str, Any]
    plots: Path | None
    exports: tuple[str, ...]
    force: bool

    @property
    def stem(self) -> str:
        return Path(self.provenance.input).stem

    @property
    def table(self) -> Path:
        return self.folder / f"{self.stem}.catalogue.ecsv"

    @property
    def csv(self) -> Path:
        return self.folder / f"{self.stem}.catalogue.csv"

    @property
    def samples(self) -> Path:
        return self.folder / f"{self.stem}.posterior.nc"

    @property
    def partial(self) -> Path:
        """Where batches that are done are kept until all are."""
        return self.folder / f".{self.stem}.partial"

    def options(self) -> dict[str, Any]:
        """Return what :func:`slotflow.posterior.posterior` is called with."""
        requested = dict(self.provenance.requested)
        requested.pop("psd_sha256", None)
        return requested | {**self.way, "keep_bands": self.plots is not None}


def _shipped(name: str) -> Path:
    return Path(str(resources.files("slotflow.data") / name))


def _way(
    context: click.Context, workers: int, gpus: int | None, scheduler: str | None
) -> dict[str, Any]:
    """Return who reads the bands, as :func:`slotflow.posterior.posterior` takes it.

    Raises:
        UsageError: two at a time.
        InputError: GPUs or a package that is not there, or a scheduler's file that is none.
    """
    given = {"--workers": workers > 1, "--gpus": gpus, "--scheduler": scheduler}
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
    return {"processes": workers}


def _input(input_file: Path | None, output: Path | None) -> tuple[Path, Path]:
    """Return the input and the folder of the results."""
    if input_file is None:
        return _shipped("example.h5"), output if output is not None else Path()
    return input_file, output if output is not None else input_file.parent


def _check_extras(job: _Job, samples: int) -> None:
    """Refuse pictures and exports that could not be written, before any work."""
    if job.plots is not None:
        from slotflow.plots import check_plots

        check_folder(job.plots, "the pictures")
        check_plots(job.plots, samples, force=job.force)
    if job.exports:
        from slotflow.exports import check_exports

        check_exports(job.exports, job.folder, job.stem, force=job.force)


def _provenance(source: Path, model: Path, requested: dict[str, Any], command: str) -> "Provenance":
    """Return what makes this result, checksums included.

    Raises:
        InputError: the input or the model is not there.
    """
    for path, what in ((source, "file"), (model, "model file")):
        if not path.exists():
            raise InputError(f"{path}: no such {what}")
        if not path.is_file():
            from slotflow.readers import refuse_training_set

            refuse_training_set(path)
            raise InputError(f"{path}: not a file")
    from slotflow.manifest import file_sha256
    from slotflow.provenance import Provenance

    table = Path(requested["psd"])
    if requested["psd"] not in ("data", "running", "model") and table.is_file():
        requested = requested | {"psd_sha256": file_sha256(table)}
    return Provenance(
        str(source), file_sha256(source), str(model), file_sha256(model), requested, command
    )


def _standing(table: Path, samples: Path, provenance: "Provenance") -> "Written | None":
    """Return the result that stands there, None where it has to be computed.

    Raises:
        OutputExistsError: what stands there is another result.
    """
    if not table.exists() and not samples.exists():
        return None
    from slotflow.catalogue import read_identity, read_summary
    from slotflow.provenance import difference

    found = None
    if samples.exists():
        _refuse_other(samples, difference(read_identity(samples) or "", provenance.identity))
    if table.exists():
        try:
            found = read_summary(table)
        except InputError as error:
            _refuse_other(table, str(error).removeprefix(f"{table}: "))
        else:
            _refuse_other(table, difference(found.identity, provenance.identity))
    return found if samples.exists() else None


def _refuse_other(path: Path, reason: str) -> None:
    if reason:
        raise OutputExistsError(
            f"{path}: exists already ({reason}); give another folder with --output, or --force"
        )


def _compute(job: _Job) -> "Written":
    """Compute and write; of the results the table, which says that all is done, comes last."""
    started = time.perf_counter()
    import torch

    from slotflow.checkpoint import load_model
    from slotflow.readers import read_observation
    from slotflow.resume import Partial

    torch.set_num_threads(1)  # small tensors, and the same sums on every machine
    imported = time.perf_counter()
    source = Path(job.provenance.input)
    model = load_model(Path(job.provenance.model))
    observation = read_observation(source, None if job.form == "auto" else job.form)
    read = time.perf_counter()
    partial = Partial(job.partial, job.provenance.identity)
    result = _infer(job, observation, model, partial)
    done = time.perf_counter()
    written = _write(job, result, model)
    partial.remove()
    parts = {"start-up": imported - started, "reading": read - imported}
    parts |= dict(result.seconds) | {"writing": time.perf_counter() - done}
    split = ", ".join(f"{name} {seconds:.1f}" for name, seconds in parts.items())
    say(f"{len(result.tiles)} bands in {sum(parts.values()):.1f} s ({split})")
    return written


def _infer(job: _Job, observation: "Observation", model: "Model", partial: "Partial") -> "Result":
    """Compute, with a progress; an interruption says how to go on, and exits with 130."""
    from slotflow.posterior import posterior as infer

    started, before = time.perf_counter(), -1
    with progress("reading", "bands") as report:

        def shown(done: int, total: int) -> None:
            nonlocal before
            if before < 0:
                before = done
                if done:
                    say(f"{done} of {total} bands are there from an earlier run")
            report(done, total, left(time.perf_counter() - started, done - before, total - done))

        try:
            return infer(observation, model, **job.options(), partial=partial, progress=shown)
        except KeyboardInterrupt:
            kept = partial.bands
    where = f"; {kept} bands are kept in {partial.folder}: the same command goes on" if kept else ""
    say(f"interrupted{where}")
    raise click.exceptions.Exit(130)


def left(seconds: float, done: int, remaining: int) -> str:
    """Return the time left in words, '' where nothing tells it yet.

    Args:
        seconds: since the start.
        done: bands done since then.
        remaining: bands to do.
    """
    if done < 1 or remaining < 1:
        return ""
    minutes, rest = divmod(round(seconds / done * remaining), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d} left"


def _write(job: _Job, result: "Result", model: "Model") -> "Written":
    """Write the results, then what else was asked for."""
    from slotflow import catalogue

    provenance = job.provenance._replace(prior=model.preset.prior)
    job.folder.mkdir(parents=True, exist_ok=True)
    catalogue.write_netcdf(catalogue.to_datatree(result, provenance), job.samples)
    table = catalogue.to_table(result, provenance)
    catalogue.write_table(table, job.table)
    if job.exports:
        from slotflow.exports import export

        for path in export(job.exports, result, provenance, job.folder, job.stem, force=job.force):
            say(f"export: {path}")
    if job.plots is not None:
        from slotflow.plots import write_plots
        from slotflow.readers import read_truth

        known = read_truth(Path(provenance.input))
        truth = None if known is None else known.sources
        made = write_plots(result, job.plots, model, truth, force=job.force)
        say(f"{len(made)} pictures in {job.plots}")
    return catalogue.Written(provenance.identity, table, dict(table.meta))


def _print(found: "Written", job: _Job, form: str) -> None:
    from slotflow.cli import show

    for text in show.notes(found):
        note(text)
    if form == "json":
        click.echo(show.as_json(found, job.table, job.samples))
        return
    for line in show.table_lines(found):
        click.echo(line)
    click.echo(f"samples: {job.samples}")
    click.echo(f"table:   {job.table}")
