"""The token mixers' own claims: speed, score maps, density bias, the gradient, the flow.

    OMP_NUM_THREADS=1 ./run python benchmarks/mixers.py [--quick] [--data DIR --preset NAME]

Quaternion attention with shared scores against Hamilton scores: one layer of D = 64 quaternions
and 8 heads, float32, one thread and its processor time, in alternating rounds; the baseline once
with a fused attention for each component (the faster way), once written out. Score maps, density
bias on LISA's tokens and the sharpness of slots are of networks trained here for a few hundred
steps on bands simulated here (or those of DIR). The
last line is one JSON object.
"""

import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
import torch
from timing import compare as compare_by
from torch import Tensor
from torch.nn import functional

from slotflow.ablate.circuits import Task, reduced_flow, relation, train_layer
from slotflow.ablate.mixers import preset_of, sharpness
from slotflow.ablate.scoremaps import distances, score_maps
from slotflow.batches import Tensors
from slotflow.config import Preset, load_preset
from slotflow.mixers.dice import dice_scores, linear_scores
from slotflow.mixers.kuramoto import KuramotoLayer
from slotflow.mixers.layer import Pairs, split
from slotflow.mixers.quaternion import QuaternionAttention, conjugate_keys
from slotflow.objective import loss_parts
from slotflow.train import Trainer

QUATERNIONS, HEADS = 64, 8
LENGTHS = (512, 1024, 2048, 4096)
PAPER = {512: 1.27, 1024: 1.65, 2048: 1.86, 4096: 2.08}
RATIOS = (0.25, 1.0, 4.0, 16.0)
#: Methods whose training step is timed against softmax's.
COSTS = ("quaternion", "hamilton", "kuramoto", "dice", "dice-linear", "dice-streams", "conformer")
compare = partial(compare_by, clock=time.process_time)


def fused_hamilton(module: QuaternionAttention, x: Tensor) -> Tensor:
    """Hamilton scores with a fused attention for each component of the values."""
    q, k, v = (
        split(part(x), 4, module.heads, -1).permute(0, 3, 1, 2, 4)
        for part in (module.query, module.key, module.value)
    )
    flat = q.flatten(3)
    missing = flat.shape[-1] - v.shape[-1]  # fused kernels want values as wide as keys
    read = [
        functional.scaled_dot_product_attention(
            flat, key, functional.pad(v[:, :, :, c], (0, missing)), scale=1.0
        )[..., : v.shape[-1]]
        for c, key in enumerate(conjugate_keys(k))
    ]
    mixed = torch.stack(read, dim=3).permute(0, 2, 3, 1, 4).reshape(x.shape)
    return torch.as_tensor(module.out(mixed))


@torch.no_grad()
def latency(seconds: float, longest: int) -> dict[str, dict[str, float]]:
    """Return the ratios of one layer's time, by length; ``longest`` for the one written out."""
    torch.manual_seed(1)
    shared = QuaternionAttention(4 * QUATERNIONS, HEADS)
    four = QuaternionAttention(4 * QUATERNIONS, HEADS, "hamilton")
    four.load_state_dict(shared.state_dict())
    found: dict[str, dict[str, float]] = {"fused": {}, "explicit": {}, "ms": {}}
    for length in LENGTHS:
        x = torch.randn(1, length, 4 * QUATERNIONS)
        if length == LENGTHS[0]:
            gap = float((fused_hamilton(four, x) - four(x)).abs().max())
            click.echo(f"the two baselines differ by {gap:.1e}")
        race = compare(partial(shared, x), partial(fused_hamilton, four, x), seconds, 2)
        found["fused"][str(length)] = race.speedup
        found["ms"][str(length)] = round(1e3 * median(race.ours), 3)
        click.echo(race.line(f"T {length}, shared, Hamilton fused (paper {PAPER[length]})"))
        if length <= longest:
            race = compare(partial(shared, x), partial(four, x), seconds, 2)
            found["explicit"][str(length)] = race.speedup
            click.echo(race.line(f"T {length}, shared, Hamilton written out"))
    return found


def pearson(scores: Tensor, key: Tensor, chosen: Tensor | None = None) -> tuple[float, float]:
    """Return how scores (Q, K) and keys' sizes correlate: over all pairs, and mean over queries."""
    size = key.sum(dim=-1).expand_as(scores)
    some = torch.ones_like(scores, dtype=torch.bool) if chosen is None else chosen
    every = float(torch.corrcoef(torch.stack([scores[some], size[some]]))[0, 1])
    rows = []
    for row, sizes, own in zip(scores, size, some, strict=True):
        pair = torch.stack([row[own], sizes[own]])
        if int(own.sum()) > 2 and float(pair.std(dim=1).min()) > 1e-9:
            rows.append(float(torch.corrcoef(pair)[0, 1]))
    return round(every, 4), round(float(np.mean(rows)), 4)


def density_bias(query: Tensor, key: Tensor, chosen: Tensor | None = None) -> dict[str, Any]:
    """Return :func:`pearson` of the dot product, Dice, and the linear form for two lambdas."""
    sizes = query.sum(-1)[:, None] + key.sum(-1)[None]
    weight = float((query @ key.T).mean() / sizes.mean())
    forms = {
        "dot": query @ key.T,
        "dice": dice_scores(query, key),
        "linear": linear_scores(query, key, weight),
        "linear_at_density": linear_scores(query, key, float(query.mean())),
    }
    return {name: pearson(scores, key, chosen) for name, scores in forms.items()}


def random_sets(count: int, width: int, generator: torch.Generator) -> Tensor:
    """Return independent sets of densities between 0.05 and 0.95."""
    density = 0.05 + 0.9 * torch.rand(count, 1, generator=generator)
    return (torch.rand(count, width, generator=generator) < density).double()


def loud_sets(count: int, width: int, generator: torch.Generator) -> Tensor:
    """Return one pattern over a threshold, at gains between 1 and 1.6: louder, more features."""
    pattern = torch.rand(width, generator=torch.Generator().manual_seed(5))
    gain = 1.6 ** torch.rand(count, 1, generator=generator)
    return (gain * pattern > 0.9).double()


def lisa_sets(rows: Tensors) -> tuple[Tensor, Tensor]:
    """Return the components' features over their mean, as bits, and which pairs share a band."""
    batch = rows.batch
    valid = batch.valid.flatten()
    features = batch.features.flatten(0, 1)[valid].double()
    band = torch.arange(len(batch.valid))[:, None].expand_as(batch.valid).flatten()[valid]
    pairs = (band[:, None] == band[None]) & ~torch.eye(len(band), dtype=torch.bool)
    return (features > features.mean(dim=0)).double(), pairs


def kuramoto_error() -> float:
    """Return the largest difference of a step from the agreement's gradient, in float64."""
    torch.manual_seed(1)
    layer = KuramotoLayer(64, 4, 0.0).double()
    layer.step.data -= 3.0
    tokens = torch.randn(1, 12, 64, dtype=torch.float64)
    place = 256.0 * torch.rand(1, 12, dtype=torch.float64)
    theta = torch.atan2(*reversed(split(tokens, 2, -1).unbind(-2)))[0]
    turned = split(layer.mix(tokens, Pairs(None, place)), 2, -1).unbind(-2)
    angle = torch.atan2(turned[1], turned[0])[0] - theta
    step = torch.remainder(angle + np.pi, 2 * np.pi) - np.pi
    weights, step = _weights(layer, tokens, theta, place[0]), step.detach()
    errors = []
    for t in range(12):
        own = theta[t].clone().requires_grad_()
        agreement = (weights[:, t] * torch.cos(theta.T - own[:, None])).sum()
        (gradient,) = torch.autograd.grad(agreement, own)
        errors.append((step[t] / functional.softplus(layer.step.detach()) - gradient).abs().max())
    return float(torch.stack(errors).max())


def _weights(layer: KuramotoLayer, tokens: Tensor, theta: Tensor, place: Tensor) -> Tensor:
    """Return the attention that each phase has, (P, L, L), from cosines of differences."""
    size = split(tokens, 2, -1).square().sum(dim=2).sqrt()[0]
    a, b = functional.softplus(layer.gate(layer.norm_gate(size))).chunk(2, dim=-1)
    moved = theta + layer.drift * place[:, None]
    scores = a[:, None] * b[None] * torch.cos(moved[None] - moved[:, None])
    each = scores.shape[-1] // layer.heads
    by_head = split(scores, layer.heads, each).sum(dim=-1) / (2 * each) ** 0.5
    weights = torch.softmax(by_head.permute(2, 0, 1), dim=-1).detach()
    return weights.repeat_interleave(each, dim=0)


def circuit_figures() -> dict[str, Any]:
    """Return the relation's error along the flow, and a trained layer beside the flow."""
    task = Task()
    times = np.linspace(0.0, 20_000.0, 200)
    paths = {ratio: reduced_flow(task, ratio, times) for ratio in RATIOS}
    error = max(float(np.abs(relation(task, r, p.mu_ov, p.mu_qk)).max()) for r, p in paths.items())
    click.echo(f"relation of the reduced flow: {error:.1e}")
    small = Task(vocabulary=64)
    path, losses = train_layer(small, 16.0, 100, 80.0)
    flow = reduced_flow(small, 16.0, path.time)
    click.echo(
        f"trained layer, r 16: mu_OV {path.mu_ov[-1]:.3f}, mu_QK {path.mu_qk[-1]:.3f}, attention"
        f" {path.alpha[-1]:.3f}, loss {losses[-1]:.3f}; flow {flow.mu_ov[-1]:.3f},"
        f" {flow.mu_qk[-1]:.3f}, {flow.alpha[-1]:.3f}"
    )
    return {
        "qk_ov_relation_error": error,
        "qk_ov_attention": {str(r): round(float(p.alpha[-1]), 4) for r, p in paths.items()},
        "qk_ov_trained_over_flow": round(float(path.mu_qk[-1] / flow.mu_qk[-1]), 4),
    }


class Bench:
    """Bands, and networks trained on them.

    Args:
        folder: for runs.
        data: a training set; None: simulate one.
        preset: of the networks, and of the set.
        samples: bands that are simulated.
        passes: training samples seen by each network.
    """

    def __init__(
        self, folder: Path, data: Path | None, preset: Preset, samples: int, passes: int
    ) -> None:
        from slotflow.simulate.dataset import simulate_dataset
        from slotflow.simulate.orbits import response_grid
        from slotflow.store import TrainingSet
        from slotflow.tokencache import ensure_searched, open_tokens

        self.folder = folder
        if data is None:
            data = folder / "data"
            simulate_dataset(preset, data, samples, seed=1)
        found = TrainingSet(data)
        self.grid = response_grid(found.observation, preset.components.slow_samples)
        ensure_searched(found, self.grid, preset.components, 1, 1)
        self.tokens = open_tokens(found, preset.components, 1)
        train = {"passes": passes, "batch": 64, "validation_fraction": 0.25, "validations": 1}
        content = preset.model_dump(mode="json")
        content["train"] |= train | {"samples": samples}
        self.preset = Preset.model_validate(content)

    def trainer(self, name: str, model: dict[str, Any], train: dict[str, Any]) -> Trainer:
        """Return a trainer of the settings with these changes, not begun."""
        content = self.preset.model_dump(mode="json")
        content["model"] |= model
        content["train"] |= train
        changed = Preset.model_validate(content)
        return Trainer(changed, self.tokens, self.grid, self.folder / name)

    def rows(self, trainer: Trainer, limit: int = 500) -> Tensors:
        """Return held-out bands."""
        return Tensors.of(trainer.held.rows(np.arange(min(limit, len(trainer.held)))))


def maps_figures(bench: Bench) -> dict[str, Any]:
    """Return what the four Hamilton maps share, and how far the two variants' outputs are apart."""
    figures: dict[str, Any] = {}
    outputs = []
    for scores in ("hamilton", "shared"):
        model = {"mixer": "quaternion", "quaternion_scores": scores}
        trainer = bench.trainer(scores, model, {})
        rows, loss = bench.rows(trainer), bench.preset.loss
        if scores == "hamilton":
            before = score_maps(trainer.network, rows, loss)
        trainer.run()
        if scores == "hamilton":
            after = score_maps(trainer.network, rows, loss)
            figures |= {
                "argmax_agreement": [round(before.agreement, 4), round(after.agreement, 4)],
                "argmax_chance": round(after.chance, 4),
                "gradient_correlation": [round(before.correlation, 4), round(after.correlation, 4)],
            }
        network = trainer.network.eval()
        with torch.no_grad():
            outputs.append(network.read(rows.batch).slots)
    ks, wasserstein = distances(*outputs)
    return figures | {"ks_distance": round(ks, 4), "wasserstein_distance": round(wasserstein, 4)}


def slot_sharpness(bench: Bench) -> dict[str, Any]:
    """Return the slots' largest attention for each ratio of the learning rates."""
    found = {}
    for ratio in RATIOS:
        trainer = bench.trainer(f"qk-{ratio}", {}, {"qk_learning_rate_ratio": ratio})
        trainer.run()
        found[str(ratio)] = sharpness(trainer.network, trainer.held)["largest_attention"]
    return found


def step_cost(bench: Bench, seconds: float) -> dict[str, list[float]]:
    """Return a training step's time over softmax's for each mixer of :data:`COSTS`.

    Forward and backward of the whole network on one batch, alternately; the median of the rounds'
    ratios, the smallest and the largest.
    """

    def stepper(method: str) -> Callable[[], object]:
        preset = preset_of(bench.preset, method, 1)
        trainer = Trainer(preset, bench.tokens, bench.grid, bench.folder / f"cost-{method}")
        index = np.arange(min(preset.train.batch, len(trainer.held)))
        network = trainer.network
        bands = trainer.held.bands(index) if network.needs_data else None
        rows = Tensors.of(trainer.held.rows(index), bands)

        def call() -> object:
            network.zero_grad(set_to_none=True)
            reading = network.read(rows.batch, torch.Generator().manual_seed(1))
            parts = loss_parts(
                network, rows.batch, reading, rows.targets, preset.loss, preset.train.matching
            )
            parts.terms().total(preset.loss).backward()  # type: ignore[no-untyped-call]
            return reading

        return call

    softmax = stepper("softmax")
    found = {}
    for method in COSTS:
        result = compare(softmax, stepper(method), seconds)
        click.echo(result.line(f"training step, softmax and {method}"))
        found[method] = [result.speedup, *result.spread]
    return found


@click.command()
@click.option("--quick", is_flag=True, help="Fewer bands, steps and lengths.")
@click.option("--data", type=click.Path(path_type=Path), help="A training set of the preset.")
@click.option("--preset", default="tiny", help="Of the networks and the set.")
@click.option("--samples", type=int, help="Bands that are simulated where no set is given.")
@click.option("--passes", type=int, help="Training samples seen by each network.")
def main(
    quick: bool, data: Path | None, preset: str, samples: int | None, passes: int | None
) -> None:
    """Measure the mixers' claims."""
    torch.set_num_threads(1)
    figures: dict[str, Any] = {}
    # at 4096 the written-out maps alone are gigabytes
    speed = latency(0.3 if quick else 5.0, 1024 if quick else 2048)
    figures["quaternion_speedup"] = speed["fused"]
    figures["quaternion_speedup_explicit"] = speed["explicit"]
    figures["quaternion_ms"] = speed["ms"]
    generator = torch.Generator().manual_seed(3)
    makers: dict[str, Callable[..., Tensor]] = {"random": random_sets, "loudness": loud_sets}
    bias = {
        name: density_bias(make(500, 64, generator), make(500, 64, generator))
        for name, make in makers.items()
    }
    figures["kuramoto_gradient_error"] = kuramoto_error()
    figures |= circuit_figures()
    with tempfile.TemporaryDirectory() as place:
        bands, seen = (128, 960) if quick else (512, 20_000)
        bench = Bench(Path(place), data, load_preset(preset), samples or bands, passes or seen)
        figures |= maps_figures(bench)
        figures["step_cost"] = step_cost(bench, 0.5 if quick else 6.0)
        trainer = bench.trainer("shared", {"mixer": "quaternion"}, {})
        sets, pairs = lisa_sets(bench.rows(trainer))
        bias["lisa"] = density_bias(sets, sets, pairs)
        figures["slot_sharpness"] = None if quick else slot_sharpness(bench)
    if quick:
        click.echo("slot_sharpness: left out, four networks of hundreds of steps each")
    for name, found in bias.items():
        click.echo(f"density bias, {name} (all pairs, mean over queries): {found}")
    figures["density_bias"] = bias
    for form in ("dot", "dice"):
        figures[f"{form}_pearson"] = bias["random"][form][1]
        figures[f"{form}_pearson_loudness"] = bias["loudness"][form][1]
        figures[f"{form}_pearson_lisa"] = bias["lisa"][form][0]
    click.echo(json.dumps(figures))


if __name__ == "__main__":
    main()
