"""Is the likelihood right where there is a foreground? Each source by itself, the others known.

    slotflow simulate --preset shipped --samples 1536 --seed 20261130 -o held-out
    ./run python benchmarks/refined_scores.py held-out [--bands 150] [--every 10]
    ./run python benchmarks/refined_scores.py held-out --alone --bands 52 --every 30

Bands are read by the model that ships, their noise measured as a refinement does, once as white
(at the level of the component search) and once with the foreground. For every true source that
the model reports (within a bin), the other such sources taken off:

- the score of ln L at the truth, by the Fisher matrix of seven parameters (fdot has its prior):
  chi2 of seven degrees where the likelihood is right. ``left`` has all that a refinement leaves
  in the band; ``noise`` foreground and instrument alone, so that the difference is what targets
  that were missed and loud sources beside the window, taken off as they were fitted, do.
- ``--alone``: its posterior by SMC (200 particles), and where the truth lies in it.

The last line is one JSON object.
"""

import copy
import json
import os
from importlib import resources
from pathlib import Path
from typing import Any, Literal

if __name__ == "__main__":
    for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = "1"

import click
import numpy as np
import torch
from refined_bands import Held, matched, scored
from refined_figures import NAMES, PERIODS
from scipy.stats import chi2

from slotflow.checkpoint import load_model
from slotflow.metrics import all_ranks
from slotflow.refine import Prepared, Refiner
from slotflow.refine_band import Reference
from slotflow.refine_flow import FlowReference
from slotflow.refine_input import Slot, place_of
from slotflow.refine_moves import SourceMoves
from slotflow.refine_sample import smc_settings
from slotflow.refine_space import BIN, COS_IOTA, SIN_DEC
from slotflow.refined import RefineSettings
from slotflow.scores import crps_columns
from slotflow.smc import run

Float = np.ndarray[Any, np.dtype[np.float64]]
Complex = np.ndarray[Any, np.dtype[np.complex128]]

KINDS: tuple[Literal["white", "foreground"], ...] = ("white", "foreground")
PARTICLES = 200
STEPS = np.array([1e-3, 1e-2, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3])
FREE = (0, 2, 3, 4, 5, 6, 7)


def slopes(prepared: Prepared, x: Float) -> Complex:
    """Return the derivatives of a source's signal, to unit noise: (7, 2, K)."""
    space, likelihood = prepared.space, prepared.likelihood
    rows, spans = [], []
    for j in FREE:
        up, down = x.copy(), x.copy()
        up[j], down[j] = x[j] + STEPS[j], x[j] - STEPS[j]
        if j in (SIN_DEC, COS_IOTA):
            up[j], down[j] = min(up[j], 1 - 1e-6), max(down[j], -1 + 1e-6)
        rows += [up, down]
        spans.append(up[j] - down[j])
    model = likelihood.model(space.to_sources(np.array(rows)))
    model = model / np.sqrt(likelihood.level)[:, None]
    return np.asarray((model[::2] - model[1::2]) / np.array(spans)[:, None, None])


def score(slope: Complex, residual: Complex) -> float:
    """Return the score's square by the Fisher matrix of these derivatives."""
    fisher = 2.0 * np.einsum("icn,jcn->ij", slope.conj(), slope).real
    scale = 1.0 / np.sqrt(np.diag(fisher))
    inverse = np.linalg.pinv(fisher * scale[:, None] * scale, rcond=1e-6)
    value = 2.0 * np.einsum("icn,cn->i", slope.conj(), residual).real * scale
    return float(value @ inverse @ value)


def divided(prepared: Prepared, data: Complex) -> Complex:
    """Return whitened data divided as the likelihood's are, to unit noise."""
    noise = prepared.noise
    if noise.modulation is not None:
        data = noise.modulation.filtered(data)
    if noise.profile is not None:
        data = data / np.sqrt(noise.profile)
    return np.asarray(data / np.sqrt(prepared.likelihood.level)[:, None])


def noise_of(held: Held, sample: int, data: Complex) -> Complex:
    """Return a band less all its bright sources: (2, K)."""
    ranges = held.data.shard_ranges()
    shard = next(i for i, (_, stop) in enumerate(ranges) if sample < stop)
    signal = held.data.column(shard, "signal")[sample - ranges[shard][0]]
    return np.asarray(data - signal[:2])


def alone(
    prepared: Prepared, reference: Reference, slot: Slot, truth: Float, others: Float,
    seed: list[int],
) -> dict[str, Any]:  # fmt: skip
    """Return where the truth lies in a source's posterior, the others being known."""
    likelihood, space = copy.copy(prepared.likelihood), prepared.space
    if len(others):
        likelihood.data = likelihood.data - likelihood.model(space.to_sources(others)).sum(axis=0)
    problem = SourceMoves(likelihood, space, [reference], np.random.default_rng(0))
    found = run(problem, smc_settings(PARTICLES), np.random.default_rng(seed))
    draws, true = scored(found.state.x[:, 0], prepared)[None], scored(truth, prepared)[None]
    return {
        "rank": (all_ranks(draws, true, PERIODS)[0] + 0.5) / (PARTICLES + 1),
        "crps": crps_columns(draws, true, PERIODS)[0], "width": draws[0].std(axis=0),
    }  # fmt: skip


def measure(held: Held, refiner: Refiner, sample: int, by_smc: bool) -> list[dict[str, Any]]:
    """Measure the sources of a band."""
    band, truths = held.read(sample)
    prepared = refiner.prepared(band)
    slots, space, likelihood = prepared.slots, prepared.space, prepared.likelihood
    places = np.array([place_of(slot, space) for slot in slots])
    rows, columns = matched(places, truths[:, BIN])
    if not rows:
        return []
    clean = divided(prepared, noise_of(held, sample, band.data.astype(np.complex128)))
    root = np.sqrt(likelihood.level)[:, None]
    left = likelihood.data - likelihood.model(space.to_sources(truths[columns])).sum(axis=0)
    out = []
    for row, column in zip(rows, columns, strict=True):
        slope, truth = slopes(prepared, truths[column]), truths[column]
        one = {
            "left": score(slope, left / root), "noise": score(slope, clean),
            "share": prepared.noise.share, "level": float(likelihood.level.mean()),
            "snr": float(likelihood.snr(space.to_sources(truth[None]))[0]),
            "own_snr": float(np.sqrt(2.0 * _power(prepared, truth))),
        }  # fmt: skip
        if by_smc:
            slot = slots[row]
            reference = FlowReference(held.model.network, slot.context, slot.reference, space)
            others = truths[[c for c in columns if c != column]]
            try:
                one |= alone(prepared, reference, slot, truth, others, [sample, row])
            except ValueError:  # no draw of the network lies in the prior
                continue
        out.append(one)
    return out


def _power(prepared: Prepared, x: Float) -> float:
    signal = prepared.likelihood.model(prepared.space.to_sources(x[None]))[0]
    return float((np.abs(signal) ** 2 / prepared.likelihood.level[:, None]).sum())


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of one kind of noise."""
    out: dict[str, Any] = {
        "sources": len(rows), "share": float(np.mean([row["share"] for row in rows])),
        "own_snr_over_snr": float(np.mean([row["own_snr"] / row["snr"] for row in rows])),
    }  # fmt: skip
    for kind in ("left", "noise"):
        value = np.array([row[kind] for row in rows])
        out[kind] = {
            "chi2_over_7": float(value.mean() / 7), "median": float(np.median(value) / 6.346),
            **{f"beyond_{p}": float(np.mean(value > chi2.ppf(p / 100, 7))) for p in (50, 90, 99)},
        }  # fmt: skip
    some = [row for row in rows if "rank" in row]
    if some:
        u = np.array([row["rank"] for row in some])
        counts = np.stack([np.histogram(u[:, j], 10, (0, 1))[0] for j in range(8)])
        expected = len(u) / 10

        def named(values: Float) -> dict[str, float]:
            return dict(zip(NAMES, values.round(5).tolist(), strict=True))

        out |= {
            "coverage90": named((np.abs(u - 0.5) <= 0.45).mean(axis=0)),
            "coverage50": named((np.abs(u - 0.5) <= 0.25).mean(axis=0)),
            "sbc_chi2": named(((counts - expected) ** 2 / expected).sum(axis=1)),
            "crps": named(np.mean([row["crps"] for row in some], axis=0)),
            "width": named(np.mean([row["width"] for row in some], axis=0)),
        }
        for level in ("coverage50", "coverage90"):
            out[f"mean_{level}"] = float(np.mean(list(out[level].values())))
    return out


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--bands", default=150, help="Bands to read.")
@click.option("--every", default=10, help="Stride in the set: neighbours share a foreground.")
@click.option("--alone", "by_smc", is_flag=True, help="Also the posteriors.")
@click.option("--quick", is_flag=True, help="Ten bands.")
def main(directory: Path, bands: int, every: int, by_smc: bool, quick: bool) -> None:
    """Measure and print; the last line is JSON."""
    torch.set_num_threads(1)
    model = load_model(Path(str(resources.files("slotflow.data") / "model.safetensors")))
    held, rows = Held(model, directory), {kind: [] for kind in KINDS}  # type: ignore[var-annotated]
    refiners = {
        kind: Refiner(
            model,
            held.reader.search.banks,
            RefineSettings(noise=kind),
            PARTICLES,
        )
        for kind in KINDS
    }
    last = min(every * (10 if quick else bands), len(held.data))
    for sample in range(0, last, every):
        for kind, refiner in refiners.items():
            rows[kind] += measure(held, refiner, sample, by_smc)
    click.echo(json.dumps({kind: summary(some) for kind, some in rows.items()}))


if __name__ == "__main__":
    main()
