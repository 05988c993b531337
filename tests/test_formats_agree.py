"""The same data in every layout, generation and time step: the same sources."""

from importlib import resources
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import pytest
import scipy.fft

from slotflow.checkpoint import Model, load_model
from slotflow.config import ObservationSettings
from slotflow.parameters import AMPLITUDE, DEC, F0, PHI0, PSI, RA
from slotflow.posterior import posterior
from slotflow.readers import read_observation
from slotflow.results import SUMMARY_PERIODS, Result
from slotflow.simulate.observation import simulate_observation
from tests import layouts

LOW, HIGH = 1.9405e-3, 1.9455e-3  # AM CVn is at 1.944 mHz
ARM_SECONDS = 2.5e9 / 299_792_458.0
SPREAD = 2.0 * 1.645  # standard deviations in a central 90% interval


class Series(NamedTuple):
    """X, Y, Z (3, N) and their time step, s."""

    xyz: np.ndarray
    dt: float


@pytest.fixture(scope="module")
def model() -> Model:
    with resources.as_file(resources.files("slotflow.data") / "model.safetensors") as path:
        return load_model(path)


@pytest.fixture(scope="module")
def example() -> Series:
    with (
        resources.as_file(resources.files("slotflow.data") / "example.h5") as path,
        h5py.File(path) as file,
    ):
        rows = file["obs/tdi"][...].ravel()
    return Series(np.stack([rows[name].astype(float) for name in "XYZ"]), 60.0)


def changed(series: Series, times: int, second_generation: bool) -> Series:
    """The same Fourier coefficients at a finer step, and as TDI 2: 1.5 times 1 - exp(-4 i x)."""
    samples = series.xyz.shape[1]
    spectrum = scipy.fft.rfft(series.xyz)
    if second_generation:
        frequency = np.fft.rfftfreq(samples, series.dt)
        spectrum *= 1.0 - np.exp(-4j * 2.0 * np.pi * frequency * ARM_SECONDS)
    fine = scipy.fft.irfft(spectrum, n=samples * times) * times
    return Series(fine, series.dt / times)


def found(path: Path, model: Model) -> Result:
    return posterior(read_observation(path), model, fmin=LOW, fmax=HIGH, samples=400)


@pytest.fixture(scope="module")
def reference(example: Series, model: Model, tmp_path_factory: pytest.TempPathFactory) -> Result:
    path = tmp_path_factory.mktemp("reference") / "sangria.h5"
    result = found(layouts.write_sangria(path, *example), model)
    assert len(result.sources) >= 2
    return result


def assert_same(result: Result, reference: Result) -> None:
    """Medians within a tenth of a standard deviation, of the same sources."""
    assert len(result.sources) == len(reference.sources)
    for one, other in zip(result.sources, reference.sources, strict=True):
        width = other.summary.upper - other.summary.lower
        difference = one.median - other.median
        for index, period in SUMMARY_PERIODS.items():
            width[index] %= period
            difference[index] = (difference[index] + period / 2) % period - period / 2
        assert (np.abs(difference) < 0.1 * width / SPREAD).all(), difference / width
        assert one.probability == pytest.approx(other.probability, abs=0.01)


def test_radler(example: Series, model: Model, reference: Result, tmp_path: Path) -> None:
    assert_same(found(layouts.write_radler(tmp_path / "a.h5", *example), model), reference)


def test_mojito_of_another_step(
    example: Series, model: Model, reference: Result, tmp_path: Path
) -> None:
    xyz, dt = changed(example, 4, second_generation=True)
    assert dt == 15.0
    path = layouts.write_mojito(tmp_path / "a.h5", layouts.xyz2(xyz), dt)
    assert_same(found(path, model), reference)


def test_spritz_of_the_second_generation(
    example: Series, model: Model, reference: Result, tmp_path: Path
) -> None:
    series = changed(example, 1, second_generation=True)
    observation = read_observation(layouts.write_spritz(tmp_path / "a.h5", *series))
    assert observation.generation == "2.0"  # told by its noise
    assert_same(found(observation.path, model), reference)


def test_sangria_at_five_seconds(
    example: Series, model: Model, reference: Result, tmp_path: Path
) -> None:
    xyz, dt = changed(example, 12, second_generation=False)
    assert dt == 5.0
    # nothing is above the 8 mHz of the coarser series, so the noise does not tell
    path = layouts.write_sangria(tmp_path / "a.h5", xyz, dt, tdi_generation="1.5")
    result = found(path, model)
    assert_same(result, reference)


def test_the_sky_of_another_starting_phase(model: Model, tmp_path: Path) -> None:
    phase = 0.8
    settings = ObservationSettings(orbit_lambda1=phase)
    source = np.array([[1.5003e-3, 2e-17, 1.2e-22, 1.0, 0.4, 0.5, 0.7, 2.0]])
    path = tmp_path / "a.h5"
    simulate_observation(path, settings, 3, source)
    result = posterior(
        read_observation(path), model, fmin=1.4995e-3, fmax=1.501e-3, psd="data", samples=1000
    )
    near = [s for s in result.sources if abs(s.f0 - source[0, 0]) < 2.0 / 3.15e7]
    assert len(near) == 1
    assert near[0].snr > 20.0
    inside = near[0].interval(0.998)
    for index in (F0, AMPLITUDE, RA, DEC, PSI, PHI0):
        period = SUMMARY_PERIODS.get(index)
        low, high, true = inside.lower[index], inside.upper[index], source[0, index]
        if period is not None:
            low, high, true = (np.mod(v - inside.median[index] + period / 2, period)
                               for v in (low, high, true))  # fmt: skip
        assert low <= true <= high, index
    # with the model's own phase the sky would be 46 degrees off
    assert abs(result.rotation) == pytest.approx(phase)
