"""Slot attention: the author's package is the oracle; masks, gradients, order."""

from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from evidence_depletion.attention import EvidenceDepletionSlotAttention
from evidence_depletion.baselines import SequentialSA, VanillaSA
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from slotflow.slots import (
    Depletion,
    EvidenceDepletion,
    SequentialSlotAttention,
    VanillaSlotAttention,
    deplete,
)

FORMS: tuple[Depletion, ...] = ("linear", "quadratic", "cubic", "binary")
BATCH, LENGTH, WIDTH = 3, 9, 16


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    # the oracle draws its starts in the default dtype
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def tokens_and_mask(seed: int = 0, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    tokens = scale * torch.randn(BATCH, LENGTH, WIDTH, generator=g)
    return tokens, torch.ones(BATCH, LENGTH, dtype=torch.bool)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def copy_weights(source: nn.Module, target: nn.Module) -> None:
    # every bias random: the packages start the layer norms' at zero
    for p in source.parameters():
        p.data = torch.randn_like(p) * 0.5
    target.load_state_dict(source.state_dict(), strict=True)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n_slots", range(1, 9))
@pytest.mark.parametrize("training", [False, True])
def test_equals_the_authors_package(form: Depletion, n_slots: int, training: bool) -> None:
    torch.manual_seed(n_slots)
    oracle = EvidenceDepletionSlotAttention(n_slots, WIDTH, 3, 3.0, 0.3, form, 1e-4)
    ours = EvidenceDepletion(n_slots, WIDTH, 3, 3.0, 0.3, form, 1e-4)
    copy_weights(oracle, ours)
    oracle.train(training)
    ours.train(training)
    tokens, mask = tokens_and_mask()

    torch.manual_seed(7)  # the oracle draws from the global generator: the starts, then the order
    slots, attention, evidence = oracle(tokens)
    got = ours(tokens, mask, generator=seeded(7))

    torch.testing.assert_close(got.slots, slots, rtol=0, atol=1e-11)
    torch.testing.assert_close(got.attention, attention, rtol=0, atol=1e-11)
    torch.testing.assert_close(got.evidence, torch.stack(evidence, 1), rtol=0, atol=1e-11)


@pytest.mark.parametrize("form", FORMS)
def test_gradients_equal_the_authors_package(form: Depletion) -> None:
    torch.manual_seed(3)
    oracle = EvidenceDepletionSlotAttention(4, WIDTH, 3, 3.0, 0.3, form, 1e-4)
    ours = EvidenceDepletion(4, WIDTH, 3, 3.0, 0.3, form, 1e-4)
    copy_weights(oracle, ours)
    tokens, mask = tokens_and_mask()
    theirs_in, ours_in = tokens.clone().requires_grad_(), tokens.clone().requires_grad_()

    torch.manual_seed(7)
    slots, attention, _ = oracle(theirs_in)
    (slots.square().sum() + attention.square().sum()).backward()
    got = ours(ours_in, mask, generator=seeded(7))
    (got.slots.square().sum() + got.attention.square().sum()).backward()

    torch.testing.assert_close(ours_in.grad, theirs_in.grad, rtol=1e-9, atol=1e-9)
    wanted = dict(oracle.named_parameters())
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted[name].grad, rtol=1e-9, atol=1e-9)


def test_vanilla_equals_the_authors_package() -> None:
    torch.manual_seed(5)
    oracle, ours = VanillaSA(5, WIDTH, 3), VanillaSlotAttention(5, WIDTH, 3)
    copy_weights(oracle, ours)
    tokens, mask = tokens_and_mask()
    torch.manual_seed(7)
    slots, attention, _ = oracle(tokens)
    got = ours(tokens, mask, generator=seeded(7))
    torch.testing.assert_close(got.slots, slots, rtol=0, atol=1e-11)
    torch.testing.assert_close(got.attention, attention, rtol=0, atol=1e-11)
    assert torch.equal(got.evidence, torch.ones(BATCH, 6, LENGTH))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("n_slots", [1, 4])
def test_sequential_equals_the_authors_package(n_slots: int, training: bool) -> None:
    torch.manual_seed(5)
    oracle, ours = SequentialSA(n_slots, WIDTH, 3), SequentialSlotAttention(n_slots, WIDTH, 3)
    copy_weights(oracle, ours)
    oracle.train(training)
    ours.train(training)
    tokens, mask = tokens_and_mask()
    torch.manual_seed(7)
    slots, attention, _ = oracle(tokens)
    got = ours(tokens, mask, generator=seeded(7))
    torch.testing.assert_close(got.slots, slots, rtol=0, atol=1e-11)
    torch.testing.assert_close(got.attention, attention, rtol=0, atol=1e-11)
    assert torch.equal(got.evidence, torch.ones(BATCH, n_slots + 1, LENGTH))


def test_autocast_has_gradients_close_to_those_of_single_precision() -> None:
    torch.manual_seed(2)
    module = EvidenceDepletion(3, WIDTH).float()
    gradients = []
    for enabled in (False, True):
        tokens = tokens_and_mask()[0].float().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            out = module(tokens, tokens_and_mask()[1], generator=seeded(1))
            loss = out.slots.float().square().sum()
        loss.backward()
        assert tokens.grad is not None
        assert tokens.grad.dtype == torch.float32
        gradients.append(tokens.grad.flatten())
    assert torch.nn.functional.cosine_similarity(*gradients, dim=0) > 0.95


KINDS = (EvidenceDepletion, SequentialSlotAttention, VanillaSlotAttention)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("with_bias", [False, True])
def test_masked_tokens_are_as_if_absent(kind: type[EvidenceDepletion], with_bias: bool) -> None:
    torch.manual_seed(1)
    module = kind(4, WIDTH).eval()
    tokens, mask = tokens_and_mask()
    mask[:, 5:] = False
    bias = torch.randn(BATCH, LENGTH) if with_bias else None
    short_bias = None if bias is None else bias[:, :5]
    expected = module(tokens[:, :5], mask[:, :5], short_bias, seeded(2))
    tokens[:, 5:] = torch.nan
    if bias is not None:
        bias[:, 5:] = torch.inf
    got = module(tokens, mask, bias, seeded(2))
    torch.testing.assert_close(got.slots, expected.slots)
    torch.testing.assert_close(got.attention[..., :5], expected.attention)
    torch.testing.assert_close(got.evidence[..., :5], expected.evidence)
    assert not got.attention[..., 5:].any()
    assert not got.evidence[..., 5:].any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("learned", [False, True])
def test_without_any_valid_token_all_is_finite(
    kind: type[EvidenceDepletion], learned: bool
) -> None:
    module = kind(4, WIDTH, learned_starts=learned)
    tokens, mask = tokens_and_mask()
    mask[1] = False
    tokens[1] = torch.nan
    tokens.requires_grad_()
    bias = torch.zeros(BATCH, LENGTH, requires_grad=True)
    out = module(tokens, mask, bias, seeded(2))
    assert all(part.isfinite().all() for part in out)
    assert not out.attention[1].any()
    assert not out.weights[1].any()
    (out.slots.square().sum() + out.attention.square().sum() + out.weights.sum()).backward()
    assert tokens.grad is not None
    assert tokens.grad.isfinite().all()
    assert not tokens.grad[1].any()
    assert bias.grad is not None
    assert bias.grad.isfinite().all()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@settings(deadline=None, max_examples=30)
@given(
    form=st.sampled_from(FORMS),
    seed=st.integers(0, 2**31),
    scale=st.sampled_from([0.0, 1.0, 1e3]),
)
def test_evidence_never_rises(form: Depletion, seed: int, scale: float) -> None:
    """Proposition 2: epsilon <= e after <= e before <= 1; attention is a distribution."""
    torch.manual_seed(seed)
    module = EvidenceDepletion(5, WIDTH, depletion=form)
    out = module(*tokens_and_mask(seed, scale), generator=seeded(seed))
    steps = out.evidence.unbind(1)
    assert torch.equal(steps[0], torch.ones_like(steps[0]))
    for before, after in pairwise(steps):
        assert (after <= before).all()
        assert (after >= 1e-4).all()
    torch.testing.assert_close(out.attention.sum(-1), torch.ones(BATCH, 5))


def test_order_is_random_in_training_and_fixed_in_evaluation() -> None:
    module = EvidenceDepletion(5, WIDTH)
    assert len({tuple(module.order(seeded(i))) for i in range(40)}) > 20
    assert module.order(seeded(3)) == module.order(seeded(3))
    assert sorted(module.order()) == [0, 1, 2, 3, 4]
    assert module.eval().order(seeded(3)) == [0, 1, 2, 3, 4]


def test_learned_starts_need_no_random_numbers() -> None:
    module = EvidenceDepletion(4, WIDTH, learned_starts=True).eval()
    assert "slot_mu" not in module.state_dict()
    first, second = (module(*tokens_and_mask(), generator=seeded(i)) for i in (1, 2))
    assert torch.equal(first.slots, second.slots)
    assert not torch.allclose(first.slots[:, 0], first.slots[:, 1])


@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_depends_on_neither_batch_nor_history(kind: type[EvidenceDepletion]) -> None:
    module = kind(4, WIDTH).eval()
    tokens, mask = tokens_and_mask()
    whole = module(tokens, mask)
    torch.rand(3)
    for i in range(BATCH):
        alone = module(tokens[i : i + 1], mask[i : i + 1])
        torch.testing.assert_close(alone.slots[0], whole.slots[i])
    assert not torch.allclose(whole.slots[:, 0], whole.slots[:, 1])
    module.train()
    first, second = (module(tokens, mask).slots for _ in range(2))
    assert not torch.allclose(first, second)


def test_exchangeable_slots_exchange() -> None:
    """Vanilla slots that swap starts swap outputs."""
    module = VanillaSlotAttention(3, WIDTH, learned_starts=True)
    before = module(*tokens_and_mask())
    module.slot_start.data = module.slot_start.data[[2, 0, 1]]
    after = module(*tokens_and_mask())
    torch.testing.assert_close(after.slots, before.slots[:, [2, 0, 1]])
    torch.testing.assert_close(before.attention.sum(1), torch.ones(BATCH, LENGTH))


@pytest.mark.parametrize("kind", KINDS)
def test_bias_draws_attention(kind: type[EvidenceDepletion]) -> None:
    module = kind(3, WIDTH).eval()
    tokens, mask = tokens_and_mask()
    bias = torch.zeros(BATCH, LENGTH)
    bias[:, 4] = 30.0
    weights = module(tokens, mask, bias, seeded(1)).weights
    first = weights.mean(1) if kind is VanillaSlotAttention else weights[:, 0]
    assert (first[:, 4] > 0.99).all()


def test_gradcheck_through_the_evidence() -> None:
    module = EvidenceDepletion(3, 4, iterations=2, learned_starts=True).eval()
    tokens = torch.randn(2, 3, 4, generator=seeded(1), requires_grad=True)
    bias = torch.randn(2, 3, generator=seeded(2), requires_grad=True)
    mask = torch.tensor([[True, True, False], [True, True, True]])
    assert torch.autograd.gradcheck(lambda t, b: tuple(module(t, mask, b)), (tokens, bias))


def test_wrong_shapes_and_forms_are_named() -> None:
    module = EvidenceDepletion(3, WIDTH)
    tokens, mask = tokens_and_mask()
    with pytest.raises(ValueError, match="tokens: expected shape"):
        module(tokens[..., :-1], mask)
    with pytest.raises(ValueError, match="bias: expected shape"):
        module(tokens, mask, torch.zeros(BATCH, 2))
    one = torch.ones(1)
    with pytest.raises(ValueError, match="depletion"):
        deplete(one, one, "quartic", 0.1)  # type: ignore[arg-type]
