"""``slotflow ablate mixers``: this model with each token mixer, all else equal.

Same bands, batches, passes and seeds, and the same number of parameters in the encoder: the
two-layer network after each mixer is as wide as what the mixer leaves allows. Variants of softmax
have another ratio of the learning rates of queries and keys, in slots and layers, or collapsed
circuits, which keep the network as it is: with more parameters they start as the same function.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from slotflow.ablate.lisa import train_and_score
from slotflow.batches import Tensors
from slotflow.config import ModelSettings, Preset, parse_preset
from slotflow.encoder import Encoder
from slotflow.model import SlotFlow
from slotflow.response import ResponseGrid
from slotflow.store import TrainingSet
from slotflow.tokencache import open_tokens
from slotflow.tokendata import TokenSource

#: What differs from the preset, in ``model`` and ``train``.
METHODS: Final[dict[str, dict[str, dict[str, Any]]]] = {
    "softmax": {},
    "quaternion": {"model": {"mixer": "quaternion"}},
    "hamilton": {"model": {"mixer": "quaternion", "quaternion_scores": "hamilton"}},
    "conformer": {"model": {"mixer": "quaternion", "mixer_spectrum": True}},
    "kuramoto": {"model": {"mixer": "kuramoto"}},
    "kuramoto-causal": {"model": {"mixer": "kuramoto", "kuramoto_causal": True}},
    "dice": {"model": {"mixer": "dice"}},
    "dice-linear": {"model": {"mixer": "dice", "dice_scores": "linear"}},
    "dice-binary": {"model": {"mixer": "dice", "dice_binary": True}},
    "dice-streams": {"model": {"mixer": "dice", "mixer_spectrum": True}},
    "collapsed": {"model": {"parameterisation": "collapsed"}},
    "qk-0.25": {"train": {"qk_learning_rate_ratio": 0.25}},
    "qk-4": {"train": {"qk_learning_rate_ratio": 4.0}},
    "qk-16": {"train": {"qk_learning_rate_ratio": 16.0}},
}


def parameters(settings: ModelSettings) -> int:
    """Return the number of parameters of the encoder."""
    with torch.random.fork_rng(devices=[]):
        return sum(p.numel() for p in Encoder(settings).parameters())


def balanced(settings: ModelSettings, budget: int) -> ModelSettings:
    """Return the settings with the ``mlp_width`` that comes nearest to a number of parameters."""
    if settings.layers == 0:
        return settings
    least = parameters(settings.model_copy(update={"mlp_width": 1}))
    each = settings.layers * (2 * settings.width + 1)
    width = max(1, 1 + round((budget - least) / each))
    usual = width == 2 * settings.width
    return settings.model_copy(update={"mlp_width": None if usual else width})


def preset_of(preset: Preset, method: str, seed: int) -> Preset:
    """Return the preset with a method's changes, its parameters those of softmax.

    Raises:
        InputError: the method and the preset do not go together, naming the setting.
    """
    changes = METHODS[method]
    content = preset.model_dump(mode="json")
    for section, values in changes.items():
        content[section] |= values
    content["train"]["seed"] = seed
    changed = parse_preset(content, f"method {method}")
    if changed.model.parameterisation != preset.model.parameterisation:
        return changed
    model = balanced(changed.model, parameters(preset.model))
    return changed.model_copy(update={"model": model})


@dataclass(frozen=True)
class MixerJob:
    """One run.

    Attributes:
        method: a key of :data:`METHODS`.
        seed: of the first weights and of the batches.
        preset: all else.
        directory: the training set, searched.
        folder: of the run; one that was broken off goes on.
        grid: the observation's response.
        fingerprint: of the training set, part of what the result depends on.
    """

    method: str
    seed: int
    preset: Preset
    directory: Path
    folder: Path
    grid: ResponseGrid
    fingerprint: str

    @property
    def task(self) -> str:
        """Always the same."""
        return "mixers"

    @property
    def settings(self) -> dict[str, Any]:
        """The preset of the run, and the set it is trained on."""
        return {"preset": self.run_preset().model_dump(mode="json"), "data": self.fingerprint}

    def run_preset(self) -> Preset:
        """Return the preset of this run."""
        return preset_of(self.preset, self.method, self.seed)

    def work(self) -> dict[str, Any]:
        """Train, and score on the held-out bands."""
        found, trainer = train_and_score(self.run_preset(), self.directory, self.grid, self.folder)
        counts = trainer.network.parameter_counts()
        sizes = {"parameters": sum(counts.values()), "encoder_parameters": counts["encoder"]}
        return found | sizes | sharpness(trainer.average, trainer.held)


def sharpness(network: SlotFlow, data: TokenSource, limit: int = 1000) -> dict[str, float | None]:
    """Return how sharply the slots that hold a source look; None where there are none.

    ``largest_attention``: mean of a slot's largest weight. ``attention_entropy``: mean entropy of
    its weights, over that of even ones. Of bands of two components or more.
    """
    network.eval()
    index = np.arange(min(limit, len(data)))
    bands = data.bands(index) if network.needs_data else None
    batch = Tensors.of(data.rows(index), bands).batch
    with torch.no_grad():
        reading = network.read(batch)
    count = batch.valid.sum(dim=1)
    chosen = (reading.existence > 0.0) & (count > 1)[:, None]
    weights = reading.attention.double()
    entropy = -(weights * torch.log(weights.clamp(min=1e-12))).sum(dim=-1)
    even = torch.log(count.double().clamp(min=2.0))[:, None]
    if not bool(chosen.any()):
        return {"largest_attention": None, "attention_entropy": None}
    return {
        "largest_attention": round(float(weights.amax(dim=-1)[chosen].mean()), 5),
        "attention_entropy": round(float((entropy / even)[chosen].mean()), 5),
    }


def mixer_jobs(
    preset: Preset, directory: Path, folder: Path, grid: ResponseGrid, seeds: int,
    methods: tuple[str, ...] = tuple(METHODS),
) -> Iterator[MixerJob]:  # fmt: skip
    """Yield the runs of a comparison, one seed after the other; the set must be searched."""
    tokens = open_tokens(TrainingSet(directory), preset.components, preset.train.noise_draws)
    fingerprint = tokens.fingerprint()
    for seed in range(1, seeds + 1):
        for method in methods:
            place = folder / "training" / f"{method}-seed{seed}"
            yield MixerJob(method, seed, preset, directory, place, grid, fingerprint)
