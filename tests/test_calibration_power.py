"""The closed-form experiment of benchmarks/calibration_power.py, in small."""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy import stats


@pytest.fixture(scope="module")
def power() -> ModuleType:
    path = Path(__file__).parents[1] / "benchmarks" / "calibration_power.py"
    spec = importlib.util.spec_from_file_location("calibration_power", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("fault", ["narrow", "shifted"])
def test_faults_are_caught_by_every_test_that_is_sensitive(power: ModuleType, fault: str) -> None:
    """In all of 10 seeds, at 1,000 simulations."""
    found = power.rates(fault, 10, 1000, 59)
    assert power.failures(fault, found) == []
    # what the tests of width are not made for
    if fault == "shifted":
        assert found["coverage a"] < 0.95


def test_the_exact_posterior_passes(power: ModuleType) -> None:
    """False alarms of 20 seeds: none above what 5% gives once in 1,000 such tests."""
    found = power.rates("none", 20, 200, 39)
    limit = stats.binom.isf(1e-3 / len(found), 20, 0.05) / 20
    assert max(found.values()) <= limit
    assert 0.01 < np.mean(list(found.values())) < 0.1


def test_the_posterior_is_the_exact_one(power: ModuleType) -> None:
    """Its mean is that of least squares with the prior as data; ln q is its density."""
    sample = power.simulate("none", 40, 4000, np.random.default_rng(1))
    design = np.concatenate((power._MATRIX / power._NOISE, np.eye(3)))
    data = np.concatenate((sample.seen[:, :3] / power._NOISE, np.zeros((40, 3))), axis=1)
    fit = np.linalg.lstsq(design, data.T)[0].T
    draws = sample.draws[..., :3]
    assert np.abs(draws.mean(axis=1) - fit).max() < 5.0 * draws.std() / np.sqrt(4000)
    covariance = np.linalg.inv(design.T @ design)
    spread = np.mean([np.cov(one.T) for one in draws], axis=0)
    np.testing.assert_allclose(spread, covariance, atol=0.01)
    normal = stats.multivariate_normal(fit[0], covariance).logpdf(draws[0])
    place = np.arctan2(sample.seen[0, 4], sample.seen[0, 3]) / (2.0 * np.pi)
    offset = sample.draws[0, :, 3] - place
    exact = normal - 0.5 * ((offset - np.rint(offset)) / power.ANGLE_NOISE) ** 2
    difference = sample.draw_log_q[0] - exact
    assert np.ptp(difference) < 1e-3
