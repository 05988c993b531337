"""The model that ships: its own figures, and AM CVn in the example year."""

import csv
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from slotflow.checkpoint import Model, load_model
from slotflow.parameters import AMPLITUDE, DEC, F0, IOTA, RA
from slotflow.posterior import posterior
from slotflow.readers import read_observation

DATA = Path(str(resources.files("slotflow.data")))
AM_CVN = (1.940e-3, 1.948e-3)  # Hz: a few bands around it


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(DATA / "model.safetensors")


def truth(name: str) -> np.ndarray:
    """A row of the catalogue in the example, as f0, amplitude, ra, dec, iota."""
    with (DATA / "verification_binaries.csv").open(encoding="utf-8") as file:
        row = next(r for r in csv.DictReader(file) if r["name"] == name)
    angles = np.deg2rad([float(row[key]) for key in ("ra_deg", "dec_deg", "iota_deg")])
    return np.array([float(row["f0_Hz"]), float(row["amplitude"]), *angles])


def test_am_cvn_is_found_with_its_frequency_and_amplitude(model: Model) -> None:
    observation = read_observation(DATA / "example.h5")
    result = posterior(observation, model, fmin=AM_CVN[0], fmax=AM_CVN[1], samples=2000)
    f0, amplitude, *_ = truth("AM CVn")
    duration = model.preset.observation.duration
    source = min(result.sources, key=lambda s: abs(s.f0 - f0))
    assert abs(source.f0 - f0) * duration < 1.0
    assert source.probability > 0.9
    wide = source.interval(0.99)
    assert wide.lower[F0] <= f0 <= wide.upper[F0]
    assert wide.lower[AMPLITUDE] <= amplitude <= wide.upper[AMPLITUDE]
    # the sky and inclination, too, are where they were put
    _, _, ra, dec, iota = truth("AM CVn")
    for index, value in ((RA, ra), (DEC, dec), (IOTA, iota)):
        assert wide.lower[index] <= value <= wide.upper[index]


def test_card_holds_the_promised_figures(model: Model) -> None:
    """Held-out means above SNR 10 (the card's own; benchmarks/train_shipped_model.py makes it)."""
    held_out = model.card["held_out"]
    assert held_out["bands"] >= 2000
    row = held_out["snr_above_10"]
    limits = {"f0": 0.0006, "ln_amplitude": 0.022, "ra": 0.006, "sin_dec": 0.013, "cos_iota": 0.035}
    for name, limit in limits.items():
        assert row["crps"][name] < limit, name
    assert held_out["k_exact_all_above_10"] > 0.9


def test_figures_hold_on_fresh_bands(model: Model, tmp_path: Path) -> None:
    """Scores the model on bands nobody has seen: the card cannot be all there is."""
    from slotflow.evaluation import evaluate, summary
    from slotflow.simulate.dataset import simulate_dataset
    from slotflow.store import TrainingSet
    from slotflow.tokencache import ensure_searched, load_tokens

    simulate_dataset(model.preset, tmp_path, 192, 987, shard_size=192)
    data = TrainingSet(tmp_path)
    ensure_searched(data, model.grid, model.preset.components, 1)
    tokens = load_tokens(data, model.preset.components, 1)
    row = summary(evaluate(model.network, tokens, data.observation.duration, draws=200))
    loud = row["snr_above_10"]
    assert loud["missed"] < 0.03
    assert loud["crps"]["ln_amplitude"] < 0.025
    assert loud["crps"]["ra"] < 0.015
    assert loud["crps"]["sin_dec"] < 0.025
    assert row["k_exact_all_above_10"] > 0.8
    for value in loud["coverage90"].values():
        assert 0.8 < value < 0.98
