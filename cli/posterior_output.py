"""``slotflow posterior`` at work: computing, writing and printing."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slotflow.cli.common import note, progress, say
from slotflow.cli.posterior_job import Job

if TYPE_CHECKING:
    from slotflow.catalogue import Written
    from slotflow.checkpoint import Model
    from slotflow.family import Family
    from slotflow.readers import Observation
    from slotflow.results import Result
    from slotflow.resume import Partial, Partials


def compute(job: Job) -> "Written":
    """Compute and write; of the results the table, which says that all is done, comes last."""
    started = time.perf_counter()
    import torch

    from slotflow.readers import read_observation

    torch.set_num_threads(1)  # small tensors, and the same sums on every machine
    imported = time.perf_counter()
    model = loaded(job.provenance.model, job.provenance.model_sha256)
    source = Path(job.provenance.input)
    observation = read_observation(source, None if job.form == "auto" else job.form)
    read = time.perf_counter()
    result, partial = _infer(job, observation, model)
    done = time.perf_counter()
    written = _write(job, result, model)
    partial.remove()
    parts = {"start-up": imported - started, "reading": read - imported}
    parts |= dict(result.seconds) | {"writing": time.perf_counter() - done}
    say_split(len(result.tiles), parts)
    return written


def _infer(
    job: Job, observation: "Observation", model: "Model | Family"
) -> "tuple[Result, Partial | Partials]":
    """Find the sources, by one model or by several that share the frequencies.

    Returns:
        The result, and where its batches were kept.
    """
    from slotflow.family import Family, family_posterior
    from slotflow.posterior import posterior
    from slotflow.resume import Partial, Partials

    identity = job.provenance.identity
    if isinstance(model, Family):
        parts = Partials(job.partial, identity)
        with watched(parts) as shown:
            return family_posterior(
                observation, model, **job.options(), partial=parts, progress=shown
            ), parts
    part = Partial(job.partial, identity)
    with watched(part) as shown:
        return posterior(observation, model, **job.options(), partial=part, progress=shown), part


@lru_cache(maxsize=1)
def loaded(path: str, _sha256: str) -> "Model | Family":
    """Load a model, or several by their index, once for all inputs of a command."""
    from slotflow.checkpoint import load_model
    from slotflow.family import read_family

    return read_family(Path(path)) if path.endswith(".json") else load_model(Path(path))


def say_split(bands: int, seconds: Mapping[str, float]) -> None:
    """Say how long it took, by part."""
    split = ", ".join(f"{name} {value:.1f}" for name, value in seconds.items())
    say(f"{bands} bands in {sum(seconds.values()):.1f} s ({split})")


@contextmanager
def watched(partial: "Partial | Partials") -> Iterator[Callable[[int, int], None]]:
    """Show a progress; an interruption says how to go on, and exits with 130.

    What is yielded is called with (bands done, bands in all).
    """
    started, before = time.perf_counter(), -1
    try:
        with progress("reading", "bands") as report:

            def shown(done: int, total: int) -> None:
                nonlocal before
                if before < 0:
                    before = done
                    if done:
                        say(f"{done} of {total} bands are there from an earlier run")
                seconds = time.perf_counter() - started
                report(done, total, left(seconds, done - before, total - done))

            yield shown
            return
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


def _write(job: Job, result: "Result", model: "Model | Family") -> "Written":
    """Write the results, then what else was asked for."""
    from slotflow import catalogue
    from slotflow.family import Family

    models = model.models if isinstance(model, Family) else (model,)
    provenance = job.provenance._replace(priors=tuple(one.preset.prior for one in models))
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
        made = write_plots(result, job.plots, models[-1], truth, force=job.force)
        say(f"{len(made)} pictures in {job.plots}")
    return catalogue.Written(provenance.identity, table, dict(table.meta))


def show(found: "Written", job: Job, form: str, several: bool = False) -> None:
    """Print a result.

    Args:
        found: the result.
        job: whose it is.
        form: ``"table"`` or ``"json"``.
        several: it is one of several: a heading, or JSON of one line.
    """
    from slotflow.cli import show as text

    for line in text.notes(found):
        note(line)
    if form == "json":
        click.echo(text.as_json(found, job.table, job.samples, None if several else 1))
        return
    if several:
        click.echo(f"{job.provenance.input}:")
    for line in (*text.table_lines(found), *text.refinement_lines(found)):
        click.echo(line)
    click.echo(f"samples: {job.samples}")
    click.echo(f"table:   {job.table}")
    for line in text.outlying_lines(found):
        click.echo(line)
