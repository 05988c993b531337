"""Assignment: SciPy and brute force are the oracles."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from slotflow.errors import NonFiniteError
from slotflow.matching import assign


def check(cost: Tensor, valid: Tensor) -> None:
    """Every sample: distinct slots, -1 exactly where invalid, SciPy's total."""
    got = assign(cost, valid)
    assert got.dtype == torch.int64
    assert got.shape == valid.shape
    assert torch.equal(got >= 0, valid)
    for matrix, present, chosen in zip(cost.numpy(), valid.numpy(), got.numpy(), strict=True):
        used = chosen[present]
        assert len(set(used.tolist())) == len(used)
        rows, columns = linear_sum_assignment(matrix[:, present])
        expected = matrix[:, present][rows, columns].astype(np.float64).sum()
        total = matrix[used, np.flatnonzero(present)].astype(np.float64).sum()
        assert total == pytest.approx(expected, rel=1e-12, abs=1e-12)


@settings(deadline=None, max_examples=80)
@given(
    slots=st.integers(1, 8),
    sources=st.integers(1, 8),
    seed=st.integers(0, 2**31),
    tied=st.booleans(),
)
def test_least_cost_of_all_assignments(slots: int, sources: int, seed: int, tied: bool) -> None:
    rng = np.random.default_rng(seed)
    cost = rng.normal(size=(5, slots, sources)) * 10.0 ** rng.integers(-3, 6)
    if tied:
        cost = rng.integers(0, 3, cost.shape).astype(np.float64)
    valid = np.zeros((5, sources), dtype=bool)
    for row in valid:
        row[rng.permutation(sources)[: rng.integers(0, min(slots, sources) + 1)]] = True
    check(torch.from_numpy(cost), torch.from_numpy(valid))


@pytest.mark.parametrize(("slots", "sources"), [(5, 4), (6, 6), (12, 4), (6, 7)])
def test_padding_and_its_costs_do_not_matter(slots: int, sources: int) -> None:
    g = torch.Generator().manual_seed(1)
    cost = torch.randn(64, slots, sources, generator=g)
    valid = torch.rand(64, sources, generator=g) < 0.6
    valid[:, 0] = False
    expected = assign(cost, valid)
    cost.masked_fill_(~valid.unsqueeze(1), torch.nan)
    assert torch.equal(assign(cost, valid), expected)


def test_no_source_at_all() -> None:
    """The empty target: nothing is assigned and nothing raises."""
    none = torch.zeros(3, 4, dtype=torch.bool)
    assert (assign(torch.randn(3, 5, 4), none) == -1).all()
    assert (assign(torch.randn(3, 9, 4), none) == -1).all()
    assert assign(torch.randn(3, 5, 0), none[:, :0]).shape == (3, 0)
    assert assign(torch.randn(0, 5, 4), none[:0]).shape == (0, 4)


def test_large_common_costs_keep_small_differences() -> None:
    """float32 costs of 1e6 that differ by 0.25 add up exactly."""
    cost = torch.full((1, 5, 4), 1e6)
    best = [3, 1, 4, 0]
    cost[0, best, [0, 1, 2, 3]] -= 0.25
    assert assign(cost, torch.ones(1, 4, dtype=torch.bool)).tolist() == [best]


@pytest.mark.parametrize("slots", [5, 8])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_costs_are_named(slots: int, value: float) -> None:
    cost = torch.zeros(3, slots, 4)
    cost[1, 2, 3] = value
    valid = torch.ones(3, 4, dtype=torch.bool)
    with pytest.raises(NonFiniteError, match=r"slot 2 and source 3 in sample 1"):
        assign(cost, valid)
    valid[1, 3] = False
    assert assign(cost, valid)[1, 3] == -1


def test_more_sources_than_slots_and_wrong_shapes_are_named() -> None:
    with pytest.raises(ValueError, match="at most 2 sources"):
        assign(torch.zeros(1, 2, 3), torch.ones(1, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match="valid: expected shape"):
        assign(torch.zeros(1, 2, 3), torch.ones(1, 2, dtype=torch.bool))


def test_costs_that_need_a_gradient_are_left_alone() -> None:
    cost = torch.randn(2, 5, 4, requires_grad=True)
    before = cost.detach().clone()
    assert not assign(cost, torch.ones(2, 4, dtype=torch.bool)).requires_grad
    assert torch.equal(cost.detach(), before)
