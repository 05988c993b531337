"""A small band for the tests of the exact likelihood."""

from functools import lru_cache

import numpy as np

from slotflow.config import ObservationSettings, PriorSettings
from slotflow.likelihood import BandLikelihood, training_sigma
from slotflow.simulate.orbits import response_grid

OBSERVATION = ObservationSettings()
PRIOR = PriorSettings()
LEVEL = np.array([0.9, 1.3])


@lru_cache(maxsize=4)
def band(first_bin: int = 47_000, samples: int = 512) -> BandLikelihood:
    """White noise of level LEVEL, whitened by a density that varies over the band."""
    rng = np.random.default_rng(first_bin)
    noise = rng.standard_normal((2, PRIOR.bins, 2)).view(np.complex128)[..., 0]
    sigma = training_sigma(OBSERVATION, first_bin, PRIOR.bins, PRIOR)
    sigma = sigma * (1.0 + 0.2 * np.sin(np.arange(PRIOR.bins) / 30.0))
    return BandLikelihood(
        noise * np.sqrt(0.5 * LEVEL)[:, None], first_bin, LEVEL, sigma,
        response_grid(OBSERVATION, samples), OBSERVATION, PRIOR,
    )  # fmt: skip
