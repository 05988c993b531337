"""What buys accuracy per CPU-second: one change of the recipe at a time, one held-out set.

    ./run python benchmarks/recipe.py DIR -o study [--quick] [--search] [--only base,flow-layers-3]

DIR is a searched training set of ``slotflow simulate`` for the preset ``shipped``; every tenth
group of its bands is held out, the same for all. Each variant trains the shipped network with one
change, for as many passes; more than one seed of ``base`` says what a difference is worth. A
variant that was done is not done again. With --search the front end is measured, too: settings of
the component search on fresh bands, by what they find and what a band costs. The last line is one
JSON object.
"""

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
import torch
from numpy.typing import NDArray

from slotflow.ablate.runs import run_all
from slotflow.ablate.table import markdown
from slotflow.batches import split
from slotflow.cli.common import progress
from slotflow.config import ComponentSettings, Preset, load_preset, parse_preset
from slotflow.evaluation import evaluate, summary
from slotflow.response import ResponseGrid
from slotflow.simulate.dataset import simulate_dataset
from slotflow.simulate.orbits import response_grid
from slotflow.store import TrainingSet
from slotflow.tokencache import ensure_searched, load_tokens, open_tokens
from slotflow.tokendata import Int, TokenData, TokenSource, TokenSubset
from slotflow.tokens import TOKEN_FEATURES, TOKEN_WIDTH
from slotflow.train import Trainer

Change = dict[str, dict[str, Any]]
#: What differs from the preset, by section.
NETWORKS: Final[dict[str, Change]] = {
    "base": {},
    "layers-0": {"model": {"layers": 0}},
    "layers-4": {"model": {"layers": 4}},
    "width-48": {"model": {"width": 48}},
    "width-192": {"model": {"width": 192}},
    "flow-layers-3": {"model": {"flow_layers": 3}},
    "flow-layers-6": {"model": {"flow_layers": 6}},
    "flow-bins-6": {"model": {"flow_bins": 6}},
    "flow-bins-24": {"model": {"flow_bins": 24}},
    "flow-hidden-192": {"model": {"flow_hidden": 192}},
    "raw-bins": {"model": {"streams": [
        "slot", "attended", "component", "measured", "moments", "band", "spectrum",
    ]}},
    "dropout-0.1": {"model": {"dropout": 0.1}},
    "no-average": {"train": {"average": 0.0}},
    "constant-rate": {"train": {"schedule": "constant"}},
    "rate-3e-3": {"train": {"learning_rate": 3e-3}},
    "rate-3e-4": {"train": {"learning_rate": 3e-4}},
    "batch-32": {"train": {"batch": 32}},
    "batch-512": {"train": {"batch": 512}},
    "matching-flow": {"train": {"matching": "flow"}},
    "no-attention-loss": {"loss": {"attention": 0.0}},
    "evidence-gradient": {"model": {"evidence_gradient": True}},
    "psi-plain": {"model": {"psi_stretched": False}},
    "start-epoch": {"model": {"mid_epoch": False}},
}  # fmt: skip
#: What differs in the tokens: at most so many components, or features that are not told.
TOKENS: Final[dict[str, tuple[int, str]]] = {
    "components-4": (4, ""),
    "components-8": (8, ""),
    "without-second-sky-mode": (10_000, "second sky mode: direction, loss"),
    "without-patch": (10_000, "residual power around it"),
}
#: The share of the training bands that is used.
SHARES: Final = {"bands-quarter": 0.25, "bands-half": 0.5}
CURRICULUM: Final = "curriculum"
METHODS: Final = (*NETWORKS, *TOKENS, *SHARES, CURRICULUM)
#: Of the component search, one at a time.
SEARCHES: Final[dict[str, dict[str, Any]]] = {
    "as shipped": {},
    "sky_points 80": {"sky_points": 80},
    "sky_points 320": {"sky_points": 320},
    "sky_points 640": {"sky_points": 640},
    "slow_samples 64": {"slow_samples": 64, "taps": 31},
    "slow_samples 128": {"slow_samples": 128},
    "slow_samples 256": {"slow_samples": 256},
    "max_components 8": {"max_components": 8},
    "max_components 24": {"max_components": 24},
    "threshold 16": {"threshold": 16.0},
    "threshold 30": {"threshold": 30.0},
    "rounds 2": {"rounds": 2},
}
SHOWN = ("nll", "nll_snr10", "crps_snr10.f0", "crps_snr10.ln_amplitude", "crps_snr10.ra",
         "crps_snr10.cos_iota", "missed_snr10", "k_exact", "parameters", "cpu_seconds")  # fmt: skip
RHO: Final = 7  # column of a reference: sqrt(2 F)
SEARCH_SEED: Final = 3


class Told(TokenSubset):
    """Bands of which less is told.

    ``most`` loudest components alone are kept, and the features ``hidden`` are zero: told as
    the mean, once the network has standardised them by itself.
    """

    def __init__(self, source: TokenSource, index: Int, most: int, hidden: str) -> None:
        super().__init__(source, index)
        self.most, self.columns = most, columns_of(hidden)

    def rows(self, index: Int) -> TokenData:
        """Return the chosen bands with what is told of them."""
        rows = super().rows(index)
        loudness = np.where(rows.valid, rows.reference[..., RHO], -np.inf)
        rank = np.argsort(np.argsort(-loudness, axis=1, kind="stable"), axis=1)
        valid = rows.valid & (rank < self.most)
        held = np.take_along_axis(valid, np.maximum(rows.component, 0), axis=1)
        features = rows.features.copy()
        features[..., self.columns] = 0.0
        component = np.where((rows.component >= 0) & held, rows.component, -1)
        return rows._replace(features=features, valid=valid, component=component)

    def fingerprint(self) -> str:
        """Return what tells these bands from others."""
        return f"{super().fingerprint()}/{self.most}/{self.columns}"


def columns_of(name: str) -> list[int]:
    """Return the columns of a token feature, none for an empty name."""
    if not name:
        return []
    ends = np.cumsum([width for _, width in TOKEN_FEATURES])
    place = [one for one, _ in TOKEN_FEATURES].index(name)
    assert ends[-1] == TOKEN_WIDTH
    return list(range(int(ends[place]) - TOKEN_FEATURES[place][1], int(ends[place])))


@dataclass(frozen=True)
class Variant:
    """One run of the study.

    Attributes:
        method: one of ``METHODS``.
        seed: of the first weights and the batches.
        preset: what is changed.
        directory: the training set.
        folder: of the run; one that was broken off goes on.
        grid: the observation's response.
        fingerprint: of the training set.
    """

    method: str
    seed: int
    preset: Preset
    directory: Path
    folder: Path
    grid: ResponseGrid
    fingerprint: str

    @property
    def task(self) -> str:
        """Always the same."""
        return "recipe"

    @property
    def settings(self) -> dict[str, Any]:
        """What the result depends on."""
        return {"preset": self.changed().model_dump(mode="json"), "data": self.fingerprint}

    def changed(self) -> Preset:
        """Return the preset of this run."""
        content = self.preset.model_dump(mode="json")
        for section, values in NETWORKS.get(self.method, {}).items():
            content[section] |= values
        content["train"]["seed"] = self.seed
        return parse_preset(content, self.method)

    def source(self, tokens: TokenSource) -> TokenSource:
        """Return the bands of this run, all samples with their own numbers."""
        everything = np.arange(len(tokens))
        if self.method in TOKENS:
            return Told(tokens, everything, *TOKENS[self.method])
        if self.method in SHARES:
            training, held = split(tokens, self.preset.train.validation_fraction)
            # every group, but a share of its bands: as many frequencies
            kept = np.random.default_rng([self.seed, 77]).random(len(training))
            chosen = training.index[kept < SHARES[self.method]]
            return TokenSubset(tokens, np.sort(np.concatenate([chosen, held.index])))
        return tokens

    def work(self) -> dict[str, Any]:
        """Train, and score on the held-out bands."""
        preset, data = self.changed(), TrainingSet(self.directory)
        tokens = self.source(open_tokens(data, preset.components, preset.train.noise_draws))
        begin = time.process_time()
        trainer = self.trained(preset, tokens)
        seconds = time.process_time() - begin
        trainer.average.eval()
        scores = summary(evaluate(trainer.average, trainer.held, data.observation.duration, 200))
        loud, everything = scores["snr_above_10"], scores["all"]
        assert isinstance(loud, dict)
        assert isinstance(everything, dict)
        return {
            "nll": everything["nll"], "nll_snr10": loud["nll"], "crps": everything["crps"],
            "crps_snr10": loud["crps"], "missed_snr10": loud["missed"],
            "k_exact": scores["k_exact"], "bands": scores["bands"],
            "parameters": sum(trainer.network.parameter_counts().values()),
            "cpu_seconds": round(seconds, 1), "peak_overlap": scores["peak_overlap"],
            "seconds": round(trainer.seconds, 1),
        }  # fmt: skip

    def trained(self, preset: Preset, tokens: TokenSource) -> Trainer:
        """Return a trainer that is done."""
        if self.method != CURRICULUM:
            trainer = Trainer(preset, tokens, self.grid, self.folder)
            trainer.run()
            return trainer
        # a third of the passes on bands of one or two sources above SNR 10, then all bands
        passes = preset.train.passes
        rows = tokens.rows(np.arange(len(tokens)))
        snr = np.nan_to_num(rows.snr, nan=np.inf)
        easy = (rows.number >= 1) & (rows.number <= 2) & (snr > 10.0).all(axis=1)
        first = Trainer(with_passes(preset, passes // 3),
                        TokenSubset(tokens, np.flatnonzero(easy)), self.grid,
                        self.folder / "easy")  # fmt: skip
        first.run()
        second = Trainer(with_passes(preset, passes - passes // 3), tokens, self.grid,
                         self.folder / "all")  # fmt: skip
        if second.step == 0:
            for network in (second.network, second.average):
                network.load_state_dict(first.average.state_dict())
        second.run()
        return second


def with_passes(preset: Preset, passes: int) -> Preset:
    """Return the preset with other passes."""
    return preset.model_copy(update={"train": preset.train.model_copy(update={"passes": passes})})


def found(tokens: TokenData, low: float, high: float) -> float:
    """Return the share of the targets with SNR in [low, high) that a component stands for."""
    chosen: NDArray[np.bool_] = (tokens.snr >= low) & (tokens.snr < high)
    return float(np.mean(tokens.component[chosen] >= 0)) if chosen.any() else float("nan")


def searches(preset: Preset, folder: Path, bands: int) -> list[dict[str, Any]]:
    """Measure the component search with one setting changed at a time."""
    simulate_dataset(preset, folder / "bands", bands, SEARCH_SEED, 1)
    simulate_dataset(preset, folder / "few", 4, SEARCH_SEED, 1)  # to compile what a search needs
    data, few, rows = TrainingSet(folder / "bands"), TrainingSet(folder / "few"), []
    for name, values in SEARCHES.items():
        settings = ComponentSettings.model_validate(preset.components.model_dump() | values)
        grid = response_grid(preset.observation, settings.slow_samples)
        ensure_searched(few, grid, settings, 1, 1)
        begin = time.process_time()
        ensure_searched(data, grid, settings, 1, 1)
        spent = time.process_time() - begin
        tokens = load_tokens(data, settings, 1)
        rows.append({
            "search": name, "milliseconds": round(1e3 * spent / bands, 1),
            "found_snr10": round(found(tokens, 10.0, np.inf), 4),
            "found_7_10": round(found(tokens, 7.0, 10.0), 4),
            "found_5_7": round(found(tokens, 5.0, 7.0), 4),
            "components": round(float(tokens.valid.sum(axis=1).mean()), 2),
        })  # fmt: skip
        click.echo(json.dumps(rows[-1]))
    return rows


def report(call: Callable[..., Any]) -> Callable[[int, int, str], None]:
    """Show the name of the run that was done last."""
    return lambda done, total, name: call(done, total, name)


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), default=None,
              help="Folder, to go on with later; else nothing is kept.")  # fmt: skip
@click.option("--passes", default=40_000, show_default=True)
@click.option("--seeds", default=1, show_default=True, help="Of every variant.")
@click.option("--base-seeds", default=3, show_default=True, help="Of base.")
@click.option("--only", default=",".join(METHODS), help="Variants.")
@click.option("--search", "front", is_flag=True, help="Measure the component search, too.")
@click.option("--quick", is_flag=True, help="base and one more, 2,000 passes: a smoke test.")
def main(
    directory: Path, output: Path | None, passes: int, seeds: int, base_seeds: int, only: str,
    front: bool, quick: bool,
) -> None:  # fmt: skip
    """Train and score the variants on the bands of DIRECTORY."""
    torch.set_num_threads(1)
    if quick:
        passes, seeds, base_seeds, only = 2000, 1, 1, "base,components-4"
    names = only.split(",")
    if unknown := [name for name in names if name not in METHODS]:
        raise click.BadParameter(f"{unknown[0]}: none of {', '.join(METHODS)}")
    preset = load_preset("shipped")
    train = preset.train.model_copy(update={"passes": passes, "validation_fraction": 0.1})
    preset = preset.model_copy(update={"train": train})
    grid = response_grid(preset.observation, preset.components.slow_samples)
    data = TrainingSet(directory)
    ensure_searched(data, grid, preset.components, 1)
    fingerprint = open_tokens(data, preset.components, 1).fingerprint()
    with tempfile.TemporaryDirectory() as scratch:
        folder = output or Path(scratch)
        jobs = [
            Variant(name, seed, preset, directory, folder / "training" / f"{name}-{seed}", grid,
                    fingerprint)
            for name in names
            for seed in range(1, (base_seeds if name == "base" else seeds) + 1)
        ]  # fmt: skip
        with progress("training", "runs") as shown:
            records = run_all(folder, jobs, 1, report(shown))
        click.echo(markdown(records, SHOWN), nl=False)
        rows = searches(preset, folder / "search", 64 if quick else 512) if front else []
    nll = {f"{r['method']}.{r['seed']}": r["nll"] for r in records}
    click.echo(json.dumps({"passes": passes, "nll": nll, "search": rows}))


if __name__ == "__main__":
    main()
