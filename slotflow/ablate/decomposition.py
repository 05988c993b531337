"""A small network that takes a mixture apart, in which only the slots differ between methods.

Chunks of the signal are the tokens (their real Fourier transform, or the samples as they are),
a linear layer embeds them, slots read them, and two heads say of each slot whether it exists
and which parameters its source has. The network and the objective of arXiv:2605.02323,
section 3.1, as its author's package has them: cross-entropy of existence (the first K slots
exist) + 5 x squared error of the matched parameters + 0.5 x slot diversity.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from slotflow.errors import NonFiniteError
from slotflow.slotbase import SlotOutput

Tokens = Literal["fft", "samples"]

PARAMETER_WEIGHT: Final = 5.0
DIVERSITY_WEIGHT: Final = 0.5
#: Makes the slots of a network: (number of slots, width) to a module that is called with tokens
#: (B, L, D), a mask (B, L) and a generator.
MakeSlots = Callable[[int, int], nn.Module]


class Decomposed(NamedTuple):
    """What the network says of B mixtures.

    ``slots`` (B, S, D), ``attention`` (B, S, L), ``evidence`` (B, S + 1, L), ``existence`` (B, S)
    logits, ``parameters`` (B, S, P).
    """

    slots: Tensor
    attention: Tensor
    evidence: Tensor
    existence: Tensor
    parameters: Tensor


@dataclass(frozen=True)
class Shape:
    """Sizes of the network: tokens L, width D, slots S, parameters P of a source."""

    tokens: int = 16
    width: int = 64
    slots: int = 5
    parameters: int = 3
    kind: Tokens = "fft"


def chunks(signals: Tensor, tokens: int, kind: Tokens) -> Tensor:
    """Cut (B, N) signals into tokens and return what each is made of: (B, L, F).

    ``fft``: real and imaginary parts of the chunk's transform; ``samples``: the chunk itself.

    Raises:
        ValueError: a length that the tokens do not divide.
    """
    batch, length = signals.shape
    if length % tokens:
        raise ValueError(f"{length} samples cannot be cut into {tokens} tokens of one length")
    parts = signals.reshape(batch, tokens, length // tokens)
    if kind == "samples":
        return parts
    transformed = torch.fft.rfft(parts, dim=-1)
    return torch.cat([transformed.real, transformed.imag], dim=-1)


class Decomposition(nn.Module):
    """Embedding, slots, and the two heads.

    Args:
        features: F of a token (:func:`chunks`).
        shape: the sizes.
        make_slots: makes the slots.
    """

    def __init__(self, features: int, shape: Shape, make_slots: MakeSlots) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(features, shape.width), nn.GELU())
        self.slots = make_slots(shape.slots, shape.width)
        self.exists = nn.Sequential(nn.Linear(shape.width, 32), nn.GELU(), nn.Linear(32, 1))
        self.read = nn.Sequential(
            nn.Linear(shape.width, 64), nn.GELU(), nn.Linear(64, shape.parameters)
        )

    def forward(self, features: Tensor, generator: torch.Generator) -> Decomposed:
        """Read (B, L, F) tokens; the generator draws the slots' starts and order."""
        tokens = self.embed(features)
        mask = torch.ones(tokens.shape[:2], dtype=torch.bool)
        out: SlotOutput = self.slots(tokens, mask, generator=generator)
        return Decomposed(
            out.slots, out.attention, out.evidence, self.exists(out.slots).squeeze(-1),
            self.read(out.slots),
        )  # fmt: skip


def objective(found: Decomposed, parameters: Tensor, number: Tensor, coverage: float) -> Tensor:
    """Return the loss of a batch: (B, K, P) true parameters, (B,) true numbers."""
    slots = torch.arange(found.existence.shape[1])
    target = (slots[None] < number[:, None]).to(found.existence.dtype)
    loss = functional.binary_cross_entropy_with_logits(found.existence, target)
    loss = loss + PARAMETER_WEIGHT * parameter_error(found, parameters, number)
    loss = loss + DIVERSITY_WEIGHT * diversity(found.slots)
    if coverage > 0.0:
        loss = loss + coverage * coverage_penalty(found.attention)
    return loss


def parameter_error(found: Decomposed, parameters: Tensor, number: Tensor) -> Tensor:
    """Return the mean squared error of the K slots that exist most, matched greedily.

    In the order of their existence, each takes the nearest source that is left.
    """
    order = found.existence.detach().argsort(dim=1, descending=True)
    ranked = torch.gather(found.parameters, 1, order[..., None].expand(-1, -1, parameters.shape[2]))
    cost = torch.cdist(ranked.detach(), parameters)
    most = parameters.shape[1]
    taken = torch.arange(most)[None] >= number[:, None]  # what is not there cannot be taken
    rows = torch.arange(len(number))
    total, pairs = found.parameters.new_zeros(()), 0
    for rank in range(min(most, ranked.shape[1])):
        valid = number > rank
        if not valid.any():
            break
        choice = cost[:, rank].masked_fill(taken, math.inf).argmin(dim=1)
        taken = taken.clone()
        taken[rows, choice] = True
        error = (ranked[:, rank] - parameters[rows, choice]).square().mean(dim=1)
        total = total + error[valid].sum()
        pairs += int(valid.sum())
    return total / max(pairs, 1)


def diversity(slots: Tensor) -> Tensor:
    """Return the mean squared cosine of different slots, over all pairs (a slot with itself: 0)."""
    directions = functional.normalize(slots, dim=-1)
    cosine = directions @ directions.mT
    same = torch.eye(slots.shape[1], dtype=torch.bool)
    return cosine.masked_fill(same, 0.0).square().mean()


def coverage_penalty(attention: Tensor) -> Tensor:
    """Return sum_l (sum_s alpha_sl - 1)^2, the mean over the batch, each slot's attention summing
    to 1 over the tokens."""
    weights = attention / attention.sum(-1, keepdim=True).clamp(min=1e-8)
    return (weights.sum(1) - 1.0).square().sum(-1).mean()


@dataclass(frozen=True)
class Examples:
    """What a network is trained or tested on: (M, L, F) features, (M, K, P), (M,)."""

    features: Tensor
    parameters: Tensor
    number: Tensor


@dataclass(frozen=True)
class Schedule:
    """Adam with a cosine over the epochs, the gradient's norm held to 1."""

    epochs: int = 200
    batch: int = 128
    learning_rate: float = 3e-4


def build(features: int, shape: Shape, make_slots: MakeSlots, seed: int) -> Decomposition:
    """Make a network whose first weights follow from the seed."""
    with torch.random.fork_rng(devices=[]):  # PyTorch's initialisers take no generator
        torch.manual_seed(seed)
        return Decomposition(features, shape, make_slots)


def fit(
    network: Decomposition,
    data: Examples,
    schedule: Schedule,
    seed: int,
    coverage: float = 0.0,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Train a network, in place.

    Args:
        network: see :func:`build`.
        data: the training set; the last, incomplete batch of an epoch is left out.
        schedule: see there.
        seed: of the batches, starts and orders.
        coverage: weight of :func:`coverage_penalty`.
        progress: called with (epochs done, epochs in all).

    Raises:
        NonFiniteError: a loss that is not finite; names the epoch and the batch.
        ValueError: fewer examples than a batch.
    """
    if len(data.number) < schedule.batch:
        raise ValueError(f"expected at least {schedule.batch} examples; got {len(data.number)}")
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(network.parameters(), lr=schedule.learning_rate)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=schedule.epochs)
    for epoch in range(schedule.epochs):
        network.train()
        order = torch.randperm(len(data.number), generator=generator)
        for batch in range(len(order) // schedule.batch):
            index = order[batch * schedule.batch : (batch + 1) * schedule.batch]
            found = network(data.features[index], generator)
            loss = objective(found, data.parameters[index], data.number[index], coverage)
            if not torch.isfinite(loss):
                raise NonFiniteError(f"epoch {epoch}, batch {batch}: the loss is not finite")
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
        rate.step()
        if progress is not None:
            progress(epoch + 1, schedule.epochs)
    network.eval()


def decompose(network: Decomposition, data: Examples, seed: int, batch: int = 128) -> Decomposed:
    """Return what a trained network says of all examples."""
    generator = torch.Generator().manual_seed(seed)
    network.eval()
    with torch.no_grad():
        parts = [
            network(data.features[start : start + batch], generator)
            for start in range(0, len(data.number), batch)
        ]
    return Decomposed(*(torch.cat(column) for column in zip(*parts, strict=True)))
