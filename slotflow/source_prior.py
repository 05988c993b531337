"""The training prior of one source with its SNR's ends: density and draws.

A target has f0 uniform over the band's window of interest, fdot uniform (a range that widens
with f0 above 3 mHz), an isotropic sky, psi, cos iota and phi0 uniform, and an SNR that is
log-uniform in [snr_min, snr_max]: the amplitude is what gives that SNR. :mod:`slotflow.prior` is
the same density where the SNR is not known.
"""

import numpy as np
from numpy.typing import NDArray

from slotflow.config import ObservationSettings, PriorSettings
from slotflow.noise import model_psd, standard_psd
from slotflow.parameters import DEC, F0, FDOT, IOTA, PHI0, PSI, RA, fdot_widening
from slotflow.prior import log_prior, ranges

Float = NDArray[np.float64]


class SourcePrior:
    """The prior of one target of a band.

    Args:
        settings: of the training prior.
        first_bin: first Fourier bin of the band.
        duration: observation time T, s.

    Attributes:
        f0: (low, high) of the window of interest, Hz.
        snr: (snr_min, snr_max).

    Raises:
        ValueError: another law of the SNR, a sky that is not isotropic, or a range of no width.
    """

    def __init__(self, settings: PriorSettings, first_bin: int, duration: float) -> None:
        self.settings, self.first_bin, self.duration = settings, first_bin, duration
        if np.isnan(log_prior(np.ones((1, 8)), first_bin, settings, duration)).any():
            raise ValueError(
                "the prior has no closed form: expected a log-uniform SNR, an isotropic sky and"
                " ranges of some width"
            )
        self.f0 = ranges(first_bin, settings, duration).f0
        self.snr = settings.snr_min, settings.snr_max
        self.ln_snr_range = float(np.log(settings.snr_max / settings.snr_min))

    def log_density(self, sources: Float, snr: Float) -> Float:
        """Return ln density per Hz, Hz/s, strain and radians, psi in [0, pi): (..., 8) -> (...).

        Angles outside their ranges are taken as they are (ra, psi, phi0 have a period), save dec
        and iota.

        Args:
            sources: (..., 8).
            snr: (...) the optimal SNR of each.
        """
        flat = sources.reshape(-1, 8)
        with np.errstate(invalid="ignore", divide="ignore"):
            value = log_prior(flat, self.first_bin, self.settings, self.duration)
        inside = (np.abs(flat[:, DEC]) <= 0.5 * np.pi) & (flat[:, IOTA] >= 0.0)
        inside &= (flat[:, IOTA] <= np.pi) & np.isfinite(value)
        snr = snr.reshape(-1)
        inside &= (snr >= self.snr[0]) & (snr <= self.snr[1])
        return np.where(inside, value, -np.inf).reshape(sources.shape[:-1])

    def log_density_intrinsic(self, intrinsic: Float) -> Float:
        """Return ln density of f0, fdot, ra, dec alone: (..., 4) -> (...)."""
        f0, fdot, _, dec = np.moveaxis(intrinsic, -1, 0)
        low, high = self.f0
        settings, scale = self.settings, fdot_widening(f0) / self.duration**2
        inside = (f0 >= low) & (f0 <= high) & (np.abs(dec) <= 0.5 * np.pi)
        inside &= (fdot >= settings.fdot_t2_min * scale) & (fdot <= settings.fdot_t2_max * scale)
        width = (settings.fdot_t2_max - settings.fdot_t2_min) * scale
        with np.errstate(invalid="ignore", divide="ignore"):
            value = np.log(np.cos(dec) / (4.0 * np.pi * (high - low) * width))
        return np.where(inside, value, -np.inf)

    def from_unit(self, unit: Float) -> tuple[Float, Float]:
        """Map the unit cube to the prior: (N, 8) -> sources (N, 8) but for A, and SNR (N,)."""
        sources = np.empty_like(unit)
        low, high = self.f0
        settings = self.settings
        sources[:, F0] = low + (high - low) * unit[:, F0]
        span = settings.fdot_t2_max - settings.fdot_t2_min
        place = settings.fdot_t2_min + span * unit[:, FDOT]
        sources[:, FDOT] = place * fdot_widening(sources[:, F0]) / self.duration**2
        sources[:, RA] = 2.0 * np.pi * unit[:, RA]
        sources[:, DEC] = np.arcsin(2.0 * unit[:, DEC] - 1.0)
        sources[:, PSI] = np.pi * unit[:, PSI]
        sources[:, IOTA] = np.arccos(1.0 - 2.0 * unit[:, IOTA])
        sources[:, PHI0] = 2.0 * np.pi * unit[:, PHI0]
        return sources, settings.snr_min * np.exp(self.ln_snr_range * unit[:, 2])


def snr_density(frequency: Float, observation: ObservationSettings, prior: PriorSettings) -> Float:
    """Return the density of A and E in TDI 1.5 against which training takes an SNR: (2, n), 1/Hz.

    Instrument and confusion, the latter by ``prior.confusion_share`` where there is one.

    Args:
        frequency: (n,) positive frequencies, Hz.
        observation: of the model.
        prior: likewise.
    """
    total = standard_psd(frequency, observation)[:2]
    if not prior.confusion_share:
        return total
    model = model_psd(frequency, observation)
    instrument = total * (model.instrument[:2] / model.total[:2])
    places, shares = np.log(np.array(prior.confusion_share).T)
    share = np.exp(np.interp(np.log(frequency), places, shares))
    return np.asarray(instrument + (total - instrument) * share)
