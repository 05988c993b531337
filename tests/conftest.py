"""Shared settings and fixtures of the tests."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import pytest
from hypothesis import HealthCheck, settings

from slotflow.config import ObservationSettings
from slotflow.response import ResponseGrid

settings.register_profile(
    "slotflow", deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("slotflow")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Share the whole suite among two processes; tests that are named run in this one.

    Two, as some tests start processes of their own, and each takes up to 2 GB.
    """
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        return min(2, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
    config.option.dist = "no"
    return 0


@pytest.fixture(autouse=True, scope="session")
def _one_torch_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def observation() -> ObservationSettings:
    return ObservationSettings()


@pytest.fixture(scope="session")
def slow_grid(observation: ObservationSettings) -> ResponseGrid:
    """The default observation at the component search's 128 slow samples."""
    from slotflow.simulate.orbits import response_grid

    return response_grid(observation, 128)
