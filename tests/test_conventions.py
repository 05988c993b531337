"""slotflow.conventions: against astropy, and against the rotation of the polarisation tensor."""

import astropy.units as u
import numpy as np
import pytest
from astropy.coordinates import SkyCoord
from hypothesis import given, settings
from hypothesis import strategies as st

from slotflow.conventions import (
    FASTGB_COLUMNS,
    GBGPU_COLUMNS,
    LDC_COLUMNS,
    TO_ECLIPTIC,
    at_epoch,
    from_fastgb,
    from_gbgpu,
    from_ldc,
    rotate_sky,
    to_fastgb,
    to_gbgpu,
    to_ldc,
)

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
    # the LDC's GB_fdot has 2 pi f t + pi fdot t^2 - InitialPhase, as we have
    np.testing.assert_allclose(np.exp(1j * phase), np.exp(1j * sources[:, 7]), atol=1e-14)
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


def test_columns_of_other_codes() -> None:
    """Each column under its own name, against the LDC's columns."""
    sources = _sources()
    ldc = to_ldc(sources)
    gbgpu = dict(zip(GBGPU_COLUMNS, to_gbgpu(sources).T, strict=True))
    fastgb = dict(zip(FASTGB_COLUMNS["ecliptic"], to_fastgb(sources).T, strict=True))
    names = {
        "A": "Amplitude",
        "f0": "Frequency",
        "fdot": "FrequencyDerivative",
        "iota": "Inclination",
        "psi": "Polarization",
        "lambda": "EclipticLongitude",
        "beta": "EclipticLatitude",
    }
    for ours, theirs in names.items():
        np.testing.assert_array_equal(gbgpu[ours], ldc[theirs])
        np.testing.assert_array_equal(fastgb[ours], ldc[theirs])
    np.testing.assert_array_equal(fastgb["phi0"], ldc["InitialPhase"])
    np.testing.assert_allclose(np.exp(1j * (gbgpu["phi0"] + sources[:, 7])), 1.0, atol=1e-12)
    np.testing.assert_array_equal(gbgpu["fddot"], 0.0)
    icrs = dict(zip(FASTGB_COLUMNS["icrs"], to_fastgb(sources, "icrs").T, strict=True))
    order = ("f0", "fdot", "A", "ra", "dec", "psi", "iota", "phi0")
    np.testing.assert_array_equal(np.stack([icrs[name] for name in order], axis=-1), sources)


def _invariants(source: Float) -> list[Float]:
    """What a signal is made of, without the angles that lose meaning near the poles."""
    f0, fdot, amplitude, ra, dec, psi, iota, phi0 = source
    tensor = _tensor(ra, dec, psi, iota) * np.exp(-1j * phi0)
    direction = np.array([np.cos(dec) * np.cos(ra), np.cos(dec) * np.sin(ra), np.sin(dec)])
    return [f0 / 2e-3, fdot / 1e-16, amplitude / 1e-22, direction, tensor]


def _assert_same_signal(one: Float, other: Float, tolerance: float = 1e-11) -> None:
    for a, b in zip(_invariants(one), _invariants(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)


anywhere = st.tuples(
    angles,  # longitude
    st.tuples(distances, st.sampled_from([-1.0, 1.0])).map(lambda d: d[1] * (np.pi / 2 - d[0])),
    st.floats(0.0, np.pi, exclude_max=True),  # psi
    st.floats(0.0, np.pi),  # iota
    angles,  # phi0
    st.floats(5e-4, 8e-3),
    st.floats(-1e-16, 1e-16),
)


@settings(deadline=None, max_examples=300)
@given(anywhere, st.booleans(), st.floats(-2e8, 2e8))
def test_gbgpu_both_ways(values: tuple[float, ...], ecliptic: bool, t0: float) -> None:
    """From either side, near either frame's poles, at any epoch."""
    longitude, latitude, psi, iota, phi0, f0, fdot = values
    source = np.array([[f0, fdot, 1e-22, longitude, latitude, psi, iota, phi0]])
    if ecliptic:
        source = from_gbgpu(np.array([[1e-22, f0, fdot, 0, phi0, iota, psi, longitude, latitude]]))
    there = to_gbgpu(source, t0)
    back = from_gbgpu(there, t0)
    _assert_same_signal(back[0], source[0], 1e-8)  # 2 pi f t0 is known to 1e-9
    again = to_gbgpu(back, t0)
    assert np.abs(again[:, :4] - there[:, :4]).max() <= 1e-17
    for low, high, column in ((0, 2 * np.pi, 4), (0, np.pi, 6), (0, 2 * np.pi, 7)):
        assert low <= there[0, column] < high


@settings(deadline=None, max_examples=300)
@given(anywhere, st.booleans(), st.sampled_from(["ecliptic", "icrs"]))
def test_fastgb_both_ways(values: tuple[float, ...], theirs: bool, frame: str) -> None:
    longitude, latitude, psi, iota, phi0, f0, fdot = values
    source = np.array([[f0, fdot, 1e-22, longitude, latitude, psi, iota, phi0]])
    if theirs:
        source = from_fastgb(source[:, [0, 1, 2, 4, 3, 5, 6, 7]], frame)
    there = to_fastgb(source, frame)
    _assert_same_signal(from_fastgb(there, frame)[0], source[0])
    for high, column in ((2 * np.pi, 4), (np.pi, 5), (2 * np.pi, 7)):
        assert 0.0 <= there[0, column] < high


@settings(deadline=None, max_examples=200)
@given(st.floats(-1e8, 1e8), st.floats(-1e8, 1e8), st.floats(5e-4, 8e-3), st.floats(-1e-15, 1e-15))
def test_epochs(first: float, second: float, f0: float, fdot: float) -> None:
    """The phase of every later moment stays, and two steps are one."""
    source = np.array([[f0, fdot, 1e-22, 1.0, 0.3, 0.2, 1.1, 0.7]])
    moved = at_epoch(source, first)
    for t in (-1e6, 0.0, 3e7):
        before = 2 * np.pi * f0 * t + np.pi * fdot * t**2 - 0.7
        u = t - first  # the same moment on the new clock
        after = 2 * np.pi * moved[0, 0] * u + np.pi * fdot * u**2 - moved[0, 7]
        assert abs(np.exp(1j * before) - np.exp(1j * after)) < 1e-7
    np.testing.assert_array_equal(moved[0, 1:7], source[0, 1:7])
    _assert_same_signal(at_epoch(moved, second)[0], at_epoch(source, first + second)[0], 1e-7)
    _assert_same_signal(at_epoch(moved, -first)[0], source[0], 1e-8)


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match=r"expected sources of shape \(S, 8\); got \(8,\)"):
        to_ldc(np.ones(8))
    with pytest.raises(KeyError, match="Amplitude"):
        from_ldc({})
    for call in (to_gbgpu, to_fastgb, from_fastgb):
        with pytest.raises(ValueError, match=r"\(S, 8\); got \(3, 7\)"):
            call(np.ones((3, 7)))
    with pytest.raises(ValueError, match=r"\(S, 9\); got \(3, 8\)"):
        from_gbgpu(np.ones((3, 8)))
    with pytest.raises(ValueError, match="fddot = 0; got 1 Hz"):
        from_gbgpu(np.ones((3, 9)))
    for convert in (to_fastgb, from_fastgb):
        with pytest.raises(ValueError, match="'galactic'"):
            convert(np.ones((3, 8)), "galactic")


def test_nothing_is_changed_in_place() -> None:
    sources = _sources(5)
    kept = sources.copy()
    to_ldc(sources), to_gbgpu(sources, 1e7), to_fastgb(sources), at_epoch(sources, 1e7)
    np.testing.assert_array_equal(sources, kept)
    parameters = to_gbgpu(sources)
    kept = parameters.copy()
    from_gbgpu(parameters, 1e7)
    np.testing.assert_array_equal(parameters, kept)


@pytest.mark.parametrize("angle", [1.234, -2.5, 3.1])
def test_a_turned_sky_by_astropy(angle: float) -> None:
    """The ecliptic longitude grows by the angle; the tensor is that of before, turned."""
    sources = _sources(40)
    turned = rotate_sky(sources, angle)
    before, after = (
        SkyCoord(s[:, 3] * u.rad, s[:, 4] * u.rad).barycentricmeanecliptic
        for s in (sources, turned)
    )
    moved = after.lon.rad - before.lon.rad - angle
    np.testing.assert_allclose(np.angle(np.exp(1j * moved)), 0.0, atol=1e-9)
    np.testing.assert_allclose(after.lat.rad, before.lat.rad, atol=1e-9)
    c, s = np.cos(angle), np.sin(angle)
    pole = np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])
    rotation = TO_ECLIPTIC.T @ pole @ TO_ECLIPTIC
    for one, other in zip(sources, turned, strict=True):
        tensor = _tensor(one[3], one[4], one[5], one[6])
        expected = rotation @ tensor @ rotation.T
        np.testing.assert_allclose(_tensor(*other[3:7]), expected, atol=1e-12)
    np.testing.assert_array_equal(turned[:, [0, 1, 2, 6, 7]], sources[:, [0, 1, 2, 6, 7]])
    assert ((turned[:, 3] >= 0) & (turned[:, 3] < 2 * np.pi)).all()
    assert ((turned[:, 5] >= 0) & (turned[:, 5] < np.pi)).all()
    back = rotate_sky(turned, -angle)
    np.testing.assert_allclose(back[:, 3:5], sources[:, 3:5], atol=1e-9)
    np.testing.assert_allclose(np.exp(2j * back[:, 5]), np.exp(2j * sources[:, 5]), atol=1e-9)


def test_a_sky_that_is_not_turned_stays_as_it_is() -> None:
    sources = _sources(5)
    np.testing.assert_array_equal(rotate_sky(sources, 0.0), sources)
    assert rotate_sky(sources, 0.0) is not sources
    with pytest.raises(ValueError, match=r"shape \(S, 8\)"):
        rotate_sky(sources[:, :7], 1.0)
