"""Evidence depletion against the package ``evidence-depletion`` on the same weights.

    ./run python benchmarks/slots.py [--quick]

Forward and backward (gradients of the tokens and of all weights), float32, one thread,
alternating runs in one process, in the processor's time. The differences are in float64, from
the same random starts and order. The last line is one JSON object.
"""

import json
import time
from statistics import median

import click
import torch
from evidence_depletion.attention import EvidenceDepletionSlotAttention
from timing import Comparison, compare, slope
from torch import Tensor, nn

from slotflow.slots import EvidenceDepletion

SLOTS, TOKENS, WIDTH, BATCH = 5, 64, 128, 64
MORE_SLOTS = [2, 4, 8, 16]
MORE_TOKENS = [16, 64, 256]


def pair(slots: int) -> tuple[EvidenceDepletion, nn.Module]:
    """Return ours and theirs with the same random weights, in training mode."""
    torch.manual_seed(1)
    theirs: nn.Module = EvidenceDepletionSlotAttention(n_slots=slots, d_model=WIDTH)
    ours = EvidenceDepletion(slots, WIDTH)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    return ours, theirs


def make_tokens(length: int, batch: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return random tokens (batch, length, WIDTH) that take a gradient."""
    generator = torch.Generator().manual_seed(2)
    drawn = torch.randn(batch, length, WIDTH, generator=generator, dtype=torch.float64)
    return drawn.to(dtype).requires_grad_()


def our_outputs(module: EvidenceDepletion, tokens: Tensor) -> list[Tensor]:
    """Slots, attention and evidence of ours."""
    mask = torch.ones(tokens.shape[:2], dtype=torch.bool)
    return list(module(tokens, mask, generator=torch.Generator().manual_seed(3)))


def their_outputs(module: nn.Module, tokens: Tensor) -> list[Tensor]:
    """The same of theirs, which draw from the global generator."""
    torch.manual_seed(3)
    slots, attention, evidence = module(tokens)
    return [slots, attention, torch.stack(evidence, dim=1)]


def gradients(module: nn.Module, tokens: Tensor, outputs: list[Tensor]) -> list[Tensor]:
    """Gradients of a loss that all outputs enter, of the tokens and of the weights."""
    loss = torch.stack([output.square().sum() for output in outputs]).sum()
    return list(torch.autograd.grad(loss, [tokens, *module.parameters()]))


def largest(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """Largest absolute difference."""
    differences = [(a - b).abs().max().item() for a, b in zip(ours, theirs, strict=True)]
    return max(differences)


def relative(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """Largest difference, as a share of the largest number."""
    return largest(ours, theirs) / max(tensor.abs().max().item() for tensor in theirs)


def accuracy(dtype: torch.dtype) -> tuple[float, float]:
    """Differences of the outputs and, relative, of the gradients."""
    ours, theirs = pair(SLOTS)
    ours.to(dtype)
    theirs.to(dtype)
    tokens = make_tokens(TOKENS, BATCH, dtype)
    torch.set_default_dtype(dtype)  # of their random starts
    try:
        mine, wanted = our_outputs(ours, tokens), their_outputs(theirs, tokens)
    finally:
        torch.set_default_dtype(torch.float32)
    names = [name for name, _ in theirs.named_parameters()]
    if names != [name for name, _ in ours.named_parameters()]:
        raise RuntimeError("the two modules' parameters differ in name or order")
    return largest(mine, wanted), relative(
        gradients(ours, tokens, mine), gradients(theirs, tokens, wanted)
    )


def race(slots: int, length: int, seconds: float, least: int = 5) -> Comparison:
    """Time forward and backward of both."""
    ours, theirs = pair(slots)
    tokens = make_tokens(length, BATCH)
    return compare(
        lambda: gradients(ours, tokens, our_outputs(ours, tokens)),
        lambda: gradients(theirs, tokens, their_outputs(theirs, tokens)),
        seconds,
        least,
        time.process_time,
    )


def growth(name: str, sizes: list[int], races: list[Comparison]) -> tuple[float, float]:
    """Print a line for each size; return the log-log slopes, ours and theirs."""
    for size, one in zip(sizes, races, strict=True):
        click.echo(one.line(f"{name} {size}"))
    ours = slope(sizes, [median(one.ours) for one in races])
    theirs = slope(sizes, [median(one.theirs) for one in races])
    click.echo(f"log-log slope in {name}: {ours:.2f}, {theirs:.2f}")
    return ours, theirs


@click.command()
@click.option("--quick", is_flag=True, help="A few seconds instead of most of a minute.")
def main(quick: bool) -> None:
    """Time evidence depletion against the package evidence-depletion (ours first in each line)."""
    torch.set_num_threads(1)
    difference, of_gradients = accuracy(torch.float64)
    single, single_gradients = accuracy(torch.float32)
    click.echo(f"S {SLOTS}, L {TOKENS}, d {WIDTH}, batch {BATCH}, forward and backward")
    click.echo(f"largest difference: {difference:.1e} in float64, {single:.1e} in float32")
    click.echo(f"of gradients, relative: {of_gradients:.1e}, {single_gradients:.1e}")
    main_race = race(SLOTS, TOKENS, 4.0 if quick else 10.0)
    click.echo(main_race.line("evidence depletion"))
    each, least = (0.5, 2) if quick else (2.0, 3)
    slots = [race(size, TOKENS, each, least) for size in MORE_SLOTS]
    in_slots, their_slots = growth("slots", MORE_SLOTS, slots)
    tokens = [race(SLOTS, size, each, least) for size in MORE_TOKENS]
    in_tokens, their_tokens = growth("tokens", MORE_TOKENS, tokens)
    figures = {
        "speedup": main_race.speedup,
        "speedup_spread": main_race.spread,
        "seconds": round(median(main_race.ours), 6),
        "max_abs_diff_f64": difference,
        "max_rel_diff_gradients_f64": of_gradients,
        "max_abs_diff_f32": single,
        "growth_in_slots": in_slots,
        "growth_in_tokens": in_tokens,
        "their_growth_in_slots": their_slots,
        "their_growth_in_tokens": their_tokens,
        "slots": SLOTS,
        "tokens": TOKENS,
        "width": WIDTH,
        "batch": BATCH,
    }
    click.echo(json.dumps(figures))


if __name__ == "__main__":
    main()
