"""Loss terms: closed forms, and invariance of the objective."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slotflow.config import LossSettings, ModelSettings
from slotflow.losses import (
    Terms,
    attention_cost,
    component_loss,
    diversity_loss,
    existence_loss,
    orthogonality_loss,
)
from slotflow.model import SlotFlow
from slotflow.objective import Targets, loss_terms, matched_slots
from slotflow.train import Tensors
from tests.synthetic import BINS, token_data

SMALL = ModelSettings(
    width=16, layers=1, heads=2, context=16, flow_layers=2, flow_bins=4, flow_hidden=16,
    psi_bins=4, psi_hidden=16,
)  # fmt: skip


def network(seed: int = 0) -> SlotFlow:
    torch.manual_seed(seed)
    return SlotFlow(SMALL, BINS).eval()


def test_pair_losses_closed_forms() -> None:
    same = torch.tensor([[[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]])
    first_two = torch.tensor([[True, True, False]])
    assert float(diversity_loss(same, first_two)) == pytest.approx(1.0)
    assert float(orthogonality_loss(same, first_two)) == pytest.approx(1.0)
    apart = torch.tensor([[True, False, True]])
    assert float(diversity_loss(same, apart)) == 0.0
    assert float(orthogonality_loss(same, apart)) == 0.0
    alone = torch.tensor([[True, False, False]])
    assert float(diversity_loss(same, alone)) == 0.0


def test_existence_is_cross_entropy() -> None:
    logits = torch.tensor([[0.0, math.log(3.0)]])
    got = existence_loss(logits, torch.tensor([[True, False]]))
    assert float(got) == pytest.approx(0.5 * (math.log(2.0) + math.log(4.0)))


def test_attention_cost_reads_the_component() -> None:
    attention = torch.tensor([[[0.2, 0.8], [0.9, 0.1]]])
    cost = attention_cost(attention, torch.tensor([[1, 0, -1]]))
    expected = -torch.log(torch.tensor([[[0.8, 0.2], [0.1, 0.9]]]))
    assert torch.allclose(cost[..., :2], expected)


def test_component_loss_is_cross_entropy_over_valid_components() -> None:
    logits = torch.tensor([[0.0, math.log(3.0), 50.0]])
    valid = torch.tensor([[True, True, False]])
    got = component_loss(logits, torch.tensor([[1, -1]]), valid)
    assert float(got) == pytest.approx(0.5 * (math.log(2.0) + math.log(4.0 / 3.0)))


def test_weights_weigh_each_term() -> None:
    terms = Terms(*(torch.tensor(float(10**i)) for i in range(7)))
    weights = LossSettings(
        nll=1, psi=2, existence=3, attention=4, component=5, diversity=6, orthogonality=7
    )
    assert float(terms.total(weights)) == 7654321


@given(st.integers(0, 1000))
def test_objective_is_invariant_under_the_order_of_sources_and_components(seed: int) -> None:
    data = Tensors.of(token_data(seed, 10))
    model = network().double()  # so that rounding decides no tie
    single = data.batch
    data.batch = single._replace(features=single.features.double(), band=single.band.double())
    before = loss_terms(model, data.batch, model.read(data.batch), data.targets)
    generator = torch.Generator().manual_seed(seed)
    sources = torch.randperm(4, generator=generator)
    places = torch.randperm(10, generator=generator)
    where = torch.argsort(places)
    component = data.targets.component[:, sources]
    component = torch.where(component >= 0, where[component.clamp(min=0)], component)
    targets = Targets(data.targets.sources[:, sources], component)
    batch = data.batch._replace(
        features=data.batch.features[:, places],
        reference=data.batch.reference[:, places],
        valid=data.batch.valid[:, places],
    )
    after = loss_terms(model, batch, model.read(batch), targets)
    for a, b in zip(before, after, strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-9)


def test_bands_without_sources_or_components() -> None:
    data = Tensors.of(token_data(0, 20))
    empty = data.rows(torch.nonzero(data.count == 0)[:, 0])
    model = network()
    terms = loss_terms(model, empty.batch, model.read(empty.batch), empty.targets)
    assert terms.nll.item() == 0.0
    assert terms.existence.item() > 0.0
    blank = empty.batch._replace(
        features=torch.zeros_like(empty.batch.features), valid=torch.zeros_like(empty.batch.valid)
    )
    reading = model.read(blank)
    assert bool((torch.sigmoid(reading.existence) < 1e-6).all())
    assert all(bool(torch.isfinite(part.double()).all()) for part in reading)


def test_matched_slots_are_distinct_and_only_where_a_component_stands() -> None:
    data = Tensors.of(token_data(3, 40))
    model = network()
    slot = matched_slots(model.read(data.batch), data.targets)
    assert torch.equal(slot >= 0, data.targets.component >= 0)
    for row in slot.tolist():
        used = [s for s in row if s >= 0]
        assert len(set(used)) == len(used)


def test_every_parameter_gets_a_gradient() -> None:
    data = Tensors.of(token_data(4, 40))
    model = network().train()
    # the conditioners start at zero weights in their last layer: move off that point
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=generator))
    terms = loss_terms(model, data.batch, model.read(data.batch, generator), data.targets)
    terms.total(LossSettings()).backward()
    dead = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    # keys shifted by a constant do not change a softmax
    assert dead == [] or set(dead) <= {"slots.proj_k.bias", "slot_bias.bias"}
