"""One simulated band of the default training prior.

Sample ``i`` depends on ``(seed, i)`` alone. Groups of 64 consecutive samples lie in one
frequency block and share its pool of foreground binaries, drawn from ``(seed, i // 64)``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slotflow.config import Preset, PriorSettings
from slotflow.manifest import SAMPLE_GROUP
from slotflow.noise import window_power
from slotflow.parameters import AMPLITUDE, fold
from slotflow.simulate.foreground import POOL_SIZE, ForegroundPool
from slotflow.simulate.noise import BandPsd, band_psd
from slotflow.simulate.waveforms import accumulate, jaxgb_response
from slotflow.store import OUTSIDE_MAX, Band

Float = NDArray[np.float64]
Complex = NDArray[np.complex128]

SCATTER: Final = 64  # bins by which a band may lie off its block
RESPONSE_BINS: Final = 512
REFERENCE_AMPLITUDE: Final = 1e-22
SCALING_FREQUENCY: Final = 3e-3  # Hz; above it the fdot prior widens as f^(11/3)
_SOURCES, _FOREGROUND, _POOL, _BLOCK = range(4)  # random streams


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


def block_bin(preset: Preset, seed: int, group: int) -> int:
    """Return the Fourier bin of a group's block.

    A golden-ratio sequence from a random start: every stretch of groups covers the range of
    frequencies evenly.
    """
    start = np.random.default_rng([seed, _BLOCK]).random()
    place = (start + group * (np.sqrt(5.0) - 1.0) / 2.0) % 1.0
    prior = preset.prior
    frequency = prior.fmin + (prior.fmax - prior.fmin) * place
    return int(np.rint(frequency * preset.observation.duration))


@lru_cache(maxsize=2)
def _pool(preset: Preset, seed: int, group: int) -> ForegroundPool:
    rng = np.random.default_rng([seed, group, _POOL])
    place = block_bin(preset, seed, group)
    return ForegroundPool.build(rng, place, preset.observation, POOL_SIZE)


def _draw_bright(
    rng: np.random.Generator, bins: Float, prior: PriorSettings, duration: float
) -> tuple[Float, Float]:
    """Draw sources at these places (bins): (S, 8) at reference amplitude, and their SNR."""
    number = len(bins)
    f0 = bins / duration
    widen = np.maximum(1.0, f0 / SCALING_FREQUENCY) ** (11.0 / 3.0)
    fdot = rng.uniform(prior.fdot_t2_min, prior.fdot_t2_max, number) * widen / duration**2
    sources = np.stack(
        [
            f0,
            fdot,
            np.full(number, REFERENCE_AMPLITUDE),
            rng.uniform(0.0, 2.0 * np.pi, number),
            np.arcsin(rng.uniform(-1.0, 1.0, number)),
            rng.uniform(0.0, 0.5 * np.pi, number),
            np.arccos(rng.uniform(-1.0, 1.0, number)),
            rng.uniform(0.0, 2.0 * np.pi, number),
        ],
        axis=-1,
    )
    snr = np.exp(rng.uniform(np.log(prior.snr_min), np.log(prior.snr_max), number))
    return sources, snr


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
    empty = rng.random() < prior.empty_fraction
    count = 0 if empty else int(rng.integers(1, prior.max_sources + 1))
    targets = np.sort(rng.uniform(*window, count))
    # Outside the window as many per bin as in it, over the rest of the band and its margins
    density = (1.0 - prior.empty_fraction) * 0.5 * (1 + prior.max_sources) / width
    rest = prior.bins - width + 2 * prior.margin
    place = first_bin - prior.margin + rest * rng.random(int(rng.poisson(density * rest)))
    others = np.where(place < window[0], place, place + width)
    sources, snr = _draw_bright(rng, np.concatenate([targets, others]), prior, duration)
    return Plan(first_bin, sources, snr, count)


def response_snr(
    responses: Complex, firsts: NDArray[np.int64], psd: BandPsd, scale: float
) -> Float:
    """Return each response's SNR over all its bins: ``SNR^2 = 2 sum over A, E of |h_w|^2``.

    ``h_w`` is whitened to unit noise per bin, so ``SNR^2 = 4 / (T S mean w^2) sum |h|^2``: the
    window's share of signal and noise power cancels.

    Args:
        responses: (S, 3, n).
        firsts: (S,) first bins; all bins must lie in ``psd``.
        psd: model densities.
        scale: ``T / 2 mean w^2``.
    """
    bins = firsts[:, None] - psd.first_bin + np.arange(responses.shape[2])
    density = psd.total[0][bins] * scale
    power = (np.abs(responses[:, :2]) ** 2).sum(axis=1)
    return np.asarray(np.sqrt(2.0 * (power / density).sum(axis=1)))


def _padded(rows: Float, length: int) -> Float:
    out = np.full((length, *rows.shape[1:]), np.nan)
    out[: len(rows)] = rows[:length]
    return out


def _band(
    preset: Preset, seed: int, index: int, plan: Plan, responses: Complex, firsts: NDArray[np.int64]
) -> Band:
    """Scale the bright sources to their SNR, add the foreground, and whiten."""
    prior, observation = preset.prior, preset.observation
    bins, margin = prior.bins, prior.margin
    reach = margin + RESPONSE_BINS // 2 + 1
    psd = band_psd(plan.first_bin - reach, bins + 2 * reach, observation)
    scale = 0.5 * observation.duration * window_power(observation.tukey)
    factor = plan.snr / response_snr(responses, firsts, psd, scale)
    sources = plan.sources.copy()
    sources[:, AMPLITUDE] *= factor
    signal = accumulate(responses * factor[:, None, None], firsts, plan.first_bin, bins)

    rng = np.random.default_rng([seed, index, _FOREGROUND])
    rate = np.log([prior.rate_scale_min, prior.rate_scale_max])
    rate_scale = float(np.exp(rng.uniform(*rate)))
    around = psd.total[0, reach - margin : reach + bins + margin]
    foreground = _pool(preset, seed, index // SAMPLE_GROUP).draw(
        rng, plan.first_bin, bins, rate_scale, around, prior.foreground_snr_max
    )
    # Whitened before the cast to complex64, where |h|^2 would underflow
    level = np.sqrt(psd.total[:, reach : reach + bins] * scale)
    count = plan.count
    return Band(
        first_bin=plan.first_bin,
        signal=(signal / level).astype(np.complex64),
        foreground=(foreground.response / level).astype(np.complex64),
        sources=_padded(fold(sources[:count]), prior.max_sources),
        snr=_padded(plan.snr[:count], prior.max_sources),
        count=count,
        outside=_padded(fold(sources[count:]), OUTSIDE_MAX),
        outside_count=len(sources) - count,
        rate_scale=rate_scale,
        members=foreground.members,
        removed=foreground.removed,
    )


def simulate_group(preset: Preset, seed: int, indices: Sequence[int]) -> list[Band]:
    """Simulate samples together, their bright sources in common batches.

    Args:
        preset: its sections ``observation`` and ``prior`` are used.
        seed: the training set's seed.
        indices: samples, any.

    Returns:
        One band a sample, the same as each would be alone.
    """
    plans = [_plan(preset, seed, index) for index in indices]
    sources = np.concatenate([plan.sources for plan in plans])
    responses, firsts = jaxgb_response(sources, preset.observation, RESPONSE_BINS)
    ends = np.cumsum([len(plan.sources) for plan in plans])
    bands = []
    for index, plan, end in zip(indices, plans, ends, strict=True):
        rows = slice(end - len(plan.sources), end)
        bands.append(_band(preset, seed, index, plan, responses[rows], firsts[rows]))
    return bands


def simulate_band(preset: Preset, seed: int, index: int) -> Band:
    """Simulate one sample, which depends on (seed, index) and the settings alone."""
    return simulate_group(preset, seed, [index])[0]
