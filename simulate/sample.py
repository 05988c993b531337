"""One simulated band of the default training prior.

Sample ``i`` depends on ``(seed, i)`` alone. Groups of 64 consecutive samples lie in one
frequency block and share its pool of foreground binaries, drawn from ``(seed, i // 64)``.

Everything is made in A, E, T of TDI 1.5 and without gaps; whitened, it is then cut by the gaps'
mask and put into the observation's own channels and generation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slotflow.channels import from_standard
from slotflow.config import Preset, PriorSettings
from slotflow.gaps import band_mask, cut
from slotflow.manifest import SAMPLE_GROUP
from slotflow.noise import standard_psd, window_power, window_samples
from slotflow.parameters import AMPLITUDE, fold
from slotflow.simulate.bright import (
    block_bin,
    cut_poisson,
    draw_bright,
    interpolated,
    response_snr,
    snr_psd,
)
from slotflow.simulate.foreground import Foreground, ForegroundPool
from slotflow.simulate.orbits import response_grid
from slotflow.simulate.waveforms import accumulate
from slotflow.store import Band
from slotflow.waveform import response_ae

Float = NDArray[np.float64]
Complex = NDArray[np.complex128]

SCATTER: Final = 64  # bins by which a band may lie off its block
RESPONSE_BINS: Final = 256  # of a bright source; the error is 1e-4 of its norm
# random streams; 3 is that of the blocks (slotflow.simulate.bright), gaps have 5
_SOURCES, _FOREGROUND, _POOL, _SCALES = 0, 1, 2, 4


@dataclass(frozen=True)
class Plan:
    """The bright sources of a band, before their amplitude is known."""

    first_bin: int
    sources: Float  # (S, 8), amplitude REFERENCE_AMPLITUDE, targets first
    snr: Float  # (S,)
    count: int  # targets


def window_of_interest(first_bin: int, prior: PriorSettings, duration: float) -> tuple[int, int]:
    """Return the bins [low, high) between which a band's targets have their ``f0 T``."""
    width = prior.window((first_bin + prior.bins // 2) / duration)
    low = first_bin + (prior.bins - width) // 2
    return low, low + width


@lru_cache(maxsize=2)
def _pool(preset: Preset, seed: int, group: int) -> ForegroundPool:
    rng = np.random.default_rng([seed, group, _POOL])
    place = block_bin(preset, seed, group)
    reach = SCATTER + preset.prior.bins // 2 + preset.prior.margin
    return ForegroundPool.build(rng, place, preset.observation, reach, preset.population)


def _plan(preset: Preset, seed: int, index: int) -> Plan:
    """Draw where a sample's band lies, and its bright sources."""
    prior, duration = preset.prior, preset.observation.duration
    rng = np.random.default_rng([seed, index, _SOURCES])
    block = block_bin(preset, seed, index // SAMPLE_GROUP)
    low = max(block - SCATTER, int(np.ceil(prior.fmin * duration)))
    high = min(block + SCATTER, int(np.floor(prior.fmax * duration)))
    first_bin = int(rng.integers(min(low, high), max(low, high) + 1)) - prior.bins // 2
    window = window_of_interest(first_bin, prior, duration)
    width = window[1] - window[0]
    # Outside the window as many per bin as in it, over the rest of the band and its margins
    if prior.density:
        rate = _draw_scales(preset, seed, index)[0]
        centre = (first_bin + prior.bins // 2) / duration
        density = rate * float(interpolated(prior.density, centre))
        count = cut_poisson(rng, density * width, prior.max_sources)
    else:
        empty = rng.random() < prior.empty_fraction
        count = 0 if empty else int(rng.integers(1, prior.max_sources + 1))
        density = (1.0 - prior.empty_fraction) * 0.5 * (1 + prior.max_sources) / width
    targets = np.sort(rng.uniform(*window, count))
    rest = prior.bins - width + 2 * prior.margin
    place = first_bin - prior.margin + rest * rng.random(int(rng.poisson(density * rest)))
    others = np.where(place < window[0], place, place + width)
    sources, snr = draw_bright(rng, np.concatenate([targets, others]), preset)
    return Plan(first_bin, sources, snr, count)


def _padded(rows: Float, length: int) -> Float:
    out = np.full((length, *rows.shape[1:]), np.nan)
    out[: len(rows)] = rows[:length]
    return out


def _draw_scales(preset: Preset, seed: int, index: int) -> tuple[float, float, float, float]:
    """Draw a band's foreground rate, and the amplitudes of its noises: oms, acceleration, all."""
    prior = preset.prior
    rng = np.random.default_rng([seed, index, _SCALES])
    names = ("rate_scale", "oms_scale", "acceleration_scale", "noise_scale")
    ranges = np.array([[getattr(prior, f"{n}_{end}") for end in ("min", "max")] for n in names])
    rate, oms, acceleration, noise = np.exp(rng.uniform(*np.log(ranges.T))).tolist()
    return rate, oms, acceleration, noise


def _draw_foreground(
    preset: Preset, seed: int, index: int, first_bin: int, bins: int, rate: float, psd: Float
) -> Foreground:
    if not preset.observation.foreground:
        return Foreground(np.zeros((3, bins), dtype=np.complex128), 0, 0)
    rng = np.random.default_rng([seed, index, _FOREGROUND])
    pool = _pool(preset, seed, index // SAMPLE_GROUP)
    return pool.draw(rng, first_bin, bins, rate, psd, preset.prior.foreground_snr_max)


def _finished(
    part: Complex, mask: Float | None, beside: int, first_bin: int, preset: Preset
) -> NDArray[np.complex64]:
    """Cut a whitened part by the gaps' mask, and put it into the set's own channels."""
    settings, bins = preset.observation, preset.prior.bins
    if mask is not None:
        window = window_samples(settings.tukey, mask.size)
        power = np.mean((window * mask) ** 2) / np.mean(window**2)
        part = cut(part, mask)[:, beside : beside + bins] / np.sqrt(power)
    return from_standard(part, first_bin, settings).astype(np.complex64)


def _band(
    preset: Preset, seed: int, index: int, plan: Plan, responses: Complex, firsts: NDArray[np.int64]
) -> Band:
    """Scale the bright sources to their SNR, add the foreground, and whiten."""
    prior, observation = preset.prior, preset.observation
    reach = prior.margin + RESPONSE_BINS // 2 + 1
    start, every = plan.first_bin - reach, prior.bins + 2 * reach
    frequency = (start + np.arange(every)) / observation.duration
    per_bin = 0.5 * observation.duration * window_power(observation.tukey)
    level = np.sqrt(standard_psd(frequency, observation) * per_bin)
    psd = snr_psd(frequency, preset)
    factor = plan.snr / response_snr(responses, firsts, np.sqrt(psd[:2] * per_bin), start)
    sources = plan.sources.copy()
    sources[:, AMPLITUDE] *= factor
    # Gaps spread into the band what lies outside it: there, all bins are needed
    mask = band_mask(observation, seed, index)
    beside, margin = (0, prior.margin) if mask is None else (reach, 0)
    first, bins = plan.first_bin - beside, prior.bins + 2 * beside
    signal = np.zeros((3, bins), dtype=np.complex128)
    signal[:2] = accumulate(responses * factor[:, None, None], firsts, first, bins)
    rate, *noises = _draw_scales(preset, seed, index)
    around = psd[0, first - margin - start : first + bins + margin - start]
    foreground = _draw_foreground(preset, seed, index, first, bins, rate, around)
    # Whitened before the cast to complex64, where |h|^2 would underflow
    level = level[:, first - start : first - start + bins]
    parts = [
        _finished(part / level, mask, beside, plan.first_bin, preset)
        for part in (signal, foreground.response)
    ]
    count = plan.count
    return Band(
        first_bin=plan.first_bin,
        signal=parts[0],
        foreground=parts[1],
        sources=_padded(fold(sources[:count]), prior.max_sources),
        snr=_padded(plan.snr[:count], prior.max_sources),
        count=count,
        outside=_padded(fold(sources[count:]), prior.max_outside),
        outside_count=len(sources) - count,
        rate_scale=rate,
        members=foreground.members,
        removed=foreground.removed,
        oms_scale=noises[0],
        acceleration_scale=noises[1],
        noise_scale=noises[2],
    )


def simulate_group(preset: Preset, seed: int, indices: Sequence[int]) -> list[Band]:
    """Simulate samples together, their bright sources in one call.

    Args:
        preset: its sections ``observation``, ``prior`` and ``population`` are used; files named in
            ``observation`` must have been read (:func:`slotflow.simulate.inputs.pinned`).
        seed: the training set's seed.
        indices: samples, any.

    Returns:
        One band a sample, the same as each would be alone.
    """
    plans = [_plan(preset, seed, index) for index in indices]
    sources = np.concatenate([plan.sources for plan in plans])
    responses, firsts = response_ae(sources, response_grid(preset.observation, RESPONSE_BINS))
    ends = np.cumsum([len(plan.sources) for plan in plans])
    bands = []
    for index, plan, end in zip(indices, plans, ends, strict=True):
        rows = slice(end - len(plan.sources), end)
        bands.append(_band(preset, seed, index, plan, responses[rows], firsts[rows]))
    return bands


def simulate_band(preset: Preset, seed: int, index: int) -> Band:
    """Simulate one sample, which depends on (seed, index) and the settings alone."""
    return simulate_group(preset, seed, [index])[0]
