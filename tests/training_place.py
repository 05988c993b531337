"""A training set and settings with which ``slotflow train`` takes a second, without simulation."""

from pathlib import Path

import numpy as np

from slotflow import manifest, store
from slotflow.config import Preset, load_preset
from tests.stored_set import FIRST

BANDS, SHARD = 128, 64
STEPS = 6
SETTINGS = f"""
prior: {{max_sources: 2}}
components: {{sky_points: 48, slow_samples: 64, taps: 9, max_components: 4}}
model: {{width: 16, heads: 2, layers: 1, slots: 2, context: 16, flow_layers: 2, flow_bins: 4,
        flow_hidden: 16, psi_bins: 4, psi_hidden: 16}}
train: {{samples: {BANDS}, noise_draws: 1, batch: 32, passes: {32 * STEPS},
        validation_fraction: 0.5, validations: 3, checkpoint_seconds: 1.0e-6}}
"""


def prepare(place: Path) -> None:
    """Write ``settings.yaml`` and ``data``, whose bands hold a loud line each."""
    settings, data = place / "settings.yaml", place / "data"
    settings.write_text(SETTINGS)
    preset, rng = load_preset(str(settings)), np.random.default_rng(8)
    data.mkdir()
    entries = []
    for number in range(BANDS // SHARD):
        bands = [_band(rng, preset) for _ in range(SHARD)]
        attributes = {"seed": 1, "start": number * SHARD}
        entries.append(store.write_shard(data / manifest.shard_name(number), bands, attributes))
    stored = preset.model_dump(mode="json", include={"observation", "prior", "population"})
    listed = manifest.Manifest(manifest.SCHEMA_VERSION, BANDS, 1, SHARD, stored, tuple(entries))
    manifest.write_manifest(data, listed)


def _band(rng: np.random.Generator, preset: Preset) -> store.Band:
    prior, place = preset.prior, int(rng.integers(100, 156))
    signal = np.zeros((3, prior.bins), dtype=np.complex64)
    signal[:2, place] = 20.0 * np.exp(2j * np.pi * rng.random(2))
    sources = np.full((prior.max_sources, 8), np.nan)
    duration = preset.observation.duration
    sources[0] = [(FIRST + place) / duration, 0.1 / duration**2, 8e-22, 1.0, 0.2, 0.3, 1.0, 2.0]
    snr = np.full(prior.max_sources, np.nan)
    snr[0] = 40.0
    outside = np.full((prior.max_outside, 8), np.nan)
    return store.Band(FIRST, signal, np.zeros_like(signal), sources, snr, 1, outside, 0, 1.0, 0, 0)
