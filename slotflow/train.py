"""The training loop: one process, resumable, stopped by the first number that is not finite.

Bands are read as they are needed: in memory are a batch, and the order of a pass (one index
a band).
"""

import csv
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Final

import numpy as np
import torch

from slotflow.atomic import written
from slotflow.batches import Tensors, split, token_moments
from slotflow.checkpoint import Model, save_model
from slotflow.config import Preset
from slotflow.errors import InputError, NonFiniteError
from slotflow.losses import Terms
from slotflow.model import SlotFlow, distinct_slots
from slotflow.objective import loss_terms, matched_slots
from slotflow.response import ResponseGrid
from slotflow.tokendata import Int, TokenData, TokenSource, TokenSubset, as_source

MODEL_FILE: Final = "model.safetensors"
STATE_FILE: Final = "state.pt"
LOG_FILE: Final = "log.csv"
VALIDATIONS: Final = 20  # over a whole run

Progress = Callable[[int, int, dict[str, float]], None]


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
        data: searched and labelled bands, in memory or read as they are needed.
        grid: the observation, stored with the model.
        folder: where checkpoints and logs go; an unfinished run there is taken up.

    Raises:
        InputError: the folder holds a run of other settings or data, or a file is damaged.
    """

    def __init__(
        self,
        preset: Preset,
        data: TokenSource | TokenData,
        grid: ResponseGrid,
        folder: Path,
    ) -> None:
        self.preset, self.grid, self.folder = preset, grid, folder
        settings = preset.train
        source = as_source(data)
        self.fingerprint = source.fingerprint()
        self.training, self.held = split(source, settings.validation_fraction)
        self.batch = min(settings.batch, len(self.training))
        self.steps = max(1, math.ceil(settings.passes / self.batch))
        torch.manual_seed(settings.seed)  # PyTorch's initialisers take no generator
        self.network = SlotFlow(preset.model, preset.prior.bins)
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
        else:
            self._standardise()

    def _standardise(self) -> None:
        """Set the features' offset and scale, in both networks."""
        moments = token_moments(self.training)
        if moments is None:
            return
        for network in (self.network, self.average):
            network.feature_mean.copy_(moments[0])
            network.feature_scale.copy_(moments[1].clamp(min=1e-3))

    def run(self, progress: Progress | None = None, stop_after: float | None = None) -> Model:
        """Train to the end, or for ``stop_after`` seconds; return the averaged model.

        Raises:
            NonFiniteError: a loss that is not finite, with the step and its samples.
            InputError: a file of tokens that is damaged, or one of the run that cannot be
                written; the last checkpoint stays.
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

    def _next_batch(self) -> Int:
        """Indices of the next batch: shuffled passes without replacement."""
        if len(self.order) < self.batch:
            more = torch.randperm(len(self.training), generator=self.generator)
            self.order = torch.cat([self.order, more])
        index, self.order = self.order[: self.batch], self.order[self.batch :]
        return index.numpy()

    def _one_step(self) -> Terms:
        settings = self.preset.train
        self.network.train()
        rows = Tensors.of(self.training.rows(self._next_batch()))
        factor = learning_rate(self.step, self.steps, settings.warmup)
        for group in self.optimiser.param_groups:
            group["lr"] = settings.learning_rate * factor
        try:
            reading = self.network.read(rows.batch, self.generator)
            terms = loss_terms(
                self.network, rows.batch, reading, rows.targets, self.preset.loss, settings.matching
            )
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
        held = TokenSubset(self.held, np.arange(min(limit, len(self.held))))
        return validation_figures(self.average, held)

    def _log(self, terms: Terms) -> None:
        row: dict[str, float] = {"step": self.step, "seconds": round(self.seconds, 1)}
        row |= {f"train_{name}": round(float(v), 5) for name, v in terms._asdict().items()}
        row |= {f"held_{name}": round(v, 5) for name, v in self.validate().items()}
        path = self.folder / LOG_FILE
        new = not path.exists()
        try:
            with path.open("a", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, list(row))
                if new:
                    writer.writeheader()
                writer.writerow(row)
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror}") from error

    def _identity(self) -> dict[str, Any]:
        """What a run may be resumed with."""
        return {
            "preset": self.preset.model_dump(mode="json"),
            "bands": [len(self.training), len(self.held)],
            "fingerprint": self.fingerprint,
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
        path = self.folder / STATE_FILE
        with written(path) as temporary:
            try:
                torch.save(state, temporary)
            except RuntimeError as error:  # what PyTorch makes of a full disk
                raise InputError(f"{path}: cannot be written: {error}") from error
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
            whole = (row for row in reader if None not in row.values())  # not cut off
            rows = [row for row in whole if int(row["step"]) <= self.step]
        with written(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(rows)


def validation_figures(network: SlotFlow, data: TokenSource, batch: int = 500) -> dict[str, float]:
    """Return mean loss terms, the share of slots on the right component, and of K exact.

    ``hit``: of the sources with a component, those whose matched slot attends it most.
    ``k_exact``: bands whose number of slots with existence above 1/2 is the number of sources.
    """
    network.eval()
    sums: dict[str, float] = {}
    hits = sources = exact = 0
    with torch.no_grad():
        for start in range(0, len(data), batch):
            part = Tensors.of(data.rows(np.arange(start, min(start + batch, len(data)))))
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
    figures = {name: value / len(data) for name, value in sums.items()}
    return figures | {"hit": hits / max(sources, 1), "k_exact": exact / len(data)}
