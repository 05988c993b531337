"""From a time series to the spectrum over exactly the model's observation time.

``dt rfft(w x)`` with ``w`` the periodic Tukey window times the gaps' tapered mask, in TDI 1.5 and
fractional frequency x seconds; :mod:`slotflow.bands` cuts it into bands.
"""

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from slotflow.channels import xyz_to_aet
from slotflow.config import GapSettings
from slotflow.errors import InputError
from slotflow.gaps import gap_spans, series_mask
from slotflow.noise import ARM_LENGTH, window_power, window_samples
from slotflow.read_checks import MAX_MISSING
from slotflow.readers import Observation
from slotflow.response import tdi2_factor

Float = NDArray[np.float64]
Complex = NDArray[np.complex128]

_COMMON_STEPS: Final = (60.0, 30.0, 20.0, 15.0, 10.0, 5.0, 2.5, 1.0)  # s, for a message


class BandSpectrum(NamedTuple):
    """Consecutive Fourier bins of A, E, T.

    ``data`` is (3, K) complex128, not whitened, in fractional frequency x seconds; index j
    is the bin ``first_bin + j`` of frequency ``(first_bin + j) / T``.
    """

    first_bin: int
    data: Complex


@dataclass(frozen=True)
class Spectrum:
    """The whole observation's A, E, T spectrum from zero frequency, and how it was made.

    Attributes:
        data: (3, bins) complex128, TDI 1.5, fractional frequency x seconds.
        duration: observation time T in seconds; bin k has the frequency k / T.
        window_power: mean of the squared window, the gaps' mask included: noise of one-sided
            density S has ``E|n|^2 = S T / 2`` times this.
        gap_fraction: share of the samples that lie in gaps.
        notes: what was done to the data that the user should know, one line each.
    """

    data: Complex
    duration: float
    window_power: float
    gap_fraction: float = 0.0
    notes: tuple[str, ...] = ()

    def band(self, first_bin: int, bins: int) -> BandSpectrum:
        """Return the bins ``first_bin .. first_bin + bins - 1``.

        Raises:
            ValueError: some of them are outside the spectrum.
        """
        if first_bin < 0 or first_bin + bins > self.data.shape[1]:
            raise ValueError(
                f"expected bins within 0 .. {self.data.shape[1] - 1};"
                f" got {first_bin} .. {first_bin + bins - 1}"
            )
        return BandSpectrum(first_bin, self.data[:, first_bin : first_bin + bins])


def spectrum(
    observation: Observation,
    duration: float,
    tukey: float,
    fmax: float | None = None,
    gaps: GapSettings | None = None,
) -> Spectrum:
    """Window and Fourier transform an observation over exactly ``duration`` seconds.

    The series may have any time step that divides ``duration``. Longer series are cropped
    at the end (t0 and the phases that refer to it stay), which is noted. Around gaps the
    series is tapered as in simulations, which is noted, too. TDI 2 is divided by the complex
    factor to TDI 1.5; where that factor vanishes (zero frequency and multiples of c / (4 L),
    30 mHz) no data can be had, and these bins are set to zero.

    Args:
        observation: the series.
        duration: the observation time T of the model, s.
        tukey: tapered fraction of the Tukey window.
        fmax: highest frequency needed, Hz; all up to Nyquist where None.
        gaps: those the model was trained with, for their taper; the default where None.

    Raises:
        InputError: too short, a time step that does not divide ``duration``, or too coarse
            for ``fmax``; or half of it in gaps.
    """
    samples = _samples_needed(observation, duration)
    notes = list(observation.notes)
    if (extra := observation.tdi.shape[1] - samples) > 0:
        notes.append(
            f"the last {extra * observation.dt:.0f} s are not used: the model was trained on"
            f" {duration:.0f} s"
        )
    bins = samples // 2 + 1
    if fmax is not None:
        check_step(observation, fmax)
        bins = min(bins, math.ceil(fmax * duration) + 1)
    window = _window(observation, samples, tukey, GapSettings() if gaps is None else gaps)
    data = np.empty((3, bins), dtype=np.complex128)
    part = np.empty(samples)
    for channel in range(3):  # one at a time: a third of the memory
        np.multiply(observation.tdi[channel, :samples], window.samples, out=part)
        data[channel] = scipy.fft.rfft(part, overwrite_x=True)[:bins]
    data = xyz_to_aet(data) * observation.dt
    if observation.generation == "2.0":
        arm = observation.orbit_parameters.get("L", ARM_LENGTH)
        factor = tdi2_factor(np.arange(bins) / duration, arm)
        usable = np.abs(factor) > 1e-6
        data[:, usable] /= factor[usable]
        data[:, ~usable] = 0.0
        notes.append("TDI 2 was divided by the complex factor to TDI 1.5")
    notes += window.notes
    return Spectrum(data, duration, window.power, window.gap_fraction, tuple(notes))


class _Window(NamedTuple):
    samples: Float
    power: float
    gap_fraction: float
    notes: tuple[str, ...]


def check_step(observation: Observation, fmax: float) -> None:
    """Raise InputError where the time step is too coarse for a frequency (Hz)."""
    if fmax > 0.5 / observation.dt:
        raise InputError(
            f"{observation.path}: the time step of {observation.dt:g} s reaches"
            f" {0.5e3 / observation.dt:.4g} mHz only; {fmax * 1e3:.4g} mHz is needed"
        )


def _window(observation: Observation, samples: int, tukey: float, gaps: GapSettings) -> _Window:
    """Return the Tukey window, and the gaps' mask in it."""
    plain, valid = window_samples(tukey, samples), observation.valid
    if valid is None or valid[:samples].all():
        return _Window(plain, window_power(tukey), 0.0, ())
    valid = valid[:samples]
    missing = float(1.0 - valid.mean())
    if missing >= MAX_MISSING:
        raise InputError(
            f"{observation.path}: {100 * missing:.1f}% of the {samples * observation.dt:.0f} s that"
            f" are used lie in gaps; less than {100 * MAX_MISSING:g}% expected"
        )
    window = series_mask(valid, observation.dt, 3600.0 * gaps.taper_hours)
    window *= plain
    number = len(gap_spans(valid, observation.dt))
    note = (
        f"{number} gap{'s' if number > 1 else ''}, {100 * missing:.3g}% of the data: masked, with a"
        f" taper of {gaps.taper_hours:g} h on both sides"
    )
    return _Window(window, float(np.mean(np.square(window))), missing, (note,))


def _samples_needed(observation: Observation, duration: float) -> int:
    """Return T / dt, or say why the series cannot be used."""
    dt, have = observation.dt, observation.tdi.shape[1]
    samples = round(duration / dt)
    if samples < 1 or abs(samples * dt - duration) > 1e-6 * duration / samples:
        usable = [step for step in _COMMON_STEPS if (duration / step).is_integer()]
        raise InputError(
            f"{observation.path}: time step {dt!r} s does not divide the {duration!r} s on which"
            f" the model was trained{f' (one of {usable} s would)' if usable else ''}"
        )
    if have < samples:
        raise InputError(
            f"{observation.path}: {have} samples of {dt:g} s are {have * dt:.0f} s; the model"
            f" needs at least {samples} samples ({duration:.0f} s)"
        )
    return samples
