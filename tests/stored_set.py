"""A small training set of loud sources, written shard by shard without any simulation."""

import json
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from slotflow import manifest, store
from slotflow.config import Preset
from slotflow.noise import standard_psd, window_power
from slotflow.response import response
from tests.chain import untrained_model

SEED, ROWS = 11, (3, 2)
BANDS = sum(ROWS)
COUNTS = (1, 2, 0, 1, 1)
FIRST = 60_928


def targets(preset: Preset) -> list[np.ndarray]:
    """Sources of each band, far from each other."""
    rng, duration = np.random.default_rng(3), preset.observation.duration
    bands = []
    for count in COUNTS:
        rows = np.empty((count, 8))
        rows[:, 0] = (FIRST + np.array([110.3, 150.8])[:count]) / duration
        rows[:, 1] = 0.1 / duration**2
        rows[:, 2] = 8e-22
        rows[:, 3] = rng.uniform(0, 2 * np.pi, count)
        rows[:, 4] = rng.uniform(-1.2, 1.2, count)
        rows[:, 5:] = rng.uniform([0, 0.5, 0], [1.5, 1.2, 6.2], (count, 3))
        bands.append(rows)
    return bands


def write_stored_set(directory: Path, preset: Preset | None = None) -> list[np.ndarray]:
    """Write it, all bands from one bin; return the true sources of each band."""
    model = untrained_model()
    preset = model.preset if preset is None else preset
    prior, grid, duration = preset.prior, model.grid, model.preset.observation.duration
    bins = prior.bins
    density = standard_psd((FIRST + np.arange(bins)) / duration, model.preset.observation)
    scale = np.sqrt(density * 0.5 * duration * window_power(model.preset.observation.tukey))
    truth, bands = targets(model.preset), []
    for number, sources in enumerate(truth):
        strain = np.zeros((3, bins), dtype=complex)
        for h, start in zip(*response(sources, grid), strict=True):
            low = int(start) - FIRST
            strain[:2, low : low + grid.n] += h[:2]
        padded = np.full((prior.max_sources, 8), np.nan)
        padded[: len(sources)] = sources
        snr = np.full(prior.max_sources, np.nan)
        snr[: len(sources)] = 50.0 + number
        made = (strain / scale).astype(np.complex64)
        outside = np.full((prior.max_outside, 8), np.nan)
        nothing = np.zeros_like(made)
        bands.append(
            store.Band(FIRST, made, nothing, padded, snr, len(sources), outside, 0, 1.0, 0, 0)
        )
    directory.mkdir(parents=True)
    entries, start = [], 0
    for number, rows in enumerate(ROWS):
        path = directory / manifest.shard_name(number)
        attributes = {"seed": SEED, "start": start}
        entries.append(store.write_shard(path, bands[start : start + rows], attributes))
        start += rows
    settings = preset.model_dump(mode="json", include={"observation", "prior", "population"})
    listed = manifest.Manifest(
        manifest.SCHEMA_VERSION, BANDS, SEED, ROWS[0], settings, tuple(entries)
    )
    manifest.write_manifest(directory, listed)
    return truth


@lru_cache(maxsize=1)
def manifest_content() -> dict[str, Any]:
    """What its manifest holds."""
    with tempfile.TemporaryDirectory() as folder:
        write_stored_set(Path(folder) / "set")
        return dict(json.loads((Path(folder) / "set" / manifest.MANIFEST).read_text("utf-8")))
