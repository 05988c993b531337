"""What a report holds: records of plain numbers, from the model's name to the last curve.

One :class:`Report` is one page and one ``report.json``. Numbers that cannot be had (no source of
that kind, too few bands for a test) are None; what is None says why in the notes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from slotflow.c2st import C2st
from slotflow.cardinality import Confusion, CountTests, Reliability, Roc
from slotflow.detection import Detection, Share
from slotflow.sbc import ParameterTests
from slotflow.scores import Estimate, ParameterScore, Row
from slotflow.uniformity import EcdfTest


@dataclass(frozen=True)
class ParameterInfo:
    """A parameter as it is scored.

    ``name`` is its key (``ln_amplitude``), ``label`` plain text (ln A), ``scaled_by`` what the
    unit of its scores is, in words; ``period`` 1.0 where it is an angle, scored the shorter way
    round, else None.
    """

    name: str
    label: str
    scaled_by: str
    period: float | None


@dataclass(frozen=True)
class ModelIdentity:
    """Which model: ``name`` is short and differs from the other models' of the report.

    ``preset`` and ``card`` are what its file says of itself; ``training_seeds`` those of the data
    that it was trained on, empty where the card does not say.
    """

    name: str
    path: str
    sha256: str
    parameters: int
    calibration: Mapping[str, float]
    training_seeds: tuple[int, ...]
    preset: Mapping[str, Any]
    card: Mapping[str, Any]


@dataclass(frozen=True)
class DataIdentity:
    """Which bands: ``origin`` "simulated" for this report, or "folder", then with ``path``.

    ``identity`` is a SHA-256 of the set's settings, seed and shards' checksums; ``fmin`` and
    ``fmax`` (Hz) the lowest and highest centre of a band; ``loud`` the number of sources above
    SNR 10, ``empty`` that of bands without a source.
    """

    origin: Literal["simulated", "folder"]
    path: str | None
    seed: int
    identity: str
    bands: int
    empty: int
    sources: int
    loud: int
    fmin: float
    fmax: float
    observation: Mapping[str, Any]
    prior: Mapping[str, Any]


@dataclass(frozen=True)
class ReportSettings:
    """How the figures were made.

    ``seed`` of everything drawn; ``draws`` of each source's posterior; ``test_draws`` of them go
    into the tests of the joint posterior; ``level`` of all intervals, from ``resamples``
    resamples of bands; ``band_level`` that of the simultaneous bands about curves; ``loud_snr``
    above which a source is called loud; ``min_probability`` above which a slot is a report;
    ``bins`` and ``overlap`` within and above which a report stands for a true source; ``refine``
    most bands that are refined, 0 for none.
    """

    seed: int
    draws: int
    test_draws: int
    level: float
    resamples: int
    band_level: float
    loud_snr: float
    min_probability: float
    bins: float
    overlap: float
    refine: int = 0


@dataclass(frozen=True)
class Scores:
    """Scores of all sources, or of the loud ones; every true source is in, missed or not.

    ``nll`` is -ln q in the unit cube, over the sources inside the flow's support; ``outside``
    counts the others. ``energy`` is the joint's energy score and ``energy_prior`` the prior's.
    ``missed``: the component that the slot stands on is more than a bin from the source.
    ``coverage90``: of each parameter, the share of truths inside the central 90% interval.
    """

    sources: int
    parameters: tuple[ParameterScore, ...]
    coverage90: tuple[Estimate, ...]
    nll: Estimate | None
    energy: Estimate
    energy_prior: float
    outside: int
    missed: Share


@dataclass(frozen=True)
class Breakdown:
    """Scores in intervals of one quantity.

    ``by`` is "snr", "sources", "f0" (edges in mHz) or "separation" (bins to the nearest other
    source; rows with ``known`` false have none in their band); ``label`` the same in words.
    ``columns`` names each row's estimates: the parameters' CRPS by their names, "nll", "energy".
    Sources outside the flow's support are in none.
    """

    by: str
    label: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class PValue:
    """One test's p-value, as it is and adjusted for the number of tests (Holm 1979).

    ``test`` is "sbc", "pit", "coverage", "density", "tarp", "c2st", "k_reliability" or "k_pit";
    ``parameter`` None for those of the joint posterior and of the number of sources.
    """

    test: str
    parameter: str | None
    value: float
    adjusted: float


@dataclass(frozen=True)
class CalibrationTests:
    """Are the posteriors right: on one source of each band, which are independent.

    ``parameters`` have the SBC histogram, the PIT's (P-P) curve and the coverage of central
    intervals, each with its band; ``density`` is the coverage of the joint's regions of highest
    density, ``tarp`` that of balls about random points; ``c2st`` the discriminator, whose groups
    0, 1, ... are ``groups`` in words. ``p_values`` holds those of everything, of the number of
    sources too.
    """

    sources: int
    parameters: tuple[ParameterTests, ...]
    density: EcdfTest | None
    tarp: EcdfTest | None
    c2st: C2st | None
    groups: tuple[str, ...]
    p_values: tuple[PValue, ...]


@dataclass(frozen=True)
class Numbers:
    """How many sources, and which slots hold one.

    ``confusion`` of the number of reports (existence 0.5 and above) and ``loud`` that of bands
    that have sources, all of them loud; ``likeliest`` that of the largest q(K); ``q_k`` scores and
    tests of q(K), its reliability and the PIT of K; ``existence`` the reliability of the slots'
    probabilities, and their ``roc``. A slot's truth is whether a true source was assigned to it
    that is not missed; K counts all sources.
    """

    confusion: Confusion
    loud: Confusion | None
    likeliest: Confusion
    q_k: CountTests
    existence: Reliability | None
    roc: Roc | None


@dataclass(frozen=True)
class Attention:
    """Where the slots of found sources look: mean shares of attention.

    ``own``: the component that stands for the slot's source; ``near``: others up to ``near_bins``
    bins from the source; ``elsewhere``: the rest; the three add up to 1. ``others`` is the share
    on components that stand for other sources, near or not. ``even`` gives the four for attention
    spread evenly over the band's components, in this order.
    """

    slots: int
    near_bins: float
    own: float
    near: float
    elsewhere: float
    others: float
    even: tuple[float, float, float, float]


@dataclass(frozen=True)
class SlotFigures:
    """What the slots do, in bands of two sources and more.

    ``peak_overlap`` and ``cosine_overlap`` of the slots that hold the sources, ``peak_chance``
    that of peaks anywhere, ``cosine_chance`` with each slot's attention shuffled over the band's
    components. ``evidence_sources`` is the mean evidence left on components that stand for
    sources at the start and after each slot, ``evidence_others`` that on the other components.
    """

    bands: int
    peak_overlap: float
    peak_chance: float | None
    cosine_overlap: float
    cosine_chance: float | None
    evidence_sources: tuple[float, ...]
    evidence_others: tuple[float, ...]
    attention: Attention | None


@dataclass(frozen=True)
class Published:
    """A value from the literature beside ours, of all sources and of the loud ones.

    ``quantity`` is "crps" or "compression"; ``bound`` whether ``value`` was given as an upper
    bound. Other priors and other data: not more than a comparison.
    """

    quantity: str
    parameter: str
    value: float
    bound: bool
    ours: float | None
    ours_loud: float | None
    source: str


@dataclass(frozen=True)
class RefinedParameter:
    """One parameter's CRPS by the model's draws and by the refined ones, on the same sources.

    ``ratio`` is the model's mean CRPS over the refined draws', with its interval; None where the
    latter is not above 0. ``coverage`` and ``coverage_refined``: the share of truths inside the
    central 90% interval.
    """

    name: str
    crps: Estimate
    crps_refined: Estimate
    ratio: float | None
    ratio_lower: float | None
    ratio_upper: float | None
    coverage: Estimate
    coverage_refined: Estimate


@dataclass(frozen=True)
class RefinedScores:
    """The model beside the exact posterior of ``bands`` bands, refined by tempered SMC.

    ``sources`` are scored. ``not_found``: true sources of these bands whose slot is no report or
    stands on a component more than a bin away; ``not_refined``: found, but without refined draws.
    ``warned`` bands have ``warnings``, a line each, and count as the others do. ``parameters`` is
    empty without a source; ``seconds`` spent.
    """

    bands: int
    sources: int
    not_found: int
    not_refined: int
    warned: int
    warnings: tuple[str, ...]
    parameters: tuple[RefinedParameter, ...]
    seconds: float


@dataclass(frozen=True)
class OutlyingScores:
    """How far the bands lie from those that the model was trained on (:mod:`slotflow.outlying`).

    ``outside``: how many of the bands have a score above 1 and are flagged; ``nominal`` is the
    share of the training distribution that is. ``quantiles`` (level, score) rise to the largest
    score, of level 1. ``kinds``: what the flagged bands are furthest in, and how many each.
    """

    outside: Share
    nominal: float
    quantiles: tuple[tuple[float, float], ...]
    kinds: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class ModelReport:
    """Everything of one model; ``refined`` None where no refinement was asked for, ``outlying``
    where the model has no score against its training distribution."""

    model: ModelIdentity
    scores: Scores
    loud: Scores | None
    breakdowns: tuple[Breakdown, ...]
    calibration: CalibrationTests
    numbers: Numbers
    detection: Detection
    slots: SlotFigures | None
    published: tuple[Published, ...]
    seconds: Mapping[str, float]
    notes: tuple[str, ...]
    refined: RefinedScores | None = None
    outlying: OutlyingScores | None = None


@dataclass(frozen=True)
class Difference:
    """A score of ``model`` minus that of the report's first model, source by source.

    ``score`` is a parameter's name (its CRPS), "nll" or "energy". Below 0: the model is better.
    Intervals of the mean that hold 0 say that these bands cannot tell.
    """

    model: str
    score: str
    estimate: Estimate


@dataclass(frozen=True)
class Report:
    """One page: the first of ``models`` is the one reported, the others stand beside it.

    ``differences`` is empty with one model. ``seconds`` are those of what all models share, data
    first. ``notes``: what the reader should know, a line each. ``created`` is ISO 8601, UTC.
    """

    version: str
    created: str
    command: str
    data: DataIdentity
    settings: ReportSettings
    parameters: tuple[ParameterInfo, ...]
    models: tuple[ModelReport, ...]
    differences: tuple[Difference, ...]
    seconds: Mapping[str, float]
    notes: tuple[str, ...]
