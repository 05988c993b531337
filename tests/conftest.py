"""Shared settings and fixtures of the tests."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from slotflow.config import ObservationSettings
from slotflow.response import ResponseGrid

settings.register_profile(
    "slotflow", deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("slotflow")


@pytest.fixture(autouse=True, scope="session")
def _one_torch_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def observation() -> ObservationSettings:
    return ObservationSettings()


@pytest.fixture(scope="session")
def slow_grid(observation: ObservationSettings) -> ResponseGrid:
    """The default observation at the component search's 64 slow samples."""
    from slotflow.simulate.orbits import response_grid

    return response_grid(observation, 64)


def random_sources(
    rng: np.random.Generator, number: int, fmin: float, fmax: float, duration: float
) -> np.ndarray:
    """Sources all over the sky in the order of PARAMETERS, amplitude 1e-22."""
    return np.stack(
        [
            rng.uniform(fmin, fmax, number),
            rng.uniform(-0.1, 0.3, number) / duration**2,
            np.full(number, 1e-22),
            rng.uniform(0, 2 * np.pi, number),
            np.arcsin(rng.uniform(-1, 1, number)),
            rng.uniform(0, np.pi / 2, number),
            np.arccos(rng.uniform(-1, 1, number)),
            rng.uniform(0, 2 * np.pi, number),
        ],
        axis=-1,
    )
