"""The spline flow against stock nflows 0.14 around the same conditioners and weights.

    OMP_NUM_THREADS=1 ./run python benchmarks/flow.py [--quick] [--shipped]

float32, one thread and its processor time, alternating runs in one process. The sizes are those
of the preset paper, with ``--shipped`` of the model that ships. The weights are random and far
from the identity. The last line is one JSON object.
"""

import copy
import importlib
import importlib.util
import json
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import click
import torch
from nflows.distributions.normal import StandardNormal
from nflows.flows.base import Flow
from nflows.transforms.base import CompositeTransform, InverseTransform
from nflows.transforms.coupling import PiecewiseRationalQuadraticCouplingTransform
from timing import Comparison
from timing import compare as compare_by
from torch import Tensor, nn

from slotflow.config import ModelSettings, load_preset
from slotflow.flow import ConditionalFlow, SplineCoupling

FEATURES, BATCH = 7, 128
#: One thread does everything: seconds in which others had the processor do not count.
compare = partial(compare_by, clock=time.process_time)


class Sizes(NamedTuple):
    """What is timed: the flow's shape, and how many contexts and draws the sampling has."""

    model: ModelSettings
    contexts: int
    draws: int


def roughen(flow: ConditionalFlow) -> None:
    """Set random weights: every layer is far from the identity."""
    generator = torch.Generator().manual_seed(1)
    for parameter in flow.parameters():
        fan_in = parameter.shape[-1] if parameter.ndim == 2 else 16
        noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        parameter.data += noise / fan_in**0.5


def make_flow(model: ModelSettings) -> ConditionalFlow:
    """Return a flow of these sizes with random weights."""
    torch.manual_seed(0)
    flow = ConditionalFlow(
        FEATURES, model.context, model.flow_layers, model.flow_bins, model.flow_hidden,
        model.tail_bound, model.flow_blocks,
    )  # fmt: skip
    roughen(flow)
    return flow


def stock(layer: SplineCoupling) -> PiecewiseRationalQuadraticCouplingTransform:
    """Return nflows' own transform with the same conditioner, from the layer's state dict."""
    mask = torch.zeros(FEATURES)
    mask[layer.transform_features] = 1
    twin = PiecewiseRationalQuadraticCouplingTransform(
        mask,
        lambda inputs, outputs: copy.deepcopy(layer.transform_net),
        num_bins=layer.num_bins,
        tails="linear",
        tail_bound=layer.tail_bound,
    )
    twin.load_state_dict(layer.state_dict(), strict=True)
    return twin


def couplings(flow: ConditionalFlow) -> list[SplineCoupling]:
    """The flow's layers."""
    return [layer for layer in flow.layers if isinstance(layer, SplineCoupling)]


def stock_flow(flow: ConditionalFlow) -> Flow:
    """Return nflows' flow with the same weights."""
    transform = CompositeTransform([stock(layer) for layer in couplings(flow)])
    return Flow(transform, StandardNormal([FEATURES]))


def points(rows: int, width: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return standard normal numbers, the same in every precision."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, width, generator=generator, dtype=torch.float64).to(dtype)


def accuracy(sizes: Sizes) -> dict[str, float]:
    """Largest difference of ln q, draws and ln q of draws in float64.

    And each one's median error of ln q in float32, held against nflows in float64.
    """
    flow = make_flow(sizes.model)
    results = {}
    for dtype in (torch.float32, torch.float64):
        flow.to(dtype)
        theirs = stock_flow(flow).to(dtype)
        x, context = points(BATCH, FEATURES, 2, dtype), points(BATCH, sizes.model.context, 3, dtype)
        base = points(BATCH, FEATURES, 4, dtype)
        with torch.no_grad():
            drawn, log_q = flow.invert(base, flow.project(context))
            results[dtype, "ours"] = [flow.log_prob(x, context), drawn, log_q]
            inverse = InverseTransform(theirs._transform)
            drawn, log_det = inverse(base, context)
            log_q = theirs._distribution.log_prob(base) - log_det
            results[dtype, "theirs"] = [theirs.log_prob(x, context), drawn, log_q]
    exact = results[torch.float64, "theirs"]
    return {
        "max_abs_diff_f64": _largest(results[torch.float64, "ours"], exact),
        "median_abs_error_f32": _median_error(results[torch.float32, "ours"], exact),
        "median_abs_error_f32_nflows": _median_error(results[torch.float32, "theirs"], exact),
    }


def _largest(ours: list[Tensor], theirs: list[Tensor]) -> float:
    return max((a - b).abs().max().item() for a, b in zip(ours, theirs, strict=True))


def _median_error(single: list[Tensor], exact: list[Tensor]) -> float:
    return (single[0] - exact[0]).abs().median().item()


def race_kernels(sizes: Sizes, seconds: float) -> tuple[Comparison, Comparison, float]:
    """Time the spline function alone: forward with gradients, and inverse without.

    Both get the conditioner's outputs as they are, tails and scaling are included. The last
    is the largest difference in float64.
    """
    layer = couplings(make_flow(sizes.model))[0]
    twin = stock(layer)
    moved, width = len(layer.transform_features), 3 * sizes.model.flow_bins - 1

    def inputs(rows: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        parameters = points(rows, moved * width, 6, dtype).view(rows, moved, width)
        parameters[..., : 2 * sizes.model.flow_bins] *= sizes.model.flow_hidden**0.5
        return 2.0 * points(rows, moved, 5, dtype), parameters

    def forward(transform: Any, x: Tensor, parameters: Tensor) -> Callable[[], object]:
        x, parameters = x.clone().requires_grad_(), parameters.clone().requires_grad_()

        def call() -> object:
            # a copy, because nflows divides its parameters in place; ours is given one too
            outputs, log_slope = transform._piecewise_cdf(x, parameters.clone())
            return torch.autograd.grad(outputs.sum() + log_slope.sum(), [x, parameters])

        return call

    def inverse(transform: Any, x: Tensor, parameters: Tensor) -> Callable[[], object]:
        def call() -> object:
            with torch.no_grad():
                return transform._piecewise_cdf(x, parameters.clone(), inverse=True)

        return call

    exact = inputs(sizes.contexts * sizes.draws, torch.float64)
    difference = max(
        _largest(
            list(layer._piecewise_cdf(exact[0], exact[1].clone(), back)),
            list(twin._piecewise_cdf(exact[0], exact[1].clone(), back)),
        )
        for back in (False, True)
    )
    few, many = inputs(BATCH), inputs(sizes.contexts * sizes.draws)
    return (
        compare(forward(layer, *few), forward(twin, *few), seconds),
        compare(inverse(layer, *many), inverse(twin, *many), seconds),
        difference,
    )


def with_gradients(log_prob: Callable[[], Tensor], module: nn.Module) -> Callable[[], object]:
    """Return a call that takes the gradient of all weights."""
    weights = list(module.parameters())
    return lambda: torch.autograd.grad(-log_prob().mean(), weights)


def race_log_prob(sizes: Sizes, seconds: float) -> Comparison:
    """Time ln q of a batch and its gradient."""
    flow = make_flow(sizes.model)
    theirs = stock_flow(flow)
    x, context = points(BATCH, FEATURES, 2), points(BATCH, sizes.model.context, 3)
    return compare(
        with_gradients(lambda: flow.log_prob(x, context), flow),
        with_gradients(lambda: theirs.log_prob(x, context), theirs),
        seconds,
    )


def race_sampling(sizes: Sizes, seconds: float) -> Comparison:
    """Time draws and their ln q, the same base noise in every round."""
    flow = make_flow(sizes.model)
    theirs = stock_flow(flow)
    context = points(sizes.contexts, sizes.model.context, 3)

    def ours() -> object:
        with torch.no_grad():
            return flow.sample_and_log_prob(context, sizes.draws, torch.Generator().manual_seed(5))

    def stock_draws() -> object:
        torch.manual_seed(5)
        with torch.no_grad():
            return theirs.sample_and_log_prob(sizes.draws, context)

    return compare(ours, stock_draws, seconds)


def zuko_flow(flow: ConditionalFlow, model: ModelSettings) -> Any:
    """Return zuko's coupling flow with the same masks, splines and sizes of conditioners."""
    flows, transforms = (
        importlib.import_module(f"zuko.{name}") for name in ("flows", "transforms")
    )
    layers = []
    for layer in couplings(flow):
        kept = torch.zeros(FEATURES, dtype=torch.bool)
        kept[layer.identity_features] = True
        layers.append(
            flows.GeneralCouplingTransform(
                FEATURES,
                model.context,
                mask=kept,
                univariate=partial(transforms.MonotonicRQSTransform, bound=model.tail_bound),
                shapes=[(model.flow_bins,), (model.flow_bins,), (model.flow_bins - 1,)],
                # as many linear layers as ours
                hidden_features=[model.flow_hidden] * (1 + 2 * model.flow_blocks),
            )
        )
    zeros, ones = torch.zeros(FEATURES), torch.ones(FEATURES)
    normal = importlib.import_module("zuko.distributions").DiagNormal
    base = importlib.import_module("zuko.lazy").UnconditionalDistribution
    return flows.Flow(layers, base(normal, zeros, ones, buffer=True))


def race_zuko(sizes: Sizes, seconds: float) -> Comparison | None:
    """Time ln q and its gradient against zuko, if that is installed."""
    if importlib.util.find_spec("zuko") is None:
        return None
    flow = make_flow(sizes.model)
    theirs = zuko_flow(flow, sizes.model)
    x, context = points(BATCH, FEATURES, 2), points(BATCH, sizes.model.context, 3)
    return compare(
        with_gradients(lambda: flow.log_prob(x, context), flow),
        with_gradients(lambda: theirs(context).log_prob(x), theirs),
        seconds,
    )


@click.command()
@click.option("--quick", is_flag=True, help="Within a minute instead of two.")
@click.option("--shipped", is_flag=True, help="The sizes of the model that ships.")
def main(quick: bool, shipped: bool) -> None:
    """Time the flow against nflows 0.14 (ours first in each line)."""
    torch.set_num_threads(1)
    model = load_preset("shipped" if shipped else "paper").model
    # the slots of a band or two, and draws for each
    sizes = Sizes(model, 8, 512) if shipped else Sizes(model, 5, 200)
    seconds = 1.5 if quick else 8.0
    parameters = sum(p.numel() for p in make_flow(model).parameters())
    click.echo(
        f"{model.flow_layers} layers, {model.flow_bins} bins, hidden {model.flow_hidden}, context"
        f" {model.context}, {model.flow_blocks} block(s): {parameters:,} parameters;"
        f" batch {BATCH}; {sizes.contexts} contexts x {sizes.draws} draws"
    )
    errors = accuracy(sizes)
    kernel, inverse, difference = race_kernels(sizes, seconds)
    for name, value in errors.items():
        click.echo(f"{name}: {value:.1e}")
    click.echo(f"of the spline alone, float64: {difference:.1e}")
    races = {
        "kernel": kernel,
        "kernel_inverse": inverse,
        "log_prob": race_log_prob(sizes, seconds),
        "sampling": race_sampling(sizes, seconds),
    }
    zuko = race_zuko(sizes, seconds)
    figures: dict[str, object] = {
        "parameters": parameters,
        **errors,
        "kernel_max_abs_diff_f64": difference,
    }
    for name, race in races.items():
        click.echo(race.line(name))
        figures[f"{name}_speedup"] = race.speedup
        figures[f"{name}_spread"] = race.spread
        figures[f"{name}_seconds"] = float(f"{median(race.ours):.4g}")
    click.echo(zuko.line("zuko's log_prob") if zuko else "speedup_vs_zuko: null, no zuko installed")
    figures["speedup_vs_zuko"] = zuko.speedup if zuko else None
    figures |= {"layers": model.flow_layers, "bins": model.flow_bins, "hidden": model.flow_hidden}
    figures |= {"context": model.context, "batch": BATCH, "draws": sizes.contexts * sizes.draws}
    click.echo(json.dumps(figures))


if __name__ == "__main__":
    main()
