"""Files that settings name: noise tables and orbits."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from slotflow.config import ObservationSettings, Preset
from slotflow.errors import InputError
from slotflow.noise import NoiseScales, instrument_psd, model_psd
from slotflow.noise_table import read_noise_table
from slotflow.simulate.inputs import pinned, pinned_preset
from slotflow.simulate.orbits import response_grid
from slotflow.simulate.sample import simulate_band

F = np.geomspace(2e-4, 2e-2, 400)


def write_table(path: Path, columns: int = 4) -> Path:
    rows = np.column_stack([F, *(1.7 * instrument_psd(F))])[:, :columns]
    np.savetxt(path, rows, header="f S_A S_E S_T", delimiter="," if columns == 4 else " ")
    return path


def table_settings(path: Path) -> ObservationSettings:
    return ObservationSettings(noise="table", noise_file=str(path))


def test_a_table_of_the_model_is_the_model(tmp_path: Path) -> None:
    settings = pinned(table_settings(write_table(tmp_path / "s.csv")))
    f = np.linspace(1e-3, 8e-3, 333)
    seen = model_psd(f, settings)
    np.testing.assert_allclose(seen.instrument, 1.7 * instrument_psd(f), rtol=1e-3)
    confusion = model_psd(f, ObservationSettings())
    np.testing.assert_allclose(
        (seen.total - seen.instrument)[0], (confusion.total - confusion.instrument)[0], rtol=1e-6
    )
    assert pinned(settings) is settings
    # everything is in the settings: the file is not needed any more
    (tmp_path / "s.csv").unlink()
    assert Preset.model_validate(Preset(observation=settings).model_dump(mode="json")) == Preset(
        observation=settings
    )
    scaled = model_psd(f, settings, NoiseScales(all=2.0)).instrument
    np.testing.assert_allclose(scaled, 4 * seen.instrument)


def test_missing_columns_are_filled(tmp_path: Path) -> None:
    table = np.array(read_noise_table(write_table(tmp_path / "s.txt", 2)))
    assert table.shape == (400, 4)
    np.testing.assert_array_equal(table[:, 2], table[:, 1])
    np.testing.assert_array_equal(table[:, 3], table[:, 1])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("1e-3 1e-42\n2e-3 abc\n", "row 2, column 2: 'abc'"),
        ("1e-3 1e-42\n2e-3 -1e-42\n", "row 2, column 2"),
        ("1e-3 1e-42\n2e-3 nan\n", "row 2, column 2"),
        ("2e-3 1e-42\n1e-3 1e-42\n", "row 2, column 1"),
        ("1e-3\n", "row 1"),
        ("1e-3 1 1 1 1\n", "row 1"),
        ("# nothing\n", "0 rows"),
    ],
)
def test_bad_tables_are_named(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "bad.txt"
    path.write_text(text)
    with pytest.raises(InputError, match=named):
        pinned(table_settings(path))
    with pytest.raises(InputError, match=r"none\.txt"):
        read_noise_table(tmp_path / "none.txt")


def test_a_table_that_does_not_reach_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_text("1e-4 1e-42\n1e-3 1e-42\n")
    preset = pinned_preset(Preset(observation=table_settings(path)))
    with pytest.raises(InputError, match=r"short\.txt: column 1"):
        simulate_band(preset, 1, 0)


def orbit_file(path: Path, cls: str = "KeplerianOrbits", **options: float) -> Path:
    import lisaorbits

    orbit = getattr(lisaorbits, cls)(**options)
    orbit.write(str(path), dt=86400.0, size=420, t0=-86400.0 * 20, mode="w")
    return path


def test_an_orbit_file_is_the_orbit(tmp_path: Path) -> None:
    path = orbit_file(tmp_path / "orbits.h5", m_init1=1.1)
    settings = pinned(ObservationSettings(orbit="file", orbit_file=str(path)))
    direct = ObservationSettings(orbit="keplerian", orbit_m_init1=1.1)
    one, two = response_grid(settings, 64), response_grid(direct, 64)
    assert np.abs(one.positions - two.positions).max() < 10.0  # m of 1.5e11
    assert settings.arm_length == pytest.approx(2.495e9, rel=2e-3)
    assert settings.orbit_sha256 is not None
    # another file under the same name is noticed
    orbit_file(path, m_init1=1.2)
    from slotflow.simulate import orbits

    orbits._orbits.cache_clear()
    with pytest.raises(InputError, match="SHA-256"):
        orbits.orbits(settings)


def test_old_orbit_files_are_rotated(tmp_path: Path) -> None:
    """Version 2 is ecliptic: a constellation around the Sun stays within 3e9 m of its plane."""
    path = orbit_file(tmp_path / "orbits.h5", "EqualArmlengthOrbits")
    from slotflow.simulate.orbits import read_orbit_file

    _, icrs = read_orbit_file(path)
    with h5py.File(path, "r+") as file:
        file.attrs["version"] = "2.4.2"
    _, rotated = read_orbit_file(path)
    from astropy.coordinates import BarycentricMeanEcliptic, CartesianRepresentation, SkyCoord

    xyz = icrs[5, 0]
    frame = BarycentricMeanEcliptic(CartesianRepresentation(*xyz, unit="m"))
    expected = SkyCoord(frame).icrs.cartesian.xyz.to_value("m")
    np.testing.assert_allclose(rotated[5, 0], expected, rtol=1e-6, atol=1e4)


@pytest.mark.parametrize("damage", ["short", "nan", "shape", "version", "text"])
def test_bad_orbit_files_are_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "orbits.h5"
    if damage == "text":
        path.write_text("no HDF5")
    else:
        orbit_file(path)
        with h5py.File(path, "r+") as file:
            if damage == "short":
                x = file["tcb/x"][:50]
                del file["tcb/x"]
                file["tcb/x"] = x
                file.attrs["size"] = np.int64(50)
            elif damage == "nan":
                file["tcb/x"][3, 1, 1] = np.nan
            elif damage == "shape":
                x = file["tcb/x"][:, :2]
                del file["tcb/x"]
                file["tcb/x"] = x
            else:
                file.attrs["version"] = "no"
    with pytest.raises(InputError, match=r"orbits\.h5"):
        pinned(ObservationSettings(orbit="file", orbit_file=str(path)))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"orbit": "file"}, "orbit_file"),
        ({"orbit_file": "x.h5"}, "orbit_file"),
        ({"noise": "table"}, "noise_file"),
        ({"noise_file": "x.txt"}, "noise_file"),
        ({"gaps": {"planned_interval": 0.2}}, "interval"),
        ({"tukey": 0.0}, "tukey"),
    ],
)
def test_settings_that_contradict_are_refused(settings: dict, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        ObservationSettings(**settings)
