"""``slotflow ablate lisa``: this model with each kind of slots, all else equal.

Two settings. *Exchangeable*: slots start from one Gaussian, and nothing says where to look: there
is no attention loss, and slots and sources are matched by the flow's own density. *Guided*: each
slot has a learned start, the attention loss asks the matched slot for its source's component, and
the match is by attention, as in the model that ships. In both with and without the losses of
diversity and orthogonality. Same bands, batches, passes and seeds; the encoder, the flow and the
other losses stay. (Matched by an attention that no loss holds to the components, exchangeable
slots drift away from them, and most runs end nowhere: tried.)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from slotflow.config import Preset
from slotflow.evaluation import evaluate, summary
from slotflow.response import ResponseGrid
from slotflow.store import TrainingSet
from slotflow.tokencache import open_tokens
from slotflow.train import Trainer

#: What each kind of slots is in the model's settings. ``stopped``: the quadratic form, with no
#: gradient through the evidence.
KINDS: Final[dict[str, dict[str, Any]]] = {
    "vanilla": {"slot_attention": "vanilla", "evidence_gradient": True},
    "sequential": {"slot_attention": "sequential", "evidence_gradient": True},
    "linear": {"slot_attention": "evidence-depletion", "depletion": "linear",
               "evidence_gradient": True},
    "quadratic": {"slot_attention": "evidence-depletion", "depletion": "quadratic",
                  "evidence_gradient": True},
    "stopped": {"slot_attention": "evidence-depletion", "depletion": "quadratic",
                "evidence_gradient": False},
}  # fmt: skip
SETTINGS: Final = ("exchangeable", "guided")
DRAWS: Final = 200  # of a source's posterior, for the CRPS


@dataclass(frozen=True)
class LisaJob:
    """One run.

    Attributes:
        kind: of the slots, a key of :data:`KINDS`.
        setting: ``"exchangeable"`` or ``"guided"``.
        diverse: with the losses of diversity and orthogonality.
        seed: of the first weights and of the batches.
        preset: all else.
        directory: the training set, searched.
        folder: of the run; one that was broken off goes on.
        grid: the observation's response.
        fingerprint: of the training set, part of what the result depends on.
    """

    kind: str
    setting: str
    diverse: bool
    seed: int
    preset: Preset
    directory: Path
    folder: Path
    grid: ResponseGrid
    fingerprint: str

    @property
    def task(self) -> str:
        """Always the same."""
        return "lisa"

    @property
    def method(self) -> str:
        """Kind, setting and losses in one name."""
        return f"{self.kind} {self.setting}{'' if self.diverse else ' without-diversity'}"

    @property
    def settings(self) -> dict[str, Any]:
        """The preset of the run, and the set it is trained on."""
        return {"preset": self.run_preset().model_dump(mode="json"), "data": self.fingerprint}

    def run_preset(self) -> Preset:
        """Return the preset with this run's slots, losses and seed."""
        guided = self.setting == "guided"
        model = self.preset.model.model_copy(update=KINDS[self.kind] | {"learned_starts": guided})
        loss = self.preset.loss
        if not guided:
            loss = loss.model_copy(update={"attention": 0.0})
        if not self.diverse:
            loss = loss.model_copy(update={"diversity": 0.0, "orthogonality": 0.0})
        matching = "attention" if guided else "flow"
        train = self.preset.train.model_copy(update={"seed": self.seed, "matching": matching})
        return self.preset.model_copy(update={"model": model, "loss": loss, "train": train})

    def work(self) -> dict[str, Any]:
        """Train, and score on the held-out bands."""
        return train_and_score(self.run_preset(), self.directory, self.grid, self.folder)[0]


def train_and_score(
    preset: Preset, directory: Path, grid: ResponseGrid, folder: Path
) -> tuple[dict[str, Any], Trainer]:
    """Train a network, and score it on the held-out bands.

    Args:
        preset: model, losses and training.
        directory: the training set, searched.
        grid: the observation's response.
        folder: of the run; one that was broken off goes on.

    Returns:
        The figures, and the trainer with its networks and held-out bands.
    """
    data = TrainingSet(directory)
    tokens = open_tokens(data, preset.components, preset.train.noise_draws)
    trainer = Trainer(preset, tokens, grid, folder, tensorboard=False)
    trained = trainer.run()
    hits = trainer.validate()
    scores = summary(
        evaluate(trained.network, trainer.held, data.observation.duration, draws=DRAWS)
    )
    loud, everything = scores["snr_above_10"], scores["all"]
    assert isinstance(loud, dict)
    assert isinstance(everything, dict)
    return {
        "peak_overlap": scores["peak_overlap"],
        "chance": scores["peak_overlap_chance"],
        "cosine_overlap": scores["cosine_overlap"],
        "hit": round(hits["hit"], 5),
        "nll": everything["nll"],
        "nll_snr10": loud["nll"],
        "missed_snr10": loud["missed"],
        "crps": everything["crps"],
        "crps_snr10": loud["crps"],
        "k_exact": scores["k_exact"],
        "k_exact_all_above_10": scores["k_exact_all_above_10"],
        "passes": preset.train.passes,
        "bands": scores["bands"],
        "seconds": round(trainer.seconds, 1),
    }, trainer


def lisa_jobs(
    preset: Preset, directory: Path, folder: Path, grid: ResponseGrid, seeds: int,
    kinds: tuple[str, ...] = tuple(KINDS), chosen: tuple[str, ...] = SETTINGS,
    diversity: tuple[bool, ...] = (True, False),
) -> Iterator[LisaJob]:  # fmt: skip
    """Yield the runs of a comparison, one seed after the other; the set must be searched."""
    tokens = open_tokens(TrainingSet(directory), preset.components, preset.train.noise_draws)
    fingerprint = tokens.fingerprint()
    for seed in range(1, seeds + 1):
        for setting in chosen:
            for diverse in diversity:
                for kind in kinds:
                    name = f"{kind}-{setting}{'' if diverse else '-without-diversity'}-seed{seed}"
                    yield LisaJob(
                        kind, setting, diverse, seed, preset, directory,
                        folder / "training" / name, grid, fingerprint,
                    )  # fmt: skip
