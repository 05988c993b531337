"""slotflow.conventions: against astropy, and against the rotation of the polarisation tensor."""

import astropy.units as u
import numpy as np
import pytest
from astropy.coordinates import SkyCoord
from hypothesis import given, settings
from hypothesis import strategies as st

from slotflow.conventions import LDC_COLUMNS, TO_ECLIPTIC, from_ldc, to_ldc

Float = np.ndarray


def _sources(number: int = 300, seed: int = 1) -> Float:
    rng = np.random.default_rng(seed)
    return np.stack(
        [
            rng.uniform(1e-3, 2e-3, number),
            rng.uniform(-1e-17, 1e-16, number),
            np.exp(rng.uniform(-52, -48, number)),
            rng.uniform(0, 2 * np.pi, number),
            np.arcsin(rng.uniform(-1, 1, number)),
            rng.uniform(0, np.pi, number),
            np.arccos(rng.uniform(-1, 1, number)),
            rng.uniform(0, 2 * np.pi, number),
        ],
        axis=-1,
    )


def _tensor(longitude: Float, latitude: Float, psi: Float, iota: Float) -> Float:
    """The complex polarisation tensor in the frame of the angles: (3, 3).

    Written out from the vectors of the two principal axes, turned by psi about the line of
    sight, not from cos 2 psi and sin 2 psi.
    """
    west = np.array([np.sin(longitude), -np.cos(longitude), 0.0])
    north = np.array(
        [
            -np.sin(latitude) * np.cos(longitude),
            -np.sin(latitude) * np.sin(longitude),
            np.cos(latitude),
        ]
    )
    p = np.cos(psi) * west + np.sin(psi) * north
    q = -np.sin(psi) * west + np.cos(psi) * north
    plus, cross = -(1 + np.cos(iota) ** 2), -2j * np.cos(iota)
    return plus * (np.outer(p, p) - np.outer(q, q)) - cross * (np.outer(p, q) + np.outer(q, p))


def _ecliptic_tensor(columns: dict[str, Float], row: int) -> Float:
    return _tensor(
        columns["EclipticLongitude"][row],
        columns["EclipticLatitude"][row],
        columns["Polarization"][row],
        columns["Inclination"][row],
    )


def test_the_tensor_is_the_one_of_the_response() -> None:
    """The test's own tensor has the amplitudes d_plus, d_cross of the response module."""
    from slotflow.response import polarisation_coefficients

    for source in _sources(20):
        _, _, amplitude, ra, dec, psi, iota, phi0 = source
        west = np.array([np.sin(ra), -np.cos(ra), 0.0])
        north = np.array([-np.sin(dec) * np.cos(ra), -np.sin(dec) * np.sin(ra), np.cos(dec)])
        tensor = _tensor(ra, dec, psi, iota)
        plus = 0.5 * (west @ tensor @ west - north @ tensor @ north)
        cross = west @ tensor @ north
        expected = polarisation_coefficients(source)[0] * np.exp(1j * phi0) / amplitude
        np.testing.assert_allclose([plus, cross], expected, atol=1e-13)


def test_sky_as_in_astropy() -> None:
    sources = _sources()
    columns = to_ldc(sources)
    sky = SkyCoord(sources[:, 3] * u.rad, sources[:, 4] * u.rad).barycentricmeanecliptic
    np.testing.assert_allclose(columns["EclipticLongitude"], sky.lon.rad, rtol=0, atol=1e-12)
    np.testing.assert_allclose(columns["EclipticLatitude"], sky.lat.rad, rtol=0, atol=1e-12)


def test_polarisation_angle_by_astropys_position_angle() -> None:
    """The equatorial north, a step along it, seen from the ecliptic frame."""
    sources = _sources(100)
    step = 1e-5
    here = SkyCoord(sources[:, 3] * u.rad, sources[:, 4] * u.rad).barycentricmeanecliptic
    there = SkyCoord(sources[:, 3] * u.rad, (sources[:, 4] + step) * u.rad).barycentricmeanecliptic
    angle = here.position_angle(there).rad
    difference = to_ldc(sources)["Polarization"] - sources[:, 5] - angle
    wrapped = np.mod(difference + 0.5 * np.pi, np.pi) - 0.5 * np.pi
    away = np.cos(here.lat.rad) > 0.05  # the step is not small near the pole
    assert np.abs(wrapped[away]).max() < 2e-4


def test_the_rotated_tensor() -> None:
    sources = _sources()
    columns = to_ldc(sources)
    for row, source in enumerate(sources):
        rotated = TO_ECLIPTIC @ _tensor(*source[[3, 4, 5, 6]]) @ TO_ECLIPTIC.T
        np.testing.assert_allclose(_ecliptic_tensor(columns, row), rotated, atol=1e-12)


def test_phase_and_plain_columns() -> None:
    sources = _sources()
    columns = to_ldc(sources)
    assert tuple(columns) == LDC_COLUMNS
    phase = columns["InitialPhase"]
    assert phase.min() >= 0.0
    assert phase.max() < 2 * np.pi
    np.testing.assert_allclose(np.exp(1j * phase), np.exp(-1j * sources[:, 7]), atol=1e-14)
    np.testing.assert_array_equal(columns["Frequency"], sources[:, 0])
    np.testing.assert_array_equal(columns["FrequencyDerivative"], sources[:, 1])
    np.testing.assert_array_equal(columns["Amplitude"], sources[:, 2])
    np.testing.assert_array_equal(columns["Inclination"], sources[:, 6])


def test_both_ways() -> None:
    sources = _sources()
    columns = {name: values[:, None] for name, values in to_ldc(sources).items()}  # (S, 1)
    np.testing.assert_allclose(from_ldc(columns), sources, rtol=1e-11, atol=1e-30)


angles = st.floats(0.0, 2 * np.pi, exclude_max=True)
distances = st.one_of(st.just(0.0), st.floats(1e-12, 1e-3), st.floats(1e-3, np.pi / 2))


@settings(deadline=None, max_examples=300)
@given(
    longitude=angles,
    distance=distances,
    psi=st.floats(0.0, np.pi, exclude_max=True),
    north=st.booleans(),
    ecliptic=st.booleans(),
)
def test_both_ways_near_the_poles(
    longitude: float, distance: float, psi: float, north: bool, ecliptic: bool
) -> None:
    """Near either frame's poles the angles lose meaning; direction and tensor must not."""
    latitude = (np.pi / 2 - distance) * (1 if north else -1)
    source = np.array([[2e-3, 1e-17, 1e-22, longitude, latitude, psi, 1.0, 0.5]])
    if ecliptic:
        columns = {name: np.array([1.0]) for name in LDC_COLUMNS} | {
            "EclipticLongitude": np.array([longitude]),
            "EclipticLatitude": np.array([latitude]),
            "Polarization": np.array([psi]),
        }
        source = from_ldc(columns)
        back = to_ldc(source)
        np.testing.assert_allclose(
            _ecliptic_tensor(back, 0), _ecliptic_tensor(columns, 0), atol=1e-12
        )
    columns = to_ldc(source)
    expected = _tensor(*source[0, [3, 4, 5, 6]])
    rotated = TO_ECLIPTIC @ expected @ TO_ECLIPTIC.T
    np.testing.assert_allclose(_ecliptic_tensor(columns, 0), rotated, atol=1e-12)
    back = from_ldc(columns)
    np.testing.assert_allclose(_tensor(*back[0, [3, 4, 5, 6]]), expected, atol=1e-12)
    assert 0.0 <= back[0, 5] < np.pi
    assert 0.0 <= back[0, 3] < 2 * np.pi


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match=r"expected sources of shape \(S, 8\); got \(8,\)"):
        to_ldc(np.ones(8))
    with pytest.raises(KeyError, match="Amplitude"):
        from_ldc({})
