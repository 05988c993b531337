"""``slotflow ablate audio``: one network trained on mixtures of recorded sounds."""

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from slotflow.ablate.audio import AudioMixtures, mix_recordings, read_fuss
from slotflow.ablate.decomposition import (
    Examples,
    MakeSlots,
    Schedule,
    Shape,
    build,
    chunks,
    decompose,
    fit,
)
from slotflow.ablate.scores import examples, score

NAMES: Final = ("frequency", "amplitude", "centroid")
#: Seed of the test mixtures of recordings; the training mixtures have TRAINING_SEED.
TRAINING_SEED: Final = 1
TEST_SEED: Final = 10_001


@dataclass(frozen=True)
class AudioBudget:
    """Sizes of a run. ``training`` and ``test`` are at most what FUSS has.

    4 s at 16 kHz in 32 tokens of width 128 are the paper's; the number of epochs is its of the
    synthetic data.
    """

    training: int = 20_000
    test: int = 1_000
    epochs: int = 200
    batch: int = 128
    tokens: int = 32
    width: int = 128
    slots: int = 5
    samples: int = 64_000


@dataclass(frozen=True)
class AudioJob:
    """One run.

    Attributes:
        method: name of the slots.
        seed: of the network and its batches; the mixtures are the same for all.
        make_slots: makes the slots.
        data: FUSS' folder ``ssdata``, or one of recordings.
        recordings: what ``data`` is.
        budget: sizes.
        coverage: weight of the coverage penalty.
    """

    method: str
    seed: int
    make_slots: MakeSlots = field(compare=False)
    data: Path
    recordings: bool
    budget: AudioBudget = AudioBudget()
    coverage: float = 0.0

    @property
    def task(self) -> str:
        """What the mixtures are made of."""
        return "recordings" if self.recordings else "fuss"

    @property
    def settings(self) -> dict[str, Any]:
        """What the result depends on besides task, method and seed."""
        data = str(self.data.resolve())
        return asdict(self.budget) | {"data": data, "coverage": self.coverage}

    def work(self) -> dict[str, Any]:
        """Read or make the mixtures, train, test."""
        begin = time.perf_counter()
        budget = self.budget
        training, test = self._examples(True), self._examples(False)
        shape = Shape(budget.tokens, budget.width, budget.slots, len(NAMES))
        network = build(training.features.shape[2], shape, self.make_slots, self.seed)
        schedule = Schedule(budget.epochs, min(budget.batch, len(training.number)))
        fit(network, training, schedule, self.seed, self.coverage)
        found = decompose(network, test, self.seed)
        figures = score(network, found, test, NAMES)
        return figures | {
            "training": len(training.number),
            "test": len(test.number),
            "seconds": round(time.perf_counter() - begin, 1),
            "examples": examples(found, test.number),
        }

    def _examples(self, training: bool) -> Examples:
        mixtures = self._mixtures(training)
        features = chunks(torch.from_numpy(mixtures.mixtures), self.budget.tokens, "fft")
        return Examples(
            features, torch.from_numpy(mixtures.parameters), torch.from_numpy(mixtures.number)
        )

    def _mixtures(self, training: bool) -> AudioMixtures:
        budget = self.budget
        number = budget.training if training else budget.test
        most = budget.slots - 1
        if self.recordings:
            seed = TRAINING_SEED if training else TEST_SEED
            return mix_recordings(self.data, number, seed=seed, most=most, samples=budget.samples)
        split = "train" if training else "eval"
        return read_fuss(self.data, split, most=most, samples=budget.samples, limit=number)
