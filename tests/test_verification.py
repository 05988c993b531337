"""The loudest verification binaries: SNR over four years as published.

Kupfer et al. 2018 (arXiv:1805.00482, MNRAS 480, 302), their SNR after four years with 10 pm of
metrology noise. The paper's tables were not at hand: SNR, masses, inclinations, distances and
galactic positions are as transcribed in TomWagg/detecting-DCOs-in-LISA@d266726
(paper/figure_notebooks/verification_binaries.py, "from Kupfer+18"); periods, masses and distances
once more in a public script of A. Storck (2021). Masses in that paper of V407 Vul and ES Cet, and
their inclination of 60 degrees, are assumptions; the distance of HM Cnc is uncertain, and those of
the other three are parallaxes of Gaia DR2 with errors of 20 to 50 percent. So the test is of
amplitude, response and noise together for given parameters, not of the stars.
"""

from typing import NamedTuple

import numpy as np
import pytest

from slotflow.config import ObservationSettings
from slotflow.conventions import to_ldc
from slotflow.noise import YEAR, total_psd
from slotflow.simulate.population import GALACTIC_TO_ICRS, amplitude, chirp
from slotflow.simulate.waveforms import jaxgb_response

Float = np.ndarray
N = 1024
FOUR_YEARS = ObservationSettings().model_copy(update={"samples": 4 * 525_960, "tukey": 0.0})


class Binary(NamedTuple):
    period: float  # s
    masses: tuple[float, float]  # solar masses
    inclination: float  # degrees
    distance: float  # kpc
    galactic: tuple[float, float]  # longitude, latitude, degrees
    snr: float  # published
    ecliptic: tuple[float, float]  # sin latitude, longitude (rad) in ldasoft@336b07a


BINARIES = {
    "HM Cnc": Binary(
        321.529, (0.55, 0.27), 38.0, 5.0, (206.9246, 23.3952), 211.1, (-0.0820323, 2.1020524)
    ),
    "V407 Vul": Binary(
        569.395, (0.8, 0.177), 60.0, 1.786, (57.7281, 6.4006), 169.7, (0.7288, 5.1486)
    ),
    "ES Cet": Binary(
        620.21, (0.8, 0.161), 60.0, 1.584, (168.9684, -65.8632), 154.3, (-0.3475, 0.4295)
    ),
    "SDSS J0651+2844": Binary(
        765.5, (0.247, 0.49), 86.9, 0.933, (186.9277, 12.6886), 90.1, (0.1011, 1.7686)
    ),
}


def icrs(longitude: float, latitude: float) -> tuple[float, float]:
    """ICRS right ascension and declination (rad) of galactic coordinates in degrees."""
    l, b = np.radians([longitude, latitude])  # noqa: E741
    x, y, z = GALACTIC_TO_ICRS @ [np.cos(b) * np.cos(l), np.cos(b) * np.sin(l), np.sin(b)]
    return float(np.arctan2(y, x)) % (2 * np.pi), float(np.arcsin(z))


def orientations(binary: Binary, number: int = 8) -> Float:
    """The binary at unknown polarisation angles over a quarter turn: (number, 8)."""
    m1, m2 = binary.masses
    mass = (m1 * m2) ** 0.6 / (m1 + m2) ** 0.2
    f0 = 2.0 / binary.period
    ra, dec = icrs(*binary.galactic)
    row = [f0, chirp(f0, mass), amplitude(f0, mass, binary.distance), ra, dec, 0.0,
           np.radians(binary.inclination), 0.3]  # fmt: skip
    sources = np.tile(np.array(row, dtype=float), (number, 1))
    sources[:, 5] = 0.5 * np.pi * np.arange(number) / number
    return sources


def mean_snr(binary: Binary, model: str) -> float:
    """Root mean square over the polarisation angle; A, E, confusion of four years."""
    response, first = jaxgb_response(orientations(binary), FOUR_YEARS, N, batch=8)
    frequency = (first[0] + np.arange(N)) / FOUR_YEARS.duration
    psd = total_psd(frequency, model=model, duration=FOUR_YEARS.duration)[:2]
    power = (np.abs(response[:, :2]) ** 2 / psd).sum(axis=(1, 2))
    return float(np.sqrt((4.0 / FOUR_YEARS.duration * power).mean()))


def test_four_years() -> None:
    assert FOUR_YEARS.duration == pytest.approx(4 * YEAR, rel=1e-12)


@pytest.mark.parametrize("name", BINARIES)
def test_snr_is_within_fifteen_percent_of_the_published(name: str) -> None:
    binary = BINARIES[name]
    assert mean_snr(binary, "scirdv1_10pm") == pytest.approx(binary.snr, rel=0.15)


def test_fifteen_picometres_fall_short_of_it() -> None:
    """The stricter model loses a third where the metrology noise dominates."""
    ratio = mean_snr(BINARIES["HM Cnc"], "scirdv1") / BINARIES["HM Cnc"].snr
    assert 0.6 < ratio < 0.75


@pytest.mark.parametrize("name", BINARIES)
def test_positions_as_in_another_catalogue(name: str) -> None:
    """Galactic to ICRS to ecliptic, against the ecliptic positions of ldasoft."""
    binary = BINARIES[name]
    columns = to_ldc(orientations(binary, 1))
    seen = np.sin(columns["EclipticLatitude"][0]), columns["EclipticLongitude"][0]
    np.testing.assert_allclose(seen, binary.ecliptic, rtol=0, atol=1e-4)
