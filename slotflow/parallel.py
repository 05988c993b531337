"""Several processes that train one network: Lightning Fabric, behind a few operations.

One process on one device needs nothing of it, and Fabric is not even imported. Gradients are
averaged by one reduction of all of them, rather than by DDP's hooks: a batch in which a part of
the network has no share cannot hang the others.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.multiprocessing.spawn import ProcessException, ProcessExitedException

from slotflow.errors import InputError, NonFiniteError, SlotflowError, StoppedError
from slotflow.stopping import stop_requests

Precision = Literal["32-true", "bf16-mixed"]


class Parallel:
    """This process among those that train together; alone where ``fabric`` is None.

    Attributes:
        rank: of this process.
        world: number of processes.
        device: that this one computes on.
    """

    def __init__(self, fabric: Any | None = None) -> None:
        self._fabric = fabric
        self.rank = 0 if fabric is None else int(fabric.global_rank)
        self.world = 1 if fabric is None else int(fabric.world_size)
        self.device = torch.device("cpu") if fabric is None else torch.device(fabric.device)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context in which the network computes, of the chosen precision."""
        if self._fabric is None:
            return nullcontext()
        context: AbstractContextManager[Any] = self._fabric.autocast()
        return context

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean of a tensor over the processes."""
        if self.world == 1:
            return values
        assert self._fabric is not None
        reduced = self._fabric.all_reduce(values.to(self.device), reduce_op="mean")
        return torch.as_tensor(reduced).to(values.device)

    def average_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Replace gradients by their mean over the processes; missing ones count as 0."""
        if self.world == 1:
            return
        chosen = [p for p in parameters if p.requires_grad]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in chosen]
        flat = self.mean(torch.cat([g.flatten() for g in grads]))
        for p, part in zip(chosen, torch.split(flat, [p.numel() for p in chosen]), strict=True):
            p.grad = part.view_as(p)

    def first(self, value: float) -> float:
        """Return what the first process has."""
        if self.world == 1:
            return value
        own = torch.tensor([value if self.rank == 0 else 0.0], dtype=torch.float64)
        return float(self.mean(own)) * self.world


@dataclass(frozen=True)
class Launch:
    """How many processes, on what.

    Attributes:
        gpus: on each node; 0 for the CPU.
        processes: on the CPU, on each node.
        nodes: machines.
        precision: of the network's products; the spline is always in float32 at least.
    """

    gpus: int = 0
    processes: int = 1
    nodes: int = 1
    precision: Precision = "32-true"

    @property
    def alone(self) -> bool:
        """Whether this process does it all, in plain PyTorch."""
        return self.gpus == 0 and self.processes * self.nodes == 1 and self.precision == "32-true"

    def check(self) -> None:
        """Raise InputError for what this machine does not have."""
        if self.gpus and self.processes > 1:
            raise InputError("--processes: with GPUs there is one for each GPU")
        if self.gpus and (present := torch.cuda.device_count()) < self.gpus:
            raise InputError(f"--gpus {self.gpus}: GPUs that PyTorch sees: {present}")
        if not self.gpus and self.processes > (cores := os.cpu_count() or 1):
            raise InputError(f"--processes {self.processes}: cores of this machine: {cores}")


def launch(settings: Launch, work: Callable[..., None], *arguments: Any) -> None:
    """Call ``work(parallel, *arguments)`` in every process, and wait for them.

    On one machine processes are spawned, so ``work`` and its arguments are pickled. Under SLURM
    or torchrun this process is one of those that stand, and on several nodes Fabric starts
    this very command again on each device.

    Raises:
        InputError: what is not there, fewer processes than asked for, or a process that ended.
        NonFiniteError, StoppedError: from ``work``.
    """
    settings.check()
    if settings.alone:
        work(Parallel(), *arguments)
        return
    from lightning_fabric import Fabric

    several = (settings.gpus or settings.processes) * settings.nodes > 1
    started = settings.nodes > 1 or managed()
    fabric = Fabric(
        accelerator="cuda" if settings.gpus else "cpu",
        devices=settings.gpus or settings.processes,
        num_nodes=settings.nodes,
        strategy="auto" if not several else "ddp" if started else "ddp_spawn",
        precision=settings.precision,
    )
    # Fabric would look into arguments of its own for tensors to move, and refuses records
    entry = partial(_entry, settings, work, arguments)
    try:
        with stop_requests(forward=several and not started) as asked:
            problem = fabric.launch(entry)
    except ProcessException as error:
        if asked and isinstance(error, ProcessExitedException):
            # the signal came while a process started, which did not yet take note of it
            raise StoppedError(
                f"stopped by {asked.name} while the processes started: the same command goes on"
                " from what is saved"
            ) from error
        raise _own_error(str(error)) from error
    if problem is not None:
        raise problem


def _own_error(text: str) -> SlotflowError:
    """Return what ended a process, from the text of its traceback."""
    last = text.strip().splitlines()[-1]
    name, _, message = last.partition(": ")
    if name.startswith("slotflow.errors."):
        return InputError(message)
    return InputError(f"a training process ended: {last}")


def managed() -> bool:
    """Whether somebody else starts the processes: a SLURM step of several tasks, or torchrun."""
    return int(os.environ.get("SLURM_NTASKS", "1")) > 1 or "TORCHELASTIC_RUN_ID" in os.environ


def _entry(
    settings: Launch, work: Callable[..., None], arguments: tuple[Any, ...], fabric: Any
) -> SlotflowError | None:
    """Do the work in one process; return an error in which all of them end together."""
    expected = (settings.gpus or settings.processes) * settings.nodes
    if fabric.world_size != expected:
        raise InputError(
            f"{fabric.world_size} processes stand; {expected} were asked for (nodes x devices): a"
            " SLURM job of fewer tasks?"
        )
    torch.set_num_threads(1)
    problem: SlotflowError | None = None
    try:
        work(Parallel(fabric), *arguments)
    except (NonFiniteError, StoppedError) as error:
        problem = error
    if torch.distributed.is_initialized():  # else its threads may abort a process that ends
        fabric.barrier()
        torch.distributed.destroy_process_group()
    return problem
