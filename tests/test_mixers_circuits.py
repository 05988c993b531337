"""Query-key and output-value: the reduced flow, a layer that is trained, and learning rates."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from slotflow.ablate.circuits import (
    Task,
    attention,
    reduced_flow,
    relation,
    sequences,
    train_layer,
)
from slotflow.circuits import QueryKeyRate, circuits
from slotflow.config import ModelSettings
from slotflow.model import SlotFlow
from slotflow.slots import EvidenceDepletion, SequentialSlotAttention, VanillaSlotAttention

TASK = Task()
RATIOS = (0.25, 1.0, 4.0, 16.0, 64.0)


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("task", [TASK, Task(1, 30, 64, 2), Task(5, 5, 1000, 10)])
def test_the_relation_is_conserved(task: Task, ratio: float) -> None:
    times = np.linspace(0.0, 40.0 * task.vocabulary * task.classes, 300)
    found = reduced_flow(task, ratio, times)
    assert found.mu_ov[-1] > 1.0
    terms = ratio * task.silent * found.mu_ov**2 / task.vocabulary
    assert np.abs(relation(task, ratio, found.mu_ov, found.mu_qk)).max() < 1e-6 * max(
        1.0, terms.max()
    )
    # and it is no relation of zero with zero
    assert abs(relation(task, ratio, found.mu_ov[-1], 1.1 * found.mu_qk[-1])) > 1e-3 * terms.max()


def test_the_flow_starts_as_the_equations_say() -> None:
    small = 1e-3
    found = reduced_flow(TASK, 2.0, [0.0, small])
    alpha, b, m = float(attention(TASK, 0.0)), TASK.vocabulary, TASK.classes
    assert alpha == TASK.informative / (TASK.informative + TASK.silent)
    slope = alpha / (b * m)
    assert found.mu_ov[1] / small == pytest.approx(slope, rel=1e-5)
    bend = 2.0 * (m - 1) * alpha * (1 - alpha) * slope / (m * b**2 * m)
    assert found.mu_qk[1] / (0.5 * small**2) == pytest.approx(bend, rel=1e-4)


def test_attention_on_the_informative_grows_with_the_ratio() -> None:
    times = np.linspace(0.0, 20_000.0, 50)
    final = [reduced_flow(TASK, ratio, times).alpha[-1] for ratio in RATIOS]
    assert all(a < b for a, b in pairwise(final))
    assert final[-1] > 4.0 * final[0]


SMALL = Task(vocabulary=64)


@pytest.fixture(scope="module")
def trained() -> dict[float, tuple[np.ndarray, ...]]:
    found = {}
    for ratio in (4.0, 32.0):
        path, losses = train_layer(SMALL, ratio, 200, 40.0)
        found[ratio] = (path.time, path.mu_ov, path.mu_qk, path.alpha, np.array(losses))
    return found


@pytest.mark.parametrize("ratio", [4.0, 32.0])
def test_a_trained_layer_follows_the_flow(
    ratio: float, trained: dict[float, tuple[np.ndarray, ...]]
) -> None:
    """Up to what the reduction leaves out: M / (b - M) = 7% of mu_QK."""
    time, mu_ov, mu_qk, alpha, losses = trained[ratio]
    flow = reduced_flow(SMALL, ratio, time)
    late = time > 2500.0  # steps are not small against the first stretch
    assert np.abs(mu_ov / flow.mu_ov - 1.0)[late].max() < 0.03
    assert np.abs(mu_qk / flow.mu_qk - 1.0)[late].max() < 0.1
    assert np.abs(alpha / flow.alpha - 1.0)[late].max() < 0.06
    share = SMALL.silent * (SMALL.classes - 1) / (2 * SMALL.classes * SMALL.vocabulary)
    off = relation(SMALL, ratio, mu_ov, mu_qk) / (ratio * share * mu_ov**2)
    left_out = SMALL.classes / (SMALL.vocabulary - SMALL.classes)
    assert np.abs(off[late] - left_out).max() < 0.02
    assert losses[-1] < losses[0]


def test_the_sharper_layer_is_the_one_of_the_larger_ratio(
    trained: dict[float, tuple[np.ndarray, ...]],
) -> None:
    """At the same loss."""
    slow, fast = trained[4.0], trained[32.0]
    level = slow[4].min()
    at = int(np.argmax(fast[4] <= level))
    assert fast[4][at] <= level
    assert fast[3][at] > slow[3][-1] + 0.01


def test_factors_learn_too() -> None:
    path, losses = train_layer(TASK, 1.0, 150, 100.0, parameterisation="factorised")
    assert losses[-1] < 0.5 * losses[0]
    assert path.alpha[-1] > path.alpha[0]


def test_the_task() -> None:
    query, tokens, label = sequences(TASK, torch.Generator().manual_seed(1))
    assert len(torch.unique(query * TASK.classes + label)) == TASK.vocabulary * TASK.classes
    assert (tokens[:, : TASK.informative] == label[:, None]).all()
    assert tokens[:, TASK.informative :].min() >= TASK.classes


def small(**changes: object) -> SlotFlow:
    torch.manual_seed(1)
    sizes = {"width": 16, "heads": 2, "layers": 1, "context": 16, "flow_layers": 1,
             "flow_hidden": 8, "psi_hidden": 8, "slots": 2}  # fmt: skip
    return SlotFlow(ModelSettings.model_validate(sizes | changes), 64)


MODELS: list[dict[str, object]] = [
    {}, {"parameterisation": "collapsed"}, {"mixer": "quaternion", "mixer_spectrum": True},
    {"mixer": "kuramoto"}, {"mixer": "dice", "dice_scores": "linear", "mixer_spectrum": True},
    {"slot_attention": "vanilla"},
]  # fmt: skip


@pytest.mark.parametrize("changes", MODELS)
def test_a_ratio_scales_the_steps_of_queries_and_keys_alone(changes: dict[str, object]) -> None:
    """AdamW's first steps are of the rate's size, whatever the gradient is."""
    steps = []
    for ratio in (1.0, 3.0):
        network = small(**changes)
        rates = QueryKeyRate(network, ratio)
        optimiser = torch.optim.AdamW(rates.groups(), 1e-3, weight_decay=0.1, fused=True)
        rates.set_rates(optimiser, 1e-3)
        g = torch.Generator().manual_seed(7)
        before = {n: p.detach().clone() for n, p in network.named_parameters()}
        for parameter in network.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=g)
        rates.step(optimiser)
        steps.append({n: p.detach() - before[n] for n, p in network.named_parameters()})
    found = circuits(network)
    own = {n for n, p in network.named_parameters() if any(p is q for q in found.whole)}
    rows = {n: count for n, p in network.named_parameters() for q, count in found.rows if p is q}
    assert any(n.startswith("slots.") for n in own)
    assert any(n.startswith("encoder.") for n in {*own, *rows})
    for name, plain in steps[0].items():
        factor = torch.ones(plain.shape)
        if name in own:
            factor = torch.full(plain.shape, 3.0)
        elif name in rows:
            factor[: rows[name]] = 3.0
        torch.testing.assert_close(steps[1][name], factor * plain, rtol=1e-3, atol=2e-7)


def test_every_attention_is_in_the_circuit() -> None:
    network = small()
    found = circuits(network)
    named = {n for n, p in network.named_parameters() if any(p is q for q in found.whole)}
    wanted = {f"slots.proj_{part}.{kind}" for part in "qk" for kind in ("weight", "bias")}
    assert named == wanted
    assert [count for _, count in found.rows] == [32, 32]
    total = sum(1 for _ in network.parameters())
    assert len(found.whole) + len(found.other) == total


KINDS = (EvidenceDepletion, SequentialSlotAttention, VanillaSlotAttention)


@pytest.mark.parametrize("kind", KINDS)
def test_collapsed_slots_start_as_factorised_ones(kind: type[EvidenceDepletion]) -> None:
    modules = []
    for parameterisation in ("factorised", "collapsed"):
        torch.manual_seed(3)
        module = kind(4, 16, parameterisation=parameterisation)  # type: ignore[arg-type]
        modules.append(module.double().eval())
    tokens, mask = torch.randn(2, 9, 16).double(), torch.rand(2, 9) > 0.2
    mask[1] = False
    bias = torch.randn(2, 9).double()
    first, second = (module(tokens, mask, bias) for module in modules)
    # vanilla slots spend their values' bias where no token is valid
    some = mask.any(dim=1)
    torch.testing.assert_close(second.slots[some], first.slots[some], rtol=0, atol=1e-6)
    torch.testing.assert_close(second.attention, first.attention, rtol=0, atol=1e-6)
    assert second.slots.isfinite().all()
    names = {name for name, _ in modules[1].named_parameters()}
    assert not any(name.startswith(("proj_q.", "proj_k.", "proj_v.")) for name in names)
    (second.slots.sum() + second.attention.square().sum()).backward()
    for name, parameter in modules[1].named_parameters():
        if not name.startswith("slot_"):
            assert parameter.grad is not None, name
