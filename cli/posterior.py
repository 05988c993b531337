"""``slotflow posterior``: the main job."""

import shlex
import time
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slotflow.cli.common import check_folder, note, progress, say
from slotflow.errors import InputError, OutputExistsError

if TYPE_CHECKING:
    from slotflow.catalogue import Provenance, Written


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
@click.option("--psd", type=click.Choice(["data", "model"]), default="data",
              help="Noise: data, the model's shape times one level per channel estimated from the"
                   " band (as in training); model, the model's density as it is.")  # fmt: skip
@click.option("--min-probability", type=click.FloatRange(0.0, 1.0), default=0.5,
              help="Sources less likely than this to exist are left out.")  # fmt: skip
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table",
              help="What to print.")  # fmt: skip
@click.option("--force", is_flag=True, help="Compute again and replace results.")
@click.pass_context
def posterior(
    context: click.Context, input_file: Path | None, fmin: float | None, fmax: float | None,
    samples: int, model_file: Path | None, seed: int, output: Path | None, psd: str,
    min_probability: float, form: str, force: bool,
) -> None:  # fmt: skip
    """Find the sources in INPUT and a posterior for each.

    INPUT is an HDF5 file with a year of X, Y, Z in the layout of LDC2 Sangria (obs/tdi with t,
    X, Y, Z); without INPUT, the example that ships, whose results go to the current folder.
    Prints medians and 90% intervals, and writes INPUT.posterior.nc (samples, ArviZ) and
    INPUT.catalogue.ecsv. Results of the same input, model and settings are shown again.

    \b
    Example:
      slotflow posterior
      slotflow posterior input.h5
      slotflow posterior input.h5 --fmin 1.9e-3 --fmax 2e-3 --samples 5000 --output results
    """
    source, folder = _input(input_file, output)
    model_path = model_file if model_file is not None else _shipped("model.safetensors")
    requested = {
        "fmin": fmin, "fmax": fmax, "samples": samples, "seed": seed, "psd": psd,
        "min_probability": min_probability,
    }  # fmt: skip
    command = shlex.join(["slotflow", *(context.obj or ["posterior"])])
    provenance = _provenance(source, model_path, requested, command)
    table_path = folder / f"{source.stem}.catalogue.ecsv"
    samples_path = folder / f"{source.stem}.posterior.nc"
    check_folder(folder, "the results")
    found = None if force else _standing(table_path, samples_path, provenance)
    if found is not None:
        say(f"shown from {table_path} (same input, model and settings; --force computes again)")
    else:
        found = _compute(source, model_path, provenance, table_path, samples_path)
    _print(found, table_path, samples_path, form)


def _shipped(name: str) -> Path:
    return Path(str(resources.files("slotflow.data") / name))


def _input(input_file: Path | None, output: Path | None) -> tuple[Path, Path]:
    """Return the input and the folder of the results."""
    if input_file is None:
        return _shipped("example.h5"), output if output is not None else Path()
    return input_file, output if output is not None else input_file.parent


def _provenance(source: Path, model: Path, requested: dict[str, Any], command: str) -> "Provenance":
    """Return what makes this result, checksums included.

    Raises:
        InputError: the input or the model is not there.
    """
    for path, what in ((source, "file"), (model, "model file")):
        if not path.exists():
            raise InputError(f"{path}: no such {what}")
        if not path.is_file():
            raise InputError(f"{path}: not a file")
    from slotflow.catalogue import Provenance
    from slotflow.manifest import file_sha256

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
    from slotflow.catalogue import difference, read_identity, read_summary

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


def _compute(
    source: Path, model_path: Path, provenance: "Provenance", table_path: Path, samples_path: Path
) -> "Written":
    """Compute and write; the table, which says that all is done, comes last."""
    started = time.perf_counter()
    import torch

    from slotflow import catalogue
    from slotflow.checkpoint import load_model
    from slotflow.posterior import posterior as infer
    from slotflow.readers import read_observation

    torch.set_num_threads(1)  # small tensors, and the same sums on every machine
    imported = time.perf_counter()
    model = load_model(model_path)
    observation = read_observation(source)
    read = time.perf_counter()
    with progress("searching", "bands") as report:
        result = infer(observation, model, **dict(provenance.requested), progress=report)
    done = time.perf_counter()
    table_path.parent.mkdir(parents=True, exist_ok=True)
    tree = catalogue.to_datatree(result, provenance)
    catalogue.write_netcdf(tree, samples_path)
    table = catalogue.to_table(result, provenance)
    catalogue.write_table(table, table_path)
    parts = {"start-up": imported - started, "reading": read - imported}
    parts |= dict(result.seconds) | {"writing": time.perf_counter() - done}
    split = ", ".join(f"{name} {seconds:.1f}" for name, seconds in parts.items())
    say(f"{len(result.tiles)} bands in {sum(parts.values()):.1f} s ({split})")
    return catalogue.Written(provenance.identity, table, dict(table.meta))


def _print(found: "Written", table_path: Path, samples_path: Path, form: str) -> None:
    from slotflow.cli import show

    for text in show.notes(found):
        note(text)
    if form == "json":
        click.echo(show.as_json(found, table_path, samples_path))
        return
    for line in show.table_lines(found):
        click.echo(line)
    click.echo(f"samples: {samples_path}")
    click.echo(f"table:   {table_path}")
