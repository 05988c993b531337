"""What bands that were refined tell together, for :mod:`refined_bands`: calibration and CRPS."""

from typing import Any

import numpy as np
from scipy.stats import chi2

from slotflow.metrics import all_ranks
from slotflow.parameters import SCORED
from slotflow.scores import crps_columns

NAMES = tuple(name for name, _ in SCORED)
PERIODS = tuple(1.0 if name == "psi" else period for name, period in SCORED)


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of all bands that were measured."""
    used = [row for row in rows if len(row["truths"])]
    truths = np.concatenate([row["truths"] for row in used])
    out: dict[str, Any] = {
        "bands": len(rows), "sources": len(truths),
        "not_found": int(sum(row["missed"] for row in rows)),
        "warned": int(sum(row["warnings"] > 0 for row in rows)),
        "seconds_per_band": float(np.mean([row["seconds"] for row in rows])),
        "share": float(np.mean([row["share"] for row in rows])),
        "level_over_search": float(
            np.mean([np.mean(row["level"] / row["search_level"]) for row in rows])
        ),
    }  # fmt: skip
    for kind in ("network", "refined", "reference", "emcee"):
        some = [row for row in used if kind in row]
        if some:
            out[kind] = _calibration(some, kind)
    ratio = [row for row in used if "reference" in row]
    if ratio:
        out["crps_ratio"] = _ratios(ratio, "reference")
        single = [row for row in ratio if "emcee" in row]
        if single:
            out["crps_ratio_emcee"] = _ratios(single, "emcee")
    more = np.array([row["more"] for row in rows if "more" in row])
    if more.size:
        out["more"] = {
            "bands": more.size, "median": float(np.median(more)),
            "below_0": float(np.mean(more < 0)), "above_5": float(np.mean(more > 5)),
        }  # fmt: skip
    return out


def _calibration(rows: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """Return coverages of the 50 and 90% intervals, SBC chi2 p-values, and mean CRPS."""
    rank, crps = [], []
    for row in rows:
        draws = row[kind].astype(np.float64)
        share = (all_ranks(draws, row["truths"], PERIODS) + 0.5) / (draws.shape[1] + 1)
        rank.append(share)
        crps.append(crps_columns(draws[:, :: max(1, draws.shape[1] // 1000)], row["truths"],
                                 PERIODS))  # fmt: skip
    u, scores = np.concatenate(rank), np.concatenate(crps)
    cells = 10
    counts = np.stack([np.histogram(u[:, j], cells, (0, 1))[0] for j in range(8)])
    expected = len(u) / cells
    statistic = ((counts - expected) ** 2 / expected).sum(axis=1)

    def inside(level: float) -> dict[str, float]:
        held = (np.abs(u - 0.5) <= 0.5 * level).mean(axis=0)
        return dict(zip(NAMES, held.round(4).tolist(), strict=True))

    return {
        "coverage50": inside(0.5), "coverage90": inside(0.9),
        "mean_coverage50": float(np.mean(list(inside(0.5).values()))),
        "mean_coverage90": float(np.mean(list(inside(0.9).values()))),
        "sbc_chi2": dict(zip(NAMES, statistic.round(1).tolist(), strict=True)),
        "sbc_pvalue": dict(
            zip(NAMES, chi2.sf(statistic, cells - 1).round(4).tolist(), strict=True)
        ),
        "crps": dict(zip(NAMES, scores.mean(axis=0).tolist(), strict=True)),
    }  # fmt: skip


def _ratios(rows: list[dict[str, Any]], kind: str) -> dict[str, float]:
    """Return mean CRPS of the refined draws over that of others, and of both all together."""
    totals = {}
    for name in ("refined", "network", kind):
        parts = []
        for row in rows:
            draws = row[name].astype(np.float64)
            thin = max(1, draws.shape[1] // 1000)
            parts.append(crps_columns(draws[:, ::thin], row["truths"], PERIODS))
        totals[name] = np.concatenate(parts).mean(axis=0)
    ratio = totals["refined"] / totals[kind]
    out = dict(zip(NAMES, ratio.round(4).tolist(), strict=True))
    out["all"] = float(totals["refined"].mean() / totals[kind].mean())
    out["network_all"] = float(totals["network"].mean() / totals[kind].mean())
    return out | {"sources": float(sum(len(row["truths"]) for row in rows))}
