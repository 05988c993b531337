"""Whitened bands in other channels and generations, against the definitions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotflow.channels import from_standard, is_standard, to_standard, xyz_to_aet
from slotflow.config import ObservationSettings, Preset, PriorSettings
from slotflow.manifest import MANIFEST
from slotflow.noise import model_psd, window_power
from slotflow.response import tdi2_factor
from slotflow.simulate.dataset import simulate_dataset
from slotflow.store import TrainingSet

CASES = [(c, g) for c in ("AET", "XYZ") for g in ("1.5", "2.0")]


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(CASES), st.integers(20_000, 200_000), st.integers(0, 99))
def test_there_and_back(case: tuple[str, str], first: int, seed: int) -> None:
    observation = ObservationSettings(channels=case[0], tdi_generation=case[1])
    rng = np.random.default_rng(seed)
    band = rng.standard_normal((3, 64)) + 1j * rng.standard_normal((3, 64))
    seen = to_standard(from_standard(band, first, observation), first, observation)
    np.testing.assert_allclose(seen, band, atol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_the_definition(case: tuple[str, str]) -> None:
    """Un-whitened A, E, T of TDI 1.5, taken to the case's channels and whitened there."""
    observation = ObservationSettings(channels=case[0], tdi_generation=case[1])
    first, rng = 47_000, np.random.default_rng(1)
    f = (first + np.arange(100)) / observation.duration
    scale = 0.5 * observation.duration * window_power(observation.tukey)
    band = rng.standard_normal((3, 100)) + 1j * rng.standard_normal((3, 100))
    plain = band * np.sqrt(model_psd(f, ObservationSettings()).total * scale)
    if case[1] == "2.0":
        plain = plain * tdi2_factor(f, observation.arm_length)
    density = model_psd(f, observation).total
    if case[0] == "XYZ":
        a, e, t = plain
        x = -a / np.sqrt(2) + e / np.sqrt(6) + t / np.sqrt(3)
        y = -2 * e / np.sqrt(6) + t / np.sqrt(3)
        z = a / np.sqrt(2) + e / np.sqrt(6) + t / np.sqrt(3)
        plain = np.stack([x, y, z])
        np.testing.assert_allclose(xyz_to_aet(plain), [a, e, t], rtol=1e-12)
        density = np.broadcast_to((2 * density[0] + density[2]) / 3, (3, 100))
    expected = plain / np.sqrt(density * scale)
    np.testing.assert_allclose(from_standard(band, first, observation), expected, rtol=1e-9)
    assert is_standard(observation) == (case == ("AET", "1.5"))


def test_sets_of_every_kind_are_the_same_bands(tmp_path) -> None:
    """One seed in four kinds: mapped to the standard, the sources are the same."""
    prior = PriorSettings()
    sets = {}
    for channels, generation in CASES:
        observation = ObservationSettings(channels=channels, tdi_generation=generation)
        folder = tmp_path / f"{channels}{generation}"
        simulate_dataset(Preset(observation=observation, prior=prior), folder, 3, 8, shard_size=3)
        assert (folder / MANIFEST).exists()
        sets[channels, generation] = TrainingSet(folder)
    standard = sets["AET", "1.5"]
    for case, data in sets.items():
        np.testing.assert_array_equal(data.arrays().first_bin, standard.arrays().first_bin)
        np.testing.assert_allclose(
            data.arrays().sources, standard.arrays().sources, rtol=1e-9, equal_nan=True
        )
        seen, expected = data.standard_bands(0, 3), standard.standard_bands(0, 3)
        if case[1] == "1.5":  # noise too: drawn in A, E, T
            np.testing.assert_allclose(seen[:, :2], expected[:, :2], atol=2e-5)
            # T is what X, Y and Z nearly cancel to, in single precision
            np.testing.assert_allclose(seen[:, 2], expected[:, 2], atol=1e-3)
        noise = np.abs(seen - expected).max()
        assert noise < 8.0  # of TDI 2 the noise is another realisation: its phases turned
        assert data.band(0).shape == (3, 256)
