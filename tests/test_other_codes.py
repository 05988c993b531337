"""jaxgb through our converters against fastgb 0.0.2 and GBGPU 1.2.4, signal by signal."""

from functools import lru_cache

import numpy as np
import pytest
from fastgb.fastgb import FastGB
from gbgpu.gbgpu import GBGPU
from lisaorbits import EqualArmlengthOrbits
from lisatools.detector import EqualArmlengthOrbits as LisatoolsOrbits

from slotflow.config import ObservationSettings
from slotflow.conventions import (
    TO_ECLIPTIC,
    at_epoch,
    from_fastgb,
    from_gbgpu,
    from_ldc,
    to_fastgb,
    to_gbgpu,
    to_ldc,
)
from slotflow.simulate.waveforms import jaxgb_response

Float = np.ndarray
Complex = np.ndarray

BARE = ObservationSettings().model_copy(update={"tukey": 0.0})  # the others have no window
N = 512
NUMBER = 100


class EclipticOrbits:
    """lisaorbits' equal-arm orbits as versions before 3 gave them: in the ecliptic frame."""

    L = 2.5e9

    def compute_position(self, t: Float, spacecraft: list[int]) -> Float:
        return EqualArmlengthOrbits().compute_position(t, spacecraft) @ TO_ECLIPTIC.T


def angles(rng: np.random.Generator) -> Float:
    """Longitude and latitude over the sphere, first at and near both poles: (NUMBER, 2)."""
    longitude = rng.uniform(0, 2 * np.pi, NUMBER)
    latitude = np.arcsin(rng.uniform(-1, 1, NUMBER))
    distance = np.array([0.0, 1e-12, 1e-9, 1e-6, 1e-3, 0.02])
    latitude[:12] = np.concatenate([np.pi / 2 - distance, distance - np.pi / 2])
    return np.stack([longitude, latitude], axis=-1)


def draw(seed: int, at_ecliptic_poles: bool = False) -> Float:
    """Sources of 0.5 to 8 mHz, some at the equatorial or the ecliptic poles: (NUMBER, 8)."""
    rng = np.random.default_rng(seed)
    f0 = rng.uniform(0.5e-3, 8e-3, NUMBER)
    sky = angles(rng)
    sources = np.stack(
        [
            f0,
            rng.uniform(-0.1, 0.3, NUMBER) / BARE.duration**2 * (f0 / 2e-3) ** 2,
            10 ** rng.uniform(-23, -21, NUMBER),
            sky[:, 0],
            sky[:, 1],
            rng.uniform(0, np.pi, NUMBER),
            np.arccos(rng.uniform(-1, 1, NUMBER)),
            rng.uniform(0, 2 * np.pi, NUMBER),
        ],
        axis=-1,
    )
    if at_ecliptic_poles:  # the angles above are then ecliptic ones
        sources = from_fastgb(sources[:, [0, 1, 2, 4, 3, 5, 6, 7]], "ecliptic")
    return sources


def jaxgb(sources: Float) -> tuple[Complex, np.ndarray]:
    """A and E by jaxgb, (S, 2, N), and the first bins."""
    response, first = jaxgb_response(sources, BARE, N, batch=NUMBER)
    return response[:, :2], first


def fastgb(parameters: Float, orbits: object, **epochs: float) -> tuple[Complex, np.ndarray]:
    """The same by fastgb."""
    code = FastGB(orbits=orbits, T=BARE.duration, delta_t=BARE.dt, N=N, **epochs)
    x, y, z, first = code.get_fd_tdixyz(parameters)
    return np.stack([(z - x) / np.sqrt(2), (x - 2 * y + z) / np.sqrt(6)], axis=1), first


@lru_cache
def gbgpu_code() -> GBGPU:
    return GBGPU(orbits=LisatoolsOrbits(), force_backend="cpu")


def gbgpu(parameters: Float) -> tuple[Complex, np.ndarray]:
    """The same by GBGPU."""
    code = gbgpu_code()
    code.run_wave(*parameters.T, N=N, T=BARE.duration, dt=BARE.dt)
    return np.stack([code.A, code.E], axis=1), code.start_inds


def error(ours: Complex, theirs: Complex) -> Float:
    """Largest difference over the largest value, per source."""
    difference = np.abs(ours - theirs).max(axis=(1, 2))
    return difference / np.abs(theirs).max(axis=(1, 2))


def overlap(a: Complex, b: Complex) -> Float:
    """White overlap over A and E, per source."""

    def product(x: Complex, y: Complex) -> Float:
        return (x.conj() * y).real.sum(axis=(1, 2))

    return product(a, b) / np.sqrt(product(a, a) * product(b, b))


def test_the_orbits_are_the_same() -> None:
    """lisatools' file, in the ecliptic frame, and lisaorbits, in ICRS: within a kilometre."""
    t = np.linspace(0.0, BARE.duration, 100)
    orbits = gbgpu_code().orbits
    theirs = [orbits.get_pos(t, np.full(t.size, s, dtype=np.int32)) for s in (1, 2, 3)]
    ours = EclipticOrbits().compute_position(t, [1, 2, 3])
    np.testing.assert_allclose(np.stack(theirs, axis=1), ours, rtol=0, atol=1e3)
    assert orbits.armlength == EqualArmlengthOrbits().L


@pytest.mark.parametrize("at_ecliptic_poles", [False, True])
def test_jaxgb_is_fastgb(at_ecliptic_poles: bool) -> None:
    sources = draw(1, at_ecliptic_poles)
    ours, first = jaxgb(sources)
    for frame, orbits in (("icrs", EqualArmlengthOrbits()), ("ecliptic", EclipticOrbits())):
        theirs, their_first = fastgb(to_fastgb(sources, frame), orbits)
        np.testing.assert_array_equal(first, their_first)
        assert error(ours, theirs).max() < 1e-9


@pytest.mark.parametrize("frame", ["icrs", "ecliptic"])
def test_fastgbs_sources_are_ours(frame: str) -> None:
    """Drawn in fastgb's convention, the poles those of its frame."""
    parameters = draw(2)[:, [0, 1, 2, 4, 3, 5, 6, 7]]
    theirs, _ = fastgb(parameters, EqualArmlengthOrbits() if frame == "icrs" else EclipticOrbits())
    ours, _ = jaxgb(from_fastgb(parameters, frame))
    assert error(ours, theirs).max() < 1e-9


def test_ldc_columns_are_what_fastgb_reads() -> None:
    """fastgb follows the LDC: its arguments, by the LDC's names, and orbits in the ecliptic."""
    names = ("Frequency", "FrequencyDerivative", "Amplitude", "EclipticLatitude",
             "EclipticLongitude", "Polarization", "Inclination", "InitialPhase")  # fmt: skip
    sources = draw(3)
    columns = to_ldc(sources)
    theirs, _ = fastgb(np.stack([columns[name] for name in names], axis=-1), EclipticOrbits())
    assert error(jaxgb(sources)[0], theirs).max() < 1e-9
    parameters = draw(4)[:, [0, 1, 2, 4, 3, 5, 6, 7]]
    theirs, _ = fastgb(parameters, EclipticOrbits())
    back = from_ldc(dict(zip(names, parameters.T, strict=True)))
    assert error(jaxgb(back)[0], theirs).max() < 1e-9


@pytest.mark.parametrize("at_ecliptic_poles", [False, True])
def test_jaxgb_is_gbgpu(at_ecliptic_poles: bool) -> None:
    sources = draw(5, at_ecliptic_poles)
    ours, first = jaxgb(sources)
    theirs, their_first = gbgpu(to_gbgpu(sources))
    np.testing.assert_array_equal(first, their_first)
    assert (1 - overlap(ours, theirs)).max() < 1e-6
    assert error(ours, theirs).max() < 1e-6  # amplitude and phase too


def test_gbgpus_sources_are_ours() -> None:
    """Drawn in GBGPU's convention, at the poles of the ecliptic too."""
    drawn = draw(6)
    parameters = np.insert(drawn[:, [2, 0, 1, 7, 6, 5, 3, 4]], 3, 0.0, axis=1)
    theirs, _ = gbgpu(parameters)
    ours, _ = jaxgb(from_gbgpu(parameters))
    assert (1 - overlap(ours, theirs)).max() < 1e-6
    assert error(ours, theirs).max() < 1e-6


def test_a_forgotten_rotation_or_sign_is_seen() -> None:
    """What the agreement above would be without the conversion."""
    sources = draw(7)
    ours, _ = jaxgb(sources)
    wrong = to_gbgpu(sources)
    wrong[:, 4] *= -1
    assert overlap(ours, gbgpu(wrong)[0]).min() < 0.1
    wrong = to_gbgpu(sources)
    wrong[:, 6] = sources[:, 5]
    assert overlap(ours, gbgpu(wrong)[0]).min() < 0.1


@pytest.mark.parametrize("t0", [3.3e7, -1.7e7])
def test_epochs_by_fastgb_and_by_jaxgb(t0: float) -> None:
    """f0 and phi0 given at t0, for an observation from time zero: others' own shifts."""
    from jaxgb.params import GBObject

    sources = draw(8)
    theirs, first = fastgb(to_fastgb(sources, "icrs"), EqualArmlengthOrbits(), tinit=t0)
    np.testing.assert_array_equal(gbgpu(to_gbgpu(sources, t0))[1], first)
    assert error(gbgpu(to_gbgpu(sources, t0))[0], theirs).max() < 1e-6
    moved = np.asarray(GBObject.from_jaxgb_params(sources, t_init=t0).to_jaxgb_array(t0=0.0))
    ours = at_epoch(sources, -t0)
    np.testing.assert_allclose(ours[:, :7], moved[:, :7], rtol=1e-14)
    assert np.abs(np.exp(1j * ours[:, 7]) - np.exp(1j * moved[:, 7])).max() < 1e-9
    back = from_gbgpu(to_gbgpu(sources, t0), t0)
    assert error(jaxgb(back)[0], jaxgb(sources)[0]).max() < 1e-8
