"""The flow's training step at the paper's size against nflows 0.14 used plainly.

    OMP_NUM_THREADS=1 ./run python benchmarks/train_step.py [--quick]

Both have the same weights and batch: B samples of 5 slots and 1 to 4 sources (padded to 4), a
context for each slot, and coordinates for each pair. Plainly: ln q of all B x 5 x 4 pairs with
the gradient, SciPy's assignment sample by sample, the loss from the grid, Adam. Ours: the valid
pairs without gradient, each context projected once, the assignment by enumeration, the matched
pairs with gradient, fused AdamW. Loss and gradient are the same. float32, one thread and its
processor time, alternating rounds. The floor is the time of our step's own matrix products, as
torch.mm does them into memory that is there already. The last line is one JSON object.
"""

import json
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import NamedTuple

import click
import torch
from flow import FEATURES, couplings, make_flow, points, stock_flow
from nflows.flows.base import Flow
from scipy.optimize import linear_sum_assignment
from timing import compare as compare_by
from torch import Tensor

from slotflow.config import load_preset
from slotflow.flow import ConditionalFlow
from slotflow.twostage import two_stage_nll

SLOTS, SOURCES = 5, 4
#: One thread does everything: seconds in which others had the processor do not count.
compare = partial(compare_by, clock=time.process_time)


class Batch(NamedTuple):
    """``context`` (B, S, C), a leaf; ``x`` (B, S, K, F); ``valid`` (B, K)."""

    context: Tensor
    x: Tensor
    valid: Tensor


def make_batch(size: int, context: int, dtype: torch.dtype = torch.float32) -> Batch:
    """Return a batch with 1, 2, 3, 4, 1, ... sources."""
    counts = torch.arange(size) % SOURCES + 1
    return Batch(
        points(size * SLOTS, context, 3, dtype).view(size, SLOTS, -1).requires_grad_(),
        points(size * SLOTS * SOURCES, FEATURES, 2, dtype).view(size, SLOTS, SOURCES, -1),
        torch.arange(SOURCES) < counts[:, None],
    )


def plain_nll(flow: Flow, batch: Batch) -> Tensor:
    """The loss as one writes it with nflows: the grid, an assignment of each sample, a mean."""
    shape = batch.x.shape[:3]
    context = batch.context[:, :, None].expand(*shape, -1)
    grid = -flow.log_prob(batch.x.flatten(0, 2), context.flatten(0, 2)).view(shape)
    cost = grid.detach().numpy()
    losses = []
    for b, count in enumerate(batch.valid.sum(-1).tolist()):
        slots, sources = linear_sum_assignment(cost[b, :, :count])
        losses.append(grid[b, torch.as_tensor(slots), torch.as_tensor(sources)])
    return torch.cat(losses).mean()


def stepper(
    loss: Callable[[], Tensor], optimiser: torch.optim.Optimizer, batch: Batch
) -> Callable[[], object]:
    """Return a call that makes one training step."""

    def call() -> object:
        optimiser.zero_grad(set_to_none=True)
        batch.context.grad = None
        torch.autograd.backward(loss())
        return optimiser.step()

    return call


def accuracy(size: int) -> dict[str, float]:
    """Difference of the loss, and largest of the gradients relative to the largest, float64."""
    model = load_preset("paper").model
    flow = make_flow(model).double()
    theirs = stock_flow(flow).double()
    gradients, losses = [], []
    for name in ("ours", "theirs"):
        batch = make_batch(size, model.context, torch.float64)
        loss = two_stage_nll(flow, *batch) if name == "ours" else plain_nll(theirs, batch)
        weights = list((flow if name == "ours" else theirs).parameters())
        gradients.append(torch.autograd.grad(loss, [*weights, batch.context]))
        losses.append(loss.item())
    top = max(g.abs().max().item() for g in gradients[1])
    worst = max((a - b).abs().max().item() for a, b in zip(*gradients, strict=True))
    return {"loss_diff_f64": abs(losses[0] - losses[1]), "gradient_diff_f64": worst / top}


def products(flow: ConditionalFlow, batch: Batch) -> list[tuple[int, int, int]]:
    """Return the shapes (m, k, n) of all matrix products of our step, one by one."""
    slots, pairs = batch.x.shape[0] * SLOTS, int(batch.valid.sum()) * SLOTS
    matched = int(batch.valid.sum())
    shapes = []
    for number, layer in enumerate(couplings(flow)):
        net, moved = layer.transform_net, len(layer.transform_features)
        hidden, kept = net.initial_layer.out_features, net.features
        context = net.initial_layer.in_features - kept
        body = [(kept, hidden)] + [(hidden, hidden)] * (2 * len(net.blocks))
        body += [(hidden, 2 * layer.num_bins)] * moved
        shapes.append((slots, context, hidden))
        shapes += [(pairs, k, n) for k, n in body]
        for k, n in [(context, hidden), *body]:
            shapes += [(matched, k, n), (k, matched, n), (matched, n, k)]
        if number == 0:
            shapes.remove((matched, hidden, kept))  # no gradient of the data
    return shapes


def floor(shapes: list[tuple[int, int, int]]) -> Callable[[], object]:
    """Return a call that makes all these products; each has weights of its own, as in the flow."""
    memory = torch.randn(sum(k * n for _, k, n in shapes))
    work, start = [], 0
    inputs = {(m, k): torch.randn(m, k) for m, k, _ in shapes}
    outputs = {(m, n): torch.empty(m, n) for m, _, n in shapes}
    for m, k, n in shapes:
        weight = memory[start : start + k * n].view(n, k).T
        work.append((inputs[m, k], weight, outputs[m, n]))
        start += k * n

    def call() -> object:
        for a, b, out in work:
            torch.mm(a, b, out=out)
        return None

    return call


def copy_rate() -> float:
    """Bytes a second read and written by copies of 256 MB."""
    source, target = torch.ones(1 << 26), torch.zeros(1 << 26)
    spent = []
    for _ in range(5):
        begin = time.perf_counter()
        target.copy_(source)
        spent.append(time.perf_counter() - begin)
    return 2.0 * source.nbytes / median(spent)


@click.command()
@click.option("--quick", is_flag=True, help="Half a minute instead of two.")
@click.option("--batch", "size", default=32, show_default=True, help="Samples in a batch.")
def main(quick: bool, size: int) -> None:
    """Time the flow's training step (ours first in each line)."""
    torch.set_num_threads(1)
    model = load_preset("paper").model
    flow = make_flow(model)
    theirs = stock_flow(flow)
    parameters = sum(p.numel() for p in flow.parameters())
    batch = make_batch(size, model.context)
    click.echo(
        f"{model.flow_layers} layers, {model.flow_bins} bins, hidden {model.flow_hidden}, context"
        f" {model.context}, {model.flow_blocks} block: {parameters:,} parameters; batch {size},"
        f" {int(batch.valid.sum())} sources, {SLOTS} slots"
    )
    errors = accuracy(8)
    click.echo(", ".join(f"{name}: {value:.1e}" for name, value in errors.items()))
    # the tiny rate keeps the weights, and so what is timed, as they are
    ours = stepper(
        lambda: two_stage_nll(flow, *batch),
        torch.optim.AdamW(flow.parameters(), 1e-9, fused=True),
        batch,
    )
    plain = stepper(
        lambda: plain_nll(theirs, batch), torch.optim.Adam(theirs.parameters(), 1e-9), batch
    )
    seconds = 8.0 if quick else 60.0
    race = compare(ours, plain, seconds)
    click.echo(race.line("step"))
    shapes = products(flow, batch)
    against_floor = compare(ours, floor(shapes), seconds / 2)
    operations = 2.0 * sum(m * k * n for m, k, n in shapes)
    click.echo(against_floor.line("step and its matrix products"))
    least, rate = median(against_floor.theirs), copy_rate()
    # AdamW reads weight, gradient and two moments, and writes all but the gradient
    traffic = 7 * 4 * parameters
    click.echo(
        f"products: {operations / 1e9:.1f} Gflop at {operations / least / 1e9:.0f} Gflop/s;"
        f" AdamW moves {traffic / 1e6:.0f} MB, {1e3 * traffic / rate:.0f} ms at a copy's"
        f" {rate / 1e9:.1f} GB/s (not in the floor)"
    )
    figures: dict[str, object] = {
        "parameters": parameters,
        "step_speedup": race.speedup,
        "step_spread": race.spread,
        "floor_ratio": round(1.0 / against_floor.speedup, 3),
        "samples_per_s": round(size / median(race.ours), 1),
        "samples_per_s_nflows": round(size / median(race.theirs), 1),
        "step_seconds": float(f"{median(race.ours):.4g}"),
        "floor_gflop": round(operations / 1e9, 2),
        "floor_gflop_per_s": round(operations / least / 1e9, 1),
        "optimiser_megabytes": round(traffic / 1e6),
        "batch": size,
    }
    click.echo(json.dumps(figures | errors))


if __name__ == "__main__":
    main()
