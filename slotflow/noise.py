"""Noise of the TDI channels A, E, T: power spectral densities and band realisations.

The instrument follows the LISA Science Requirements Document (SciRDv1), with an optical
metrology noise of 15 pm or, as the model ``scirdv1_10pm``, 10 pm. The Galactic confusion
is the tanh fit used by lisaanalysistools (LISAanalysistools 1.2,
``FittedHyperbolicTangentGalacticForeground``), whose coefficients are linear in the
observing time between the times at which it was fitted. All densities are one-sided, per
hertz, of TDI in fractional frequency.

This module needs NumPy and SciPy alone: training draws its noise here.
"""

from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import scipy.fft
import scipy.signal
from numpy.typing import ArrayLike, NDArray

from slotflow.config import ObservationSettings
from slotflow.noise_table import interpolated_density

Float = NDArray[np.float64]

C: Final = 299792458.0  # speed of light, m / s (exact, SI)
ARM_LENGTH: Final = 2.5e9  # m
YEAR: Final = 365.25 * 86400.0  # s
_OMS: Final = {"scirdv1": 15e-12, "scirdv1_10pm": 10e-12}  # m / sqrt(Hz)
_ACCELERATION: Final = 3e-15  # m / s^2 / sqrt(Hz)

# The confusion fit: observing times (s), knee (Hz), slopes below and above the knee
_FIT_TIMES: Final = np.array(
    [86400.0, 91.5 * 86400.0, 183.0 * 86400.0, YEAR, 2 * YEAR, 4 * YEAR, 10 * YEAR]
)
_FIT_KNEE: Final = np.array(
    [1.15120924e-2, 4.01884128e-3, 3.47302482e-3, 2.77606177e-3, 2.41178384e-3, 2.09278117e-3,
     1.57362626e-3]
)  # fmt: skip
_FIT_SLOPE1: Final = np.array(
    [941.315118, 1368.87568, 1687.29474, 1763.27234, 2326.78814, 3014.30978, 3749.70124]
)
_FIT_SLOPE2: Final = np.array(
    [103.239773, 1033.51646, 1622.04855, 1686.31844, 2068.21665, 2957.74596, 3151.99454]
)
_FIT_AMPLITUDE: Final = 3.26651613e-44
_FIT_POWER: Final = 1.18300266


def _positive(frequency: ArrayLike) -> Float:
    f = np.asarray(frequency, dtype=np.float64)
    if not (f > 0).all():
        raise ValueError("expected positive frequencies")
    return f


def _generation_factor(x: Float, tdi_generation: str) -> Float | float:
    if tdi_generation == "1.5":
        return 1.0
    if tdi_generation == "2.0":
        return np.asarray(4.0 * np.sin(2.0 * x) ** 2)
    raise ValueError(f"expected TDI generation '1.5' or '2.0'; got {tdi_generation!r}")


def instrument_psd(
    frequency: ArrayLike,
    arm_length: float = ARM_LENGTH,
    model: str = "scirdv1",
    tdi_generation: str = "1.5",
    oms_scale: float = 1.0,
    acceleration_scale: float = 1.0,
) -> Float:
    """Return the instrument's S_A, S_E, S_T, one-sided, 1/Hz: (3, n).

    Args:
        frequency: (n,) positive frequencies, Hz.
        arm_length: the one arm length, metres.
        model: ``scirdv1`` (15 pm) or ``scirdv1_10pm``.
        tdi_generation: ``"1.5"`` or ``"2.0"``.
        oms_scale: factor on the amplitude of the optical metrology noise.
        acceleration_scale: factor on the amplitude of the acceleration noise.

    Raises:
        ValueError: a frequency that is not positive, an unknown model or generation.
    """
    f = _positive(frequency)
    if model not in _OMS:
        raise ValueError(f"expected a noise model of {sorted(_OMS)}; got {model!r}")
    x = 2.0 * np.pi * f * arm_length / C
    oms = _OMS[model] ** 2 * (1.0 + (2e-3 / f) ** 4) * (2.0 * np.pi * f / C) ** 2
    acc = _ACCELERATION**2 * (1.0 + (0.4e-3 / f) ** 2) * (1.0 + (f / 8e-3) ** 4)
    acc = acc / (2.0 * np.pi * f * C) ** 2
    oms, acc = oms * oms_scale**2, acc * acceleration_scale**2
    cos, sin2 = np.cos(x), np.sin(x) ** 2
    s_a = 8.0 * sin2 * ((2.0 + cos) * oms + 2.0 * (3.0 + 2.0 * cos + np.cos(2.0 * x)) * acc)
    s_t = 16.0 * sin2 * ((1.0 - cos) * oms + 8.0 * np.sin(0.5 * x) ** 4 * acc)
    return np.stack([s_a, s_a, s_t]) * _generation_factor(x, tdi_generation)


def confusion_psd(
    frequency: ArrayLike,
    arm_length: float = ARM_LENGTH,
    duration: float = YEAR,
    tdi_generation: str = "1.5",
) -> Float:
    """Return the Galactic confusion's density in A (the same in E), one-sided, 1/Hz: (n,).

    The strain fit times ``1.5 * 4 x^2 sin^2 x``, x = 2 pi f L / c.

    Args:
        frequency: (n,) positive frequencies, Hz.
        arm_length: the one arm length, metres.
        duration: observing time after which louder sources are removed, s (1 day to 10 years).
        tdi_generation: ``"1.5"`` or ``"2.0"``.

    Raises:
        ValueError: a frequency that is not positive, or a duration outside the fit.
    """
    f = _positive(frequency)
    if not _FIT_TIMES[0] <= duration <= _FIT_TIMES[-1]:
        raise ValueError(f"expected a duration of 1 day to 10 years; got {duration} s")
    knee = np.interp(duration, _FIT_TIMES, _FIT_KNEE)
    slope1 = np.interp(duration, _FIT_TIMES, _FIT_SLOPE1)
    slope2 = np.interp(duration, _FIT_TIMES, _FIT_SLOPE2)
    strain = _FIT_AMPLITUDE * f ** (-7.0 / 3.0) * np.exp(-slope1 * f**_FIT_POWER)
    strain = strain * 0.5 * (1.0 - np.tanh(slope2 * (f - knee)))
    x = 2.0 * np.pi * f * arm_length / C
    return np.asarray(
        strain * 1.5 * 4.0 * x**2 * np.sin(x) ** 2 * _generation_factor(x, tdi_generation)
    )


def total_psd(
    frequency: ArrayLike,
    arm_length: float = ARM_LENGTH,
    model: str = "scirdv1",
    tdi_generation: str = "1.5",
    duration: float = YEAR,
) -> Float:
    """Return instrument plus confusion: (3, n) of A, E, T; T has no confusion.

    Arguments and errors as in :func:`instrument_psd` and :func:`confusion_psd`.
    """
    psd = instrument_psd(frequency, arm_length, model, tdi_generation)
    psd[:2] += confusion_psd(frequency, arm_length, duration, tdi_generation)
    return psd


class NoiseScales(NamedTuple):
    """Factors on the amplitudes of the noises; ``all`` on those of the whole instrument."""

    oms: float = 1.0
    acceleration: float = 1.0
    all: float = 1.0


class ModelPsd(NamedTuple):
    """Densities of A, E, T in an observation's own TDI generation, each (3, n), 1/Hz."""

    instrument: Float
    total: Float


def model_psd(
    frequency: ArrayLike, settings: ObservationSettings, scales: NoiseScales | None = None
) -> ModelPsd:
    """Return the densities of an observation: its instrument's, and with the confusion.

    With ``foreground: false`` the two are equal. A noise table is interpolated linearly in the
    logarithms.

    Args:
        frequency: (n,) positive frequencies, Hz.
        settings: the observation.
        scales: of the noises, all 1 where None.

    Raises:
        InputError: a frequency outside the noise table.
        ValueError: a frequency that is not positive.
    """
    f = _positive(frequency)
    scales = NoiseScales() if scales is None else scales
    arm, generation = settings.arm_length, settings.tdi_generation
    if settings.noise == "table":
        instrument = _tabulated(f, settings)
    else:
        instrument = instrument_psd(
            f, arm, settings.noise, generation, scales.oms, scales.acceleration
        )
    instrument = instrument * scales.all**2
    total = instrument.copy()
    if settings.foreground:
        total[:2] += confusion_psd(f, arm, settings.duration, generation)
    return ModelPsd(instrument, total)


def standard_psd(frequency: ArrayLike, settings: ObservationSettings) -> Float:
    """Return the total model density in TDI 1.5, by which a band is whitened: (3, n), 1/Hz.

    Bands of another generation are mapped to it (:mod:`slotflow.channels`), their density too.

    Args:
        frequency: (n,) positive frequencies, Hz.
        settings: the observation.

    Raises:
        InputError: a frequency outside the noise table.
    """
    f = _positive(frequency)
    factor = _generation_factor(2.0 * np.pi * f * settings.arm_length / C, settings.tdi_generation)
    return np.asarray(model_psd(f, settings).total / factor)


def _tabulated(f: Float, settings: ObservationSettings) -> Float:
    table = settings.noise_table
    if table is None:
        raise ValueError("the noise table was not read: use pinned settings")
    return interpolated_density(f, np.array(table), settings.noise_file or "noise table")


@lru_cache(maxsize=16)
def window_samples(tukey: float, samples: int) -> Float:
    """Return the periodic Tukey window of that tapered fraction: (samples,), read-only."""
    window = np.asarray(scipy.signal.get_window(("tukey", tukey), samples), dtype=np.float64)
    window.setflags(write=False)
    return window


def window_power(tukey: float) -> float:
    """Return the mean of the squared window: 1 - 5/8 of the tapered fraction."""
    return 1.0 - 0.625 * tukey


def draw_noise(
    rng: np.random.Generator,
    psd_ratio: NDArray[np.floating],
    tukey: float,
    mask: Float | None = None,
) -> NDArray[np.complex64]:
    """Draw whitened Gaussian noise with the window's correlation between bins.

    White noise on a circle of half as many bins again, so that the two ends of the band do
    not touch, is multiplied by the window in the time domain; with gaps, on a circle of as many
    bins as the mask has samples, so that what they spread from other bins is there.

    Args:
        rng: source of the randomness.
        psd_ratio: (channels, K) density of the noise over the density used for whitening.
        tukey: tapered fraction of the window.
        mask: (M,) the gaps' factor over the observation, M more than K.

    Returns:
        (channels, K) complex64 with ``E|n|^2 = psd_ratio``.
    """
    channels, bins = psd_ratio.shape
    if mask is None:
        circle = scipy.fft.next_fast_len(bins + max(64, bins // 2))
        window = window_samples(tukey, circle)
    else:
        window = window_samples(tukey, mask.size) * mask
    white = rng.standard_normal((channels, window.size, 2)).view(np.complex128)[..., 0]
    noise = scipy.fft.fft(window * scipy.fft.ifft(white, axis=-1), axis=-1)[:, :bins]
    noise *= np.sqrt(psd_ratio * (0.5 / np.mean(window**2)))
    return np.asarray(noise, dtype=np.complex64)
