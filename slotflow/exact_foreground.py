"""How the noise of the Galaxy's unresolved binaries changes over the observation.

A binary's frequency within a band says nothing of where it is, so that the unresolved ones are
noise that is white at each time, of a covariance

    C(t) = sum over binaries of A^2 (|plus response|^2 + |cross response|^2),

orientations averaged. It follows from where the binaries are (the model's population,
:class:`slotflow.settings.PopulationSettings`), less those loud enough to be resolved, and from the
orbit. In A and E at one year it has lags 1 and 2 of some .1 and .3 and little else.
"""

from dataclasses import replace
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slotflow.config import ObservationSettings, PopulationSettings, PriorSettings
from slotflow.exact_grid import GridKey, resampled
from slotflow.exact_kernel import BLOCK, Kernel
from slotflow.exact_modulation import Modulation
from slotflow.likelihood import training_sigma
from slotflow.response import C, ResponseGrid

Float = NDArray[np.float64]
Complex = NDArray[np.complex128]

LAGS: Final = 8  # bins: the response is of fourth order in the wave's direction, times two
BINARIES: Final = 6000  # that stand for the Galaxy
BLOCK_WIDTH: Final = 0.25e-3  # Hz, within which C(t) is taken as one
_SOLAR_MASS: Final = 4.925490947e-6  # G M / c^3, s
_KPC: Final = 3.0856775814913673e19 / C  # s
_ORIENTATION: Final = 1.6  # mean of |d_plus|^2 over A^2, likewise of |d_cross|^2
_CENTRE: Final = np.deg2rad([266.40500, -28.93617])  # ra, dec of the Galaxy's centre
_POLE: Final = np.deg2rad([192.85948, 27.12825])  # and of its north pole


def galactic_noise(
    grid: ResponseGrid, observation: ObservationSettings, prior: PriorSettings,
    population: PopulationSettings, frequency: float,
) -> Complex:  # fmt: skip
    """Return the series of C(t) for the unresolved Galaxy: (2, 2, 2 LAGS + 1).

    As :class:`slotflow.exact_modulation.Modulation` has it; the mean over time of A and E is 1.

    Args:
        grid: the observation at any number of samples.
        observation: its settings.
        prior: the training prior, whose ``foreground_snr_max`` says who is resolved.
        population: who is in the Galaxy.
        frequency: Hz.
    """
    block = max(1, round(frequency / BLOCK_WIDTH))
    return _series(GridKey(grid), observation, prior, population, block * BLOCK_WIDTH)


@lru_cache(maxsize=64)
def _series(
    key: GridKey, observation: ObservationSettings, prior: PriorSettings,
    population: PopulationSettings, frequency: float,
) -> Complex:  # fmt: skip
    rng = np.random.default_rng(0)
    ra, dec, distance = _places(rng, BINARIES, population)
    mass = _chirp_masses(rng, BINARIES, population)
    amplitude = 2.0 * (_SOLAR_MASS * mass) ** (5 / 3) * (np.pi * frequency) ** (2 / 3)
    amplitude /= _KPC * distance
    flat = resampled(key.grid, BLOCK, observation.tukey)
    kernel = Kernel(replace(flat, window=np.ones(BLOCK)))
    intrinsic = np.stack([np.full(BINARIES, frequency), np.zeros(BINARIES), ra, dec], axis=1)
    sigma = training_sigma(observation, round(frequency * key.grid.duration), 1, prior)[:, 0]
    total = np.zeros((2, 2, BLOCK), dtype=np.complex128)
    for rows, spectra, _ in kernel.bases(intrinsic):
        power = np.einsum("npck,npck->nc", spectra.conj(), spectra).real / sigma**2
        snr2 = 2.0 * _ORIENTATION * amplitude[rows] ** 2 * power.sum(axis=1)
        weight = np.where(snr2 < prior.foreground_snr_max**2, amplitude[rows] ** 2, 0.0)
        series = np.fft.ifft(spectra, axis=-1)
        total += np.einsum("n,npct,npdt->cdt", weight, series, series.conj())
    total /= 0.5 * np.einsum("cct->", total).real / BLOCK
    lags = np.fft.fft(total, axis=-1) / BLOCK
    out = np.asarray(lags[..., np.arange(-LAGS, LAGS + 1)])
    out.setflags(write=False)
    return out


def with_share(series: Complex, share: float) -> Modulation:
    """Return the noise of which a share is the Galaxy's, the rest being the same at all times."""
    mixed = share * series
    mixed[[0, 1], [0, 1], series.shape[2] // 2] += 1.0 - share
    return Modulation(mixed)


def _places(
    rng: np.random.Generator, number: int, population: PopulationSettings
) -> tuple[Float, Float, Float]:
    """Return ra, dec (rad) and distances (kpc) of binaries of the disc and the bulge."""
    radius = rng.gamma(2.0, population.disc_scale, number)
    angle = rng.uniform(0.0, 2.0 * np.pi, number)
    height = population.disc_height * np.arctanh(rng.uniform(-1.0, 1.0, number))
    disc = np.stack([radius * np.cos(angle), radius * np.sin(angle), height])
    bulge = population.bulge_scale * rng.standard_normal((3, number))
    place = np.where(rng.random(number) < population.disc_fraction, disc, bulge)
    place[0] += population.sun_radius
    centre, pole = _direction(_CENTRE), _direction(_POLE)
    third = np.cross(pole, centre)
    x, y, z = np.stack([centre, third / np.linalg.norm(third), pole], axis=1) @ place
    distance = np.sqrt(x * x + y * y + z * z)
    return np.arctan2(y, x), np.arcsin(np.clip(z / distance, -1.0, 1.0)), distance


def _direction(place: Float) -> Float:
    ra, dec = place
    return np.array([np.cos(dec) * np.cos(ra), np.cos(dec) * np.sin(ra), np.sin(dec)])


def _chirp_masses(rng: np.random.Generator, number: int, population: PopulationSettings) -> Float:
    """Return chirp masses (solar masses) by the cut normal law, values at its quantiles."""
    from scipy.stats import truncnorm

    mean, sigma = population.chirp_mass_mean, population.chirp_mass_sigma
    ends = population.chirp_mass_min, population.chirp_mass_max
    low, high = ((end - mean) / sigma for end in ends)
    return np.asarray(mean + sigma * truncnorm.ppf(rng.random(number), low, high))
