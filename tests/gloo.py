"""Work for processes that train together, as they must find it: in a module."""

import json
from pathlib import Path

import torch

from slotflow.config import Preset
from slotflow.parallel import Parallel
from slotflow.response import ResponseGrid
from slotflow.stopping import StopRequest
from slotflow.tokendata import TokenData
from slotflow.train import Trainer


def train(
    parallel: Parallel, preset: Preset, data: TokenData, grid: ResponseGrid, folder: Path
) -> None:
    """Train to the end."""
    Trainer(preset, data, grid, folder, parallel).run()


def one_gradient(
    parallel: Parallel, preset: Preset, data: TokenData, grid: ResponseGrid, folder: Path
) -> None:
    """Write the gradient of the first batch, without order, dropout or clipping."""
    trainer = Trainer(preset, data, grid, folder, parallel)
    trainer.network.double()
    trainer.network.eval()
    index = trainer._next_batch()[parallel.rank :: parallel.world]
    rows = trainer._load(trainer.training, index)
    batch = rows.batch._replace(
        features=rows.batch.features.double(), band=rows.batch.band.double()
    )
    rows.batch = batch
    trainer._accumulate(rows, trainer._own_generator(), StopRequest())
    parallel.average_gradients(trainer.network.parameters())
    grads = {
        name: torch.zeros_like(p) if p.grad is None else p.grad
        for name, p in trainer.network.named_parameters()
    }
    torch.save(grads, folder / f"gradient-{parallel.rank}-of-{parallel.world}.pt")
    draw = torch.rand(4, generator=trainer._own_generator())
    text = json.dumps({"index": index.tolist(), "draw": draw.tolist()})
    (folder / f"own-{parallel.rank}-of-{parallel.world}.json").write_text(text)


def gradient_and_run(
    parallel: Parallel, preset: Preset, data: TokenData, grid: ResponseGrid, folder: Path
) -> None:
    """Both, in processes that are started once."""
    one_gradient(parallel, preset, data, grid, folder)
    train(parallel, preset, data, grid, folder / "run")
