"""Dice attention: overlap of sets, the linear form's expansion, binary features, two streams."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from slotflow.mixers.dice import (
    LAMBDA,
    DiceAttention,
    dice_scores,
    linear_scores,
    soft_set,
)
from slotflow.mixers.spectrum import heterodyned, patches, read_at
from slotflow.mixers.streams import TwoStreams

WIDTH, HEADS = 16, 2


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@hypothesis_settings(deadline=None, max_examples=40)
@given(st.sets(st.integers(0, 11), min_size=1), st.sets(st.integers(0, 11), min_size=1))
def test_dice_of_sets_is_the_coefficient_of_dice(a: set[int], b: set[int]) -> None:
    q, k = (torch.tensor([[float(i in s) for i in range(12)]]) for s in (a, b))
    expected = 2 * len(a & b) / (len(a) + len(b))
    assert dice_scores(q, k).item() == pytest.approx(expected, abs=1e-6)
    assert linear_scores(q, k, 0.3).item() == pytest.approx(
        len(a & b) - 0.3 * (len(a) + len(b)), abs=1e-12
    )


def test_the_linear_form_is_the_first_order_of_dice() -> None:
    """About (I0, S0), up to the scale 2 / S0 and a constant, with lambda = I0 / S0."""
    g = torch.Generator().manual_seed(1)
    q0, k0 = torch.rand(1, 32, generator=g), torch.rand(1, 32, generator=g)
    overlap, size = float((q0 * k0).sum()), float(q0.sum() + k0.sum())
    dq, dk = torch.randn(1, 32, generator=g), torch.randn(1, 32, generator=g)
    errors, steps = [], (1e-2, 1e-3, 1e-4)
    for step in steps:
        q, k = q0 + step * dq, k0 + step * dk
        by_dice = dice_scores(q, k) - dice_scores(q0, k0)
        weight = overlap / size
        by_line = linear_scores(q, k, weight) - linear_scores(q0, k0, weight)
        errors.append(abs(float(by_dice - 2.0 / size * by_line)))
    slopes = np.diff(np.log(errors)) / np.diff(np.log(steps))
    assert np.all(np.abs(slopes - 2.0) < 0.1), (errors, slopes)  # what is left is of second order
    assert errors[-1] < 1e-7


def test_the_gradient_of_dice_is_that_of_the_linear_form() -> None:
    q, k = torch.rand(3, 20, requires_grad=True), torch.rand(4, 20, requires_grad=True)
    (i, j) = (1, 2)
    grads = torch.autograd.grad(dice_scores(q, k)[i, j], (q, k))
    overlap, size = (q[i] @ k[j]).detach(), (q[i].sum() + k[j].sum()).detach()
    line = torch.autograd.grad(2.0 / size * linear_scores(q, k, overlap / size)[i, j], (q, k))
    for got, expected in zip(grads, line, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-9)


def test_a_weight_of_the_queries_density_leaves_no_density_bias() -> None:
    """The expectation of I given the key is density x C(k): lambda takes just that away."""
    g = torch.Generator().manual_seed(5)
    query = (torch.rand(4000, 64, generator=g) < 0.4).double()
    key = (torch.rand(300, 64, generator=g) < torch.rand(300, 1, generator=g)).double()
    density = key.sum(dim=-1)
    correlations = []
    for scores in (query @ key.T, linear_scores(query, key, 0.4)):
        received = scores.mean(dim=0)
        correlations.append(float(torch.corrcoef(torch.stack([received, density]))[0, 1]))
    assert correlations[0] > 0.99
    assert abs(correlations[1]) < 0.3


def test_straight_through_is_binary_with_the_sigmoids_gradient() -> None:
    logits = torch.randn(5, 6, requires_grad=True)
    hard = soft_set(logits, True)
    torch.testing.assert_close(hard, (logits > 0).double())
    (got,) = torch.autograd.grad(hard.sum(), logits)
    s = torch.sigmoid(logits)
    torch.testing.assert_close(got, s * (1 - s))
    assert torch.equal(soft_set(logits, False), s)


@pytest.mark.parametrize("scores", ["dice", "linear"])
def test_attention_is_written_out(scores: str) -> None:
    torch.manual_seed(2)
    module = DiceAttention(WIDTH, HEADS, scores, False)  # type: ignore[arg-type]
    module.log_scale.data += torch.randn(HEADS, 1, 1)
    x, read = torch.randn(3, 5, WIDTH), torch.randn(3, 7, WIDTH)
    bias = torch.randn(3, HEADS, 5, 7)
    q, k = module.sets(x, module.query), module.sets(read, module.key)
    if module.raw_lambda is None:
        found = dice_scores(q, k)
    else:
        weight = torch.nn.functional.softplus(module.raw_lambda)
        assert weight.detach().flatten().tolist() == pytest.approx([LAMBDA] * HEADS)
        found = linear_scores(q, k, weight)
    weights = torch.softmax(torch.exp(module.log_scale) * found + bias, dim=-1)
    v = module.value(read).view(3, 7, HEADS, -1).transpose(1, 2)
    expected = module.out((weights @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(module(x, read, bias), expected)


def test_lambda_is_never_negative() -> None:
    module = DiceAttention(WIDTH, HEADS, "linear", False)
    assert module.raw_lambda is not None
    module.raw_lambda.data.fill_(-50.0)  # weight of nearly nothing: plain overlap
    x = torch.randn(2, 4, WIDTH)
    plain = module(x, x)
    module.raw_lambda.data.fill_(-400.0)
    torch.testing.assert_close(module(x, x), plain)


def test_the_heterodyned_series_of_a_line_turns_at_its_offset() -> None:
    """A line n bins above the middle turns n times in the series; its size is the line's."""
    bins = 64
    data = torch.zeros(bins, dtype=torch.complex128)
    data[bins // 2 + 3] = 5.0
    series = heterodyned(data)
    steps = torch.angle(series[1:] / series[:-1])
    torch.testing.assert_close(steps, torch.full((bins - 1,), 2 * torch.pi * 3 / bins))
    assert series.abs().square().sum().item() == pytest.approx(25.0)


def test_patches_and_reading_them() -> None:
    values = torch.arange(2 * 3 * 16.0).view(2, 3, 16)
    cut = patches(values)
    assert cut.shape == (2, 4, 12)
    assert cut[0, 1].tolist() == [4, 5, 6, 7, 20, 21, 22, 23, 36, 37, 38, 39]
    line = torch.arange(4.0)[None, :, None]  # the patch's number, at bins 1.5, 5.5, 9.5, 13.5
    at = torch.tensor([[0.0, 1.5, 5.5, 7.5, 13.5, 15.9]])
    assert read_at(line, at).flatten().tolist() == [0.0, 0.0, 1.0, 1.5, 3.0, 3.0]
    assert read_at(line[:, :1], at).flatten().tolist() == [0.0] * 6


def test_each_stream_matters() -> None:
    torch.manual_seed(4)
    streams = TwoStreams(WIDTH, HEADS, 0.0, "dice", False)
    data = torch.randn(2, 3, 64, dtype=torch.complex128)
    tokens, place = torch.randn(2, 5, WIDTH), 64.0 * torch.rand(2, 5)
    before = streams(data, place, tokens)
    assert before.shape == tokens.shape
    for embed in (streams.embed_frequency, streams.embed_time):
        kept = embed.weight.detach().clone()
        embed.weight.data.zero_()
        assert not torch.allclose(streams(data, place, tokens), before)
        embed.weight.data = kept
    # the first half is read at the place, the second asked for by the token
    moved = streams(data, place.flip(1), tokens)
    assert not torch.allclose(moved, before)
