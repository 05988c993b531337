"""The model Galaxy against its formulas, integrals and astropy."""

import astropy.constants as const
import astropy.units as u
import numpy as np
import pytest
from astropy.coordinates import SkyCoord
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from slotflow.simulate import population

T = 524_288 * 60.0


def test_galactic_to_icrs_is_astropys() -> None:
    rng = np.random.default_rng(0)
    sky = SkyCoord(rng.uniform(0, 360, 50), rng.uniform(-90, 90, 50), unit="deg", frame="galactic")
    turned = population.GALACTIC_TO_ICRS @ sky.cartesian.xyz.value
    np.testing.assert_allclose(turned, sky.icrs.cartesian.xyz.value, atol=3e-7)


def test_density_is_the_stated_one() -> None:
    assert population.expected_number(3e-3, 3e-3 + 1e-9) == pytest.approx(5.3e-3, rel=1e-5)


@pytest.mark.parametrize(
    ("mhz", "number"), [(1, 2431), (1.5, 550), (2, 191), (2.5, 84), (3, 43), (4, 15), (5, 6.6)]
)
def test_number_in_256_bins(mhz: float, number: float) -> None:
    centre, half = mhz * 1e-3, 128 / T
    assert population.expected_number(centre - half, centre + half) == pytest.approx(
        number, rel=0.03
    )


@given(st.floats(3e-4, 1e-2), st.floats(1.0, 3.0))
@settings(deadline=None)
def test_expected_number_is_the_integral(fmin: float, ratio: float) -> None:
    fmax = fmin * ratio
    direct, _ = integrate.quad(lambda f: 5.3e6 * (f / 3e-3) ** (-11 / 3), fmin, fmax)
    assert population.expected_number(fmin, fmax) == pytest.approx(direct, rel=1e-6, abs=1e-9)


@given(st.floats(1e-4, 2e-2), st.floats(0.1, 1.4), st.floats(0.05, 30))
@settings(deadline=None)
def test_amplitude_and_chirp_from_physical_constants(f: float, mass: float, kpc: float) -> None:
    gm = const.G * mass * const.M_sun
    frequency, distance = f / u.s, kpc * u.kpc
    a = 2 * gm ** (5 / 3) * (np.pi * frequency) ** (2 / 3) / (const.c**4 * distance)
    fdot = 96 / 5 * np.pi ** (8 / 3) * (gm / const.c**3) ** (5 / 3) * frequency ** (11 / 3)
    assert population.amplitude(f, mass, kpc) == pytest.approx(a.to_value(""), rel=1e-4)
    assert population.chirp(f, mass) == pytest.approx(fdot.to_value(u.Hz / u.s), rel=1e-4)


def test_members_lie_in_disc_and_bulge() -> None:
    members = population.draw_members(np.random.default_rng(1), 40_000)
    sky = SkyCoord(
        members.ra * u.rad, members.dec * u.rad, members.distance * u.kpc, frame="icrs"
    ).galactic
    x, y, z = sky.cartesian.xyz.to_value(u.kpc)
    radius = np.hypot(x - population.STANDARD.sun_radius, y)
    disc = radius > 2.5  # five sigma of the bulge
    # radius ~ Gamma(2, 2.5 kpc): 73.6% of the disc lies beyond 2.5 kpc
    assert disc.mean() == pytest.approx(0.75 * stats.gamma.sf(2.5, 2, scale=2.5), abs=0.01)
    assert np.median(radius[disc]) == pytest.approx(
        stats.gamma.isf(0.5 * stats.gamma.sf(2.5, 2, scale=2.5), 2, scale=2.5), rel=0.03
    )
    # z = 0.3 atanh(U): half lies within 0.3 atanh(1/2)
    assert np.median(np.abs(z[disc])) == pytest.approx(0.3 * np.arctanh(0.5), rel=0.03)
    near = radius**2 + z**2 < 0.25  # the bulge, about
    assert near.mean() > 0.03
    assert members.chirp_mass.mean() == pytest.approx(0.37, abs=0.003)
    assert members.chirp_mass.min() > 0.1


def test_draw_galaxy_has_poisson_numbers_and_uniform_orientation() -> None:
    rng = np.random.default_rng(2)
    fmin, fmax = 1.5e-3, 1.52e-3
    draws = [population.draw_galaxy(rng, fmin, fmax, 0.5) for _ in range(60)]
    mean = 0.5 * population.expected_number(fmin, fmax)
    numbers = np.array([len(d) for d in draws])
    assert numbers.mean() == pytest.approx(mean, abs=4 * np.sqrt(mean / 60))
    assert 0.5 < numbers.var(ddof=1) / mean < 1.8
    sources = np.concatenate(draws)
    f0, fdot, amplitude, ra, dec, psi, iota, phi0 = sources.T
    assert ((f0 >= fmin) & (f0 <= fmax)).all()
    assert (amplitude > 0).all()
    assert ((ra >= 0) & (ra < 2 * np.pi) & (np.abs(dec) <= np.pi / 2)).all()
    assert (fdot < 0.1 / T**2).all()  # slow at 1.5 mHz
    for values, low, high in ((psi, 0, np.pi), (np.cos(iota), -1, 1), (phi0, 0, 2 * np.pi)):
        assert stats.kstest(values, stats.uniform(low, high - low).cdf).pvalue > 1e-3


def test_frequencies_follow_the_power_law() -> None:
    f = population.draw_frequencies(np.random.default_rng(3), 1e-3, 4e-3, 20_000)
    total = population.expected_number(1e-3, 4e-3)

    def cdf(values: np.ndarray) -> np.ndarray:
        return np.array([population.expected_number(1e-3, v) / total for v in values])

    assert stats.kstest(f, cdf).pvalue > 1e-3


def test_an_empty_rate_and_bad_bounds() -> None:
    rng = np.random.default_rng(4)
    assert population.draw_galaxy(rng, 1e-3, 2e-3, 0.0).shape == (0, 8)
    for bounds in ((0.0, 1e-3), (2e-3, 1e-3)):
        with pytest.raises(ValueError, match="fmin"):
            population.draw_galaxy(rng, *bounds)
    with pytest.raises(ValueError, match="rate_scale"):
        population.draw_galaxy(rng, 1e-3, 2e-3, -1.0)
