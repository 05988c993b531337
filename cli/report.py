"""``slotflow report``: are a model's posteriors right?"""

import shlex
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slotflow.cli.common import check_folder, cores, held_folder, progress, say
from slotflow.data import shipped
from slotflow.errors import InputError, OutputExistsError

if TYPE_CHECKING:
    from slotflow.report.gate import Condition
    from slotflow.report.make import Loaded
    from slotflow.report.record import ModelReport, Report
    from slotflow.store import TrainingSet

BANDS = 1000  # simulated where no data are given
HELD_OUT_SEED = 1_000_003  # of these, plus --seed; passed over where a model was trained on it
SHARD = 128  # bands in a file: a multiple of those that share a foreground


@click.command()
@click.option("--model", "model_file", type=click.Path(path_type=Path), default=None,
              show_default="that of 1.0-2.1 mHz", help="Model to report on.")  # fmt: skip
@click.option("--data", type=click.Path(path_type=Path), default=None, metavar="DIR",
              show_default="fresh bands", help="Held-out bands, a folder of slotflow simulate."
              " What the search finds is kept in it.")  # fmt: skip
@click.option("--simulate", "bands", type=click.IntRange(min=1), default=None, metavar="N",
              show_default=str(BANDS), help="Fresh bands to simulate by the model's own"
              f" settings, seed {HELD_OUT_SEED} + SEED (the next if a model was trained on"
              " that).")  # fmt: skip
@click.option("--compare", type=click.Path(path_type=Path), multiple=True, metavar="MODEL",
              help="Another model on the same bands; can be repeated.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Of all that is drawn.")
@click.option("--draws", type=click.IntRange(min=40, max=10_000), default=500,
              help="Posterior draws a source.")  # fmt: skip
@click.option("--refine", type=click.IntRange(min=0), default=0, metavar="N",
              help="Bring the first model's draws of N bands to the exact posterior and score both:"
              " the first N with one to three reports. Seconds to a minute each.")  # fmt: skip
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("report"),
              metavar="DIR", help="Folder of report.html and report.json.")  # fmt: skip
@click.option("--fail-if", "conditions", multiple=True, metavar="CONDITION",
              help="Exit with 1 where it holds: a figure of report.json, one of < <= > >= == !="
                   " and a number; can be repeated.")  # fmt: skip
@click.option("--junit", type=click.Path(path_type=Path, dir_okay=False), default=None,
              metavar="FILE", help="Write the conditions as JUnit XML, too.")  # fmt: skip
@click.option("--json-only", is_flag=True, help="Write no report.html.")
@click.option("--workers", type=click.IntRange(min=1), default=None,
              show_default="the cores of this machine",
              help="Processes that simulate and search.")  # fmt: skip
@click.option("--allow-training-data", is_flag=True,
              help="Take bands that a model was trained on.")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace a report that stands there.")
@click.pass_context
def report(
    context: click.Context, model_file: Path | None, data: Path | None, bands: int | None,
    compare: tuple[Path, ...], seed: int, draws: int, refine: int, output: Path,
    conditions: tuple[str, ...], junit: Path | None, json_only: bool, workers: int | None,
    allow_training_data: bool, force: bool,
) -> None:  # fmt: skip
    """Score a model on bands that it has not seen, and test whether its posteriors are right.

    CRPS, compression, NLL and energy score by SNR, number of sources, frequency and separation;
    rank histograms, PIT, coverage, TARP and a learned discriminator; numbers of sources; what is
    found; what slots do; how many bands are outside the training distribution. Writes
    DIR/report.html, a page that needs no network, and DIR/report.json. Fresh bands are simulated
    for it unless --data gives some: 1,000 take one to two minutes on two cores. Bands with the
    seed of a model's training data are refused.

    Exit code 1 where a condition of --fail-if holds, 2 where one names no figure.

    \b
    Example:
      slotflow report
      slotflow report --model run/model.safetensors --simulate 2000 -o report
      slotflow report --data held-out-bands --compare old.safetensors
      slotflow report --refine 20
      slotflow report --json-only --fail-if "crps.f0 > 0.02" --fail-if "recall_snr10 < 0.95"
    """
    if data is not None and bands is not None:
        raise click.UsageError("--simulate does not go with --data", context)
    if junit is not None and not conditions:
        raise click.UsageError("--junit needs --fail-if", context)
    from slotflow.report.gate import parse

    checks = [parse(text) for text in conditions]
    paths = [model_file if model_file is not None else shipped("model.safetensors"), *compare]
    for path in paths:
        if path.suffix == ".json":
            raise InputError(f"{path}: several models; a report is about one: give its file")
    command = shlex.join(["slotflow", *(context.obj or ["report"])])
    job = _Job(
        paths, data, BANDS if bands is None else bands, seed, draws, output, checks, junit,
        json_only, cores() if workers is None else workers, not allow_training_data, command,
        refine,
    )  # fmt: skip
    _check_output(job, force)
    refusal = f"{output}: another report is being written there; let it end, or give another -o DIR"
    with held_folder(output, ".report.lock", "the report", refusal):
        from slotflow.atomic import remove_leftovers
        from slotflow.report.written import REPORT_HTML, REPORT_JSON

        remove_leftovers(output, (REPORT_JSON, REPORT_HTML))
        _run(job)


@dataclass(frozen=True)
class _Job:
    """What is to be reported and where it goes."""

    paths: list[Path]
    data: Path | None
    bands: int
    seed: int
    draws: int
    output: Path
    checks: "list[Condition]"
    junit: Path | None
    json_only: bool
    workers: int
    unseen: bool
    command: str
    refine: int


def _check_output(job: _Job, force: bool) -> None:
    """Find out before any work whether the report can be written."""
    from slotflow.report.written import REPORT_HTML, REPORT_JSON

    check_folder(job.output, "the report")
    for name in (REPORT_JSON, REPORT_HTML):
        if not force and (job.output / name).exists():
            raise OutputExistsError(
                f"{job.output / name}: exists already; give another folder with --output, or"
                " --force"
            )
    if job.junit is not None:
        check_folder(job.junit.parent, "the verdicts")
        if not force and job.junit.exists():
            raise OutputExistsError(f"{job.junit}: exists already; --force replaces it")


def _run(job: _Job) -> None:
    """Make the report, write it, and judge."""
    started = time.perf_counter()
    import torch

    from slotflow.report.gate import check_names
    from slotflow.report.make import Job, load, make, report_settings
    from slotflow.report.outcome import NAMES
    from slotflow.report.written import figure_names

    torch.set_num_threads(1)  # small tensors, and the same sums on every machine
    models = load(job.paths)
    scored = [i for i, one in enumerate(models) if one.model.outlying is not None]
    known = figure_names(NAMES, [one.name for one in models[1:]], job.refine > 0, scored)
    check_names(job.checks, dict.fromkeys(known))
    with _bands(job, models) as (data, seconds):
        settings = report_settings(job.seed, job.draws, job.refine)
        found = make(
            Job(models, data, job.data is None, settings, job.command, job.workers, job.unseen,
                seconds),
            _stage,
        )  # fmt: skip
        data.close()
    failed = _write(job, found, time.perf_counter() - started)
    for line in lines(found):
        click.echo(line)
    where = job.output / ("report.json" if job.json_only else "report.html")
    click.echo(f"report: {where}")
    for text in failed:
        click.echo(f"slotflow: failed: {text}", err=True)
    if failed:
        raise click.exceptions.Exit(1)


@contextmanager
def _stage(label: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """Show the progress of a stage, and when it is done, how long it took."""
    started, total = time.perf_counter(), 0
    with progress(label, unit) as shown:

        def told(done: int, of: int) -> None:
            nonlocal total
            total = of
            shown(done, of)

        yield told
    say(f"{label}: {total} {unit} in {time.perf_counter() - started:.1f} s")


@contextmanager
def _bands(job: _Job, models: "list[Loaded]") -> "Iterator[tuple[TrainingSet, float]]":
    """Open the bands, fresh ones in a folder that goes away; with the seconds they took."""
    from slotflow.store import TrainingSet

    if job.data is not None:
        if not job.data.exists():
            raise InputError(f"{job.data}: no such folder; make one with slotflow simulate")
        yield TrainingSet(job.data), 0.0
        return
    started = time.perf_counter()
    from slotflow.report.identity import held_out_seed
    from slotflow.simulate.dataset import simulate_dataset

    seed = held_out_seed(HELD_OUT_SEED + job.seed, [one.model for one in models])
    with tempfile.TemporaryDirectory(prefix="slotflow-report-") as folder:
        with _stage("simulating", "bands") as told:
            simulate_dataset(
                models[0].model.preset, folder, job.bands, seed, job.workers, shard_size=SHARD,
                progress=told,
            )  # fmt: skip
        yield TrainingSet(folder), time.perf_counter() - started


def _write(job: _Job, found: "Report", seconds: float) -> list[str]:
    """Write page, JSON and verdicts, each whole or not at all; return what failed."""
    from slotflow.report.gate import judge, junit
    from slotflow.report.written import REPORT_HTML, REPORT_JSON, all_figures, as_json, write_text

    verdicts = judge(job.checks, all_figures(found))
    texts = {}
    if not job.json_only:
        from slotflow.report.page import render

        texts[job.output / REPORT_HTML] = render(found)
    texts[job.output / REPORT_JSON] = as_json(found)
    if job.junit is not None:
        texts[job.junit] = junit(verdicts, seconds)
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    if job.json_only:  # a page of the report before would stand beside
        (job.output / REPORT_HTML).unlink(missing_ok=True)
    return [str(one) for one in verdicts if one.failed]


def lines(found: "Report") -> list[str]:
    """Return the figures that matter most, a few lines for each model."""
    data = found.data
    said = [
        f"{data.bands} bands, {data.sources} sources, {data.loud} above SNR"
        f" {found.settings.loud_snr:g}; seed {data.seed}"
    ]
    for one in found.models:
        name = "" if len(found.models) == 1 else f"{one.model.name}: "
        said += [f"{name}{text}" for text in _model_lines(one, found.settings.loud_snr)]
    return said


def _model_lines(one: "ModelReport", loud_snr: float) -> list[str]:
    loud = {} if one.loud is None else {p.name: p.crps.mean for p in one.loud.parameters}
    crps = ", ".join(
        f"{p.name} {p.crps.mean:.4f}" + (f" ({loud[p.name]:.4f})" if loud else "")
        for p in one.scores.parameters
    )
    worst = min(one.calibration.p_values, key=lambda p: (p.adjusted, p.value))
    test = worst.test if worst.parameter is None else f"{worst.test} of {worst.parameter}"
    numbers, d = one.numbers.confusion, one.detection
    recall, right = (
        "-" if part.share is None else f"{part.share:.1%}" for part in (d.recall, d.precision)
    )
    return [
        f"CRPS (above SNR {loud_snr:g}): {crps}",
        f"calibration: smallest of {len(one.calibration.p_values)} p-values {worst.value:.2g}"
        f" ({test}), adjusted for their number {worst.adjusted:.2g}",
        f"number of sources exact {numbers.exact:.1%}, within one {numbers.within_one:.1%};"
        f" found {recall}, right {right}, {d.duplicates} duplicates",
        *_outlying_lines(one),
        *_refined_lines(one),
        *(f"note: {text}" for text in one.notes),
    ]


def _outlying_lines(one: "ModelReport") -> list[str]:
    """Return how many bands are flagged, where the model has a score."""
    found = one.outlying
    if found is None:
        return []
    outside = found.outside
    interval = ""
    if outside.lower is not None and outside.upper is not None:
        interval = f"{outside.lower:.1%} to {outside.upper:.1%}; "
    middle, high, largest = (score for level, score in found.quantiles if level in (0.5, 0.99, 1.0))
    return [
        f"outside the training distribution: {outside.hits} of {outside.number} bands"
        f" ({interval}of simulated ones {found.nominal:.0%}); score: median {middle:.2f},"
        f" 99% {high:.2f}, largest {largest:.2f}"
    ]


def _refined_lines(one: "ModelReport") -> list[str]:
    """Return the model beside the exact posterior, where bands were refined."""
    found = one.refined
    if found is None:
        return []
    ratios = ", ".join(
        f"{p.name} -" if p.ratio is None else f"{p.name} {p.ratio:.2f}" for p in found.parameters
    )
    return [
        f"{found.bands} bands refined in {found.seconds:.1f} s, {found.warned} with warnings:"
        f" {found.sources} sources, {found.not_found} not found, {found.not_refined} not refined",
        *([f"CRPS over that of the exact posterior: {ratios}"] if ratios else []),
    ]
