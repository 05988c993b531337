"""Gaps in the data, as a mask that multiplies the series: of simulations and of users' files.

Planned and random gaps (:class:`slotflow.settings.GapSettings`), each tapered by half a cosine on
both sides so that little leaks far. They are drawn from a seed, not stored: a training set
draws those of a band again when it draws the band's noise.
"""

from typing import Final

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from slotflow.config import GapSettings, ObservationSettings

Float = NDArray[np.float64]
Complex = NDArray[np.complex128]

GAP_STREAM: Final = 5
MASK_SAMPLES: Final = 8192  # over the observation: 64 min in a year
_SLAB: Final = 1 << 20  # samples of a series masked at a time
_SUBSAMPLES: Final = 16  # of the mask, averaged, so that a gap need not start on a sample
_DAY: Final = 86400.0
_YEAR: Final = 365.25 * _DAY


def draw_gaps(rng: np.random.Generator, gaps: GapSettings, duration: float) -> Float:
    """Draw the gaps of one observation: (G, 2) begin and end in s since its start, in order.

    Gaps that overlap are merged, and those across an end of the observation cut.

    Args:
        rng: source of the randomness.
        gaps: what to draw.
        duration: observation time T, s.
    """
    spans = np.empty((0, 2))
    if gaps.planned_interval > 0.0:
        step = gaps.planned_interval * _DAY
        begin = step * (np.arange(int(duration / step + 0.5)) + 0.5)
        begin = begin + _DAY * gaps.planned_jitter * rng.uniform(-1.0, 1.0, begin.size)
        spans = np.stack([begin, begin + 3600.0 * gaps.planned_hours], axis=-1)
    number = int(rng.poisson(gaps.random_rate * duration / _YEAR))
    begin = rng.uniform(0.0, duration, number)
    length = 3600.0 * rng.exponential(gaps.random_hours, number)
    spans = np.concatenate([spans, np.stack([begin, begin + length], axis=-1)])
    spans = np.clip(spans, 0.0, duration)
    return _merged(spans[spans[:, 1] > spans[:, 0]])


def _merged(spans: Float) -> Float:
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    merged: list[list[float]] = []
    for begin, end in spans.tolist():
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    return np.array(merged).reshape(-1, 2)


def gap_mask(times: Float, spans: Float, taper: float) -> Float:
    """Return the mask at these times: 0 in a gap, 1 away from it, half a cosine between.

    Args:
        times: (n,) s since the start, growing.
        spans: (G, 2) from :func:`draw_gaps`.
        taper: s before and after a gap over which the mask falls and rises; below 1: none.
    """
    if not len(spans):
        return np.ones(times.size)
    # The two gaps around each time: the distance to the nearer one is what counts
    after = np.searchsorted(spans[:, 0], times, side="right")
    ends = np.concatenate([[-np.inf], spans[:, 1]])[after]
    begins = np.concatenate([spans[:, 0], [np.inf]])[after]
    distance = np.minimum(times - ends, begins - times)
    if taper < 1.0:
        return np.asarray((distance > 0.0).astype(np.float64))
    return np.asarray(0.5 - 0.5 * np.cos(np.pi * np.clip(distance / taper, 0.0, 1.0)))


def gap_spans(valid: NDArray[np.bool_], dt: float) -> Float:
    """Return the gaps of a series: (G, 2), s since its start of the first and last sample missing.

    Args:
        valid: (N,) False where a sample is missing.
        dt: time step, s.
    """
    edges = np.diff(np.concatenate([[True], valid, [True]]).astype(np.int8))
    first, after = np.flatnonzero(edges < 0), np.flatnonzero(edges > 0)
    return np.asarray(np.stack([first, after - 1], axis=-1) * float(dt), dtype=np.float64)


def series_mask(valid: NDArray[np.bool_], dt: float, taper: float) -> Float:
    """Return the mask of a series with missing samples: (N,), as :func:`gap_mask` has it.

    Args:
        valid: (N,) False where a sample is missing.
        dt: time step, s.
        taper: s before and after a gap over which the mask falls and rises.
    """
    spans = gap_spans(valid, dt)
    mask = np.empty(valid.size)
    for begin in range(0, valid.size, _SLAB):  # the times of all at once would be large
        end = min(begin + _SLAB, valid.size)
        times = np.arange(begin, end, dtype=np.float64)
        times *= dt
        mask[begin:end] = gap_mask(times, spans, taper)
    return mask


def band_mask(settings: ObservationSettings, seed: int, index: int) -> Float | None:
    """Return a band's mask over the observation: (MASK_SAMPLES,), None without gaps.

    It depends on (seed, index) and the settings alone, and is the mean over each interval.

    Args:
        settings: the observation.
        seed: of the training set.
        index: the sample.
    """
    if not settings.gaps.any:
        return None
    rng = np.random.default_rng([seed, index, GAP_STREAM])
    spans = draw_gaps(rng, settings.gaps, settings.duration)
    fine = MASK_SAMPLES * _SUBSAMPLES
    times = (np.arange(fine) - 0.5 * _SUBSAMPLES + 0.5) * (settings.duration / fine)
    mask = gap_mask(np.mod(times, settings.duration), spans, 3600.0 * settings.gaps.taper_hours)
    return np.asarray(mask.reshape(MASK_SAMPLES, _SUBSAMPLES).mean(axis=1))


def cut(data: Complex, mask: Float) -> Complex:
    """Multiply a signal by the mask in the time domain, as seen from its Fourier bins.

    Args:
        data: (channels, n) consecutive Fourier bins, zero outside, n at most MASK_SAMPLES.
        mask: (MASK_SAMPLES,).

    Returns:
        (channels, n): the same bins of the masked signal.
    """
    circle = np.zeros((len(data), mask.size), dtype=np.complex128)
    circle[:, : data.shape[1]] = data
    series = scipy.fft.ifft(circle, axis=-1) * mask
    return np.asarray(scipy.fft.fft(series, axis=-1)[:, : data.shape[1]])
