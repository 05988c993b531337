"""The training step on a GPU: samples a second, and the share of the card's matmul rate.

./run python benchmarks/gpu.py                     # the paper preset, batches of 256 to 1024
./run python benchmarks/gpu.py --minutes 8         # and the trainer itself, for eight minutes
./run python benchmarks/gpu.py --quick             # tiny, on whatever device there is

Synthetic tokens of random content: speed does not depend on what they say. Prints a table and,
as its last line, one JSON object.
"""

import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from slotflow.batches import Tensors
from slotflow.config import Preset, load_preset
from slotflow.model import SlotFlow
from slotflow.objective import loss_terms
from slotflow.parallel import Launch, Parallel, launch
from slotflow.simulate.orbits import response_grid
from slotflow.tokendata import TokenArrays, TokenData
from slotflow.tokens import BAND_WIDTH, REFERENCE, TOKEN_WIDTH

COMPONENTS, FILLED = 16, 6
KINDS = {"bf16-mixed": torch.bfloat16, "32-true": torch.float32}


def synthetic(preset: Preset, number: int, seed: int = 1) -> tuple[TokenData, np.ndarray]:
    """Return tokens of bands with six components and two to four sources, and the bands."""
    rng = np.random.default_rng(seed)
    prior = preset.prior
    reference = np.zeros((number, COMPONENTS, len(REFERENCE)))
    reference[..., 0] = rng.uniform(40, prior.bins - 40, reference.shape[:2])
    reference[..., 1] = rng.uniform(0, 2 * np.pi, reference.shape[:2])
    reference[..., 2] = rng.uniform(-1, 1, reference.shape[:2])
    reference[..., 3:6], reference[..., 6], reference[..., 7] = 0.05, -48.0, 20.0
    reference[..., 9:11] = rng.uniform(0, 6, (*reference.shape[:2], 2))
    reference[..., 11:] = 0.1
    count = rng.integers(2, prior.max_sources + 1, number)
    held = np.arange(prior.max_sources)[None] < count[:, None]
    sources = np.zeros((number, prior.max_sources, 8))
    chosen = reference[:, : prior.max_sources]
    sources[..., 0] = chosen[..., 0] + 0.05 * rng.normal(size=held.shape)
    sources[..., 2], sources[..., 3] = -48.5, chosen[..., 1]
    sources[..., 4], sources[..., 5] = np.sin(chosen[..., 2]), 0.7
    sources[..., 6] = rng.uniform(-0.9, 0.9, held.shape)
    sources[..., 7] = rng.uniform(0, 6, held.shape)
    data = TokenData(
        features=rng.normal(size=(number, COMPONENTS, TOKEN_WIDTH)).astype(np.float32),
        band=rng.normal(size=(number, BAND_WIDTH)).astype(np.float32),
        reference=reference,
        valid=np.broadcast_to(np.arange(COMPONENTS) < FILLED, (number, COMPONENTS)).copy(),
        sources=sources,
        snr=np.where(held, 20.0, np.nan),
        number=count.astype(np.int64),
        component=np.where(held, np.arange(prior.max_sources), -1).astype(np.int64),
        sample=np.arange(number),
        first_bin=np.full(number, 47_000),
    )
    noise = rng.normal(size=(number, 3, prior.bins, 2)).astype(np.float32)
    return data, noise.view(np.complex64)[..., 0]


def wait(device: torch.device) -> None:
    """Let the device finish."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def matmul_rate(device: torch.device, kind: torch.dtype, size: int) -> float:
    """Return the rate of square matrix products, FLOP/s: the best of ten."""
    a = torch.randn(size, size, device=device, dtype=kind)
    best = float("inf")
    for _ in range(12):
        wait(device)
        begin = time.perf_counter()
        a @ a
        wait(device)
        best = min(best, time.perf_counter() - begin)
    return 2.0 * size**3 / best


def step_time(preset: Preset, device: torch.device, precision: str, batch: int, rounds: int) -> Any:
    """Return the median seconds of a training step, and its floating-point operations."""
    data, bands = synthetic(preset, batch)
    rows = Tensors.of(data, bands).to(device)
    torch.manual_seed(1)
    network = SlotFlow(preset.model, preset.prior.bins).to(device).train()
    optimiser = torch.optim.Adam(network.parameters(), 1e-4, fused=True)
    cast = torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16-mixed")

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        generator = torch.Generator(device).manual_seed(1)
        with cast:
            reading = network.read(rows.batch, generator)
            terms = loss_terms(
                network, rows.batch, reading, rows.targets, preset.loss, preset.train.matching
            )
        terms.total(preset.loss).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.parameters(), preset.train.clip)
        optimiser.step()

    with FlopCounterMode(display=False) as counter:
        step()
    times = []
    for _ in range(rounds + 3):
        wait(device)
        begin = time.perf_counter()
        step()
        wait(device)
        times.append(time.perf_counter() - begin)
    return median(times[3:]), counter.get_total_flops()


def throughput(parallel: Parallel, preset: Preset, minutes: float, result: Path) -> None:
    """Run the trainer itself for a while on synthetic bands; write samples a second."""
    from slotflow.train import Trainer

    data, bands = synthetic(preset, 64 * preset.train.batch)
    grid = response_grid(preset.observation, 64)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(preset, TokenArrays(data, bands), grid, Path(folder), parallel)
        begin = time.perf_counter()
        trainer.run(stop_after=60.0 * minutes)
        seconds = time.perf_counter() - begin
    if parallel.rank == 0:
        result.write_text(json.dumps(trainer.step * trainer.batch / seconds))


@click.command()
@click.option("--preset", "name", default="paper", show_default=True)
@click.option("--batches", default="256,512,1024", show_default=True)
@click.option("--minutes", type=float, default=0.0, help="Also train for so long.")
@click.option("--rounds", type=int, default=20, show_default=True)
@click.option("--quick", is_flag=True, help="tiny, batches of 32, five rounds.")
def main(name: str, batches: str, minutes: float, rounds: int, quick: bool) -> None:
    """Time the training step."""
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        click.echo("no GPU that PyTorch sees: this is the CPU, and no figure of a GPU")
    if quick:
        name, batches, rounds = "tiny", "32", 5
    preset = load_preset(name)
    record: dict[str, Any] = {"device": device.type, "preset": name, "steps": []}
    if device.type == "cuda":
        record["card"] = torch.cuda.get_device_name(device)
    for precision, kind in KINDS.items():
        rate = matmul_rate(device, kind, 1024 if quick else 8192)
        for batch in (int(b) for b in batches.split(",")):
            seconds, flops = step_time(preset, device, precision, batch, rounds)
            row = {
                "precision": precision, "batch": batch, "step_s": seconds,
                "samples_per_s": batch / seconds, "utilisation": flops / seconds / rate,
            }  # fmt: skip
            record["steps"].append(row)
            click.echo(
                f"{precision:10} batch {batch:5}: {1e3 * seconds:8.1f} ms,"
                f" {batch / seconds:9.0f} samples/s, {flops / seconds / rate:6.1%} of"
                f" {rate / 1e12:.2f} Tflop/s"
            )
    record["samples_per_s_trainer"] = None
    if minutes > 0.0:
        with tempfile.TemporaryDirectory() as folder:
            result = Path(folder) / "rate.json"
            ways = Launch(gpus=int(device.type == "cuda"), precision="bf16-mixed")
            launch(ways, throughput, preset, minutes, result)
            record["samples_per_s_trainer"] = json.loads(result.read_text())
    click.echo(json.dumps(record))


if __name__ == "__main__":
    main()
