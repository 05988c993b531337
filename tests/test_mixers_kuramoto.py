"""Kuramoto attention: the step is a gradient, turns with the phases and keeps each pair's norm."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from slotflow.mixers import Pairs
from slotflow.mixers.kuramoto import KuramotoLayer, coupling, rotate

BATCH, LENGTH, WIDTH, HEADS = 2, 6, 12, 3
PHASES = WIDTH // 2


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def make(causal: bool = False) -> KuramotoLayer:
    torch.manual_seed(1)
    layer = KuramotoLayer(WIDTH, HEADS, 0.0, causal=causal)
    for parameter in layer.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    return layer


def inputs() -> tuple[Tensor, Pairs]:
    g = torch.Generator().manual_seed(2)
    tokens = torch.randn(BATCH, LENGTH, WIDTH, generator=g)
    bias = torch.randn(BATCH, HEADS, LENGTH, LENGTH, generator=g)
    return tokens, Pairs(bias, 256.0 * torch.rand(BATCH, LENGTH, generator=g))


def phases(tokens: Tensor) -> Tensor:
    x, y = tokens.view(*tokens.shape[:-1], 2, -1).unbind(-2)
    return torch.atan2(y, x)


def weights(layer: KuramotoLayer, tokens: Tensor, pairs: Pairs) -> Tensor:
    """The attention from the equations in the module's words: (B, H, L, L)."""
    theta = phases(tokens)
    size = tokens.view(BATCH, LENGTH, 2, -1).square().sum(dim=2).sqrt()
    gates = torch.nn.functional.softplus(layer.gate(layer.norm_gate(size)))
    a, b = gates[..., :PHASES], gates[..., PHASES:]
    assert pairs.place is not None
    assert pairs.bias is not None
    moved = theta + layer.drift * pairs.place[..., None]
    cosine = torch.cos(moved[:, None] - moved[:, :, None])  # t, u
    scores = a[:, :, None] * b[:, None] * cosine
    each = PHASES // HEADS
    by_head = scores.view(BATCH, LENGTH, LENGTH, HEADS, each).sum(dim=-1)
    return torch.softmax(by_head.permute(0, 3, 1, 2) / math.sqrt(2 * each) + pairs.bias, dim=-1)


def turn(layer: KuramotoLayer, tokens: Tensor, pairs: Pairs) -> Tensor:
    """By how much each phase was turned, over the learned step."""
    angle = phases(layer.mix(tokens, pairs)) - phases(tokens)
    angle = torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
    return angle / torch.nn.functional.softplus(layer.step)


def test_the_step_is_the_gradient_of_the_agreement() -> None:
    """For each token, attention weights and other tokens fixed (by autograd, 1e-10)."""
    layer = make()
    layer.step.data -= 3.0  # so that no turn exceeds half a circle
    tokens, pairs = inputs()
    attention = weights(layer, tokens, pairs).detach()
    heads = torch.arange(PHASES) // (PHASES // HEADS)
    theta = phases(tokens)
    for t in range(LENGTH):
        own = theta[:, t].clone().requires_grad_()
        agreement = attention[:, heads, t] * torch.cos(theta.transpose(1, 2) - own[..., None])
        (gradient,) = torch.autograd.grad(agreement.sum(), own)
        got = turn(layer, tokens, pairs)[:, t]
        torch.testing.assert_close(got, gradient, rtol=0, atol=1e-10)


def test_the_coupling_is_kuramotos() -> None:
    theta, attention = torch.randn(LENGTH, PHASES), torch.rand(LENGTH, LENGTH)
    unit = torch.stack([torch.cos(theta), torch.sin(theta)], dim=-2)
    mean = torch.einsum("tu,ucp->tcp", attention, unit)
    expected = torch.einsum("tu,tup->tp", attention, torch.sin(theta[None] - theta[:, None]))
    torch.testing.assert_close(coupling(unit, mean), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_a_common_rotation_passes_through(causal: bool) -> None:
    layer = make(causal)
    tokens, pairs = inputs()

    def rotated(x: Tensor) -> Tensor:
        return rotate(x.view(BATCH, LENGTH, 2, PHASES), torch.tensor(0.7)).flatten(2)

    torch.testing.assert_close(layer.mix(rotated(tokens), pairs), rotated(layer.mix(tokens, pairs)))


def test_the_norm_of_each_pair_stays() -> None:
    layer = make()
    tokens, pairs = inputs()
    before, after = (
        x.view(BATCH, LENGTH, 2, PHASES).square().sum(dim=2)
        for x in (tokens, layer.mix(tokens, pairs))
    )
    assert (phases(layer.mix(tokens, pairs)) - phases(tokens)).abs().max() > 0.1
    torch.testing.assert_close(after, before)


def test_a_small_step_raises_the_agreement() -> None:
    """Gradient ascent, as long as attention is fixed: here it is given by the bias alone."""
    layer = make()
    for parameter in layer.gate.parameters():
        parameter.data.zero_()
    layer.gate.bias.data -= 40.0  # gates of nearly nothing
    layer.step.data -= 4.0
    tokens, pairs = inputs()
    attention = weights(layer, tokens, pairs)

    def agreement(x: Tensor) -> Tensor:
        theta = phases(x)
        cosine = torch.cos(theta[:, None] - theta[:, :, None])
        each = cosine.view(BATCH, LENGTH, LENGTH, HEADS, -1).sum(dim=-1)
        symmetric = attention + attention.mT
        return (symmetric * each.permute(0, 3, 1, 2)).sum()

    assert agreement(layer.mix(tokens, pairs)) > agreement(tokens)


def test_alike_tokens_stay() -> None:
    layer = make()
    tokens, pairs = inputs()
    alike = tokens[:, :1].expand_as(tokens).contiguous()
    torch.testing.assert_close(layer.mix(alike, pairs), alike)


def test_causal_sees_lower_frequencies_alone() -> None:
    layer = make(causal=True)
    tokens, pairs = inputs()
    assert pairs.place is not None
    order = pairs.place[0].argsort()
    changed = tokens.clone()
    changed[0, order[3]] *= -1.0
    moved = (layer.mix(changed, pairs) - layer.mix(tokens, pairs))[0].abs().amax(dim=-1)
    assert moved[order[:3]].max() == 0.0
    assert moved[order[3:]].min() > 0.0
    both = make()
    moved = (both.mix(changed, pairs) - both.mix(tokens, pairs))[0].abs().amax(dim=-1)
    assert moved.min() > 0.0


def test_the_drift_sees_differences_of_places_alone() -> None:
    layer = make()
    tokens, pairs = inputs()
    assert pairs.place is not None
    before = layer.mix(tokens, pairs)
    torch.testing.assert_close(layer.mix(tokens, Pairs(pairs.bias, pairs.place + 31.0)), before)
    assert not torch.allclose(layer.mix(tokens, Pairs(pairs.bias, 2.0 * pairs.place)), before)


def test_pairs_of_zeros_are_finite() -> None:
    layer = make()
    tokens = torch.zeros(BATCH, LENGTH, WIDTH, requires_grad=True)
    out = layer(tokens)
    assert out.isfinite().all()
    out.square().sum().backward()
    assert tokens.grad is not None
    assert tokens.grad.isfinite().all()
