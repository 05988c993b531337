"""The training loop: resumable, on one or several processes, stopped by what is not finite.

Bands are read as they are needed: in memory are a batch, and the order of a pass (one index
a band). With several processes each takes its share of every batch; all step alike, and the
first one validates, logs and saves.
"""

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from slotflow.batches import Tensors, split, token_moments
from slotflow.checkpoint import Model, save_model
from slotflow.circuits import QueryKeyRate
from slotflow.config import Preset
from slotflow.errors import InputError, NonFiniteError, StoppedError
from slotflow.losses import Parts, Terms
from slotflow.model import SlotFlow, distinct_slots
from slotflow.objective import loss_parts, loss_terms, matched_slots
from slotflow.parallel import Parallel
from slotflow.response import ResponseGrid
from slotflow.runlog import LOG_FILE, RunLog
from slotflow.runstate import BEFORE_FILE, STATE_FILE, load_state, save_state
from slotflow.schedule import Plateau, learning_rate, rate_factor
from slotflow.stopping import StopRequest, stop_requests
from slotflow.tokendata import Int, TokenData, TokenSource, TokenSubset, as_source

__all__ = [
    "BEFORE_FILE", "BEST_FILE", "LOG_FILE", "MODEL_FILE", "STATE_FILE", "Trainer",
    "learning_rate", "split", "validation_figures",
]  # fmt: skip

MODEL_FILE: Final = "model.safetensors"
BEST_FILE: Final = "best.safetensors"

Progress = Callable[[int, int, dict[str, float]], None]


class Trainer:
    """Trains one network in one folder.

    Args:
        preset: model, loss and train sections are used.
        data: searched and labelled bands, in memory or read as they are needed.
        grid: the observation, stored with the model.
        folder: where checkpoints and logs go; an unfinished run there is taken up.
        parallel: this process among those that train together.
        tensorboard: also log for TensorBoard.

    Raises:
        InputError: the folder holds a run of other settings or data, or a file is damaged.
    """

    def __init__(
        self,
        preset: Preset,
        data: TokenSource | TokenData,
        grid: ResponseGrid,
        folder: Path,
        parallel: Parallel | None = None,
        tensorboard: bool = False,
    ) -> None:
        self.preset, self.grid, self.folder = preset, grid, folder
        self.parallel = Parallel() if parallel is None else parallel
        settings = preset.train
        source = as_source(data)
        self.fingerprint = source.fingerprint()
        self.training, self.held = split(source, settings.validation_fraction)
        self.batch = min(settings.batch, len(self.training))
        if self.batch < self.parallel.world:
            raise InputError(f"batch: {self.batch} bands for {self.parallel.world} processes")
        self.steps = max(1, math.ceil(settings.passes / (self.batch * settings.accumulate)))
        self.network, self.average = self._networks()
        kind = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}[settings.optimiser]
        self.rates = QueryKeyRate(self.network, settings.qk_learning_rate_ratio)
        self.optimiser = kind(
            self.rates.groups(), settings.learning_rate,
            weight_decay=settings.weight_decay, fused=True,
        )  # fmt: skip
        self.plateau = Plateau(settings.patience, settings.factor)
        self.generator = torch.Generator().manual_seed(settings.seed)  # of the batches' order
        self.step = 0
        self.order = torch.empty(0, dtype=torch.int64)
        self.seconds, self.best, self.note = 0.0, math.inf, ""
        folder.mkdir(parents=True, exist_ok=True)
        self.log = RunLog(folder, tensorboard and self.parallel.rank == 0)
        if not self._resume():
            self._standardise()

    def _networks(self) -> tuple[SlotFlow, SlotFlow]:
        """Return the network and the average of its weights, alike and on the device."""
        with torch.random.fork_rng(devices=[]):  # PyTorch's initialisers take no generator
            torch.manual_seed(self.preset.train.seed)
            network = SlotFlow(self.preset.model, self.preset.prior.bins)
            average = SlotFlow(self.preset.model, self.preset.prior.bins)
        average.load_state_dict(network.state_dict())
        return network.to(self.parallel.device), average.to(self.parallel.device)

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
            StoppedError: SIGTERM or SIGUSR1 came; the state is saved.
            InputError: a file of tokens that is damaged, or one of the run that cannot be
                written; the last checkpoint stays.
        """
        begin = saved = time.monotonic()
        already = self.seconds
        every = max(1, self.steps // self.preset.train.validations)
        with stop_requests() as asked:
            while self.step < self.steps:
                terms, stop = self._one_step(asked)
                self.seconds = already + time.monotonic() - begin
                if self.step % every == 0 or self.step == self.steps:
                    self._validate_and_log(terms)
                if progress is not None and (self.step % 20 == 0 or self.step == self.steps):
                    values = {n: float(t) for n, t in terms._asdict().items()}
                    progress(self.step, self.steps, values)
                if stop:
                    self._save()
                    raise StoppedError(
                        f"{self.folder}: stopped by {asked.name or 'a signal'} at step {self.step}"
                        f" of {self.steps}: the same command goes on from there"
                    )
                if time.monotonic() - saved > self.preset.train.checkpoint_seconds:
                    self._save()
                    saved = time.monotonic()
                if stop_after is not None and time.monotonic() - begin > stop_after:
                    break
        self._save()
        return self.model()

    def model(self) -> Model:
        """Return the averaged network, on the CPU, with what is known of its training."""
        average = self.average
        if self.parallel.device.type != "cpu":
            average = SlotFlow(self.preset.model, self.preset.prior.bins)
            average.load_state_dict(self.average.state_dict())
        average.eval()
        card = {
            "training": {
                "steps": self.step,
                "of": self.steps,
                "batch": self.batch * self.preset.train.accumulate,
                "processes": self.parallel.world,
                "bands": len(self.training),
                "held_out": len(self.held),
                "seconds": round(self.seconds, 1),
                "parameters": self.network.parameter_counts(),
            }
        }
        return Model(self.preset, average, self.grid, card)

    def _next_batch(self) -> Int:
        """Indices of the next batch: shuffled passes without replacement."""
        if len(self.order) < self.batch:
            more = torch.randperm(len(self.training), generator=self.generator)
            self.order = torch.cat([self.order, more])
        index, self.order = self.order[: self.batch], self.order[self.batch :]
        return np.asarray(index.numpy(), dtype=np.int64)

    def _load(self, source: TokenSource, index: Int) -> Tensors:
        """Read bands, onto the device."""
        bands = source.bands(index) if self.network.needs_data else None
        return Tensors.of(source.rows(index), bands).to(self.parallel.device)

    def _own_generator(self) -> torch.Generator:
        """Return this process's randomness of this step; nothing of it needs to be saved."""
        entropy = [self.preset.train.seed, self.step, self.parallel.rank]
        state = np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0]
        return torch.Generator(self.parallel.device).manual_seed(int(state >> 1))

    def _one_step(self, asked: StopRequest) -> tuple[Terms, bool]:
        """Train on one batch (or several, accumulated); return its terms, and whether to stop."""
        settings = self.preset.train
        self.network.train()
        factor = rate_factor(settings, self.step, self.steps, self.plateau)
        self.rates.set_rates(self.optimiser, settings.learning_rate * factor)
        self.optimiser.zero_grad(set_to_none=True)
        generator, stop = self._own_generator(), False
        with torch.random.fork_rng(devices=[]):  # for the layers of dropout, which take none
            torch.manual_seed(generator.initial_seed())
            for _ in range(settings.accumulate):
                index = self._next_batch()[self.parallel.rank :: self.parallel.world]
                terms, stop = self._accumulate(self._load(self.training, index), generator, asked)
        self.parallel.average_gradients(self.network.parameters())
        norm = torch.nn.utils.clip_grad_norm_(self.network.parameters(), settings.clip)
        if not bool(torch.isfinite(norm)):
            where = f"samples {self.training.sample[index].tolist()}"
            raise NonFiniteError(f"step {self.step}: gradient is not finite; {where}")
        self.rates.step(self.optimiser)
        self.step += 1
        self._update_average(settings.average)
        return terms, stop

    def _accumulate(
        self, rows: Tensors, generator: torch.Generator, asked: StopRequest
    ) -> tuple[Terms, bool]:
        """Add the gradient of one batch; divided by what all processes have of it."""
        settings, problem = self.preset.train, ""
        parts: Parts | None = None
        try:
            with self.parallel.autocast():
                reading = self.network.read(rows.batch, generator)
                parts = loss_parts(
                    self.network, rows.batch, reading, rows.targets, self.preset.loss,
                    settings.matching,
                )  # fmt: skip
            own = parts.terms()
            if not bool(torch.isfinite(own.total(self.preset.loss))):
                values = {name: float(value) for name, value in own._asdict().items()}
                problem = f"loss is not finite: {values}"
        except NonFiniteError as error:
            problem = str(error)
        # One reduction says what the others have, and whether one of them must stop: none may
        # leave while others wait for it
        numbers = parts.numbers() if parts is not None else torch.zeros(len(Terms._fields)).double()
        flags = torch.tensor([float(bool(problem)), float(bool(asked))], dtype=torch.float64)
        shared = self.parallel.mean(torch.cat([numbers, flags]))
        if shared[-2] > 0.0 or parts is None:
            problem = problem or "in another process a loss is not finite"
            raise NonFiniteError(f"step {self.step}: {problem}; samples {rows.sample.tolist()}")
        terms = parts.terms(shared[:-2])
        loss = terms.total(self.preset.loss) / settings.accumulate
        loss.backward()  # type: ignore[no-untyped-call]
        return Terms(*(term.detach() for term in terms)), bool(shared[-1] > 0.0)

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

    def _validate_and_log(self, terms: Terms) -> None:
        """Validate in the first process; the rate and the best model follow from it."""
        loss = 0.0
        if self.parallel.rank == 0:
            held = self.validate()
            loss = held["nll"] + held["psi"]
            row: dict[str, float] = {"step": self.step, "seconds": round(self.seconds, 1)}
            row["rate"] = float(self.optimiser.param_groups[0]["lr"])
            row |= {f"train_{name}": round(float(v), 5) for name, v in terms._asdict().items()}
            row |= {f"held_{name}": round(v, 5) for name, v in held.items()}
            self.log.add(row)
        loss = self.parallel.first(loss)
        self.plateau.see(loss)
        if loss < self.best:
            self.best = loss
            if self.parallel.rank == 0:
                save_model(self.folder / BEST_FILE, self.model())

    def _identity(self) -> str:
        """What a run may be resumed with."""
        content = {
            "preset": self.preset.model_dump(mode="json"),
            "bands": [len(self.training), len(self.held)],
            "fingerprint": self.fingerprint,
        }
        return json.dumps(content, sort_keys=True)

    def _save(self) -> None:
        if self.parallel.rank != 0:
            return
        state = {
            "identity": self._identity(),
            "network": self.network.state_dict(),
            "average": self.average.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "generator": self.generator.get_state(),
            "order": self.order,
            "step": self.step,
            "seconds": self.seconds,
            "best": self.best,
            "plateau": self.plateau.state(),
        }
        save_state(self.folder, state)
        save_model(self.folder / MODEL_FILE, self.model())

    def _resume(self) -> bool:
        """Take up the run of the folder; False where there is none."""
        state, self.note = load_state(self.folder, self._identity())
        if state is None:
            return False
        try:
            self._restore(state)
        except (RuntimeError, KeyError, ValueError, TypeError) as error:
            raise InputError(
                f"{self.folder / STATE_FILE}: not the state of a run: {error}"
            ) from error
        if self.parallel.rank == 0:
            self.log.forget_after(self.step)
        return True

    def _restore(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self.average.load_state_dict(state["average"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.generator.set_state(state["generator"])
        self.order, self.step, self.seconds = state["order"], state["step"], state["seconds"]
        self.best = float(state["best"])
        self.plateau.restore(state["plateau"])


def validation_figures(network: SlotFlow, data: TokenSource, batch: int = 500) -> dict[str, float]:
    """Return mean loss terms, the share of slots on the right component, and of K exact.

    ``hit``: of the sources with a component, those whose matched slot attends it most.
    ``k_exact``: bands whose number of slots with existence above 1/2 is the number of sources.
    """
    network.eval()
    device = network.feature_mean.device
    sums: dict[str, float] = {}
    hits = sources = exact = 0
    with torch.no_grad():
        for start in range(0, len(data), batch):
            index = np.arange(start, min(start + batch, len(data)))
            bands = data.bands(index) if network.needs_data else None
            part = Tensors.of(data.rows(index), bands).to(device)
            reading = network.read(part.batch)
            terms = loss_terms(network, part.batch, reading, part.targets)
            for name, value in terms._asdict().items():
                sums[name] = sums.get(name, 0.0) + float(value) * len(part)
            slot = matched_slots(reading, part.targets)
            chosen = torch.gather(reading.choice, 1, slot.clamp(min=0))
            hits += _count((chosen == part.targets.component) & (slot >= 0))
            sources += _count(slot >= 0)
            found = (reading.existence > 0) & distinct_slots(reading)
            exact += _count(found.sum(dim=1) == part.count)
    figures = {name: value / len(data) for name, value in sums.items()}
    return figures | {"hit": hits / max(sources, 1), "k_exact": exact / len(data)}


def _count(which: Tensor) -> int:
    return int(which.sum())
