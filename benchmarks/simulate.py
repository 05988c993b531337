"""The simulation against jaxgb called directly, fastgb and GBGPU, with the agreement beside.

    ./run python benchmarks/simulate.py [--quick]

One thread on one core, alternating runs in one process; ratios are theirs / ours. The sample is
the default prior's band of 256 bins (bright sources, and the foreground one by one) with the
foreground's rate at 1, and ours includes drawing it and building the pools, one for 64 samples.
jaxgb, "as its users call it", gets the same sources ready: jitted ``get_tdi`` in batches and a
scatter-add. The last line is one JSON object.
"""

import itertools
import json
import os
from collections.abc import Callable, Iterator
from functools import lru_cache
from statistics import median
from typing import Any, NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["JAX_PLATFORMS"] = "cpu"
if hasattr(os, "sched_setaffinity"):  # JAX takes all cores it may run on
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import click
import numpy as np
from timing import Comparison, compare

from slotflow.config import ObservationSettings, Preset, load_preset
from slotflow.conventions import to_fastgb, to_gbgpu
from slotflow.simulate import sample
from slotflow.simulate.orbits import orbits, response_grid
from slotflow.simulate.waveforms import accumulate, jaxgb_response
from slotflow.waveform import response_ae

Float = np.ndarray
Complex = np.ndarray

SEED, GROUP, BATCH, SOURCES = 1, 64, 128, 256
MEMBERS = 1000  # of the foreground whose error is measured
YEAR = ObservationSettings()


class Sample(NamedTuple):
    """One band's sources, explicit: (S, 8) bright and (P, 8) foreground."""

    first_bin: int
    bright: Float
    foreground: Float


def preset_at(frequency: float) -> Preset:
    """Return the default prior around one frequency, the foreground's rate at 1."""
    preset = load_preset("shipped")
    wide = sample.SCATTER / preset.observation.duration
    narrow = {"fmin": frequency - wide, "fmax": frequency + wide}
    rate = {"rate_scale_min": 1.0, "rate_scale_max": 1.0}
    return preset.model_copy(update={"prior": preset.prior.model_copy(update=narrow | rate)})


def explicit_sample(preset: Preset, index: int) -> Sample:
    """Return the sources of the simulator's sample ``index``, louder members among them."""
    plan, margin = sample._plan(preset, SEED, index), preset.prior.margin
    pool = sample._pool(preset, SEED, index // GROUP)
    rng = np.random.default_rng([SEED, index, sample._FOREGROUND])
    bins = preset.prior.bins + 2 * margin
    members = pool.draw_members(rng, plan.first_bin - margin, bins, 1.0)
    return Sample(plan.first_bin, plan.sources, pool.explicit(members))


@lru_cache
def jaxgb(n: int) -> Any:
    """Return jaxgb for the year, with the simulator's window."""
    from jaxgb.jaxgb import JaxGB

    window = ("tukey", YEAR.tukey)
    return JaxGB(orbits(YEAR), t_obs=YEAR.duration, t0=YEAR.t0, n=n, window=window)


@lru_cache
def jaxgb_adder(n: int, bins: int) -> Callable[..., Any]:
    """Return the jitted function that adds a batch of sources to a band (2, bins)."""
    import jax
    import jax.numpy as jnp

    code = jaxgb(n)

    def add(band: Any, sources: Any, first_bin: Any) -> Any:
        a, e, _ = code.get_tdi(sources, tdi_generation=1.5, tdi_combination="AET")
        index = code.get_kmin(sources[:, 0])[:, None] - first_bin + jnp.arange(n)
        index = jnp.where(index < 0, bins, index)  # a negative one counts from the end
        return band.at[:, index].add(jnp.stack([a, e]), mode="drop")

    return jax.jit(add)


def jaxgb_band(parts: list[tuple[Float, int]], first_bin: int, bins: int) -> Complex:
    """Sum sources, each part at its own slow samples, by jaxgb called directly: (2, bins)."""
    band: Any = np.zeros((2, bins), dtype=np.complex128)
    for sources, n in parts:
        add = jaxgb_adder(n, bins)
        padded = np.zeros((-(-len(sources) // BATCH) * BATCH, 8))
        padded[: len(sources)] = sources
        padded[len(sources) :] = [1e-3, 0, 0, 1, 0, 0, 1, 0]  # of no amplitude
        for batch in padded.reshape(-1, BATCH, 8):
            band = add(band, batch, first_bin)
    return np.asarray(band)


def race_samples(frequency: float, seconds: float) -> tuple[Comparison, int]:
    """Time the simulator, 64 samples a call, against jaxgb on such samples; seconds a sample."""
    preset = preset_at(frequency)
    groups = itertools.count()
    ready: Iterator[Sample] = itertools.cycle(
        explicit_sample(preset, index) for index in range(0, 4 * GROUP, GROUP)
    )
    slow = sample._pool(preset, SEED, 0).basis_re.shape[3]
    members = []

    def ours() -> object:
        begin = GROUP * next(groups)  # never the same pool twice
        return sample.simulate_group(preset, SEED, range(begin, begin + GROUP))

    def theirs() -> object:
        one = next(ready)
        members.append(len(one.foreground))
        parts = [(one.bright, sample.RESPONSE_BINS), (one.foreground, slow)]
        return jaxgb_band(parts, one.first_bin, preset.prior.bins)

    race = compare(ours, theirs, seconds)
    return Comparison([t / GROUP for t in race.ours], race.theirs), round(np.mean(members))


def sum_tdi_slowdown(frequency: float, seconds: float) -> Comparison:
    """Time jaxgb's batched ``get_tdi`` with a scatter-add against its own ``sum_tdi``, jitted."""
    import jax

    preset = preset_at(frequency)
    sources = explicit_sample(preset, 0).foreground[:BATCH]
    n, bins = 64, preset.prior.bins + 512
    code, first = jaxgb(n), int(np.rint(frequency * YEAR.duration)) - bins // 2
    total = jax.jit(
        lambda s: code.sum_tdi(s, first, first + bins, tdi_generation=1.5, tdi_combination="AET")
    )
    return compare(
        lambda: jaxgb_band([(sources, n)], first, bins),
        lambda: jax.block_until_ready(total(sources)),
        seconds,
    )


def bright_sources(frequency: float) -> Float:
    """Return resolvable sources as the prior draws them: (SOURCES, 8)."""
    preset = preset_at(frequency)
    plans = (sample._plan(preset, SEED, index).sources for index in itertools.count())
    rows: list[Float] = []
    while len(rows) < SOURCES:
        rows.extend(next(plans))
    return np.array(rows[:SOURCES])


def largest_error(ours: Complex, theirs: Complex) -> float:
    """Return the largest over the sources of |difference| / largest |response|."""
    difference = np.abs(ours - theirs).max(axis=(1, 2))
    return float((difference / np.abs(theirs).max(axis=(1, 2))).max())


def fastgb_responses(n: int) -> Callable[[Float], Complex]:
    """Return fastgb's A and E of parameters in its own order: (S, 2, n)."""
    from fastgb.fastgb import FastGB

    code = FastGB(orbits=orbits(YEAR), T=YEAR.duration, delta_t=YEAR.dt, N=n)

    def responses(parameters: Float) -> Complex:
        x, y, z, _ = code.get_fd_tdixyz(parameters)
        return np.stack([(z - x) / np.sqrt(2.0), (x - 2.0 * y + z) / np.sqrt(6.0)], axis=1)

    return responses


def gbgpu_responses(n: int) -> Callable[[Float], Complex]:
    """Return GBGPU's A and E of parameters in its own order, on the CPU: (S, 2, n)."""
    from gbgpu.gbgpu import GBGPU

    code = GBGPU(force_backend="cpu")

    def responses(parameters: Float) -> Complex:
        code.run_wave(*parameters.T, N=n, T=YEAR.duration, dt=YEAR.dt)
        return np.stack([code.A, code.E], axis=1)

    return responses


def race_responses(seconds: float) -> tuple[dict[str, Comparison], dict[str, float]]:
    """Time the resolvable sources' responses, A and E, against the three codes; differences.

    fastgb and GBGPU have no window, so none is set here, but for jaxgb's difference.
    """
    n, sources = sample.RESPONSE_BINS, bright_sources(2e-3)
    bare, grid = YEAR.model_copy(update={"tukey": 0.0}), response_grid(YEAR, n, window=False)

    def ours() -> Complex:
        return response_ae(sources, grid)[0]

    fastgb, gbgpu = fastgb_responses(n), gbgpu_responses(n)
    theirs = {
        "fastgb": lambda: fastgb(to_fastgb(sources, "icrs")),
        "gbgpu": lambda: gbgpu(to_gbgpu(sources)),
        "jaxgb_responses": lambda: jaxgb_response(sources, bare, n, batch=BATCH)[0],
    }
    races = {name: compare(ours, call, seconds) for name, call in theirs.items()}
    windowed = response_ae(sources, response_grid(YEAR, n))[0]
    errors = {
        "fastgb_error": largest_error(ours(), theirs["fastgb"]()),
        "gbgpu_error": largest_error(ours(), theirs["gbgpu"]()),
        "resolvable_error": largest_error(windowed, jaxgb_response(sources, YEAR, n)[0][:, :2]),
    }
    return races, errors


def foreground_error(frequency: float, draws: int) -> list[float]:
    """Return, for each draw of MEMBERS, rms(pool - jaxgb) / rms(jaxgb) in A and E of the band."""
    preset = preset_at(frequency)
    bins, margin = preset.prior.bins, preset.prior.margin
    errors = []
    for index in range(0, draws * GROUP, GROUP):
        pool, rng = sample._pool(preset, SEED, index // GROUP), np.random.default_rng([index])
        first = sample._plan(preset, SEED, index).first_bin
        members = pool.draw_members(rng, first - margin, bins + 2 * margin, 1.0)
        while len(members.k) < MEMBERS:
            more = pool.draw_members(rng, first - margin, bins + 2 * margin, 1.0)
            members = type(members)(
                *(np.concatenate(pair, axis=-1) for pair in zip(members, more, strict=True))
            )
        members = type(members)(*(column[..., :MEMBERS] for column in members))
        response, firsts = jaxgb_response(pool.explicit(members), YEAR, 256, batch=BATCH)
        direct = accumulate(response, firsts, first, bins)[:2]
        difference = pool.response(members, first, bins)[:2] - direct
        errors.append(float(np.linalg.norm(difference) / np.linalg.norm(direct)))
    return errors


@click.command()
@click.option("--quick", is_flag=True, help="Within a minute instead of some three.")
def main(quick: bool) -> None:
    """Time the simulation against jaxgb, fastgb and GBGPU (ours first in each line)."""
    seconds = 3.0 if quick else 20.0
    figures: dict[str, object] = {}
    for mhz in (1, 2):
        race, members = race_samples(mhz * 1e-3, seconds)
        click.echo(race.line(f"a sample at {mhz} mHz, {members} members; jaxgb"))
        errors = foreground_error(mhz * 1e-3, 2 if quick else 8)
        click.echo(f"  foreground of {MEMBERS}, error against jaxgb: {max(errors):.2e} at worst")
        figures[f"samples_per_s_{mhz}mHz"] = float(f"{1.0 / median(race.ours):.4g}")
        figures[f"speedup_vs_jaxgb_{mhz}mHz"] = race.speedup
        figures[f"speedup_vs_jaxgb_{mhz}mHz_spread"] = race.spread
        figures[f"foreground_error_{mhz}mHz"] = float(f"{median(errors):.3g}")
    figures["foreground_error"] = max(figures[f"foreground_error_{mhz}mHz"] for mhz in (1, 2))
    slow = sum_tdi_slowdown(1e-3, 0.3 * seconds)
    click.echo(slow.line(f"{BATCH} members by jaxgb's get_tdi and a scatter-add; its sum_tdi"))
    figures["jaxgb_sum_tdi_over_get_tdi"] = slow.speedup
    races, differences = race_responses(0.5 * seconds)
    for name, value in races.items():
        click.echo(value.line(f"{SOURCES} resolvable sources; {name}"))
        figures[f"speedup_vs_{name}"] = value.speedup
        figures[f"speedup_vs_{name}_spread"] = value.spread
    ours = [t for race in races.values() for t in race.ours]
    figures["responses_per_s"] = float(f"{SOURCES / median(ours):.4g}")
    for name, value in differences.items():
        click.echo(f"{name}: {value:.1e}")
        figures[name] = float(f"{value:.3g}")
    figures |= {"members": MEMBERS, "sources": SOURCES, "slow_samples": sample.RESPONSE_BINS}
    click.echo(json.dumps(figures))


if __name__ == "__main__":
    main()
