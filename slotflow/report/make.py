"""A report from models and bands: search, read, figures."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import numpy as np

from slotflow import __version__
from slotflow.checkpoint import Model, load_model
from slotflow.detection import BINS, OVERLAP
from slotflow.errors import InputError
from slotflow.report.compare import differences
from slotflow.report.figures import PARAMETERS, PriorScores, model_report
from slotflow.report.identity import (
    check_fit,
    check_unseen,
    data_identity,
    model_identity,
    names_of,
)
from slotflow.report.outcome import Outcome, collect
from slotflow.report.outlying import outlying_scores
from slotflow.report.priors import prior_scores
from slotflow.report.record import ModelReport, RefinedScores, Report, ReportSettings
from slotflow.store import TrainingSet
from slotflow.tokencache import ensure_searched, open_tokens
from slotflow.uniformity import LEVEL as BAND_LEVEL

LEVEL: Final = 0.9
RESAMPLES: Final = 1000
TEST_DRAWS: Final = 200
LOUD_SNR: Final = 10.0
MIN_PROBABILITY: Final = 0.5


class Loaded(NamedTuple):
    """A model and where it is from."""

    path: Path
    name: str
    model: Model


class Stage(Protocol):
    """Opens a progress of what is being done and counted; it takes (done, of how many)."""

    def __call__(
        self, label: str, unit: str
    ) -> AbstractContextManager[Callable[[int, int], None]]: ...


class Job(NamedTuple):
    """What a report is of; the first model is the one reported.

    ``simulated``: the bands were made for this report, in ``seconds``; ``unseen``: refuse those
    that a model was trained on; ``workers`` processes search for components.
    """

    models: Sequence[Loaded]
    data: TrainingSet
    simulated: bool
    settings: ReportSettings
    command: str
    workers: int = 1
    unseen: bool = True
    seconds: float = 0.0


def load(paths: Sequence[Path]) -> list[Loaded]:
    """Load models and give each a name.

    Raises:
        InputError: a file that is no model.
    """
    names = names_of(list(paths))
    return [Loaded(path, name, load_model(path)) for path, name in zip(paths, names, strict=True)]


def report_settings(seed: int, draws: int, refine: int = 0) -> ReportSettings:
    """Return the settings of a report, of whose bands ``refine`` are refined at most."""
    return ReportSettings(
        seed, draws, min(draws, TEST_DRAWS), LEVEL, RESAMPLES, BAND_LEVEL, LOUD_SNR,
        MIN_PROBABILITY, BINS, OVERLAP, refine,
    )  # fmt: skip


def make(job: Job, stage: Stage) -> Report:
    """Return the report.

    Raises:
        InputError: bands that a model cannot read, that it was trained on, or without a source.
    """
    data = data_identity(job.data, job.simulated, job.settings.loud_snr)
    said = [_notes(job, one) for one in job.models]  # all refusals before any work
    outcomes: list[Outcome] = []
    models: list[ModelReport] = []
    prior = None
    for one, notes in zip(job.models, said, strict=True):
        outcome, seconds = _read(job, one, stage)
        started = time.perf_counter()
        if prior is None:
            rng = np.random.default_rng([job.settings.seed, 1])
            duration = job.data.observation.duration
            prior = PriorScores(
                *prior_scores(outcome.sources, outcome.bands, job.data.prior, duration, rng)
            )
        identity = model_identity(one.path, one.model, one.name)
        found = model_report(identity, outcome, prior, data, job.settings, seconds, notes)
        took = {**found.seconds, "figures": round(time.perf_counter() - started, 3)}
        if one.model.outlying is not None:
            started = time.perf_counter()
            found = _with_outlying(job, one, found, stage)
            took["training distribution"] = round(time.perf_counter() - started, 3)
        if job.settings.refine and not models:
            refined = _refined(job, one, outcome, stage)
            found = replace(found, refined=refined)
            took["refinement"] = refined.seconds
        models.append(replace(found, seconds=took))
        outcomes.append(outcome)
    names = [one.name for one in job.models]
    return Report(
        __version__, datetime.now(UTC).isoformat(timespec="seconds"), job.command, data,
        job.settings, PARAMETERS, tuple(models), differences(outcomes, names, job.settings),
        {"simulation": round(job.seconds, 3)} if job.simulated else {}, (),
    )  # fmt: skip


def _notes(job: Job, one: Loaded) -> tuple[str, ...]:
    """Return what the reader should know of a model on these bands."""
    notes = check_fit(job.data, one.model, one.path)
    if job.unseen:
        return notes + check_unseen(job.data, one.model, one.path)
    return (*notes, "bands of its training data were allowed")


def _read(job: Job, one: Loaded, stage: Stage) -> tuple[Outcome, dict[str, float]]:
    """Search the bands for a model's components and let it read them."""
    started = time.perf_counter()
    settings = one.model.preset.components
    label = "" if len(job.models) == 1 else f"{one.name}: "
    with stage(f"{label}searching components", "files") as progress:
        ensure_searched(job.data, one.model.grid, settings, 1, job.workers, progress)
    searched = time.perf_counter()
    with open_tokens(job.data, settings, 1) as tokens, stage(f"{label}reading", "bands") as told:
        outcome = collect(one.model, job.data, tokens, job.settings, told)
    took = {"search": searched - started, "posteriors": time.perf_counter() - searched}
    return outcome, {name: round(value, 3) for name, value in took.items()}


def _with_outlying(job: Job, one: Loaded, found: ModelReport, stage: Stage) -> ModelReport:
    """Add how far the bands lie from the training distribution.

    What the search found stands in files beside the tokens that all else is made of: where one is
    gone, a note says so.
    """
    label = "" if len(job.models) == 1 else f"{one.name}: "
    try:
        with stage(f"{label}comparing with the training distribution", "bands") as told:
            scores = outlying_scores(one.model, job.data, job.settings.level, told)
    except InputError as error:
        note = f"not compared with the training distribution: {error}"
        return replace(found, notes=(*found.notes, note))
    return replace(found, outlying=scores)


def _refined(job: Job, one: Loaded, outcome: Outcome, stage: Stage) -> RefinedScores:
    """Refine some of the bands that a model has read."""
    from slotflow.report.refined import refined_scores  # compiles: only where it is needed

    with (
        open_tokens(job.data, one.model.preset.components, 1) as tokens,
        stage("refining", "bands") as told,
    ):
        return refined_scores(one.model, job.data, tokens, outcome, job.settings, progress=told)
