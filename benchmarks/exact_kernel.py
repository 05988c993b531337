"""The exact likelihood's kernel against jaxgb, at equal n and at equal accuracy.

    ./run python benchmarks/exact_kernel.py [--quick]

One thread on one core, alternating runs in one process, by processor time; ratios are theirs /
ours. Equal accuracy: both take as many slow samples as keep their mismatch to jaxgb's converged
response below 1e-8, of the numbers in :data:`slotflow.exact_grid.SIZES`. jaxgb is jitted and
gets batches of one size; its T is not asked for. The last line is one JSON object.
"""

import json
import os
import time
from typing import Any, NamedTuple

if __name__ == "__main__":  # else that is the caller's to say
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["JAX_PLATFORMS"] = "cpu"
    if hasattr(os, "sched_setaffinity"):  # JAX takes all cores it may run on
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import click
import numpy as np
from timing import Comparison, compare

from slotflow.config import ObservationSettings, PriorSettings
from slotflow.exact_grid import MISMATCH, SIZES, kernel_at, mismatch
from slotflow.exact_kernel import Kernel
from slotflow.likelihood import INTRINSIC, BandLikelihood, training_sigma
from slotflow.likelihood_jax import BandJax, x64
from slotflow.simulate.orbits import response_grid
from slotflow.simulate.waveforms import _compiled, jaxgb_response
from slotflow.waveform import response_ae

BATCH, PROBES = 128, 48
CONVERGED = 4096
YEAR = ObservationSettings()
FREQUENCIES = (1e-3, 2e-3, 4e-3, 8e-3)


def sources_at(frequency: float, number: int) -> np.ndarray:
    """Return sources all over the sky within 10 microHz: (number, 8)."""
    rng = np.random.default_rng(int(1e6 * frequency))
    sources = np.empty((number, 8))
    sources[:, 0] = frequency + rng.uniform(0.0, 1e-5, number)
    widening = max(1.0, frequency / 3e-3) ** (11.0 / 3.0)
    sources[:, 1] = rng.uniform(-0.1, 0.3, number) * widening / YEAR.duration**2
    sources[:, 2] = 1e-22
    sources[:, 3], sources[:, 7] = rng.uniform(0.0, 2.0 * np.pi, (2, number))
    sources[:, 4] = np.arcsin(rng.uniform(-1.0, 1.0, number))
    sources[:, 5] = rng.uniform(0.0, 0.5 * np.pi, number)
    sources[:, 6] = np.arccos(rng.uniform(-1.0, 1.0, number))
    return sources


class Accuracy(NamedTuple):
    """At one frequency: slow samples that either needs, our mismatch, and the error at equal n."""

    ours: int
    theirs: int
    mismatch: float
    error: float


def accuracy(frequency: float) -> Accuracy:
    """Measure how many slow samples are needed, and the largest relative difference to jaxgb."""
    sources = sources_at(frequency, PROBES)
    converged = jaxgb_response(sources, YEAR, CONVERGED, batch=PROBES)[0][:, :2]
    kernel = kernel_at(response_grid(YEAR, 128), YEAR, frequency)
    missed = float(mismatch(kernel.response(sources)[0], converged).max())
    for n in SIZES[SIZES.index(256) :]:
        seen = jaxgb_response(sources, YEAR, n, batch=PROBES)[0][:, :2]
        if mismatch(seen, converged).max() < MISMATCH:
            break
    if n != kernel.n:
        seen = jaxgb_response(sources, YEAR, kernel.n, batch=PROBES)[0][:, :2]
    ours = Kernel(response_grid(YEAR, kernel.n)).response(sources)[0]
    off = np.linalg.norm(ours - seen, axis=2) / np.linalg.norm(seen, axis=2)
    return Accuracy(kernel.n, n, missed, float(off.max()))


def race(frequency: float, at: Accuracy, seconds: float) -> Comparison:
    """Time BATCH sources, ours and jaxgb's, each with the samples that it needs."""
    sources = sources_at(frequency, BATCH)
    kernel = Kernel(response_grid(YEAR, at.ours))
    theirs = _compiled(YEAR, at.theirs)

    def jaxgb() -> None:
        for part in theirs(sources):
            part.block_until_ready()

    return compare(lambda: kernel.response(sources), jaxgb, seconds, clock=time.process_time)


def rates(frequency: float, seconds: float) -> dict[str, float]:
    """Return sources a second of what the likelihood is made of, and gradients by JAX."""
    import jax

    prior = PriorSettings()
    first = int(frequency * YEAR.duration) - prior.bins // 2
    rng = np.random.default_rng(1)
    data = rng.standard_normal((2, prior.bins, 2)).view(np.complex128)[..., 0]
    band = BandLikelihood(
        data, first, np.full(2, 2.0), training_sigma(YEAR, first, prior.bins, prior),
        response_grid(YEAR, 128), YEAR, prior,
    )  # fmt: skip
    one = band.draw_prior(rng, BATCH)
    both = compare(
        lambda: band.log_prior_and_likelihood(one[:, None]),
        lambda: band.project(band.data, one[:, INTRINSIC]),
        seconds, clock=time.process_time,
    )  # fmt: skip
    with x64():
        gradient: Any = jax.jit(jax.vmap(jax.grad(BandJax(band).log_likelihood)))
        few = one[:32, None]
        response = compare(
            lambda: response_ae(one, band.kernel.grid),
            lambda: gradient(few).block_until_ready(),
            seconds, clock=time.process_time,
        )  # fmt: skip
    return {
        "log_likelihoods_per_s": BATCH / float(np.median(both.ours)),
        "projections_per_s": BATCH / float(np.median(both.theirs)),
        "response_ae_per_s": BATCH / float(np.median(response.ours)),
        "jax_gradients_per_s": len(few) / float(np.median(response.theirs)),
    }


def kernel_figures(seconds: float, frequencies: tuple[float, ...] = FREQUENCIES) -> dict[str, Any]:
    """Measure for some seconds and say what was seen.

    Returns:
        ``kernel_speedup``: the least over the frequencies, at equal accuracy; ``kernel_error``:
        the largest relative difference to jaxgb at equal n, in A or E; and more.
    """
    share = seconds / (len(frequencies) + 1)
    speedups, per_s, seen = {}, {}, []
    for frequency in frequencies:
        at = accuracy(frequency)
        one = race(frequency, at, share)
        name = f"{1e3 * frequency:g}mHz"
        print(one.line(f"{name}, {at.ours} and {at.theirs} samples, mismatch {at.mismatch:.1e}"))
        seen.append(at)
        speedups[name] = (one.speedup, *one.spread)
        per_s[name] = round(BATCH / float(np.median(one.ours)))
    others = {name: round(value) for name, value in rates(frequencies[0], 0.5 * share).items()}
    slowest = min(speedups.values())
    return {
        "kernel_speedup": slowest[0],
        "kernel_speedup_spread": slowest[1:],
        "kernel_speedups": {name: value[0] for name, value in speedups.items()},
        "kernel_error": max(at.error for at in seen),
        "kernel_mismatch": max(at.mismatch for at in seen),
        "kernel_samples": [at.ours for at in seen],
        "kernel_sources_per_s": per_s,
        **others,
    }


@click.command()
@click.option("--quick", is_flag=True, help="Two frequencies, half a minute.")
def main(*, quick: bool) -> None:
    """Compare the kernel with jaxgb."""
    figures = kernel_figures(6.0, (1e-3, 8e-3)) if quick else kernel_figures(40.0)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
