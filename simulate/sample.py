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
from slotflow.simulate.foreground import Foreground, ForegroundPool
from slotflow.simulate.orbits import response_grid
from slotflow.simulate.population import draw_members
from slotflow.simulate.waveforms import accumulate
from slotflow.store import OUTSIDE_MAX, Band
from slotflow.waveform import response_ae

Float = NDArray[np.float64]
Complex = NDArray[np.complex128]

SCATTER: Final = 64  # bins by which a band may lie off its block
RESPONSE_BINS: Final = 256  # of a bright source; the error is 1e-4 of its norm
REFERENCE_AMPLITUDE: Final = 1e-22
SCALING_FREQUENCY: Final = 3e-3  # Hz; above it the fdot prior widens as f^(11/3)
_SOURCES, _FOREGROUND, _POOL, _BLOCK, _SCALES = range(5)  # random streams; gaps have the next


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
    start = np.random.default_rng([seed, 0, _BLOCK]).random()
    place = (start + group * (np.sqrt(5.0) - 1.0) / 2.0) % 1.0
    prior = preset.prior
    frequency = prior.fmin + (prior.fmax - prior.fmin) * place
    return int(np.rint(frequency * preset.observation.duration))


@lru_cache(maxsize=2)
def _pool(preset: Preset, seed: int, group: int) -> ForegroundPool:
    rng = np.random.default_rng([seed, group, _POOL])
    place = block_bin(preset, seed, group)
    reach = SCATTER + preset.prior.bins // 2 + preset.prior.margin
    return ForegroundPool.build(rng, place, preset.observation, reach, preset.population)


def _draw_snr(rng: np.random.Generator, prior: PriorSettings, number: int) -> Float:
    """Draw SNRs between the prior's bounds by inverting their cumulative law."""
    low, high, u = prior.snr_min, prior.snr_max, rng.random(number)
    if prior.snr_law == "log_uniform":
        return np.asarray(low * (high / low) ** u)
    if prior.snr_law == "uniform":
        return np.asarray(low + (high - low) * u)
    return np.asarray((low**-3.0 + (high**-3.0 - low**-3.0) * u) ** (-1.0 / 3.0))


def _draw_sky(rng: np.random.Generator, preset: Preset, number: int) -> tuple[Float, Float]:
    if preset.prior.sky == "galactic":
        members = draw_members(rng, number, preset.population)
        return members.ra, members.dec
    return rng.uniform(0.0, 2.0 * np.pi, number), np.arcsin(rng.uniform(-1.0, 1.0, number))


def _draw_bright(rng: np.random.Generator, bins: Float, preset: Preset) -> tuple[Float, Float]:
    """Draw sources at these places (bins): (S, 8) at reference amplitude, and their SNR."""
    number, prior, duration = len(bins), preset.prior, preset.observation.duration
    f0 = bins / duration
    widen = np.maximum(1.0, f0 / SCALING_FREQUENCY) ** (11.0 / 3.0)
    fdot = rng.uniform(prior.fdot_t2_min, prior.fdot_t2_max, number) * widen / duration**2
    sources = np.stack(
        [
            f0,
            fdot,
            np.full(number, REFERENCE_AMPLITUDE),
            *_draw_sky(rng, preset, number),
            rng.uniform(0.0, 0.5 * np.pi, number),
            np.arccos(rng.uniform(-1.0, 1.0, number)),
            rng.uniform(0.0, 2.0 * np.pi, number),
        ],
        axis=-1,
    )
    return sources, _draw_snr(rng, prior, number)


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
    sources, snr = _draw_bright(rng, np.concatenate([targets, others]), preset)
    return Plan(first_bin, sources, snr, count)


def response_snr(responses: Complex, firsts: NDArray[np.int64], level: Float, start: int) -> Float:
    """Return each response's SNR over all its bins: ``SNR^2 = 2 sum over A, E of |h_w|^2``.

    ``h_w`` is whitened to unit noise per bin, so ``SNR^2 = 4 / (T S mean w^2) sum |h|^2``: the
    window's share of signal and noise power cancels. It is that of data without gaps.

    Args:
        responses: (S, 2, n), A and E.
        firsts: (S,) first bins; all bins must lie in ``level``.
        level: (2, bins) the noise's standard deviation per bin, ``sqrt(S T / 2 mean w^2)``.
        start: the bin of its index 0.
    """
    bins = firsts[:, None] - start + np.arange(responses.shape[2])
    power = (np.abs(responses) ** 2 / (level[:, bins] ** 2).swapaxes(0, 1)).sum(axis=1)
    return np.asarray(np.sqrt(2.0 * power.sum(axis=1)))


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
    psd = standard_psd((start + np.arange(every)) / observation.duration, observation)
    level = np.sqrt(psd * (0.5 * observation.duration * window_power(observation.tukey)))
    factor = plan.snr / response_snr(responses, firsts, level[:2], start)
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
        outside=_padded(fold(sources[count:]), OUTSIDE_MAX),
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
