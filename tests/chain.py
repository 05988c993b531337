"""For the tests of the whole chain: the example that ships, and an untrained model."""

from functools import lru_cache
from importlib import resources
from pathlib import Path

import torch

from slotflow.checkpoint import Model
from slotflow.config import load_preset
from slotflow.model import SlotFlow
from slotflow.readers import Observation, read_observation
from slotflow.simulate.orbits import response_grid


def example_path() -> Path:
    """The observation that ships."""
    return Path(str(resources.files("slotflow.data") / "example.h5"))


@lru_cache(maxsize=1)
def example_observation() -> Observation:
    return read_observation(example_path())


@lru_cache(maxsize=1)
def untrained_model() -> Model:
    """A network with random weights that believes every slot: samples around components."""
    preset = load_preset("tiny")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = SlotFlow(preset.model, preset.prior.bins).eval()
    with torch.no_grad():
        network.exists[-1].bias.fill_(20.0)  # type: ignore[union-attr, operator]
    return Model(preset, network, response_grid(preset.observation, preset.components.slow_samples))
