"""Who is in the Galaxy: a model population of double white dwarfs (our calibration).

Thin disc (surface density exponential in radius, sech^2 in height) and bulge, with

    dN/df = 5.3 per microhertz (f / 3 mHz)^(-11/3),

inspirals driven by gravitational waves alone. It is not a catalogue: its numbers
(:class:`slotflow.settings.PopulationSettings`) are chosen so that the unresolved part comes near
the confusion fit of :mod:`slotflow.noise`.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slotflow.config import PopulationSettings
from slotflow.response import C

Float = NDArray[np.float64]

REFERENCE_FREQUENCY: Final = 3e-3  # Hz, at which the density is given
STANDARD: Final = PopulationSettings()
SOLAR_MASS_SECONDS: Final = 4.925490947e-6  # G M_sun / c^3, s
KPC_SECONDS: Final = 3.0856775814913673e19 / C


class Members(NamedTuple):
    """Binaries without frequency and orientation, arrays of (n,) each."""

    ra: Float  # rad, ICRS
    dec: Float  # rad, ICRS
    distance: Float  # kpc
    chirp_mass: Float  # solar masses


def _rotation(axis: int, angle: float) -> Float:
    """Return the matrix that turns the coordinate axes by ``angle`` about an axis."""
    i, j = (axis + 1) % 3, (axis + 2) % 3
    matrix = np.eye(3)
    matrix[i, i] = matrix[j, j] = np.cos(angle)
    matrix[i, j], matrix[j, i] = np.sin(angle), -np.sin(angle)
    return matrix


def _galactic_to_icrs() -> Float:
    """Return the rotation; pole at 192.85948, 27.12825 deg, node 32.93192 deg (Hipparcos)."""
    ra_pole, dec_pole, node = np.radians([192.85948, 27.12825, 32.93192])
    to_galactic = (
        _rotation(2, -node) @ _rotation(0, np.pi / 2 - dec_pole) @ _rotation(2, ra_pole + np.pi / 2)
    )
    return np.asarray(to_galactic.T)


GALACTIC_TO_ICRS: Final = _galactic_to_icrs()


def amplitude(f0: ArrayLike, chirp_mass: ArrayLike, distance: ArrayLike) -> Float:
    """Return the strain amplitude ``2 (G M)^(5/3) (pi f)^(2/3) / (c^4 d)``.

    Args:
        f0: Hz. chirp_mass: solar masses. distance: kpc.
    """
    mass = SOLAR_MASS_SECONDS * np.asarray(chirp_mass)
    length = KPC_SECONDS * np.asarray(distance)
    return np.asarray(2.0 * mass ** (5 / 3) * (np.pi * np.asarray(f0)) ** (2 / 3) / length)


def chirp(f0: ArrayLike, chirp_mass: ArrayLike) -> Float:
    """Return df/dt of the inspiral, Hz/s: ``96/5 pi^(8/3) (G M / c^3)^(5/3) f^(11/3)``.

    Args:
        f0: Hz. chirp_mass: solar masses.
    """
    mass = SOLAR_MASS_SECONDS * np.asarray(chirp_mass)
    return np.asarray(96 / 5 * np.pi ** (8 / 3) * mass ** (5 / 3) * np.asarray(f0) ** (11 / 3))


def expected_number(fmin: float, fmax: float, population: PopulationSettings = STANDARD) -> float:
    """Return the mean number of binaries between two frequencies in Hz."""
    power = population.slope + 1.0
    scale = population.density * REFERENCE_FREQUENCY / power
    high, low = fmax / REFERENCE_FREQUENCY, fmin / REFERENCE_FREQUENCY
    return float(scale * (high**power - low**power))


def draw_frequencies(
    rng: np.random.Generator,
    fmin: float,
    fmax: float,
    number: int,
    population: PopulationSettings = STANDARD,
) -> Float:
    """Draw frequencies (Hz) between two bounds with the population's density: (number,)."""
    power = population.slope + 1.0
    low, high = fmin**power, fmax**power
    drawn = (low + (high - low) * rng.random(number)) ** (1.0 / power)
    return np.asarray(np.clip(drawn, fmin, fmax))


def draw_members(
    rng: np.random.Generator, number: int, population: PopulationSettings = STANDARD
) -> Members:
    """Draw positions and chirp masses: ``number`` independent binaries."""
    in_disc = rng.random(number) < population.disc_fraction
    radius = rng.gamma(2.0, population.disc_scale, number)
    azimuth = rng.uniform(0.0, 2.0 * np.pi, number)
    height = population.disc_height * np.arctanh(rng.uniform(-1.0, 1.0, number))
    disc = np.stack([radius * np.cos(azimuth), radius * np.sin(azimuth), height])
    bulge = population.bulge_scale * rng.standard_normal((3, number))
    position = np.where(in_disc, disc, bulge)
    position[0] += population.sun_radius  # from the Sun; the Galaxy's centre lies at +x
    distance = np.sqrt((position**2).sum(axis=0))
    x, y, z = GALACTIC_TO_ICRS @ (position / distance)
    mass = _draw_chirp_masses(rng, number, population)
    return Members(
        np.mod(np.arctan2(y, x), 2 * np.pi), np.arcsin(np.clip(z, -1, 1)), distance, mass
    )


def _draw_chirp_masses(
    rng: np.random.Generator, number: int, population: PopulationSettings
) -> Float:
    """Draw from a normal law cut at both ends, by redrawing what falls outside."""
    low, high = population.chirp_mass_min, population.chirp_mass_max
    mean, sigma = population.chirp_mass_mean, population.chirp_mass_sigma
    mass = rng.normal(mean, sigma, number)
    while (outside := (mass < low) | (mass > high)).any():
        mass[outside] = rng.normal(mean, sigma, int(outside.sum()))
    return np.asarray(mass)


def draw_galaxy(
    rng: np.random.Generator,
    fmin: float,
    fmax: float,
    rate_scale: float = 1.0,
    population: PopulationSettings = STANDARD,
) -> Float:
    """Draw all binaries between two frequencies: (S, 8), S Poisson, in jaxgb's order.

    Args:
        rng: source of the randomness.
        fmin: lower frequency, Hz.
        fmax: upper frequency, Hz.
        rate_scale: factor on the mean number.
        population: who is in the Galaxy.

    Raises:
        ValueError: bounds that are not positive and in order, or a negative rate.
    """
    if not 0.0 < fmin <= fmax or rate_scale < 0.0:
        raise ValueError(
            f"expected 0 < fmin <= fmax and rate_scale >= 0; got {fmin}, {fmax}, {rate_scale}"
        )
    number = int(rng.poisson(rate_scale * expected_number(fmin, fmax, population)))
    members = draw_members(rng, number, population)
    f0 = draw_frequencies(rng, fmin, fmax, number, population)
    columns = (
        f0,
        chirp(f0, members.chirp_mass),
        amplitude(f0, members.chirp_mass, members.distance),
        members.ra,
        members.dec,
        rng.uniform(0.0, np.pi, number),
        np.arccos(rng.uniform(-1.0, 1.0, number)),
        rng.uniform(0.0, 2.0 * np.pi, number),
    )
    return np.stack(columns, axis=-1)
