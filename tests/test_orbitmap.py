"""slotflow.orbitmap: jaxgb on lisaorbits' orbits of another phase, against the turned sky."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotflow.assumptions import check_orbit
from slotflow.checkpoint import Model
from slotflow.config import ObservationSettings
from slotflow.conventions import rotate_sky
from slotflow.errors import InputError
from slotflow.orbitmap import MOTION, ORBIT_TOLERANCE, OrbitMap, map_orbit
from slotflow.parameters import RA
from slotflow.readers import Observation, OrbitTrack
from slotflow.simulate.orbits import orbits, response_grid
from slotflow.simulate.waveforms import jaxgb_response
from tests.chain import untrained_model
from tests.synthetic import random_sources

YEAR = ObservationSettings().duration
TROPICAL = 2 * np.pi / MOTION  # s, of lisaorbits' year


def _model(settings: ObservationSettings) -> Model:
    model = untrained_model()
    preset = model.preset.model_copy(update={"observation": settings})
    return replace(model, preset=preset, grid=response_grid(settings, 128))


def _data(settings: ObservationSettings, **changes: Any) -> Observation:
    """What a file of this orbit says; the series itself does not matter."""
    orbit = orbits(settings)
    attributes = ("L", "a", "lambda1", "m_init1", "t_init")
    named = {name: float(getattr(orbit, name)) for name in attributes}
    return Observation(
        np.zeros((3, 4)), 60.0, settings.t0, "1.5", Path("data.h5"), settings.orbit,
        settings.t0, orbit_parameters=named, **changes,
    )  # fmt: skip


def _sources(number: int = 12) -> np.ndarray:
    return random_sources(np.random.default_rng(3), number, 1e-3, 3e-3, YEAR)


PAIRS: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "another starting phase": ({}, {"orbit_lambda1": 1.234}),
    "the same, backwards, of a model that is not at zero": (
        {"orbit_lambda1": -1.9, "orbit_m_init1": 0.7},
        {"orbit_lambda1": 2.2, "orbit_m_init1": 0.7 - 2 * np.pi},
    ),
    "two years later": ({}, {"t0": 2 * TROPICAL, "orbit_lambda1": -0.5}),
    "the epoch made up for by the mean anomaly": (
        {}, {"t0": 97729089.327664, "orbit_m_init1": -MOTION * 97729089.327664},
    ),
    "keplerian": ({"orbit": "keplerian"}, {"orbit": "keplerian", "orbit_lambda1": 2.5}),
}  # fmt: skip


@pytest.mark.parametrize("case", PAIRS)
def test_the_turned_sky_has_the_response_of_the_other_orbit(case: str) -> None:
    ours, theirs = (ObservationSettings(**{"orbit": "equal_arm"} | s) for s in PAIRS[case])
    mapped = map_orbit(_data(theirs), _model(ours))
    assert -np.pi < mapped.rotation <= np.pi
    sources = _sources()
    seen, first = jaxgb_response(sources, ours)
    true = rotate_sky(sources, mapped.rotation)
    expected, same = jaxgb_response(true, theirs)
    np.testing.assert_array_equal(first, same)
    norm = np.linalg.norm(expected, axis=(1, 2))
    error = np.linalg.norm(seen - expected, axis=(1, 2)) / norm
    assert error.max() < 1e-6  # phi0 included: there is no constant phase left
    if case == "the epoch made up for by the mean anomaly":
        assert abs(mapped.rotation) < 1e-7
    else:
        unturned, _ = jaxgb_response(sources, theirs)
        wrong = np.linalg.norm(seen - unturned, axis=(1, 2)) / norm
        assert np.median(wrong) > 0.1
        assert "turned by" in mapped.notes[0]


def test_the_models_own_orbit_is_not_turned() -> None:
    settings = ObservationSettings(orbit_lambda1=0.3, orbit_m_init1=-0.2, t0=1e7)
    assert map_orbit(_data(settings), _model(settings)) == OrbitMap(0.0, "", ())
    late = replace(_data(settings), t0=1e7 + 1800.0, start=1e7 + 1800.0)
    mapped = map_orbit(late, _model(settings))
    assert mapped.rotation == pytest.approx(MOTION * 1800.0)
    assert mapped.notes == ()
    assert check_orbit(late, _model(settings)) == ()


@pytest.mark.parametrize(
    ("theirs", "named"),
    [
        ({"orbit_m_init1": 0.5}, r"'orbit_m_init1': 0\.5; .* trained on 0\.0.*28\.65 deg"),
        ({"t0": 0.5 * YEAR}, r"attribute 't0': 15728640\.0 s; the model is for 0\.0 s: .*in its"),
        # the centre where the model's is, the constellation turned about it: not the sky's doing
        (
            {"orbit_m_init1": 0.5, "orbit_lambda1": -0.5},
            r"'orbit_m_init1': 0\.5; .*no rotation of the sky",
        ),
        ({"orbit": "keplerian"}, r"attribute 'orbit': 'keplerian'; .*'equal_arm'"),
        ({"arm_length": 2.6e9}, r"attribute 'orbit_L': 2600000000\.0"),
    ],
)
def test_other_orbits_are_refused_by_name(theirs: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=r"data\.h5: .*" + named):
        map_orbit(_data(ObservationSettings(**theirs)), _model(ObservationSettings()))


def test_a_turned_cartwheel_cannot_be_mapped() -> None:
    """What is refused as such: the best rotation leaves most of the difference."""
    ours, theirs = ObservationSettings(), ObservationSettings(orbit_m_init1=0.5)
    sources = _sources(4)
    expected, _ = jaxgb_response(sources, ours)
    for angle in (0.0, 0.25, 0.5):
        seen, _ = jaxgb_response(rotate_sky(sources, angle), theirs)
        assert np.linalg.norm(seen - expected) > 0.3 * np.linalg.norm(expected)


def test_check_orbit_refuses_what_could_be_mapped() -> None:
    moved = _data(ObservationSettings(orbit_lambda1=0.5))
    with pytest.raises(InputError, match=r"data\.h5: attribute 'orbit_lambda1': 0\.5; .* 0\.0"):
        check_orbit(moved, _model(ObservationSettings()))


def _track(settings: ObservationSettings, step: float = 43200.0) -> OrbitTrack:
    times = settings.t0 - 3600.0 + step * np.arange(int(settings.duration / step) + 3)
    return OrbitTrack(times, orbits(settings).compute_position(times, [1, 2, 3]))


def _unnamed(settings: ObservationSettings) -> Observation:
    named = _data(settings, track=_track(settings))
    return replace(named, orbit=None, orbit_parameters={})


def test_positions_tell_the_orbit() -> None:
    model = _model(ObservationSettings())
    assert map_orbit(_unnamed(ObservationSettings()), model) == OrbitMap(0.0, "", ())
    theirs = ObservationSettings(orbit_lambda1=1.234, t0=2 * TROPICAL)
    mapped = map_orbit(_unnamed(theirs), model)
    assert mapped.rotation == pytest.approx(1.234, abs=1e-8)
    assert "1.234" not in mapped.cause
    for other in ({"orbit_m_init1": 0.5}, {"orbit": "keplerian"}, {"arm_length": 2.51e9}):
        with pytest.raises(InputError, match=r"data\.h5: orbits/sc_position_1, 2, 3: not the orb"):
            map_orbit(_unnamed(ObservationSettings(**other)), model)
    short = _unnamed(ObservationSettings())
    assert short.track is not None
    short = replace(short, track=OrbitTrack(*(part[:300] for part in short.track)))
    with pytest.raises(InputError, match=r"from -3600 to 12913200 s; the data need them"):
        map_orbit(short, model)


def test_no_orbit_named_is_the_models_own() -> None:
    data = replace(_data(ObservationSettings()), orbit=None, orbit_parameters={})
    model = _model(ObservationSettings())
    mapped = map_orbit(data, model)
    assert mapped.rotation == 0.0
    assert "names no orbit: the model's ('equal_arm'" in mapped.notes[0]
    with pytest.raises(InputError, match="attribute 't0'"):
        map_orbit(replace(data, t0=0.3 * YEAR, start=0.3 * YEAR), model)
    late = replace(data, t0=TROPICAL, start=TROPICAL)
    assert abs(map_orbit(late, model).rotation) < ORBIT_TOLERANCE
    with pytest.raises(InputError, match=r"field 't': begins at 86400\.0 s"):
        map_orbit(replace(data, start=86400.0), model)


def test_rotation_of_the_sky_keeps_what_is_no_angle() -> None:
    sources = _sources()
    turned = rotate_sky(sources, 0.8)
    np.testing.assert_array_equal(turned[:, [0, 1, 2, 6, 7]], sources[:, [0, 1, 2, 6, 7]])
    assert (np.abs(turned[:, RA] - sources[:, RA]) > 1e-3).all()
