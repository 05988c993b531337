"""The time series of sources and noise that a simulated observation is made of.

The sources' responses are summed in the frequency domain on a time span of 5/4 T around the
observation, with a window that is exactly one from t0 to t0 + T and falls smoothly to zero
over the T/8 before and after. The inverse transform, cropped to [t0, t0 + T), is then
the series of the sources without any window, to the accuracy of the sampled responses
(:func:`slow_samples`). Instrument noise is drawn on the same span, so that the crop has the
right spectrum and no period of T.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from slotflow.channels import aet_to_xyz
from slotflow.config import ObservationSettings
from slotflow.errors import InputError
from slotflow.noise import model_psd
from slotflow.parameters import F0, FDOT, PHI0
from slotflow.response import C, ResponseGrid, tdi2_factor
from slotflow.simulate.orbits import read_orbit_file, response_grid
from slotflow.simulate.waveforms import accumulate
from slotflow.waveform import response_ae

Float = NDArray[np.float64]
Complex = NDArray[np.complex128]

BATCH: Final = 2000  # sources at a time
NOISE_FLOOR: Final = 1e-5  # Hz; below, the noise's density is kept at its value there
SLOW_SAMPLES: Final = (96, 128, 256, 512, 1024, 2048, 4096)
_LIGHT_TIME: Final = 1.495978707e11 / C  # of the orbit's radius, s


def span(settings: ObservationSettings) -> ObservationSettings:
    """Return the longer span of 5/4 T that begins T/8 before the observation."""
    return settings.model_copy(
        update={
            "samples": settings.samples // 4 * 5,
            "t0": settings.t0 - 0.125 * settings.duration,
            "tukey": 0.0,
        }
    )


def check_orbit_file(settings: ObservationSettings) -> None:
    """Refuse an orbit file that does not reach over the whole span.

    Raises:
        InputError: naming the file, the times it covers and those needed.
    """
    if settings.orbit_file is None:
        return
    longer = span(settings)
    begin, end = longer.t0, longer.t0 + longer.duration
    times, _ = read_orbit_file(Path(settings.orbit_file))
    if times[0] > begin or times[-1] < end:
        raise InputError(
            f"{settings.orbit_file}: covers {times[0]:.6g} to {times[-1]:.6g} s; an observation"
            f" needs the orbits from {begin:.6g} to {end:.6g} s, an eighth of its length before and"
            " after it"
        )


def _span_window(n: int) -> Float:
    """Return the span's window at ``n`` times: a seventh-order smoothstep over each tenth."""
    x = np.arange(n) / n
    u = np.clip(10.0 * np.minimum(x, 1.0 - x), 0.0, 1.0)
    return np.asarray(u**4 * (35.0 - 84.0 * u + 70.0 * u**2 - 20.0 * u**3))


def _span_grid(settings: ObservationSettings, n: int) -> ResponseGrid:
    return replace(response_grid(span(settings), n, window=False), window=_span_window(n))


def at_earlier_epoch(sources: Float, seconds: float) -> Float:
    """Return the same signals with f0 and phi0 referred to ``seconds`` earlier: (S, 8)."""
    moved = np.array(sources, dtype=np.float64)
    f0, fdot = sources[:, F0], sources[:, FDOT]
    moved[:, F0] = f0 - fdot * seconds
    moved[:, PHI0] += 2.0 * np.pi * f0 * seconds - np.pi * fdot * seconds**2
    return moved


def slow_samples(sources: Float, duration: float) -> NDArray[np.int64]:
    """Return how many samples each response needs, and bins it fills: (S,).

    Room for the Doppler modulation (index 2 pi f x 499 s), the drift of f and the window. With the
    span's window the error, relative to the source's own norm, was seen to be below 1e-4 with 96
    samples (up to 3 mHz), 3e-5 with 128 (up to 6 mHz) and 1e-6 with 256 (up to 8 mHz).
    """
    doppler = 2.0 * np.pi * sources[:, F0] * _LIGHT_TIME
    needed = 2.0 * (1.3 * doppler + 32.0 + np.abs(sources[:, FDOT]) * duration**2)
    index = np.searchsorted(SLOW_SAMPLES, needed)
    if (index == len(SLOW_SAMPLES)).any():
        worst = int(np.argmax(needed))
        raise InputError(
            f"f0 = {sources[worst, F0]:.9g} Hz, fdot = {sources[worst, FDOT]:g} Hz/s: the signal is"
            f" wider than {SLOW_SAMPLES[-1]} Fourier bins"
        )
    return np.asarray(SLOW_SAMPLES, dtype=np.int64)[index]


def sum_responses(
    sources: Float, settings: ObservationSettings, minimum: int, report: Callable[[int], None]
) -> tuple[Complex, Float]:
    """Sum the sources on the span: its spectrum of A, E, T, and each source's energy.

    Args:
        sources: (S, 8), f0 and phi0 at ``settings.t0``.
        settings: the observation.
        minimum: fewest samples of a response.
        report: called with the number of sources done.

    Returns:
        ``(spectrum, energy)``: (3, bins) TDI 1.5, T zero; and (S,) sum of |h|^2 over A, E and bins.
    """
    longer = span(settings)
    moved = at_earlier_epoch(sources, settings.t0 - longer.t0)
    n = np.maximum(slow_samples(sources, longer.duration), minimum)
    order = np.lexsort((sources[:, F0], n))  # neighbours together: each batch fills few bins
    spectrum = np.zeros((3, longer.samples // 2 + 1), dtype=np.complex128)
    energy = np.zeros(len(sources))
    done = 0
    for size in np.unique(n):
        grid = _span_grid(settings, int(size))
        group = order[n[order] == size]
        for begin in range(0, len(group), BATCH):
            rows = group[begin : begin + BATCH]
            response, first = response_ae(moved[rows], grid)
            energy[rows] = (np.abs(response) ** 2).sum(axis=(1, 2))
            low, high = int(first.min()), int(first.max()) + int(size)
            low, high = max(low, 0), min(high, spectrum.shape[1])
            spectrum[:2, low:high] += accumulate(response, first, low, high - low)
            done += len(rows)
            report(done)
    return spectrum, energy


def instrument_density(frequency: Float, settings: ObservationSettings) -> Float:
    """Return the instrument's S_A, S_E, S_T in the settings' TDI generation: (3, n), 1/Hz.

    The model's density below 1e-5 Hz is its value there; a noise table's outside its range is
    that of its nearest row.

    Args:
        frequency: (n,) from 0 on, Hz.
        settings: the observation, pinned.
    """
    low, high = NOISE_FLOOR, np.inf
    if settings.noise_table is not None:
        low, high = settings.noise_table[0][0], settings.noise_table[-1][0]
    return model_psd(np.clip(frequency, low, high), settings).instrument


def noise_spectrum(rng: np.random.Generator, settings: ObservationSettings) -> Complex:
    """Draw the instrument's A, E, T on the span, in the settings' TDI generation.

    Returns:
        (3, bins) with ``E|n|^2 = S T / 2`` of :func:`instrument_density`.
    """
    longer = span(settings)
    frequency = np.arange(longer.samples // 2 + 1) / longer.duration
    psd = instrument_density(frequency, settings)
    noise = rng.standard_normal((3, frequency.size, 2)).view(np.complex128)[..., 0]
    noise *= np.sqrt(0.25 * longer.duration * psd)
    noise[:, 0] = 0.0
    noise[:, -1] = noise[:, -1].real * np.sqrt(2.0)
    return noise


def in_generation(spectrum: Complex, settings: ObservationSettings) -> Complex:
    """Return the span's A, E, T (TDI 1.5) in the settings' TDI generation: (3, bins)."""
    if settings.tdi_generation == "1.5":
        return spectrum
    frequency = np.arange(spectrum.shape[1]) / span(settings).duration
    return np.asarray(spectrum * tdi2_factor(frequency, settings.arm_length))


def to_series(spectrum: Complex, settings: ObservationSettings) -> Float:
    """Return X, Y, Z of the observation from the span's A, E, T: (3, samples).

    Args:
        spectrum: (3, bins) in the settings' TDI generation.
        settings: the observation.
    """
    begin = settings.samples // 8
    series = scipy.fft.irfft(spectrum, n=span(settings).samples, axis=-1) / settings.dt
    return aet_to_xyz(series[:, begin : begin + settings.samples])
