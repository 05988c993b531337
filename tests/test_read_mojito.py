"""slotflow.read_mojito: files by the mojito package's own writer."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from slotflow.channels import xyz_to_aet
from slotflow.config import GapSettings, ObservationSettings
from slotflow.errors import InputError
from slotflow.readers import read_observation
from slotflow.simulate.observation import simulate_observation
from slotflow.simulate.orbits import orbits
from tests.layouts import LASER, white, write_mojito, xyz2

N, DT = 4096, 2.5
T0 = 97729089.327664


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "input.h5"


def test_hertz_become_fractional_frequency(path: Path) -> None:
    xyz = white(N)
    write_mojito(path, xyz2(xyz), DT, t0=T0)
    for form in (None, "mojito"):
        observation = read_observation(path, form)
        np.testing.assert_allclose(observation.tdi, xyz, rtol=1e-15)
        assert (observation.dt, observation.t0, observation.start) == (DT, T0, T0)
        assert (observation.generation, observation.generation_from) == ("2.0", "layout")
        assert observation.layout == "mojito"
        assert observation.orbit is None
        assert observation.valid is None
        assert observation.track is None


def test_a_file_with_aet_alone(path: Path) -> None:
    """The writer makes X2, Y2, Z2 without data where it is given none."""
    xyz = white(N)
    aet = xyz_to_aet(xyz)
    write_mojito(path, dict(zip(("a2", "e2", "t2"), aet, strict=True)), DT)
    with h5py.File(path) as file:
        assert file["tdis/X2"].shape == (N,)
    np.testing.assert_allclose(read_observation(path).tdi, xyz, rtol=1e-13, atol=1e-33)
    aet[2] = 0.0  # T tells nothing
    write_mojito(path, dict(zip(("a2", "e2", "t2"), aet, strict=True)), DT)
    np.testing.assert_allclose(xyz_to_aet(read_observation(path).tdi), aet, atol=1e-33)
    aet[1, 100] = np.nan  # turned to X, Y, Z it would be in all three
    write_mojito(path, dict(zip(("a2", "e2", "t2"), aet, strict=True)), DT)
    with pytest.raises(InputError, match=r"tdis/E2: 1 of 4096 values.*t = 250 s"):
        read_observation(path)


def test_flags_are_gaps_whatever_the_samples_hold(path: Path) -> None:
    xyz = white(N)
    flags = np.zeros(N, dtype=bool)
    flags[500:900] = True
    flags[2000] = True  # one alone, but declared
    filled = xyz.copy()
    filled[:, 600:900] = np.nan
    filled[0, 550:600] = 1e9
    filled[:, 3000:3010] = np.nan  # not flagged, but NaN in all channels
    observation = read_observation(write_mojito(path, xyz2(filled), DT, flags=flags))
    expected = ~flags
    expected[3000:3010] = False
    assert observation.valid is not None
    np.testing.assert_array_equal(observation.valid, expected)
    np.testing.assert_allclose(observation.tdi, np.where(expected, xyz, 0.0), rtol=1e-15)
    filled[1, 3500:3600] = np.nan
    with pytest.raises(InputError, match=r"tdis/Y2: 100 of 4096 values.*t = 8750 s"):
        read_observation(write_mojito(path, xyz2(filled), DT, flags=flags))
    with pytest.raises(InputError, match=r"tdis/X2: 100\.0% of the samples are in gaps"):
        read_observation(write_mojito(path, xyz2(xyz), DT, flags=np.ones(N, dtype=bool)))


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (None, r"no root attribute 'laser_frequency': X2, Y2, Z2 are in Hz and cannot"),
        (1064e-9, r"attribute 'laser_frequency': 1\.064e-06; a frequency in Hz between"),
        (-LASER, r"attribute 'laser_frequency': -281600000000000\.0; a frequency"),
        (np.nan, r"attribute 'laser_frequency': nan; a frequency"),
        ("282 THz", r"attribute 'laser_frequency': '282 THz'; a frequency"),
        (np.array([LASER, LASER]), r"attribute 'laser_frequency': 2 values"),
    ],
)
def test_the_laser_frequency(path: Path, value: object, named: str) -> None:
    write_mojito(path, xyz2(white(N)), DT)
    with h5py.File(path, "r+") as file:
        del file.attrs["laser_frequency"]
        if value is not None:
            file.attrs["laser_frequency"] = value
    with pytest.raises(InputError, match=r"input\.h5: .*" + named):
        read_observation(path)


@pytest.mark.parametrize(
    ("attribute", "value", "named"),
    [
        ("size", 10**15, r"tdis/X2: shape \(4096,\), but tdis/sampling announces 1000000000000000"),
        ("size", N - 1, r"announces 4095 samples"),
        ("size", 0.5, r"'size': 0\.5; a number of samples"),
        ("size", -4, r"'size': -4\.0; a number of samples"),
        ("dt", 0.0, r"'dt': 0\.0; more than 0 s"),
        ("dt", np.nan, r"'dt': nan; a finite number"),
        ("t0", "noon", r"'t0': 'noon'; a finite number"),
        ("t0", None, r"'t0': None; a finite number"),
    ],
)
def test_samplings_that_cannot_be(path: Path, attribute: str, value: object, named: str) -> None:
    write_mojito(path, xyz2(white(N)), DT)
    with h5py.File(path, "r+") as file:
        attributes = file["tdis/sampling"].attrs
        del attributes[attribute]
        if value is not None:
            attributes[attribute] = value
    with pytest.raises(InputError, match=named):
        read_observation(path)


def test_two_generations(path: Path) -> None:
    write_mojito(path, xyz2(white(N)), DT)
    with h5py.File(path, "r+") as file:
        file["tdis"].attrs["tdi_generation"] = "1.5"
    with pytest.raises(InputError, match=r"two TDI generations: TDI 2\.0 by the names of tdis/X2"):
        read_observation(path)
    with h5py.File(path, "r+") as file:
        file["tdis"].attrs["tdi_generation"] = 2
        file["tdis/X1"] = np.zeros(N)
    with pytest.raises(InputError, match=r"channels of two TDI generations, X1 and A2, E2, T2, X2"):
        read_observation(path)


def test_channels_that_are_not_there(path: Path) -> None:
    write_mojito(path, {"x2": white(N)[0], "y2": white(N)[1]}, DT)
    with pytest.raises(InputError, match=r"tdis: no data in Z2 \(nor all of A2, E2, T2\)"):
        read_observation(path)
    with h5py.File(path, "r+") as file:
        for name in list(file["tdis"]):
            del file[f"tdis/{name}"]
    with pytest.raises(InputError, match="tdis: an empty group: X2, Y2, Z2 or A2, E2, T2"):
        read_observation(path)
    with h5py.File(path, "w") as file:
        file["tdis"] = np.zeros(3)
    with pytest.raises(InputError, match=r"tdis \(a group with X2, Y2, Z2; Mojito L1\) is absent"):
        read_observation(path)


def test_shapes_types_and_flags(path: Path) -> None:
    write_mojito(path, xyz2(white(N)), DT)
    for content, named in (
        (np.zeros((N, 1)), r"tdis/Y2: shape \(4096, 1\)"),
        (np.zeros(N, dtype=np.int32), r"tdis/Y2: type int32; floating point"),
        (np.zeros(N), r"tdis/Y2: constant \(0 in all samples\)"),
    ):
        with h5py.File(path, "r+") as file:
            del file["tdis/Y2"]
            file["tdis/Y2"] = content
        with pytest.raises(InputError, match=named):
            read_observation(path)
    write_mojito(path, xyz2(white(N)), DT)
    with h5py.File(path, "r+") as file:
        del file["tdis/tdi_flags"]
        file["tdis/tdi_flags"] = np.zeros(N - 1, dtype=int)
    with pytest.raises(InputError, match=r"tdis/tdi_flags: int64 of shape \(4095,\); integers of"):
        read_observation(path)
    with pytest.raises(InputError, match="100 samples; at least 1024"):
        read_observation(write_mojito(path, xyz2(white(100)), DT))


def test_positions_of_the_spacecraft(path: Path) -> None:
    settings = ObservationSettings(samples=N * 64, dt=60.0, t0=T0)
    orbit = orbits(settings)
    write_mojito(path, xyz2(white(N * 64)), 60.0, t0=T0, orbit=orbit)
    track = read_observation(path).track
    assert track is not None
    assert track.positions.shape == (len(track.times), 3, 3)
    assert track.times[0] == T0
    np.testing.assert_allclose(
        track.positions, orbit.compute_position(track.times, [1, 2, 3]), rtol=1e-12
    )
    with h5py.File(path, "r+") as file:
        file["orbits/sampling"].attrs["size"] = 10**15
    with pytest.raises(InputError, match=r"orbits/sc_position_1: shape .*\(1000000000000000, 3\)"):
        read_observation(path)


def test_what_simulate_writes_is_one_observation_in_two_layouts(tmp_path: Path) -> None:
    settings = ObservationSettings(
        samples=1 << 14, t0=T0, tdi_generation="2.0", orbit_lambda1=0.4,
        gaps=GapSettings(planned_interval=3.0, planned_hours=5.0),
    )  # fmt: skip
    mojito, sangria = (tmp_path / f"{layout}.h5" for layout in ("mojito", "sangria"))
    simulate_observation(mojito, settings, 3, layout="mojito")
    simulate_observation(sangria, settings, 3, layout="sangria")
    one, other = read_observation(mojito), read_observation(sangria)
    scale = np.abs(other.tdi).max()
    np.testing.assert_allclose(one.tdi, other.tdi, rtol=1e-14, atol=1e-16 * scale)
    assert one.valid is not None
    np.testing.assert_array_equal(one.valid, other.valid)
    assert 0.05 < one.gap_fraction < 0.15
    assert (one.layout, other.layout) == ("mojito", "sangria")
    for name in ("dt", "t0", "start", "generation", "orbit", "orbit_parameters"):
        assert getattr(one, name) == getattr(other, name)
    assert one.orbit_parameters["lambda1"] == 0.4
    assert one.track is not None
