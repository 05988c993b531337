"""Evidence depletion and vanilla slot attention in the same model, all else equal.

    ./run python benchmarks/compare_slots.py training-data --passes 150000

Trains the preset's model with each kind of slots on the same tokens, batches and seeds, and
prints one JSON object a line: peak overlap beside its chance level, slots on the right
component, NLL, number of sources exact, on held-out bands.
"""

import json
import tempfile
from pathlib import Path

import click
import torch

from slotflow.cli.common import cores
from slotflow.config import Preset, load_preset
from slotflow.evaluation import evaluate, summary
from slotflow.simulate.orbits import response_grid
from slotflow.store import TrainingSet
from slotflow.tokencache import ensure_searched, open_tokens
from slotflow.tokenstore import TokenStore
from slotflow.train import Trainer

#: name: (kind of slots, learned starts and attention loss)
METHODS = {
    "evidence-depletion": ("evidence-depletion", True),
    "vanilla": ("vanilla", True),
    "evidence-depletion, exchangeable": ("evidence-depletion", False),
    "vanilla, exchangeable": ("vanilla", False),
}


def one(preset: Preset, tokens: TokenStore, data: TrainingSet, name: str, seed: int) -> None:
    """Train one method and print its figures."""
    kind, guided = METHODS[name]
    model = preset.model.model_copy(update={"slot_attention": kind, "learned_starts": guided})
    loss = preset.loss if guided else preset.loss.model_copy(update={"attention": 0.0})
    train = preset.train.model_copy(update={"seed": seed})
    preset = preset.model_copy(update={"model": model, "train": train, "loss": loss})
    grid = response_grid(preset.observation, preset.components.slow_samples)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(preset, tokens, grid, Path(folder))
        trained = trainer.run()
        figures = trainer.validate()
    held = trainer.held
    scores = summary(evaluate(trained.network, held, data.observation.duration, draws=100))
    row = {
        "method": name,
        "seed": seed,
        "passes": train.passes,
        "bands": len(held),
        "hit": round(figures["hit"], 4),
        "peak_overlap": scores["peak_overlap"],
        "chance": scores["peak_overlap_chance"],
        "all": scores["all"],
        "snr_above_10": scores["snr_above_10"],
        "k_exact": scores["k_exact"],
        "k_exact_all_above_10": scores["k_exact_all_above_10"],
        "seconds": round(trainer.seconds, 1),
    }
    click.echo(json.dumps(row))


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--preset", "name", default="small")
@click.option("--passes", type=int, default=150_000)
@click.option("--seeds", type=int, default=1, help="Seeds of each method.")
@click.option("--methods", default="evidence-depletion;vanilla", help="Separated by ;")
@click.option("--quick", is_flag=True, help="2,000 passes: a smoke test.")
def main(directory: Path, name: str, passes: int, seeds: int, methods: str, quick: bool) -> None:
    """Compare kinds of slots on the training set in DIRECTORY."""
    torch.set_num_threads(1)
    preset = load_preset(name)
    passes = 2_000 if quick else passes
    preset = preset.model_copy(update={"train": preset.train.model_copy(update={"passes": passes})})
    data = TrainingSet(directory)
    grid = response_grid(preset.observation, preset.components.slow_samples)
    ensure_searched(data, grid, preset.components, preset.train.noise_draws, cores())
    tokens = open_tokens(data, preset.components, preset.train.noise_draws)
    chosen = [method.strip() for method in methods.split(";")]
    if unknown := set(chosen) - METHODS.keys():
        raise click.BadParameter(f"{sorted(unknown)[0]!r}; known: {'; '.join(METHODS)}")
    for seed in range(1, seeds + 1):
        for method in METHODS:
            if method in chosen:
                one(preset, tokens, data, method, seed)


if __name__ == "__main__":
    main()
