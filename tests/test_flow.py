"""The flows: stock nflows on the same weights is the oracle; normalisation, circle, masks."""

import copy
import math
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch
from nflows.transforms.base import CompositeTransform
from nflows.transforms.coupling import PiecewiseRationalQuadraticCouplingTransform
from scipy import special
from torch import Tensor, nn

from slotflow.checkpoint import load_model
from slotflow.flow import ConditionalFlow, PsiFlow, SplineCoupling, masks

FEATURES, CONTEXT = 7, 12
#: Of the weights' noise: large ones make slopes of 1e-3 and 1e2 in most splines.
SCALES = {"random": 0.3, "large": 0.5}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def roughen(module: nn.Module, scale: float = 0.3) -> None:
    """Random weights, as after much training: nothing is left of the identity."""
    g = seeded(11)
    for parameter in module.parameters():
        parameter.data += scale * torch.randn(parameter.shape, generator=g, dtype=parameter.dtype)


def rough_flow(features: int = FEATURES, layers: int = 5, scale: float = 0.3) -> ConditionalFlow:
    torch.manual_seed(0)
    flow = ConditionalFlow(features, CONTEXT, layers, 8, 16, 3.0).double()
    roughen(flow, scale)
    return flow


def stock(flow: ConditionalFlow) -> CompositeTransform:
    """nflows' own coupling transforms, loaded from the flow's state dicts."""
    transforms = []
    for layer in flow.layers:
        assert isinstance(layer, SplineCoupling)
        mask = torch.zeros(flow.features)
        mask[layer.transform_features] = 1
        twin = PiecewiseRationalQuadraticCouplingTransform(
            mask,
            lambda inputs, outputs, net=layer.transform_net: copy.deepcopy(net),
            num_bins=layer.num_bins,
            tails="linear",
            tail_bound=layer.tail_bound,
        ).double()
        roughen(twin)
        twin.load_state_dict(layer.state_dict(), strict=True)
        transforms.append(twin)
    return CompositeTransform(transforms)


def log_normal(z: Tensor) -> Tensor:
    return -0.5 * (z**2 + math.log(2.0 * math.pi)).sum(-1)


def context_width(flow: ConditionalFlow) -> int:
    """Width of what the flow is given."""
    layer = flow.layers[0]
    assert isinstance(layer, SplineCoupling)
    return layer.transform_net.initial_layer.in_features - layer.transform_net.features


def points(n: int, features: int = FEATURES, width: int = CONTEXT) -> tuple[Tensor, Tensor]:
    """Points on both sides of the tail bounds, and contexts."""
    x = 2.0 * torch.randn(n, features, generator=seeded(1), dtype=torch.float64)
    return x, torch.randn(n, width, generator=seeded(2), dtype=torch.float64)


def trained_flow() -> ConditionalFlow:
    """The flow of the model that ships, with nflows' base."""
    path = Path(str(resources.files("slotflow.data"))) / "model.safetensors"
    flow = load_model(path).network.flow.double()
    flow.base_scale.fill_(1.0)
    return flow


@pytest.mark.parametrize("weights", ["random", "large", "trained"])
def test_log_prob_and_gradients_equal_stock_nflows(weights: str) -> None:
    flow = trained_flow() if weights == "trained" else rough_flow(scale=SCALES[weights])
    oracle = stock(flow)
    x, context = points(200, width=context_width(flow))
    assert (x.abs() > 3.0).any()
    x_ours, x_theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    ours = flow.log_prob(x_ours, context)
    z, log_det = oracle(x_theirs, context)
    theirs = log_normal(z) + log_det
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)

    torch.autograd.backward(ours.sum())
    torch.autograd.backward(theirs.sum())
    torch.testing.assert_close(x_ours.grad, x_theirs.grad, rtol=1e-8, atol=1e-8)
    pairs = zip(flow.layers.parameters(), oracle.parameters(), strict=True)
    for mine, other in pairs:
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-8, atol=1e-7)


@pytest.mark.parametrize("weights", ["random", "large", "trained"])
def test_samples_equal_stock_nflows(weights: str) -> None:
    flow = trained_flow() if weights == "trained" else rough_flow(scale=SCALES[weights])
    _, context = points(20, width=context_width(flow))
    x, log_q = flow.sample_and_log_prob(context, 30, seeded(5))
    noise = torch.randn(20, 30, FEATURES, generator=seeded(5), dtype=torch.float64).flatten(0, 1)
    expected, log_det = stock(flow).inverse(noise, context.repeat_interleave(30, 0))
    torch.testing.assert_close(x.flatten(0, 1), expected, rtol=0, atol=1e-9)
    # nflows' discriminant b^2 - 4 a c cancels where slopes of 1e-3 and 1e2 meet, and an ulp of
    # noise moves its log |det| by 4e-8; ours by 2e-11
    atol = 1e-6 if weights == "large" else 1e-9
    torch.testing.assert_close(log_q.flatten(), log_normal(noise) - log_det, rtol=0, atol=atol)


def test_two_dimensional_interface_is_the_same_transform() -> None:
    """forward and inverse as nflows calls them equal ``step``."""
    layer = rough_flow().layers[1]
    assert isinstance(layer, SplineCoupling)
    x, context = points(50)
    projected = layer.transform_net.project(context)
    for inverse in (False, True):
        ours = layer.step(x, projected, inverse)
        theirs = (layer.inverse if inverse else layer.forward)(x, context)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_chunks_and_log_prob_agree_with_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = rough_flow()
    monkeypatch.setattr("slotflow.flow.CACHED_NUMBERS", 2**40)  # one pass is one pass
    _, context = points(4)
    x, log_q = flow.sample_and_log_prob(context, 25, seeded(3))
    for chunk in (1, 7, 25, 100):
        parts = flow.sample_and_log_prob(context, 25, seeded(3), chunk)
        torch.testing.assert_close(parts, (x, log_q), rtol=0, atol=1e-11)
    monkeypatch.setattr("slotflow.flow.CACHED_NUMBERS", 16 * 4 * 3)  # three draws at a time
    parts = flow.sample_and_log_prob(context, 25, seeded(3))
    torch.testing.assert_close(parts, (x, log_q), rtol=0, atol=1e-11)
    again = flow.log_prob(x, context.unsqueeze(1))
    torch.testing.assert_close(again, log_q, rtol=0, atol=1e-8)


def test_leading_dimensions_broadcast() -> None:
    """The cost grid (B, S, K) equals pair by pair, with the context projected once per slot."""
    flow = rough_flow()
    x = torch.randn(2, 1, 3, FEATURES, generator=seeded(1), dtype=torch.float64)
    context = torch.randn(2, 4, 1, CONTEXT, generator=seeded(2), dtype=torch.float64)
    grid = flow.log_prob(x, context)
    assert grid.shape == (2, 4, 3)
    pairs = flow.log_prob(
        x.expand(2, 4, 3, -1).reshape(-1, FEATURES),
        context.expand(2, 4, 3, -1).reshape(-1, CONTEXT),
    )
    torch.testing.assert_close(grid.flatten(), pairs, rtol=0, atol=1e-11)
    projected = tuple(share[0, 1] for share in flow.project(context))
    chosen = flow.log_prob_projected(x[0, 0], projected)
    torch.testing.assert_close(chosen, grid[0, 1], rtol=0, atol=1e-11)


def test_starts_as_the_base_density() -> None:
    flow = ConditionalFlow(FEATURES, CONTEXT).double()
    x, context = points(100)
    # the last layers' biases are rounded to float32
    torch.testing.assert_close(flow.log_prob(x, context), log_normal(x), rtol=0, atol=1e-6)
    psi = PsiFlow(3).double()
    v = torch.linspace(0.0, 0.999, 100, dtype=torch.float64)
    features = torch.randn(100, 3, generator=seeded(1), dtype=torch.float64)
    torch.testing.assert_close(psi.log_prob(v, features), torch.zeros_like(v), rtol=0, atol=1e-6)
    drawn, log_q = psi.sample(features, v)
    torch.testing.assert_close(drawn, v, rtol=0, atol=1e-6)
    torch.testing.assert_close(log_q, torch.zeros_like(v), rtol=0, atol=1e-6)


def test_density_integrates_to_one_in_two_dimensions() -> None:
    flow = rough_flow(features=2, layers=4, scale=0.1)
    side = torch.linspace(-6.0, 6.0, 401, dtype=torch.float64)
    x = torch.cartesian_prod(side, side)
    context = torch.randn(1, CONTEXT, generator=seeded(4), dtype=torch.float64)
    with torch.no_grad():
        log_q = flow.log_prob(x, context)
    total = log_q.exp().sum() * (side[1] - side[0]) ** 2
    assert float(total) == pytest.approx(1.0, abs=5e-4)
    assert float((log_q - log_normal(x)).abs().max()) > 1.0  # it is not the base density


def test_masks_put_every_two_features_on_different_sides() -> None:
    for features in range(2, 10):
        layers = masks(features, 2 * (features - 1).bit_length())
        for i in range(features):
            for j in range(features):
                assert i == j or any(m[i] == 1 and m[j] == 0 for m in layers)
    assert [sum(m) for m in masks(7, 6)] == [3, 4, 3, 4, 3, 4]
    with pytest.raises(ValueError, match="at least 2"):
        masks(1, 2)


def test_number_of_parameters_of_the_full_size() -> None:
    """21.0 M with 12 layers, 64 bins, hidden 640 and context 778: the sizes of the preset paper."""
    flow = ConditionalFlow(7, 778, 12, 64, 640, blocks=1)
    assert sum(p.numel() for p in flow.parameters()) == 20_997_462


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_spline_is_float32_under_autocast(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    flow = ConditionalFlow(FEATURES, CONTEXT, 3, 8, 16)
    roughen(flow, 0.1)
    x, context = (v.float() for v in points(200))
    exact = flow.log_prob(x, context)
    with torch.autocast("cpu", dtype):
        got = flow.log_prob(x, context)
        drawn, log_q = flow.sample_and_log_prob(context, 2, seeded(1))
    assert got.dtype == drawn.dtype == log_q.dtype == torch.float32
    assert float((got - exact).detach().abs().mean()) < 0.1
    inside = torch.full((5, FEATURES), 0.1).to(dtype)
    with torch.autocast("cpu", dtype):
        assert flow.log_prob(inside, context[:5]).dtype == torch.float32


def test_rough_float32_flow_samples_finite_numbers() -> None:
    torch.manual_seed(0)
    flow = ConditionalFlow(FEATURES, CONTEXT, 5, 8, 16)
    roughen(flow, 1.0)
    context = 3.0 * torch.randn(10, CONTEXT, generator=seeded(1))
    with torch.no_grad():
        x, log_q = flow.sample_and_log_prob(context, 2_000, seeded(2), chunk=500)
    assert x.isfinite().all()
    assert log_q.isfinite().all()


def test_every_parameter_gets_a_gradient() -> None:
    flow = rough_flow().float()
    x, context = (v.float().requires_grad_() for v in points(50))
    torch.autograd.backward(flow.log_prob(x, context).sum())
    assert context.grad is not None
    assert context.grad.abs().sum() > 0
    for name, parameter in flow.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


def rough_psi(context: int = 0) -> PsiFlow:
    torch.manual_seed(0)
    flow = PsiFlow(3, bins=10, hidden=16, context=context).double()
    roughen(flow, 0.2)
    return flow


def psi_features(n: int) -> Tensor:
    return torch.randn(n, 3, generator=seeded(1), dtype=torch.float64)


def test_psi_density_integrates_to_one() -> None:
    v = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    density = rough_psi().log_prob(v, psi_features(5).unsqueeze(1)).exp()
    torch.testing.assert_close(density.mean(-1), torch.ones(5).double(), rtol=0, atol=1e-5)
    assert float((density.max() / density.min()).detach()) > 5.0  # it is not the uniform one


def test_psi_is_periodic_and_continuous_all_around() -> None:
    """No break at v = 0 / 1, nor at the spline's own seam, wherever the shift puts it."""
    flow, features = rough_psi(), psi_features(5).unsqueeze(1)
    v = torch.linspace(0.0, 1.0, 100_001, dtype=torch.float64)
    log_q = flow.log_prob(v, features)
    torch.testing.assert_close(log_q[:, 0], log_q[:, -1], rtol=0, atol=1e-9)
    torch.testing.assert_close(flow.log_prob(v + 3.0, features), log_q, rtol=0, atol=1e-7)
    steps = log_q.diff(dim=-1).abs().amax(-1)
    assert float(steps.detach().max()) < 0.01
    _, shift = flow._spline_parameters(features, None)
    below, above = (flow.log_prob(shift + side, features) for side in (-1e-9, 1e-9))
    torch.testing.assert_close(below, above, rtol=0, atol=1e-5)


def test_psi_samples_invert_its_cdf() -> None:
    flow, features = rough_psi(context=4), psi_features(6).unsqueeze(1)
    context = torch.randn(6, 1, 4, generator=seeded(2), dtype=torch.float64)
    u = torch.rand(6, 50, generator=seeded(3), dtype=torch.float64).sort(-1).values.requires_grad_()
    v, log_q = flow.sample(features, u, context)
    assert ((v >= 0.0) & (v < 1.0)).all()
    torch.testing.assert_close(flow.log_prob(v, features, context), log_q, rtol=0, atol=1e-8)
    # u is the share of the mass passed on the way round to v: dv/du = 1/q, and one turn in all
    (slope,) = torch.autograd.grad(v.sum(), u)
    torch.testing.assert_close(slope, torch.exp(-log_q), rtol=1e-9, atol=1e-12)
    assert (torch.remainder(v.diff(), 1.0).sum(-1) < 1.0).all()


def test_psi_gradcheck() -> None:
    flow = rough_psi()
    features = psi_features(4).requires_grad_()
    v = torch.rand(4, generator=seeded(3), dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(flow.log_prob, (v, features))
    assert torch.autograd.gradcheck(flow.sample, (features, v))


def test_psi_in_float32_stays_below_one() -> None:
    flow = PsiFlow(3)
    v, log_q = flow.sample(torch.zeros(4, 3), torch.tensor([0.0, 1e-12, 1.0 - 2**-24, 0.5]))
    assert ((v >= 0.0) & (v < 1.0)).all()
    assert log_q.isfinite().all()
    assert flow.log_prob(torch.tensor([-1e-12, 1.0]), torch.zeros(2, 3)).isfinite().all()
    # a shift of -1e-9 turns u = 0 into a v that rounds to 1
    flow.conditioner.final_layer.bias.data[-1] = -1e-9 * 2.0 * math.pi
    v, _ = flow.sample(torch.zeros(1, 3), torch.zeros(1))
    assert float(v.detach()) == 0.0


def test_psi_flow_learns_a_peak_across_the_cut() -> None:
    """A von Mises peak at v = 0 is fitted to its entropy."""
    torch.manual_seed(1)
    flow = PsiFlow(1, bins=8, hidden=16)
    optimiser = torch.optim.Adam(flow.parameters(), 2e-2)
    kappa = 8.0
    angle = torch.from_numpy(np.random.default_rng(1).vonmises(0.0, kappa, 2_000)).float()
    v, features = torch.remainder(angle / (2.0 * math.pi), 1.0), torch.zeros(2_000, 1)
    for _ in range(150):
        optimiser.zero_grad()
        loss = -flow.log_prob(v, features).mean()
        torch.autograd.backward(loss)
        optimiser.step()
    exact = math.log(special.i0(kappa)) - kappa * angle.cos().mean()
    assert float(loss.detach()) == pytest.approx(float(exact), abs=0.03)
