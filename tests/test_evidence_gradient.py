"""Evidence without its gradient: the same numbers, and each slot learns by its own reading."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from slotflow.config import ModelSettings, load_preset, parse_preset
from slotflow.errors import InputError
from slotflow.model import SlotFlow
from slotflow.slotbase import SlotOutput
from slotflow.slots import Depletion, EvidenceDepletion, deplete

WIDTH = 8


class Recorded(EvidenceDepletion):
    """Depletes with evidence written down before, a constant by construction."""

    def __init__(self, trail: Tensor, n_slots: int, form: Depletion) -> None:
        super().__init__(n_slots, WIDTH, depletion=form, learned_starts=True)
        self.trail = list(trail.unbind(1))[1:]

    def deplete(self, evidence: Tensor, alpha: Tensor) -> Tensor:
        return self.trail.pop(0)


def built(n_slots: int, form: Depletion, gradient: bool, seed: int) -> EvidenceDepletion:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = EvidenceDepletion(
            n_slots, WIDTH, depletion=form, learned_starts=True, evidence_gradient=gradient
        )
    return module.double().eval()


def scalar(out: SlotOutput, seed: int) -> Tensor:
    """A loss that every slot and every attention has a part in."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(out.slots.shape, generator=generator, dtype=torch.float64)
    target = torch.randint(out.attention.shape[2], out.attention.shape[:2], generator=generator)
    chosen = torch.gather(out.attention, 2, target[..., None])
    return (out.slots * weights).sum() - torch.log(chosen.clamp(min=1e-12)).sum()


@given(
    n_slots=st.integers(1, 6),
    form=st.sampled_from(("linear", "quadratic", "cubic", "binary")),
    seed=st.integers(0, 1000),
)
def test_its_gradient_is_that_of_evidence_held_constant(
    n_slots: int, form: Depletion, seed: int
) -> None:
    tokens = torch.randn(2, 7, WIDTH, generator=torch.Generator().manual_seed(seed)).double()
    mask = torch.ones(2, 7, dtype=torch.bool)
    free, stopped = built(n_slots, form, True, seed), built(n_slots, form, False, seed)
    expected = free(tokens, mask)
    oracle = Recorded(expected.evidence.detach(), n_slots, form).double().eval()
    oracle.load_state_dict(free.state_dict())
    gradients = []
    for module in (stopped, oracle):
        source = tokens.clone().requires_grad_()
        out = module(source, mask)
        for mine, theirs in zip(out, expected, strict=True):
            assert torch.equal(mine, theirs)  # the switch changes no number
        scalar(out, seed).backward()  # type: ignore[no-untyped-call]
        gradients.append([source.grad, *(p.grad for p in module.parameters())])
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_later_slot_tells_an_earlier_one_nothing() -> None:
    tokens = 2.0 * torch.randn(2, 7, WIDTH, generator=torch.Generator().manual_seed(1)).double()
    mask = torch.ones(2, 7, dtype=torch.bool)
    seen = {}
    for gradient in (True, False):
        module = built(3, "quadratic", gradient, 1)
        module(tokens, mask).slots[:, 2].square().sum().backward()
        assert module.slot_start.grad is not None
        seen[gradient] = module.slot_start.grad.abs().sum(1)
    assert (seen[True] > 0.0).all()  # slots are read in the order 0, 1, 2
    assert seen[False][:2].tolist() == [0.0, 0.0]
    assert seen[False][2] > 0.0


@pytest.mark.parametrize("links", [1, 4, 16])
def test_what_a_chain_of_slots_multiplies(links: int) -> None:
    """d ln e after a slot, by the logit of the token it takes, is -2 alpha^2 / (1 + alpha).

    Next slots see gamma ln e: where one of them is undecided, a change of the logit comes back
    gamma times as large, per slot. The closed form is for two tokens, whose other logit is 0.
    """
    gamma = 3.0
    logit = torch.tensor(4.0, dtype=torch.float64, requires_grad=True)
    current = logit
    expected = 1.0
    for _ in range(links):
        alpha = torch.sigmoid(current)
        left = deplete(torch.ones_like(alpha), alpha, "quadratic", 1e-4)
        current = gamma * torch.log(left)
        share = float(alpha.detach())
        expected *= -gamma * 2.0 * share**2 / (1.0 + share)
        # whatever else its query says, the next slot is as sure of its own choice
        current = current + (4.0 - current.detach())
    current.backward()  # type: ignore[no-untyped-call]
    assert logit.grad is not None
    assert float(logit.grad) == pytest.approx(expected, rel=1e-9)
    assert abs(float(logit.grad)) == pytest.approx(2.92**links, rel=0.02 * links)


def test_the_setting_reaches_the_slots_and_only_where_it_acts() -> None:
    settings = load_preset("tiny").model
    assert "evidence_gradient" not in settings.model_dump()  # models made before are what they were
    changed = settings.model_copy(update={"evidence_gradient": False})
    slots = SlotFlow(changed, 64).slots
    assert isinstance(slots, EvidenceDepletion)
    assert not slots.evidence_gradient
    with pytest.raises(InputError, match="evidence_gradient has no effect with slot_attention"):
        parse_preset(
            {"model": {"slot_attention": "vanilla", "evidence_gradient": False}}, "mine.yaml"
        )
    assert ModelSettings(evidence_gradient=False).evidence_gradient is False
