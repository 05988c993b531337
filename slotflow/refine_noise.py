"""The noise of one band as its refinement takes it: how loud, and how much of it the Galaxy's.

The component search has a level that is right in white noise: a median over the band. Unresolved
binaries are neither white nor Gaussian, so in bands that hold them

- the noise varies over the year as the Galaxy's does (:mod:`slotflow.exact_foreground`), by the
  share that explains the band's residual best, up to what the power over the instrument's allows;
- the level is the residual's mean power, the real numbers that signals took with them counted;
- the power of the bins around a source counts by its square root, times the share: faint
  binaries fall where they like, and around some sources there is more of them.

Without a share of theirs nothing of this is done.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotflow.exact_foreground import with_share
from slotflow.exact_modulation import Modulation
from slotflow.noise import window_samples

Float = NDArray[np.float64]
Complex = NDArray[np.complex128]

LEAST_SHARE: Final = (
    0.05  # of the power that could be the Galaxy's, below which it is not looked at
)
MOST_SHARE: Final = 0.97  # keeps the covariance positive
STEPS: Final = 20  # of the share, from 0 to what is possible
LEAST_GAIN: Final = 3.0  # of ln L by a share; white noise gives it in 1 of 200 bands
NEAR_BINS: Final = 10  # on either side of a bin, that count as around it
NEAR_POWER: Final = 0.5  # by which the power there counts (calibrated on simulations)
_FREEDOM: Final = 4.0  # complex numbers that a fitted signal takes with it
_FLAT: Final = 0.999  # of the window, above which a time is not tapered


class BandNoise(NamedTuple):
    """The noise of a band.

    Attributes:
        level: (2,) power per bin of A and E.
        share: of the Galaxy's unresolved binaries in it.
        modulation: over the year; None where the share is 0.
        profile: (2, K) power by bin, relative to the level; None likewise.
    """

    level: Float
    share: float = 0.0
    modulation: Modulation | None = None
    profile: Float | None = None


def band_noise(
    data: Complex, signals: Complex, level: Float, instrument: Float, galaxy: Complex, tukey: float
) -> BandNoise:
    """Return the noise of a band.

    Args:
        data: (2, K) whitened A and E.
        signals: (n, 2, K) best fits of what is not noise in it.
        level: (2,) by the component search, to be kept where there is no Galaxy.
        instrument: (2, K) power of the instrument's noise, likewise whitened.
        galaxy: series of the Galaxy's covariance
            (:func:`slotflow.exact_foreground.galactic_noise`).
        tukey: tapered fraction of the window.
    """
    residual = data - signals.sum(axis=0)
    free = max(residual.size - _FREEDOM * len(signals), 0.5 * residual.size)
    power = float((np.abs(residual) ** 2).sum()) / free
    most = min(1.0 - float(instrument.mean()) / power, MOST_SHARE)
    share = galactic_share(residual, galaxy, most, tukey) if most >= LEAST_SHARE else 0.0
    if share == 0.0:
        return BandNoise(level)
    modulation = with_share(galaxy, share)
    white = np.abs(modulation.filtered(residual)) ** 2
    taken = _taken(modulation.filtered(signals))
    level = white.sum(axis=1) / np.maximum(white.shape[1] - taken.sum(axis=1), 1.0)
    profile = _profile(white / level[:, None] + taken, share)
    level = level * (white / (level[:, None] * profile) + taken).mean(axis=1)
    return BandNoise(level, share, modulation, profile)


def galactic_share(residual: Complex, galaxy: Complex, most: float, tukey: float) -> float:
    """Return the share of the Galaxy's noise, 0 to ``most``, that explains a residual best.

    By the Gaussian likelihood of its times, whatever its level; the window's tapers are left out.
    0 where that gains less than LEAST_GAIN.
    """
    bins = residual.shape[1]
    series = np.fft.ifft(residual, axis=-1).T
    some = window_samples(tukey, bins) > _FLAT
    number, shares = 2.0 * float(some.sum()), np.linspace(0.0, most, STEPS + 1)
    ln_l = np.empty(len(shares))
    for i, share in enumerate(shares.tolist()):
        covariance = with_share(galaxy, share).covariance(bins)[some]
        inverse = np.linalg.inv(covariance)
        form = np.einsum("ti,tij,tj->", series[some].conj(), inverse, series[some]).real
        ln_l[i] = -number * np.log(form) - np.linalg.slogdet(covariance)[1].sum()
    best = int(np.argmax(ln_l))
    return float(shares[best]) if ln_l[best] - ln_l[0] > LEAST_GAIN else 0.0


def _taken(signals: Complex) -> Float:
    """Return how much of each bin's noise fitted signals took with them: (n, 2, K) -> (2, K)."""
    power = np.abs(signals) ** 2
    total = np.maximum(power.sum(axis=(1, 2), keepdims=True), np.finfo(np.float64).tiny)
    return np.asarray(np.minimum(_FREEDOM * (power / total).sum(axis=0), 0.5))


def _profile(power: Float, share: float) -> Float:
    """Return the noise's power by bin from that of the bins around, mean 1: (2, K)."""
    ones = np.ones(2 * NEAR_BINS + 1)
    both = power.mean(axis=0)
    near = np.convolve(both, ones, "same") / np.convolve(np.ones(len(both)), ones, "same")
    shape = near ** (NEAR_POWER * share)
    return np.tile(shape / shape.mean(), (2, 1))
