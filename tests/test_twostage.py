"""Two-stage matching: the whole grid with its gradient, matched by SciPy, is the oracle."""

import itertools

import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from slotflow.errors import NonFiniteError
from slotflow.flow import ConditionalFlow
from slotflow.twostage import flow_cost, match, two_stage_nll

SAMPLES, SLOTS, SOURCES, FEATURES, CONTEXT = 6, 5, 4, 7, 12


def make(scale: float = 0.3) -> tuple[ConditionalFlow, Tensor, Tensor, Tensor]:
    """A rough flow; contexts (B, S, C), coordinates (B, S, K, F), valid (B, K), one band empty."""
    torch.manual_seed(0)
    flow = ConditionalFlow(FEATURES, CONTEXT, 4, 8, 16, 3.0, blocks=1).double()
    for parameter in flow.parameters():
        parameter.data += scale * torch.randn_like(parameter)
    context = torch.randn(SAMPLES, SLOTS, CONTEXT, dtype=torch.float64, requires_grad=True)
    x = torch.randn(SAMPLES, SLOTS, SOURCES, FEATURES, dtype=torch.float64)
    valid = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 0],
                          [1, 1, 0, 0]]).bool()  # fmt: skip
    x[~valid.unsqueeze(1).expand(-1, SLOTS, -1)] = torch.nan  # must not be looked at
    return flow, context, x, valid


def full_grid_nll(
    flow: ConditionalFlow, context: Tensor, x: Tensor, valid: Tensor, further: Tensor | float = 0.0
) -> tuple[Tensor, list[list[int]]]:
    """ln q of all B S K pairs with its gradient; SciPy assigns; the loss is gathered."""
    safe = torch.where(valid[:, None, :, None], x, 0.0)
    grid = -flow.log_prob(safe, context.unsqueeze(2))
    cost = (grid + further).detach().numpy()
    chosen, slots = [], []
    for b in range(len(valid)):
        present = torch.nonzero(valid[b]).squeeze(-1).numpy()
        rows, columns = linear_sum_assignment(cost[b][:, present])
        held = dict(zip(present[columns].tolist(), rows.tolist(), strict=True))
        slots.append([held.get(k, -1) for k in range(SOURCES)])
        chosen += [grid[b, s, k] for k, s in held.items()]
    return torch.stack(chosen).mean(), slots


def test_loss_and_gradients_equal_the_full_grid() -> None:
    flow, context, x, valid = make()
    leaves = [*flow.parameters(), context]
    ours = two_stage_nll(flow, context, x, valid)
    theirs, slots = full_grid_nll(flow, context, x, valid)
    assert match(flow, context, x, valid).slot.tolist() == slots
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)
    pairs = zip(torch.autograd.grad(ours, leaves), torch.autograd.grad(theirs, leaves), strict=True)
    for mine, other in pairs:
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-9)


def test_further_cost_moves_the_match_but_not_the_loss() -> None:
    flow, context, x, valid = make()
    further = 30.0 * torch.rand(SAMPLES, SLOTS, SOURCES, dtype=torch.float64)
    _, slots = full_grid_nll(flow, context, x, valid, further)
    got = match(flow, context, x, valid, further)
    assert got.slot.tolist() == slots
    assert slots != match(flow, context, x, valid).slot.tolist()
    expected, _ = full_grid_nll(flow, context, x, valid, further)
    torch.testing.assert_close(-got.log_q.mean(), expected, rtol=0, atol=1e-9)


def test_cost_is_that_of_each_pair_whatever_the_chunk() -> None:
    flow, context, x, valid = make()
    projected = flow.project(context)
    cost = flow_cost(flow, projected, x, valid)
    assert not cost.requires_grad
    for b, s, k in itertools.product(range(SAMPLES), range(SLOTS), range(SOURCES)):
        expected = -flow.log_prob(x[b, s, k], context[b, s]) if valid[b, k] else torch.zeros(())
        assert float(cost[b, s, k]) == pytest.approx(float(expected.detach()), abs=1e-10)
    for chunk in (1, 7, 1000):
        parts = flow_cost(flow, projected, x, valid, chunk)
        torch.testing.assert_close(parts, cost, rtol=0, atol=1e-11)


def test_coordinates_that_do_not_depend_on_the_slot() -> None:
    flow, context, x, valid = make()
    common = x[:, 0]
    repeated = common.unsqueeze(1).expand(-1, SLOTS, -1, -1)
    for a, b in zip(
        match(flow, context, common, valid), match(flow, context, repeated, valid), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


def test_no_source_at_all_is_no_loss() -> None:
    flow, context, x, valid = make()
    loss = two_stage_nll(flow, context, x, torch.zeros_like(valid))
    assert float(loss.detach()) == 0.0
    torch.autograd.backward(loss)


def test_a_cost_that_is_not_finite_is_named() -> None:
    flow, context, x, valid = make()
    x = x.clone()
    x[2, 3, 1, 0] = torch.nan
    with pytest.raises(NonFiniteError, match="slot 3 and source 1 in sample 2"):
        two_stage_nll(flow, context, x, valid)
