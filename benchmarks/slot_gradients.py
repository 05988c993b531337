"""How large the gradients of slots are, with and without what flows through the evidence.

    OMP_NUM_THREADS=1 ./run python benchmarks/slot_gradients.py MODEL DIR [--batches 20]

DIR is a training set for the model's preset (searched if it is not). Of each batch, slots in random
order as in training: the norm of the gradient of each weighted term of the loss, by part of the
network, once with the evidence's gradient and once without. Weights and outputs are the same.
The last line is one JSON object.
"""

import json
from pathlib import Path
from typing import Final

import click
import numpy as np
import torch

from slotflow.batches import Tensors
from slotflow.checkpoint import load_model
from slotflow.model import SlotFlow
from slotflow.objective import loss_parts
from slotflow.simulate.orbits import response_grid
from slotflow.slots import EvidenceDepletion
from slotflow.store import TrainingSet
from slotflow.tokencache import ensure_searched, open_tokens

PARTS: Final = {
    "encoder": ("encoder", "slot_bias"), "slots": ("slots",), "context": ("context", "exists"),
    "flow": ("flow", "psi"),
}  # fmt: skip
TERMS: Final = ("nll", "psi", "existence", "attention", "component")


def norms(network: SlotFlow) -> dict[str, float]:
    """Return the norm of the gradient of each part of the network."""
    found = {}
    for part, names in PARTS.items():
        modules = [getattr(network, name) for name in names]
        grads = [p.grad for m in modules for p in m.parameters() if p.grad is not None]
        found[part] = float(sum(float(g.square().sum()) for g in grads)) ** 0.5
    return found


def of_batch(
    network: SlotFlow, rows: Tensors, weights: dict[str, float], seed: int
) -> dict[str, dict[str, float]]:
    """Return the norms of each term's gradient."""
    found = {}
    for term in TERMS:
        network.zero_grad(set_to_none=True)
        generator = torch.Generator().manual_seed(seed)  # the slots' order, alike for all terms
        reading = network.read(rows.batch, generator)
        terms = loss_parts(network, rows.batch, reading, rows.targets).terms()
        torch.autograd.backward(weights[term] * getattr(terms, term))
        found[term] = norms(network)
    return found


@click.command()
@click.argument("path", type=click.Path(path_type=Path, exists=True), metavar="MODEL")
@click.argument("directory", type=click.Path(path_type=Path, exists=True), metavar="DIR")
@click.option("--batches", default=20)
def main(path: Path, directory: Path, batches: int) -> None:
    """Print median and largest of the norms."""
    torch.set_num_threads(1)
    model = load_model(path)
    preset, network = model.preset, model.network.train()
    if not isinstance(network.slots, EvidenceDepletion):
        raise click.ClickException(f"{path}: its slots are not of evidence depletion")
    data = TrainingSet(directory)
    grid = response_grid(preset.observation, preset.components.slow_samples)
    ensure_searched(data, grid, preset.components, 1, 1)
    tokens = open_tokens(data, preset.components, 1)
    weights = preset.loss.model_dump()
    result: dict[str, dict[str, dict[str, list[float]]]] = {}
    for flows in (True, False):
        network.slots.evidence_gradient = flows
        name = "through" if flows else "stopped"
        rng = np.random.default_rng(1)
        of_all = []
        for number in range(batches):
            index = rng.choice(len(tokens), min(preset.train.batch, len(tokens)), replace=False)
            rows = Tensors.of(tokens.rows(index), None)
            of_all.append(of_batch(network, rows, weights, number))
        result[name] = {}
        for term in TERMS:
            result[name][term] = {}
            for part in PARTS:
                values = [one[term][part] for one in of_all]
                middle, largest = float(np.median(values)), float(np.max(values))
                result[name][term][part] = [round(middle, 3), round(largest, 3)]
                click.echo(f"{name}: {term}, {part}: median {middle:.3g}, largest {largest:.3g}")
    click.echo(json.dumps(result))


if __name__ == "__main__":
    main()
