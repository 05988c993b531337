"""What refined results have on disk beside the samples: how they were refined, and from what."""

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from slotflow.parameters import NAMES, PARAMETERS
from slotflow.refined import Refinement
from slotflow.results import Result, SourcePosterior

if TYPE_CHECKING:
    import xarray as xr

Float = NDArray[np.float64]

#: Numbers of each band: name, what it is.
BAND_NUMBERS: Final = (
    ("efficiency", "effective share of the network's draws as weighted for the exact posterior"),
    ("ess", "effective sample size of the refined draws"),
    ("pareto_k", "shape of the largest weights' tail; above 0.7 they are not to be relied on"),
    ("largest", "largest normalised weight"),
    ("acceptance", "accepted share of the last moves"),
    ("evaluations", "of the likelihood"),
    ("foreground", "share of the noise taken for that of unresolved binaries"),
    ("seconds", "spent"),
)
#: Logarithms of evidences and Bayes factors, each with its standard error.
BAND_EVIDENCES: Final = (
    ("ln_z", "ln evidence of the band's sources over noise alone"),
    ("more", "ln Bayes factor of one source more over these"),
    ("fewer", "ln Bayes factor of these over all but the least likely"),
)


def add_refinement(tree: "xr.DataTree", result: Result) -> None:
    """Add the groups ``amortised`` and ``refinement`` to a result's tree, in place.

    ``amortised``: the network's own draws, as ``posterior`` has the refined ones (NaN for sources
    that were not refined). ``refinement``: by ``band`` what :class:`slotflow.refined.Refinement`
    holds, by ``source`` the divergence of the two from each other and the residual's power.
    """
    import xarray as xr

    records = {record.first_bin: record for record in result.refinements}
    draws = result.settings.samples
    before = np.full((draws, len(result.sources), 8), np.nan)
    divergence = np.full((len(result.sources), 8), np.nan)
    misfit = np.full(len(result.sources), np.nan)
    for i, source in enumerate(result.sources):
        found = _of(source, records)
        if found is not None:
            record, place = found
            before[:, i] = record.before[place]
            divergence[i], misfit[i] = record.divergence[place], record.misfit[place]
    own = {
        parameter.name: (("chain", "draw", "source"), before[None, ..., i])
        for i, parameter in enumerate(PARAMETERS)
    }
    tree["amortised"] = xr.DataTree(xr.Dataset(own))
    for parameter in PARAMETERS:
        tree["amortised"][parameter.name].attrs["units"] = parameter.unit or "1"
    content = _bands(result)
    content["divergence"] = (("source", "parameter"), divergence)
    content["misfit"] = (("source",), misfit)
    group = xr.Dataset(content, coords={"parameter": list(NAMES)})
    described = {
        **dict(BAND_NUMBERS), **dict(BAND_EVIDENCES),
        "log_posterior": "ln density of the band's sources together, per unit volume of the scaled"
                         " ranges",
        "divergence": "Jensen-Shannon, of the network's draws and the refined ones, nats",
        "misfit": "power of the residual around the source, over the noise's",
    }  # fmt: skip
    for name, text in described.items():
        group[name].attrs["description"] = text
    assert result.refine is not None
    group.attrs["settings"] = json.dumps(asdict(result.refine))
    texts = [{"first_bin": one.first_bin, "warnings": one.warnings} for one in result.refinements]
    group.attrs["warnings"] = json.dumps([text for text in texts if text["warnings"]])
    tree["refinement"] = xr.DataTree(group)


def _bands(result: Result) -> dict[str, Any]:
    """Return what there is of each band."""
    records, draws = result.refinements, result.settings.samples
    content: dict[str, Any] = {
        name: (("band",), np.array([float(getattr(one, name)) for one in records]))
        for name, _ in BAND_NUMBERS
    }
    for name, _ in BAND_EVIDENCES:
        values = np.array([getattr(one, name) for one in records]).reshape(len(records), 2)
        content[name], content[f"{name}_error"] = (
            (("band",), values[:, 0]),
            (("band",), values[:, 1]),
        )
    posterior = np.full((len(records), draws), np.nan)
    for row, one in zip(posterior, records, strict=True):
        row[: len(one.log_posterior)] = one.log_posterior
    content["log_posterior"] = (("band", "draw"), posterior)
    for name, numbers in (
        ("first_bin", [one.first_bin for one in records]),
        ("number", [len(one.slots) for one in records]),
        ("temperatures", [len(one.temperatures) for one in records]),
    ):
        content[name] = (("band",), np.array(numbers, dtype=np.int64))
    return content


def _of(source: SourcePosterior, records: dict[int, Refinement]) -> tuple[Refinement, int] | None:
    """Return the record that has a source, and its place there."""
    record = records.get(source.first_bin)
    if record is None or source.slot not in record.slots:
        return None
    return record, record.slots.index(source.slot)


def summaries(result: Result) -> list[dict[str, Any]]:
    """Return what a table says of the refinement of each band that has sources, in plain types."""
    rows = []
    for one in result.refinements:
        if one.slots or one.warnings:
            row: dict[str, Any] = {"first_bin": one.first_bin, "sources": len(one.slots)}
            row |= {name: _plain(getattr(one, name)) for name, _ in BAND_NUMBERS}
            for name, _ in BAND_EVIDENCES:
                value, error = getattr(one, name)
                row |= {name: _plain(value), f"{name}_error": _plain(error)}
            row["temperatures"] = len(one.temperatures)
            row["divergence"] = _plain(float(one.divergence.max())) if one.divergence.size else None
            row["reliable"] = not one.warnings
            rows.append(row)
    return rows


def _plain(value: float) -> float | None:
    return round(float(value), 6) if math.isfinite(value) else None
