"""The training loop: one process, resumable, stopped by the first number that is not finite."""

import csv
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from slotflow.checkpoint import Model, save_model
from slotflow.config import Preset
from slotflow.errors import InputError, NonFiniteError
from slotflow.losses import Terms
from slotflow.manifest import SAMPLE_GROUP
from slotflow.model import SlotFlow, TokenBatch, distinct_slots
from slotflow.objective import Targets, loss_terms, matched_slots
from slotflow.response import ResponseGrid
from slotflow.tokencache import TokenData

MODEL_FILE: Final = "model.safetensors"
STATE_FILE: Final = "state.pt"
LOG_FILE: Final = "log.csv"
VALIDATIONS: Final = 20  # over a whole run

Progress = Callable[[int, int, dict[str, float]], None]


@dataclass
class Tensors:
    """Token data as tensors, N bands."""

    batch: TokenBatch
    targets: Targets
    count: Tensor
    sample: Tensor

    @classmethod
    def of(cls, data: TokenData) -> "Tensors":
        """Convert arrays without copying where possible."""
        t = torch.from_numpy
        return cls(
            TokenBatch(t(data.features), t(data.band), t(data.reference), t(data.valid)),
            Targets(t(data.sources), t(data.component)),
            t(data.number),
            t(data.sample),
        )

    def rows(self, index: Tensor) -> "Tensors":
        """Return the chosen bands."""
        return Tensors(
            TokenBatch(*(part[index] for part in self.batch)),
            Targets(*(part[index] for part in self.targets)),
            self.count[index],
            self.sample[index],
        )

    def __len__(self) -> int:
        return len(self.count)


def split(data: TokenData, fraction: float) -> tuple[TokenData, TokenData]:
    """Split by groups of samples: training, validation.

    A group's bands share a pool of foreground responses (and a band its noise draws), so whole
    groups are held out, evenly spread.

    Raises:
        InputError: too few samples for a group on each side.
    """
    group = data.sample // SAMPLE_GROUP
    groups = int(group.max()) + 1
    held = max(1, round(fraction * groups))
    if held >= groups:
        raise InputError(
            f"training data: {int(data.sample.max()) + 1} samples are too few to hold out"
            f" {fraction:g} of them in groups of {SAMPLE_GROUP}"
        )
    chosen = np.linspace(0, groups, held, endpoint=False).astype(np.int64)
    validation = np.isin(group, chosen)
    return data.rows(np.flatnonzero(~validation)), data.rows(np.flatnonzero(validation))


def learning_rate(step: int, steps: int, warmup: float) -> float:
    """Return the factor on the learning rate: linear warm-up, then half a cosine to 0."""
    rise = max(1.0, warmup * steps)
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1.0 + math.cos(math.pi * (step - rise) / max(1.0, steps - rise)))


class Trainer:
    """Trains one network in one folder.

    Args:
        preset: model, loss and train sections are used.
        data: searched and labelled bands.
        grid: the observation, stored with the model.
        folder: where checkpoints and logs go; an unfinished run there is taken up.

    Raises:
        InputError: the folder holds a run of other settings or data.
    """

    def __init__(self, preset: Preset, data: TokenData, grid: ResponseGrid, folder: Path) -> None:
        self.preset, self.grid, self.folder = preset, grid, folder
        settings = preset.train
        training, held = split(data, settings.validation_fraction)
        self.training, self.held = Tensors.of(training), Tensors.of(held)
        self.batch = min(settings.batch, len(self.training))
        self.steps = max(1, math.ceil(settings.passes / self.batch))
        torch.manual_seed(settings.seed)  # PyTorch's initialisers take no generator
        self.network = SlotFlow(preset.model, preset.prior.bins)
        self.network.standardise(self.training.batch.features, self.training.batch.valid)
        self.average = SlotFlow(preset.model, preset.prior.bins)
        self.average.load_state_dict(self.network.state_dict())
        self.optimiser = torch.optim.AdamW(
            self.network.parameters(), settings.learning_rate, weight_decay=settings.weight_decay
        )
        self.generator = torch.Generator().manual_seed(settings.seed)
        self.step = 0
        self.order = torch.empty(0, dtype=torch.int64)
        self.seconds = 0.0
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / STATE_FILE).exists():
            self._resume()

    def run(self, progress: Progress | None = None, stop_after: float | None = None) -> Model:
        """Train to the end, or for ``stop_after`` seconds; return the averaged model.

        Raises:
            NonFiniteError: a loss that is not finite, with the step and its samples.
        """
        begin = saved = time.monotonic()
        already = self.seconds
        every = max(1, self.steps // VALIDATIONS)
        while self.step < self.steps:
            terms = self._one_step()
            self.seconds = already + time.monotonic() - begin
            if self.step % every == 0 or self.step == self.steps:
                self._log(terms)
            if progress is not None and (self.step % 20 == 0 or self.step == self.steps):
                progress(self.step, self.steps, {n: float(t) for n, t in terms._asdict().items()})
            if time.monotonic() - saved > self.preset.train.checkpoint_seconds:
                self._save()
                saved = time.monotonic()
            if stop_after is not None and time.monotonic() - begin > stop_after:
                break
        self._save()
        return self.model()

    def model(self) -> Model:
        """Return the averaged network with what is known of its training."""
        self.average.eval()
        card = {
            "training": {
                "steps": self.step,
                "of": self.steps,
                "batch": self.batch,
                "bands": len(self.training),
                "held_out": len(self.held),
                "seconds": round(self.seconds, 1),
                "parameters": self.network.parameter_counts(),
            }
        }
        return Model(self.preset, self.average, self.grid, card)

    def _next_batch(self) -> Tensor:
        """Indices of the next batch: shuffled passes without replacement."""
        if len(self.order) < self.batch:
            more = torch.randperm(len(self.training), generator=self.generator)
            self.order = torch.cat([self.order, more])
        index, self.order = self.order[: self.batch], self.order[self.batch :]
        return index

    def _one_step(self) -> Terms:
        settings = self.preset.train
        self.network.train()
        index = self._next_batch()
        rows = self.training.rows(index)
        factor = learning_rate(self.step, self.steps, settings.warmup)
        for group in self.optimiser.param_groups:
            group["lr"] = settings.learning_rate * factor
        try:
            reading = self.network.read(rows.batch, self.generator)
            terms = loss_terms(self.network, rows.batch, reading, rows.targets)
        except NonFiniteError as error:
            raise NonFiniteError(
                f"step {self.step}: {error}; samples {rows.sample.tolist()}"
            ) from error
        loss = terms.total(self.preset.loss)
        if not bool(torch.isfinite(loss)):
            values = {name: float(value) for name, value in terms._asdict().items()}
            raise NonFiniteError(
                f"step {self.step}: loss is not finite: {values}; samples {rows.sample.tolist()}"
            )
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self.network.parameters(), settings.clip)
        if not bool(torch.isfinite(norm)):
            raise NonFiniteError(
                f"step {self.step}: gradient is not finite; samples {rows.sample.tolist()}"
            )
        self.optimiser.step()
        self.step += 1
        self._update_average(settings.average)
        return Terms(*(term.detach() for term in terms))

    def _update_average(self, decay: float) -> None:
        """Exponential moving average of the weights, quicker at first."""
        decay = min(decay, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            for mean, value in zip(
                self.average.state_dict().values(), self.network.state_dict().values(), strict=True
            ):
                if mean.is_floating_point():
                    mean.lerp_(value, 1.0 - decay)

    def validate(self, limit: int = 2000) -> dict[str, float]:
        """Return loss terms and slot figures on held-out bands."""
        return validation_figures(
            self.average, self.held.rows(torch.arange(len(self.held))[:limit])
        )

    def _log(self, terms: Terms) -> None:
        row: dict[str, float] = {"step": self.step, "seconds": round(self.seconds, 1)}
        row |= {f"train_{name}": round(float(v), 5) for name, v in terms._asdict().items()}
        row |= {f"held_{name}": round(v, 5) for name, v in self.validate().items()}
        path = self.folder / LOG_FILE
        new = not path.exists()
        with path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(row))
            if new:
                writer.writeheader()
            writer.writerow(row)

    def _identity(self) -> dict[str, Any]:
        """What a run may be resumed with."""
        return {
            "preset": self.preset.model_dump(mode="json"),
            "bands": [len(self.training), len(self.held)],
            "checksum": float(self.training.batch.features.double().sum()),
        }

    def _save(self) -> None:
        state = {
            "identity": json.dumps(self._identity(), sort_keys=True),
            "network": self.network.state_dict(),
            "average": self.average.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "generator": self.generator.get_state(),
            "order": self.order,
            "step": self.step,
            "seconds": self.seconds,
        }
        temporary = self.folder / f".{STATE_FILE}.tmp"
        torch.save(state, temporary)
        temporary.replace(self.folder / STATE_FILE)
        save_model(self.folder / MODEL_FILE, self.model())

    def _resume(self) -> None:
        path = self.folder / STATE_FILE
        try:
            state = torch.load(path, weights_only=True)
            self._restore(path, state)
        except (OSError, RuntimeError, KeyError, ValueError, TypeError, UnpicklingError) as error:
            raise InputError(f"{path}: not the state of a run: {error}") from error

    def _restore(self, path: Path, state: dict[str, Any]) -> None:
        if state["identity"] != json.dumps(self._identity(), sort_keys=True):
            raise InputError(
                f"{path}: a run with other settings or data stands here;"
                " give another folder, or --force to replace it"
            )
        self.network.load_state_dict(state["network"])
        self.average.load_state_dict(state["average"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.generator.set_state(state["generator"])
        self.order, self.step, self.seconds = state["order"], state["step"], state["seconds"]
        self._forget_later_rows()

    def _forget_later_rows(self) -> None:
        """Drop from the log what was written after the checkpoint: it will be made again."""
        path = self.folder / LOG_FILE
        if not path.exists():
            return
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            names = reader.fieldnames or ()
            rows = [row for row in reader if int(row["step"]) <= self.step]
        temporary = self.folder / f".{LOG_FILE}.tmp"
        with temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(rows)
        temporary.replace(path)


def validation_figures(network: SlotFlow, rows: Tensors, batch: int = 500) -> dict[str, float]:
    """Return mean loss terms, the share of slots on the right component, and of K exact.

    ``hit``: of the sources with a component, those whose matched slot attends it most.
    ``k_exact``: bands whose number of slots with existence above 1/2 is the number of sources.
    """
    network.eval()
    sums: dict[str, float] = {}
    hits = sources = exact = 0
    with torch.no_grad():
        for start in range(0, len(rows), batch):
            part = rows.rows(torch.arange(start, min(start + batch, len(rows))))
            reading = network.read(part.batch)
            terms = loss_terms(network, part.batch, reading, part.targets)
            for name, value in terms._asdict().items():
                sums[name] = sums.get(name, 0.0) + float(value) * len(part)
            slot = matched_slots(reading, part.targets)
            chosen = torch.gather(reading.choice, 1, slot.clamp(min=0))
            valid = slot >= 0
            hits += int(((chosen == part.targets.component) & valid).sum())
            sources += int(valid.sum())
            found = (reading.existence > 0) & distinct_slots(reading)
            exact += int((found.sum(dim=1) == part.count).sum())
    figures = {name: value / len(rows) for name, value in sums.items()}
    return figures | {"hit": hits / max(sources, 1), "k_exact": exact / len(rows)}
