"""``slotflow ablate synthetic``: one network trained on one kind of mixtures."""

import time
from dataclasses import asdict, dataclass, field
from typing import Any, Final

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
from slotflow.ablate.mixtures import NAMES, Kind, Mixtures, make_mixtures
from slotflow.ablate.scores import examples, score

#: Seeds of test mixtures are this far from those of the training mixtures.
TEST_SEED: Final = 10_000


@dataclass(frozen=True)
class Budget:
    """Sizes of a run: the paper's, unless said otherwise."""

    training: int = 5_000
    test: int = 1_000
    epochs: int = 200
    tokens: int = 16
    width: int = 64
    slots: int = 5
    samples: int = 256


@dataclass(frozen=True)
class SyntheticJob:
    """One run; ``make_slots`` and ``coverage`` are what the method is."""

    task: Kind
    method: str
    seed: int
    make_slots: MakeSlots = field(compare=False)
    budget: Budget = Budget()
    coverage: float = 0.0

    @property
    def settings(self) -> dict[str, Any]:
        """What the result depends on besides task, method and seed."""
        return asdict(self.budget) | {"coverage": self.coverage}

    def work(self) -> dict[str, Any]:
        """Make the data, train, test."""
        begin = time.perf_counter()
        budget = self.budget
        training = self._examples(make_mixtures(self.task, budget.training, self.seed))
        shape = Shape(budget.tokens, budget.width, budget.slots, len(NAMES[self.task]))
        network = build(training.features.shape[2], shape, self.make_slots, self.seed)
        fit(network, training, Schedule(budget.epochs), self.seed, self.coverage)
        test = self._examples(make_mixtures(self.task, budget.test, self.seed + TEST_SEED))
        found = decompose(network, test, self.seed)
        figures = score(network, found, test, NAMES[self.task])
        seconds = round(time.perf_counter() - begin, 1)
        return figures | {"seconds": seconds, "examples": examples(found, test.number)}

    def _examples(self, mixtures: Mixtures) -> Examples:
        # bumps have no frequencies: their chunks are taken as they are
        kind = "samples" if self.task == "bumps" else "fft"
        features = chunks(mixtures.signals, self.budget.tokens, kind)  # type: ignore[arg-type]
        return Examples(features, mixtures.parameters, mixtures.number)
