"""Tempered SMC on a linear-Gaussian model, whose posterior and evidence have closed forms."""

from functools import lru_cache

import numpy as np
import pytest
from scipy.stats import kstest

from slotflow.smc import SmcRun, SmcSettings, run
from slotflow.smc_moves import FunctionProblem, Points
from slotflow.smc_pool import pool

Float = np.typing.NDArray[np.float64]

DIMENSIONS = 3
DESIGN = np.random.default_rng(10).normal(size=(12, DIMENSIONS))
DATA = DESIGN @ np.array([0.7, -0.4, 1.1]) + np.random.default_rng(11).normal(size=12)
# prior N(0, 2^2), noise N(0, 1)
PRECISION = DESIGN.T @ DESIGN + np.eye(DIMENSIONS) / 4.0
COVARIANCE = np.linalg.inv(PRECISION)
MEAN = COVARIANCE @ DESIGN.T @ DATA
MARGINAL = np.eye(12) + 4.0 * DESIGN @ DESIGN.T
LN_Z = -0.5 * (
    DATA @ np.linalg.solve(MARGINAL, DATA)
    + np.linalg.slogdet(MARGINAL)[1]
    + 12 * np.log(2.0 * np.pi)
)


def _log_target(x: Float) -> Float:
    prior = -0.5 * (x**2).sum(axis=1) / 4.0 - DIMENSIONS * np.log(2.0 * np.sqrt(2.0 * np.pi))
    residual = DATA - x @ DESIGN.T
    return np.asarray(prior - 0.5 * (residual**2).sum(axis=1) - 6.0 * np.log(2.0 * np.pi))


def _problem(centre: Float | float = 0.0, sigma: float = 2.0) -> FunctionProblem:
    def draw(n: int, rng: np.random.Generator) -> Float:
        return centre + sigma * rng.standard_normal((n, DIMENSIONS))

    def log_q(x: Float) -> Float:
        z = (x - centre) / sigma
        norm = DIMENSIONS * np.log(sigma * np.sqrt(2.0 * np.pi))
        return np.asarray(-0.5 * (z**2).sum(axis=1) - norm)

    return FunctionProblem(draw, log_q, _log_target)


@lru_cache(maxsize=1)
def _runs() -> list[SmcRun[Points]]:
    settings = SmcSettings(particles=200, first=200)
    return [run(_problem(), settings, np.random.default_rng(seed)) for seed in range(100)]


def test_the_evidence_is_within_its_error() -> None:
    scores = np.array([(one.ln_z - LN_Z) / one.ln_z_error for one in _runs()])
    # Z has no bias, so ln Z lies low by half its variance: far below the error here
    assert abs(scores.mean()) < 0.45
    assert 0.6 < scores.std() < 1.6


def test_means_and_covariance() -> None:
    clouds = np.stack([one.state.x for one in _runs()])
    sigma = np.sqrt(np.diag(COVARIANCE))
    error = (clouds.mean(axis=1) - MEAN) / sigma * np.sqrt(200)
    assert np.abs(error.mean(axis=0)).max() < 3.5 * error.std() / 10.0
    assert error.std() < 1.6  # 1 for independent draws
    found = np.mean([np.cov(cloud.T) for cloud in clouds], axis=0)
    scale = np.sqrt(np.outer(np.diag(COVARIANCE), np.diag(COVARIANCE)))
    assert np.abs((found - COVARIANCE) / scale).max() < 0.05


def test_a_draw_of_the_posterior_ranks_uniformly_among_the_particles() -> None:
    rng = np.random.default_rng(99)
    truth = rng.multivariate_normal(MEAN, COVARIANCE, size=100)
    clouds = np.stack([one.state.x for one in _runs()])
    ranks = (clouds < truth[:, None]).mean(axis=1)
    for column in ranks.T:
        assert kstest(column, "uniform").pvalue > 1e-3


def test_a_reference_that_is_wrong_by_three_sigma_is_corrected() -> None:
    sigma = float(np.sqrt(np.diag(COVARIANCE)).mean())
    problem = _problem(MEAN + 3.0 * np.sqrt(np.diag(COVARIANCE)), sigma)
    settings = SmcSettings(particles=500, first=500)
    runs = [run(problem, settings, np.random.default_rng(seed)) for seed in range(4)]
    assert max(one.first_ess for one in runs) < 0.05
    assert min(len(one.temperatures) for one in runs) > 2
    cloud = np.concatenate([one.state.x for one in runs])
    error = (cloud.mean(axis=0) - MEAN) / np.sqrt(np.diag(COVARIANCE))
    assert np.abs(error).max() < 0.15
    pooled = pool(runs)
    assert pooled.ln_z == pytest.approx(LN_Z, abs=4.0 * pooled.ln_z_error)
    assert pooled.ln_z_error < 0.3


def test_a_good_reference_takes_one_step() -> None:
    root = np.linalg.cholesky(1.3 * COVARIANCE)

    def draw(n: int, rng: np.random.Generator) -> Float:
        return np.asarray(MEAN + rng.standard_normal((n, DIMENSIONS)) @ root.T)

    def log_q(x: Float) -> Float:
        z = np.linalg.solve(root, (x - MEAN).T)
        ln_norm = np.log(np.diag(root)).sum() + 0.5 * DIMENSIONS * np.log(2.0 * np.pi)
        return np.asarray(-0.5 * (z**2).sum(axis=0) - ln_norm)

    problem = FunctionProblem(draw, log_q, _log_target)
    found = run(problem, SmcSettings(500, 500), np.random.default_rng(2))
    assert found.temperatures == (1.0,)
    assert found.ln_z == pytest.approx(LN_Z, abs=4.0 * found.ln_z_error)


def test_two_far_modes_keep_their_weights() -> None:
    # 0.8 N(-6, 1) + 0.2 N(6, 1) in the first of two dimensions, integral 5
    def log_target(x: Float) -> Float:
        parts = np.stack([
            np.log(0.8) - 0.5 * (x[:, 0] + 6.0) ** 2, np.log(0.2) - 0.5 * (x[:, 0] - 6.0) ** 2
        ])  # fmt: skip
        ln = np.logaddexp(*parts) - 0.5 * x[:, 1] ** 2
        return np.asarray(ln - np.log(2.0 * np.pi) + np.log(5.0))

    def log_q(x: Float) -> Float:
        return np.asarray(-0.5 * (x**2).sum(axis=1) / 64.0 - np.log(2.0 * np.pi * 64.0))

    def draw(n: int, rng: np.random.Generator) -> Float:
        return 8.0 * rng.standard_normal((n, 2))

    settings = SmcSettings(particles=600, first=600)
    runs = [
        run(FunctionProblem(draw, log_q, log_target), settings, np.random.default_rng(seed))
        for seed in range(6)
    ]
    share = np.mean([np.mean(one.state.x[:, 0] > 0.0) for one in runs])
    assert share == pytest.approx(0.2, abs=0.03)
    pooled = pool(runs)
    assert pooled.ln_z == pytest.approx(np.log(5.0), abs=4.0 * pooled.ln_z_error)


def test_runs_depend_on_the_seed_alone() -> None:
    settings = SmcSettings(particles=100, first=150)
    one, same, other = (
        run(_problem(), settings, np.random.default_rng(seed)) for seed in (7, 7, 8)
    )
    assert np.array_equal(one.state.x, same.state.x)
    assert one.ln_z == same.ln_z
    assert not np.array_equal(one.state.x, other.state.x)


def test_a_target_out_of_reach_is_an_error() -> None:
    problem = FunctionProblem(
        lambda n, rng: rng.standard_normal((n, 1)),
        lambda x: -0.5 * x[:, 0] ** 2,
        lambda x: np.full(len(x), -np.inf),
    )
    with pytest.raises(ValueError, match="no draw"):
        run(problem, SmcSettings(50, 50), np.random.default_rng(0))


def test_pooled_runs() -> None:
    pooled = pool(_runs()[:4])
    each = np.array([one.ln_z for one in _runs()[:4]])
    assert pooled.ln_z == pytest.approx(np.log(np.mean(np.exp(each - LN_Z))) + LN_Z)
    assert pooled.spread == pytest.approx(np.ptp(each))
    assert pooled.disagreement < 0.6
    shifted = [
        _runs()[0],
        SmcRun(**{
            **vars(_runs()[1]),
            "state": Points(_runs()[1].state.x + 5.0, np.zeros(200), np.zeros(200)),
        }),
    ]  # fmt: skip
    assert pool(shifted).disagreement > 5.0
    with pytest.raises(ValueError, match="at least one"):
        pool([])
