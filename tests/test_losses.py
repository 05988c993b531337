"""Loss terms: closed forms, and invariance of the objective."""

import itertools
import math

import numpy as np
import pytest
import scipy.optimize
import torch
from hypothesis import given
from hypothesis import strategies as st

from slotflow.config import LossSettings, ModelSettings, load_preset
from slotflow.context import SPECTRUM_BINS, attended_spectrum, stream_widths
from slotflow.losses import (
    Parts,
    Terms,
    attention_cost,
    cardinality_loss,
    component_loss,
    diversity_loss,
    existence_loss,
    orthogonality_loss,
    regression_loss,
    sky_loss,
)
from slotflow.model import SlotFlow
from slotflow.objective import Targets, flow_pairs, loss_parts, loss_terms, matched_slots
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
    assert float(diversity_loss(same, first_two).mean()) == pytest.approx(1.0)
    assert float(orthogonality_loss(same, first_two).mean()) == pytest.approx(1.0)
    apart = torch.tensor([[True, False, True]])
    assert float(diversity_loss(same, apart).mean()) == 0.0
    assert float(orthogonality_loss(same, apart).mean()) == 0.0
    alone = torch.tensor([[True, False, False]])
    assert float(diversity_loss(same, alone).mean()) == 0.0


def test_existence_is_cross_entropy() -> None:
    logits = torch.tensor([[0.0, math.log(3.0)]])
    got = existence_loss(logits, torch.tensor([[True, False]])).mean()
    assert float(got) == pytest.approx(0.5 * (math.log(2.0) + math.log(4.0)))


def test_focal_existence_is_the_published_formula() -> None:
    """arXiv:1708.02002, equation 4, of probabilities 3/4 and 2/5."""
    logits = torch.tensor([[math.log(3.0), math.log(1.5)]])
    got = existence_loss(logits, torch.tensor([[True, False]]), focal_gamma=2.0).mean()
    expected = -0.5 * (0.25**2 * math.log(0.75) + 0.6**2 * math.log(0.4))
    assert float(got) == pytest.approx(expected, rel=1e-5)


def test_smoothed_existence_is_least_at_the_smoothed_label() -> None:
    logits = torch.linspace(-8, 8, 4001)
    each = torch.stack(
        [
            existence_loss(x[None, None], torch.tensor([[True]]), smoothing=0.05).mean()
            for x in logits
        ]
    )
    assert float(torch.sigmoid(logits[each.argmin()])) == pytest.approx(0.95, abs=1e-3)


@given(st.integers(0, 1000), st.integers(1, 5))
def test_cardinality_is_the_enumerated_probability(seed: int, slots: int) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0.0, 2.0, slots)
    exists = rng.random(slots) < 0.5
    p = 1 / (1 + np.exp(-logits))
    total = 0.0
    for states in itertools.product((0, 1), repeat=slots):
        if sum(states) == exists.sum():
            total += np.prod(np.where(states, p, 1 - p))
    got = cardinality_loss(torch.from_numpy(logits)[None], torch.from_numpy(exists)[None]).mean()
    assert float(got) == pytest.approx(-math.log(total), rel=1e-9)


def test_sky_loss_is_one_minus_the_cosine() -> None:
    start = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    truth = torch.tensor([[math.cos(0.3), math.sin(0.3), 0.0], [0.0, 0.0, -1.0]])
    none = torch.zeros(2, 3)
    assert float(sky_loss(none, start, truth).mean()) == pytest.approx(
        0.5 * (1 - math.cos(0.3) + 2.0)
    )
    assert float(sky_loss(2.0 * (truth - start) + start, start, truth).mean()) == pytest.approx(
        0.0, abs=1e-6
    )
    assert float(sky_loss(none[:0], start[:0], truth[:0]).mean()) == 0.0


def test_regression_is_hubers_and_holds_far_targets() -> None:
    got = regression_loss(torch.tensor([0.0, 0.0]), torch.tensor([0.5, 9.0])).mean()
    assert float(got) == pytest.approx(0.5 * (0.125 + 3.5))
    assert float(regression_loss(torch.empty(0), torch.empty(0)).mean()) == 0.0


def test_attention_cost_reads_the_component() -> None:
    attention = torch.tensor([[[0.2, 0.8], [0.9, 0.1]]])
    cost = attention_cost(attention, torch.tensor([[1, 0, -1]]))
    expected = -torch.log(torch.tensor([[[0.8, 0.2], [0.1, 0.9]]]))
    assert torch.allclose(cost[..., :2], expected)


def test_component_loss_is_cross_entropy_over_valid_components() -> None:
    logits = torch.tensor([[0.0, math.log(3.0), 50.0]])
    valid = torch.tensor([[True, True, False]])
    got = component_loss(logits, torch.tensor([[1, -1]]), valid).mean()
    assert float(got) == pytest.approx(0.5 * (math.log(2.0) + math.log(4.0 / 3.0)))


def test_weights_weigh_each_term() -> None:
    terms = Terms(*(torch.tensor(float(10**i)) for i in range(11)))
    weights = LossSettings(
        nll=1, psi=2, existence=3, attention=4, component=5, diversity=6, orthogonality=7,
        frequency=8, cardinality=9, amplitude=1, sky=2,
    )  # fmt: skip
    total = sum(float(w) * 10**i for i, w in enumerate((1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2)))
    assert float(terms.total(weights)) == pytest.approx(total, rel=1e-6)


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
    parts = [part for part in reading if part is not None]
    assert all(bool(torch.isfinite(part.double()).all()) for part in parts)


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


ALL_STREAMS = (
    "slot", "attended", "component", "measured", "moments", "band", "attended_measured",
    "frequency", "spectrum", "summary",
)  # fmt: skip


def full_network(**changes: object) -> SlotFlow:
    """Ten streams unmixed, with every head, off its starting point."""
    widths = stream_widths(16)
    total = sum(int(w) for w in widths)
    settings = SMALL.model_copy(
        update={"streams": ALL_STREAMS, "mix": False, "context": total, "auxiliary_heads": True}
        | changes
    )
    torch.manual_seed(0)
    model = SlotFlow(settings, BINS)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=generator))
    return model.eval()


def with_data(data: Tensors, seed: int = 0) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    bands = torch.randn(len(data), 3, BINS, dtype=torch.complex64, generator=generator)
    data.batch = data.batch._replace(data=bands)
    return data


def test_all_ten_streams_and_eleven_terms_train() -> None:
    data = with_data(Tensors.of(token_data(4, 40)))
    model = full_network(stream_dropout=0.3).train()
    generator = torch.Generator().manual_seed(1)
    weights = LossSettings(frequency=0.1, cardinality=0.2, amplitude=0.3, sky=0.4, focal_gamma=1.0)
    reading = model.read(data.batch, generator)
    terms = loss_terms(model, data.batch, reading, data.targets, weights, "flow")
    assert all(t.item() != 0.0 and bool(torch.isfinite(t)) for t in terms)
    terms.total(weights).backward()
    dead = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert set(dead) <= {"slots.proj_k.bias", "slot_bias.bias"}


def test_two_stage_matching_is_the_full_grid() -> None:
    """Match and gradient of the grid evaluated pair by pair, with gradient, by SciPy."""
    data = with_data(Tensors.of(token_data(6, 20)))
    model = full_network().double()
    data.batch = data.batch._replace(
        features=data.batch.features.double(), band=data.batch.band.double(),
        data=data.batch.data.to(torch.complex128),
    )  # fmt: skip
    reading = model.read(data.batch)
    standing = data.targets.component >= 0
    pairs = flow_pairs(model, reading, data.targets)
    slot = matched_slots(reading, data.targets, pairs)
    grid, chosen = [], []
    for b in range(20):
        for k in torch.nonzero(standing[b])[:, 0].tolist():
            row = [
                model.log_prob(
                    data.targets.sources[b, k][None], reading.context[b, s][None],
                    reading.reference[b, s][None],
                ).sum()
                for s in range(5)
            ]  # fmt: skip
            grid.append(torch.stack(row))
            np.testing.assert_allclose(pairs[b, :, k].numpy(), grid[-1].detach().numpy(), rtol=1e-9)
        if standing[b].any():
            rows = torch.stack(grid[-int(standing[b].sum()) :])
            doubt = torch.nn.functional.softplus(-reading.existence[b])
            cost = (0.1 * doubt - rows).detach().numpy()
            _, columns = scipy.optimize.linear_sum_assignment(cost)
            assert slot[b][standing[b]].tolist() == columns.tolist()
            chosen += [rows[i, c] for i, c in enumerate(columns)]
    full = -torch.stack(chosen).mean()
    parameters = [p for n, p in model.named_parameters() if n.startswith(("flow", "psi"))]
    expected = torch.autograd.grad(full, parameters, retain_graph=True)
    terms = loss_terms(model, data.batch, reading, data.targets, matching="flow")
    seen = torch.autograd.grad(terms.nll + terms.psi, parameters)
    for a, b in zip(seen, expected, strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-12)


def test_streams_do_not_depend_on_the_phase_of_all() -> None:
    """A turn of the data and of every component's phases leaves the context as it is."""
    data = with_data(Tensors.of(token_data(7, 10)), 3)
    model = full_network()
    before = model.read(data.batch).context
    turned = data.batch.reference.clone()
    turned[..., 9:11] += 0.7
    spun = data.batch.data * torch.polar(torch.tensor(1.0), torch.tensor(0.7))
    after = model.read(data.batch._replace(reference=turned, data=spun)).context
    assert torch.allclose(before, after, atol=1e-4)
    other = model.read(data.batch._replace(data=spun)).context
    assert not torch.allclose(before, other, atol=1e-2)


def test_the_spectrum_is_that_around_the_component() -> None:
    data = torch.zeros(1, 3, BINS, dtype=torch.complex64)
    data[0, 1, 40] = 5.0j
    reference = torch.zeros(1, 2, 13, dtype=torch.float64)
    reference[0, :, 0] = torch.tensor([42.3, 3.0])
    stream = attended_spectrum(data, reference).view(2, 3, SPECTRUM_BINS, 2)
    expected = torch.zeros_like(stream[0])
    expected[1, 40 - (42 - SPECTRUM_BINS // 2), 1] = math.asinh(5.0)
    assert torch.allclose(stream[0], expected, atol=1e-6)
    assert not stream[1].any()


def test_what_a_network_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="streams are 48 wide"):
        SlotFlow(SMALL.model_copy(update={"streams": ("slot", "attended", "component"),
                                          "mix": False}), BINS)  # fmt: skip
    data = Tensors.of(token_data(4, 4))
    with pytest.raises(ValueError, match="spectrum"):
        full_network().read(data.batch)


def test_the_papers_size() -> None:
    """21.7 million in all, of which the flow has 21.0 (arXiv:2605.02323)."""
    counts = SlotFlow(load_preset("paper").model, 256).parameter_counts()
    assert sum(counts.values()) == pytest.approx(21.7e6, rel=0.01)
    assert counts["flow"] == pytest.approx(21.0e6, rel=0.005)


def test_shared_batches_divide_as_one() -> None:
    """Halves of a batch, with their numbers added up, have the whole's terms and gradient."""
    data = Tensors.of(token_data(8, 24))
    model = network().double()
    data.batch = data.batch._replace(
        features=data.batch.features.double(), band=data.batch.band.double()
    )

    def parts(index: torch.Tensor) -> Parts:
        batch = data.batch.rows(index)
        targets = Targets(*(part[index] for part in data.targets))
        return loss_parts(model, batch, model.read(batch), targets)

    weights = LossSettings()
    parameters = list(model.parameters())
    whole = parts(torch.arange(24)).terms()
    expected = torch.autograd.grad(whole.total(weights), parameters, allow_unused=True)
    halves = [parts(torch.arange(rank, 24, 2)) for rank in (0, 1)]
    counts = (halves[0].numbers() + halves[1].numbers()) / 2
    terms = [half.terms(counts) for half in halves]
    for one, two, mean in zip(*terms, whole, strict=True):
        assert torch.allclose((one + two) / 2, mean, rtol=1e-10)
    seen = [torch.autograd.grad(t.total(weights), parameters, allow_unused=True) for t in terms]
    for one, two, mean in zip(*seen, expected, strict=True):
        if mean is not None:
            assert torch.allclose((one + two) / 2, mean, rtol=1e-9, atol=1e-12)
