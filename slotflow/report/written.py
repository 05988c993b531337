"""Reports as JSON: first the figures by short names, then everything."""

import dataclasses
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from slotflow.atomic import written
from slotflow.report.outlying import QUANTILES
from slotflow.report.record import (
    ModelReport,
    OutlyingScores,
    RefinedParameter,
    RefinedScores,
    Report,
    Scores,
)

SCHEMA: Final = 1
REPORT_JSON: Final = "report.json"
REPORT_HTML: Final = "report.html"

_EACH: Final = ("crps", "crps_median", "compression", "coverage90")
_OF_SOURCES: Final = ("nll", "nll_median", "energy", "energy_compression", "missed", "outside")
_RANK_TESTS: Final = ("sbc", "pit", "coverage")
_JOINT_TESTS: Final = ("density", "tarp", "c2st", "k_reliability", "k_pit")
_P_KEYS: Final = ("pvalue", "padjusted")
_REFINED_EACH: Final[dict[str, Callable[[RefinedParameter], float | None]]] = {
    "crps": lambda p: p.crps_refined.mean, "crps_network": lambda p: p.crps.mean,
    "ratio": lambda p: p.ratio, "ratio_lower": lambda p: p.ratio_lower,
    "ratio_upper": lambda p: p.ratio_upper, "coverage90": lambda p: p.coverage_refined.mean,
    "coverage90_network": lambda p: p.coverage.mean,
}  # fmt: skip
_REFINED: Final = ("bands", "sources", "not_found", "not_refined", "warned", "seconds")
_OUTLYING: Final = ("share", "lower", "upper", *QUANTILES)
_OTHERS: Final = (
    "c2st_auc", "smallest_padjusted", "k_exact", "k_within_one", "k_bias", "k_exact_loud",
    "k_within_one_loud", "k_log_score", "k_rps", "reliability_error", "reliability_error_k",
    "existence_auc", "recall", "precision", "f1", "recall_snr10", "precision_snr10", "duplicates",
    "false_alarms", "false_alarms_per_band", "overlap", "overlap_chance", "cosine_overlap",
    "sources", "bands",
)  # fmt: skip


def figures(report: Report, number: int = 0) -> dict[str, Any]:
    """Return a model's figures: nested by name, then by parameter; None where there is none.

    ``crps`` and the other plain names are of all sources, ``_snr10`` of those above SNR 10;
    p-values ``_pvalue`` as they are, ``_padjusted`` adjusted for the number of tests. ``refined``
    is there where bands were refined, ``outlying`` where the bands were scored against the
    training distribution.
    """
    model, names = report.models[number], [p.name for p in report.parameters]
    found: dict[str, Any] = {}
    found |= _scores(model.scores, "")
    found |= _scores(model.loud, "_snr10", names)
    found |= _tests(model)
    found |= _numbers(model)
    found |= _detection(model, report.settings.loud_snr)
    slots = model.slots
    found["overlap"] = None if slots is None else slots.peak_overlap
    found["overlap_chance"] = None if slots is None else slots.peak_chance
    found["cosine_overlap"] = None if slots is None else slots.cosine_overlap
    found["sources"], found["bands"] = report.data.sources, report.data.bands
    if model.refined is not None:
        found["refined"] = _refined(model.refined, names)
    if model.outlying is not None:
        found["outlying"] = _outlying(model.outlying)
    if number:
        name = model.model.name
        change: dict[str, float | None] = dict.fromkeys((*names, "energy", "nll"))
        change |= {d.score: d.estimate.mean for d in report.differences if d.model == name}
        found["difference"] = change
    return found


def figure_names(
    parameters: Sequence[str], compared: Sequence[str] = (), refined: bool = False,
    scored: Collection[int] = (),
) -> list[str]:  # fmt: skip
    """Return the dotted names of all figures of a report of these parameters and other models.

    ``refined``: whether bands were refined, by the first model; ``scored``: the numbers of the
    models, 0 the first, that have a score against their training distribution.
    """
    each = [f"{key}{end}" for end in ("", "_snr10") for key in _EACH]
    each += [f"{test}_{key}" for test in _RANK_TESTS for key in _P_KEYS]
    names = [f"{name}.{parameter}" for name in each for parameter in parameters]
    names += [f"{key}{end}" for end in ("", "_snr10") for key in _OF_SOURCES]
    names += [f"{test}_{key}" for test in _JOINT_TESTS for key in _P_KEYS]
    names += _OTHERS
    others = [f"compared.{model}.{name}" for model in compared for name in names]
    scores = (*parameters, "energy", "nll")
    changes = [f"compared.{model}.difference.{name}" for model in compared for name in scores]
    exact: list[str] = []
    if refined:
        exact = [f"refined.{key}.{name}" for key in _REFINED_EACH for name in parameters]
        exact += [f"refined.{key}" for key in _REFINED]
    heads = ("", *(f"compared.{model}." for model in compared))
    apart = [f"{heads[i]}outlying.{key}" for i in sorted(scored) for key in _OUTLYING]
    return names + others + changes + exact + apart


def _scores(scores: Scores | None, end: str, names: list[str] | None = None) -> dict[str, Any]:
    if scores is None:
        nothing: dict[str, Any] = {f"{key}{end}": dict.fromkeys(names or ()) for key in _EACH}
        return nothing | {f"{key}{end}": None for key in _OF_SOURCES}
    p = scores.parameters
    values = {
        "crps": {one.name: one.crps.mean for one in p},
        "crps_median": {one.name: one.crps.median for one in p},
        "compression": {one.name: one.compression for one in p},
        "coverage90": {
            one.name: c.mean for one, c in zip(p, scores.coverage90, strict=True)
        },
        "nll": None if scores.nll is None else scores.nll.mean,
        "nll_median": None if scores.nll is None else scores.nll.median,
        "energy": scores.energy.mean,
        "energy_compression": 1.0 - scores.energy.mean / scores.energy_prior,
        "missed": scores.missed.share,
        "outside": scores.outside,
    }  # fmt: skip
    return {f"{key}{end}": value for key, value in values.items()}


def _refined(found: RefinedScores, names: list[str]) -> dict[str, Any]:
    each: dict[str, Any] = {
        key: dict.fromkeys(names) | {p.name: value(p) for p in found.parameters}
        for key, value in _REFINED_EACH.items()
    }
    return each | {key: getattr(found, key) for key in _REFINED}


def _outlying(found: OutlyingScores) -> dict[str, float | None]:
    outside, scores = found.outside, (score for _, score in found.quantiles)
    return {
        "share": outside.share, "lower": outside.lower, "upper": outside.upper,
        **dict(zip(QUANTILES, scores, strict=True)),
    }  # fmt: skip


def _tests(model: ModelReport) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in model.calibration.p_values:
        for key, value in (("pvalue", one.value), ("padjusted", one.adjusted)):
            name = f"{one.test}_{key}"
            if one.parameter is None:
                found[name] = value
            else:
                found.setdefault(name, {})[one.parameter] = value
    for test in _JOINT_TESTS:
        for key in _P_KEYS:
            found.setdefault(f"{test}_{key}", None)
    learned = model.calibration.c2st
    found["c2st_auc"] = None if learned is None else learned.auc
    found["smallest_padjusted"] = min(one.adjusted for one in model.calibration.p_values)
    return found


def _numbers(model: ModelReport) -> dict[str, Any]:
    n = model.numbers
    return {
        "k_exact": n.confusion.exact, "k_within_one": n.confusion.within_one,
        "k_bias": n.confusion.bias,
        "k_exact_loud": None if n.loud is None else n.loud.exact,
        "k_within_one_loud": None if n.loud is None else n.loud.within_one,
        "k_log_score": n.q_k.log_score, "k_rps": n.q_k.rps,
        "reliability_error": None if n.existence is None else n.existence.error,
        "reliability_error_k": n.q_k.reliability.error,
        "existence_auc": None if n.roc is None else n.roc.auc,
    }  # fmt: skip


def _detection(model: ModelReport, loud_snr: float) -> dict[str, Any]:
    d = model.detection
    loud = [row for row in d.rows if row.low >= loud_snr]

    def share(name: str) -> float | None:
        number = sum(getattr(row, name).number for row in loud)
        return sum(getattr(row, name).hits for row in loud) / number if number else None

    return {
        "recall": d.recall.share, "precision": d.precision.share, "f1": d.f1,
        "recall_snr10": share("recall"), "precision_snr10": share("precision"),
        "duplicates": d.duplicates, "false_alarms": d.false_alarms,
        "false_alarms_per_band": d.false_alarms_per_band,
    }  # fmt: skip


def all_figures(report: Report) -> dict[str, Any]:
    """Return the figures of the first model, and under ``compared`` those of the others."""
    others = {one.model.name: figures(report, i) for i, one in enumerate(report.models) if i}
    return {**figures(report), "compared": others}


def as_json(report: Report) -> str:
    """Return the report as JSON: figures of the first model, of the others by name, details.

    What is not finite is null.
    """
    first, data = report.models[0].model, report.data
    content: dict[str, Any] = {
        "schema": SCHEMA, "version": report.version, "created": report.created,
        "command": report.command,
        "model": {"name": first.name, "path": first.path, "sha256": first.sha256},
        "data": {
            "origin": data.origin, "path": data.path, "seed": data.seed,
            "identity": data.identity, "bands": data.bands, "sources": data.sources,
        },
        **all_figures(report),
        "details": dataclasses.asdict(report),
    }  # fmt: skip
    return json.dumps(plain(content), indent=1, allow_nan=False) + "\n"


def plain(value: Any) -> Any:
    """Return mappings, sequences and numbers as JSON has them; None for what is not finite."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def write_text(path: Path, text: str) -> None:
    """Write a text whole or not at all.

    Raises:
        InputError: the system refuses to write.
    """
    with written(path) as temporary:
        temporary.write_text(text, "utf-8")
