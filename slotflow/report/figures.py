"""The figures of a model, made of the outcome of its reading."""

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from slotflow.calibration import count_distribution
from slotflow.cardinality import confusion, count_tests, reliability_test, roc
from slotflow.detection import Detection, Matches, Share, detection
from slotflow.metrics import UNIFORM_CRPS
from slotflow.report.checks import calibration_tests
from slotflow.report.outcome import MISSED_BINS, NAMES, Outcome
from slotflow.report.record import (
    Breakdown,
    DataIdentity,
    ModelIdentity,
    ModelReport,
    Numbers,
    ParameterInfo,
    Published,
    ReportSettings,
    Scores,
)
from slotflow.report.slots import slot_figures
from slotflow.scores import PUBLISHED_CRPS, Estimate, breakdown, estimates, parameter_scores

Float = NDArray[np.float64]
Bool = NDArray[np.bool_]

SNR_EDGES: Final = (7.0, 10.0, 20.0, 50.0)
SEPARATIONS: Final = (1.0, 4.0, 16.0)  # bins
SOURCE: Final = "arXiv:2605.02323"
_SHARES: Final = 5  # intervals of frequency

PARAMETERS: Final = (
    ParameterInfo("f0", "f0", "the band", None),
    ParameterInfo("fdot", "fdot", "the range of fdot T^2, -0.1 to 0.3", None),
    ParameterInfo("ln_amplitude", "ln A", "ln 100, two decades", None),
    ParameterInfo("ra", "right ascension", "its circle, 2 pi", 1.0),
    ParameterInfo("sin_dec", "sin declination", "its range", None),
    ParameterInfo("psi", "polarisation", "its circle, pi / 2", 1.0),
    ParameterInfo("cos_iota", "cos inclination", "its range", None),
    ParameterInfo("phi0", "initial phase", "its circle, 2 pi", 1.0),
)


class PriorScores(NamedTuple):
    """The prior's CRPS (n, 8) and energy score (n,) on every true source."""

    crps: Float
    energy: Float


def model_report(
    identity: ModelIdentity, outcome: Outcome, prior: PriorScores, data: DataIdentity,
    settings: ReportSettings, seconds: Mapping[str, float], notes: tuple[str, ...] = (),
) -> ModelReport:  # fmt: skip
    """Return all figures of a model.

    Args:
        identity: which model.
        outcome: what it made of the bands.
        prior: scores of the prior on the same sources.
        data: which bands.
        settings: of the report.
        seconds: spent so far, by part.
        notes: what the reader should know.
    """
    loud = outcome.sources.snr > settings.loud_snr
    scores = source_scores(outcome, prior, np.ones_like(loud), settings, 20)
    loud_scores = source_scores(outcome, prior, loud, settings, 21) if loud.any() else None
    numbers = number_figures(outcome, settings)
    said = list(notes)
    if scores.outside:
        said.append(
            f"{scores.outside} of {scores.sources} truths are outside the flow's support: without"
            " NLL, and the scores by SNR, number, frequency and separation are without it"
        )
    if len(outcome.joint.source) < len(np.unique(outcome.sources.band)):
        said.append(f"the joint posterior is tested on {len(outcome.joint.source)} bands")
    return ModelReport(
        identity, scores, loud_scores, breakdowns(outcome, data, settings),
        calibration_tests(outcome, numbers, settings.seed), numbers,
        detection_figures(outcome, data, settings),
        slot_figures(outcome.looks, np.random.default_rng([settings.seed, 13])),
        _published(scores, loud_scores), dict(seconds), tuple(said),
    )  # fmt: skip


def source_scores(
    outcome: Outcome, prior: PriorScores, chosen: Bool, settings: ReportSettings, stream: int
) -> Scores:
    """Return the scores of the chosen sources (n,) bool, of which there is one at least."""
    s = outcome.sources
    rng = np.random.default_rng([settings.seed, stream])
    crps, band, nll = s.crps[chosen], s.band[chosen], s.nll[chosen]
    inside = np.abs((s.ranks[chosen] + 0.5) / (outcome.draws + 1) - 0.5) <= 0.45
    known = np.isfinite(nll)
    nll_estimate = None
    if known.any():
        nll_estimate = _estimates(nll[known], rng, band[known], settings)[0]
    return Scores(
        int(chosen.sum()),
        parameter_scores(
            crps, prior.crps[chosen], NAMES, rng, band, settings.level, settings.resamples
        ),
        _estimates(inside, rng, band, settings), nll_estimate,
        _estimates(s.energy[chosen], rng, band, settings)[0], float(prior.energy[chosen].mean()),
        int((~known).sum()), share(s.offset[chosen] > MISSED_BINS, settings.level),
    )  # fmt: skip


def breakdowns(
    outcome: Outcome, data: DataIdentity, settings: ReportSettings
) -> tuple[Breakdown, ...]:
    """Return the scores by SNR, number of sources, frequency and separation."""
    s = outcome.sources
    known = np.isfinite(s.nll)
    columns = np.column_stack((s.crps, s.energy, s.nll))[known]
    names = (*NAMES, "energy", "nll")
    most = int(outcome.bands.number.max())
    step = np.linspace(data.fmin, data.fmax, _SHARES + 1)[1:-1] * 1e3
    frequency = tuple(np.unique(np.round(step, 2)).tolist())
    nearest = np.where(np.isfinite(s.nearest), s.nearest, np.nan)
    number = outcome.bands.number[s.band].astype(np.float64)
    quantities = (
        ("snr", "SNR", s.snr, SNR_EDGES),
        ("sources", "sources in the band", number, tuple(float(k) for k in range(2, most + 1))),
        ("f0", "frequency, mHz", s.f0 * 1e3, frequency),
        ("separation", "bins to the nearest source", nearest, SEPARATIONS),
    )
    found = []
    for stream, (by, label, values, edges) in enumerate(quantities, start=30):
        rng = np.random.default_rng([settings.seed, stream])
        if known.any():
            rows = breakdown(
                columns, values[known], edges, rng, s.band[known], settings.level,
                settings.resamples,
            )  # fmt: skip
            found.append(Breakdown(by, label, names, rows))
    return tuple(found)


def number_figures(outcome: Outcome, settings: ReportSettings) -> Numbers:
    """Return what is said of the number of sources, and of the slots' existence."""
    bands = outcome.bands
    reported = (bands.probability >= settings.min_probability).sum(axis=1)
    quietest = np.full(len(bands.number), np.inf)
    np.minimum.at(quietest, outcome.sources.band, outcome.sources.snr)
    loud = (bands.number > 0) & (quietest >= settings.loud_snr)
    q = count_distribution(bands.probability)
    p, holds = bands.probability[bands.counts], bands.holds[bands.counts]
    logits = bands.logits[bands.counts]
    both = bool(holds.any() and not holds.all())
    return Numbers(
        confusion(bands.number, reported),
        confusion(bands.number[loud], reported[loud]) if loud.any() else None,
        confusion(bands.number, q.argmax(axis=1)),
        count_tests(q, bands.number, np.random.default_rng([settings.seed, 14])),
        reliability_test(p, holds) if p.size else None, roc(logits, holds) if both else None,
    )  # fmt: skip


def detection_figures(outcome: Outcome, data: DataIdentity, settings: ReportSettings) -> Detection:
    """Return what is found, against SNR: from the least of the prior on."""
    found, least = outcome.found, float(data.prior["snr_min"])
    edges = sorted({least, settings.loud_snr, *(e for e in SNR_EDGES if e > least)})
    matches = Matches(found.truth, found.duplicate)
    return detection(
        matches, found.truth_snr, found.snr, edges, len(outcome.bands.sample), settings.level
    )


def share(hits: Bool, level: float) -> Share:
    """Return the share of hits with Wilson's interval."""
    n, k = hits.size, int(hits.sum())
    if not n:
        return Share(0, 0, None, None, None)
    interval = stats.binomtest(k, n).proportion_ci(level, method="wilson")
    return Share(k, n, k / n, float(interval.low), float(interval.high))


def _published(scores: Scores, loud: Scores | None) -> tuple[Published, ...]:
    """Return the literature's values beside ours."""
    every, strong = (
        {} if one is None else {p.name: p for p in one.parameters} for one in (scores, loud)
    )
    found = []
    for name, value in PUBLISHED_CRPS.items():
        ours, ours_loud = every.get(name), strong.get(name)
        bound = name != "f0"
        found.append(
            Published(
                "crps", name, value, bound, None if ours is None else ours.crps.mean,
                None if ours_loud is None else ours_loud.crps.mean, SOURCE,
            )
        )  # fmt: skip
        if not bound:
            found.append(
                Published(
                    "compression", name, round(1.0 - value / UNIFORM_CRPS, 4), bound,
                    None if ours is None else ours.compression,
                    None if ours_loud is None else ours_loud.compression, SOURCE,
                )
            )  # fmt: skip
    return tuple(found)


def _estimates(
    values: ArrayLike, rng: np.random.Generator, band: ArrayLike, settings: ReportSettings
) -> tuple[Estimate, ...]:
    return estimates(values, rng, band, settings.level, settings.resamples)
