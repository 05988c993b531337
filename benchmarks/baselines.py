"""The other published mechanisms against evidence depletion, on the synthetic mixtures.

    ./run python benchmarks/baselines.py [--quick] [--methods mesh,sa_sh] [-o DIR]

Sinkhorn slot attention (SA-SH), MESH, coverage, data-space depletion, sparsemax, entmax and
stick-breaking are those of the package ``evidence-depletion``, called through a thin adapter;
data, network, training and scores are those of ``slotflow ablate synthetic``, whose folder this
can share. The last line is one JSON object: mean peak overlap by task and method.
"""

import json
import tempfile
from functools import partial
from pathlib import Path

import click
import torch
from evidence_depletion.models import build_model
from torch import Tensor, nn

from slotflow.ablate.methods import METHODS
from slotflow.ablate.mixtures import KINDS
from slotflow.ablate.runs import run_all
from slotflow.ablate.synthetic import Budget, SyntheticJob
from slotflow.ablate.table import grouped, markdown, spread
from slotflow.cli.common import cores, progress
from slotflow.slotbase import SlotOutput

#: The package's names. ``coverage_loss`` is vanilla slot attention with a coverage penalty.
PACKAGE = (
    "sa_sh", "mesh", "coverage", "coverage_loss", "dataspace_linear", "dataspace_quadratic",
    "sparsemax", "entmax15", "stickbreaking",
)  # fmt: skip
SHOWN = ("peak_overlap", "chance", "cosine_overlap", "existence", "k_exact", "seconds")


class Adapter(nn.Module):
    """A module of the package in the form of our slots; all tokens must be valid."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(
        self, tokens: Tensor, mask: Tensor, generator: torch.Generator | None = None
    ) -> SlotOutput:
        """Draw from ``generator``, though the package knows the global one alone."""
        if not mask.all():
            raise ValueError("mask: the package's slots take no mask")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_seed(generator))
            slots, attention, evidence = self.module(tokens)
        ones = tokens.new_ones(len(tokens), slots.shape[1] + 1, tokens.shape[1])
        return SlotOutput(slots, attention, ones if evidence is None else torch.stack(evidence, 1))


def _seed(generator: torch.Generator | None) -> int:
    return int(torch.randint(2**62, (1,), generator=generator))


def package_slots(method: str, slots: int, width: int) -> nn.Module:
    """Return the package's slots of that name."""
    return Adapter(build_model(method, n_slots=slots, d_model=width).slot_attn)


@click.command()
@click.option("--methods", default=",".join(PACKAGE), help="Of the package, and of ours.")
@click.option("--tasks", default=",".join(KINDS))
@click.option("--seeds", type=int, default=5)
@click.option("--epochs", type=int, default=200)
@click.option("--workers", type=int, default=cores())
@click.option("-o", "--output", type=click.Path(path_type=Path), default=None,
              help="Folder, to go on with later; else nothing is kept.")  # fmt: skip
@click.option("--quick", is_flag=True, help="2 epochs, one seed, sinusoids: a smoke test.")
def main(
    methods: str,
    tasks: str,
    seeds: int,
    epochs: int,
    workers: int,
    output: Path | None,
    quick: bool,
) -> None:
    """Train and score the methods."""
    if quick:
        tasks, seeds, epochs = "sinusoids", 1, 2
    jobs = [
        SyntheticJob(
            task, method, seed,  # type: ignore[arg-type]
            METHODS.get(method) or partial(package_slots, method), Budget(epochs=epochs),
            coverage=1.0 if method == "coverage_loss" else 0.0,
        )
        for seed in range(seeds)
        for task in tasks.split(",")
        for method in methods.split(",")
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch, progress("comparing", "runs") as report:
        records = run_all(output or Path(scratch), jobs, workers, report)
    click.echo(markdown(records, SHOWN), nl=False)
    overlaps: dict[str, dict[str, float]] = {}
    for (task, method), group in grouped(records).items():
        mean, _ = spread([record["peak_overlap"] for record in group])
        overlaps.setdefault(task, {})[method] = round(mean, 4)
    click.echo(json.dumps({"peak_overlap": overlaps, "seeds": seeds, "epochs": epochs}))


if __name__ == "__main__":
    main()
