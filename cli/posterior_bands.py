"""``slotflow posterior`` of a training set: its bands, one by one, beside their truth."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotflow.cli.common import say
from slotflow.cli.posterior_job import Job
from slotflow.cli.posterior_output import loaded, say_split, watched
from slotflow.errors import InputError

if TYPE_CHECKING:
    from slotflow.catalogue import Written
    from slotflow.stored import BandPosterior, StoredRun

#: What has no meaning for bands: they are whitened, and stand each for itself.
OBSERVATION_ONLY = ("fmin", "fmax")


def check_job(job: Job) -> None:
    """Refuse what bands of a training set do not have, before any work.

    Raises:
        InputError: naming the option.
    """
    path, requested = job.provenance.input, job.provenance.requested
    given = {f"--{name}": requested[name] is not None for name in OBSERVATION_ONLY}
    given |= {"--format": job.form != "auto", "--plots": job.plots is not None}
    given |= {"--refine": requested.get("refine") is not None}
    given |= {"--export": bool(job.exports), "--psd": requested["psd"] not in ("data", "model")}
    for option, used in given.items():
        if used:
            values = " other than data and model" if option == "--psd" else ""
            raise InputError(f"{path}: {option}{values} does not go with bands of a training set")


def compute(job: Job) -> "Written":
    """Compute and write band by band; of the results the table comes last."""
    started = time.perf_counter()
    import torch

    from slotflow.family import Family
    from slotflow.resume import Partial
    from slotflow.stored import StoredRun, model_for, open_bands
    from slotflow.workers import Way

    torch.set_num_threads(1)
    imported = time.perf_counter()
    model = loaded(job.provenance.model, job.provenance.model_sha256)
    requested = dict(job.provenance.requested)
    stored = open_bands(Path(job.provenance.input), requested.pop("bands"))
    if isinstance(model, Family):
        name, model = model_for(stored, model)
        say(f"bands of {stored.data.prior.bins} bins: read by {name}")
    options = {name: requested[name] for name in ("samples", "seed", "psd", "min_probability")}
    partial = Partial(job.partial, job.provenance.identity)
    way = Way(**job.way)
    run = StoredRun(stored, model, **options, way=way, partial=partial)
    parts = {"start-up": imported - started, "reading": time.perf_counter() - imported}
    written = _write(job, run, partial, parts)
    partial.remove()
    return written


def _write(job: Job, run: "StoredRun", partial: Any, parts: dict[str, float]) -> "Written":
    """Write what the bands hold, as they are done."""
    from slotflow import catalogue
    from slotflow.assumptions import outlying_notes
    from slotflow.atomic import written
    from slotflow.provenance import attributes
    from slotflow.results import Result
    from slotflow.stored_output import StoredOutput

    model, begun = run.reader.model, time.perf_counter()
    provenance = job.provenance._replace(priors=(model.preset.prior,))
    job.folder.mkdir(parents=True, exist_ok=True)
    with written(job.samples) as temporary:
        output = StoredOutput(
            temporary, run.settings.samples, model.preset.model.slots + 1,
            scored=model.outlying is not None,
        )  # fmt: skip
        try:
            with watched(partial) as shown:
                for band in _read(run, shown, job.provenance.input):
                    output.add(band)
            spent = time.perf_counter() - begun
            parts |= run.reader.seconds
            parts["writing"] = max(spent - sum(run.reader.seconds.values()), 0.0)
            whole = Result(
                (), tuple(output.tiles), run.settings, model.preset.observation,
                run.stored.data.observation.t0, (*run.notes, *outlying_notes(output.tiles)), parts,
            )  # fmt: skip
            meta = attributes(whole, provenance)
            output.close(meta)
        except BaseException:
            output.close()
            raise
    table = output.table()
    table.meta.update(meta)
    catalogue.write_table(table, job.table)
    say_split(len(run.stored), parts)
    found, true, hit = output.found()
    say(f"{found} sources found; {hit} of {true} true ones within a bin of one")
    return catalogue.Written(provenance.identity, table, dict(table.meta))


def _read(run: "StoredRun", shown: Any, place: str) -> "Iterator[BandPosterior]":
    """Yield the bands; what the system refuses here is not said of the file that is written."""
    try:
        yield from run.bands(shown)
    except OSError as error:
        raise InputError(f"{place}: cannot be read on: {error.strerror or error}") from error
