"""slotflow.read_ldc: Sangria, Spritz and Radler files written with h5py alone."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from slotflow.errors import InputError
from slotflow.readers import read_observation
from tests.layouts import ldc2_rows, noise, white, write_radler, write_sangria, write_spritz

N, DT = 4096, 15.0
RADLER = "H5LISA/PreProcess/TDIdata"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "input.h5"


def _gapped(xyz: np.ndarray, *gaps: tuple[int, int]) -> np.ndarray:
    xyz = xyz.copy()
    for begin, end in gaps:
        xyz[:, begin:end] = np.nan
    return xyz


def test_sangria(path: Path) -> None:
    xyz = white(N)
    write_sangria(path, xyz, DT, tdi_generation="1.5")
    for form in (None, "sangria"):
        observation = read_observation(path, form)
        assert observation.layout == "sangria"
        np.testing.assert_array_equal(observation.tdi, xyz)
        assert (observation.dt, observation.t0, observation.start) == (DT, 0.0, 0.0)
        assert observation.valid is None
        assert observation.gap_fraction == 0.0
        assert observation.notes == ()


def test_spritz_has_gaps_that_are_zeroed_and_remembered(path: Path) -> None:
    xyz = white(N)
    write_spritz(path, _gapped(xyz, (0, 30), (1000, 1300), (4000, 4002)), DT, tdi_generation="2.0")
    observation = read_observation(path)
    assert observation.layout == "spritz"
    assert observation.generation == "2.0"
    expected = np.ones(N, dtype=bool)
    expected[:30] = expected[1000:1300] = expected[4000:4002] = False
    assert observation.valid is not None
    np.testing.assert_array_equal(observation.valid, expected)
    np.testing.assert_array_equal(observation.tdi, np.where(expected, xyz, 0.0))
    assert observation.gap_fraction == pytest.approx(332 / N)


@pytest.mark.parametrize(("days", "hours"), [(12, 7), (1, 10)])
def test_the_generation_of_a_spritz_file_is_told_from_the_noise_between_gaps(
    path: Path, days: int, hours: int
) -> None:
    """The gaps' edges must not pass for noise at low frequencies, nor what is missing for less."""
    samples = 2 << 18
    step, length = round(days * 86400 / DT), round(hours * 3600 / DT)
    gaps = [(begin, begin + length) for begin in range(step // 3, samples, step)]
    xyz = _gapped(noise(samples, DT, "2.0"), *gaps)
    observation = read_observation(write_spritz(path, xyz, DT))
    assert observation.generation == "2.0"
    assert observation.generation_from == "noise"
    assert observation.notes == (
        f"{path} does not say its TDI generation: the noise fits 2.0",
    )  # fmt: skip
    xyz = _gapped(noise(samples, DT, "1.5"), *gaps)
    assert read_observation(write_spritz(path, xyz, DT)).generation == "1.5"
    with pytest.raises(
        InputError, match=r"not in the format 'spritz', which holds TDI 2: TDI 1\.5"
    ):
        read_observation(path, "spritz")


def test_what_is_not_read_does_not_matter(path: Path) -> None:
    write_sangria(path, white(N), DT, tdi_generation="1.5")
    with h5py.File(path, "r+") as file:
        file["clean"] = np.zeros(3)
        file["gal"] = h5py.ExternalLink("elsewhere.h5", "/")
        file["noisefree/tdi"] = h5py.SoftLink("/obs/tdi")
    assert read_observation(path).layout == "sangria"


def test_values_that_are_no_gap(path: Path) -> None:
    xyz = white(N)
    xyz[1, 1000:1010] = np.nan
    xyz[:, 2000:2100] = np.nan
    with pytest.raises(
        InputError, match=r"field 'Y': 10 of 4096 values are not finite, the first at t = 15000 s"
    ):
        read_observation(write_spritz(path, xyz, DT, tdi_generation="2"))
    xyz = white(N)
    xyz[:, [700, 900, 902]] = np.nan
    with pytest.raises(
        InputError, match=r"obs/tdi: 3 of 4096 samples .* each alone, the first at t = 10500 s"
    ):
        read_observation(write_spritz(path, xyz, DT, tdi_generation="2"))
    xyz = white(N)
    xyz[:, 700:800] = np.inf
    with pytest.raises(InputError, match=r"field 'X': 100 of 4096 values are not finite"):
        read_observation(write_spritz(path, xyz, DT, tdi_generation="2"))
    xyz = _gapped(white(N), (100, 2148))
    with pytest.raises(InputError, match=r"50\.0% of the samples are in gaps; less than 50%"):
        read_observation(write_spritz(path, xyz, DT, tdi_generation="2"))
    assert read_observation(
        write_spritz(path, _gapped(white(N), (100, 2147)), DT, tdi_generation="2")
    ).gap_fraction == pytest.approx(0.5, abs=1e-3)


def test_a_listed_gap_may_be_one_sample(path: Path) -> None:
    write_sangria(path, _gapped(white(N), (700, 701)), DT, tdi_generation="2")
    with h5py.File(path, "r+") as file:
        file["obs/gaps"] = np.array([[699.5 * DT, 700.5 * DT]])
    valid = read_observation(path).valid
    assert valid is not None
    assert np.flatnonzero(~valid).tolist() == [700]


def test_a_channel_that_is_constant_between_gaps(path: Path) -> None:
    xyz = white(N)
    xyz[2] = 3e-21
    with pytest.raises(InputError, match=r"field 'Z': constant \(3e-21 in all samples\)"):
        read_observation(write_spritz(path, _gapped(xyz, (10, 90)), DT, tdi_generation="2"))


def test_two_generations_in_one_table(path: Path) -> None:
    rows = np.zeros(N, dtype=[(name, "<f8") for name in ("t", "X", "Y", "Z", "X2", "Y2", "Z2")])
    with h5py.File(path, "w") as file:
        file["obs/tdi"] = rows
    with pytest.raises(InputError, match="fields of two TDI generations, X, Y, Z and X2, Y2, Z2"):
        read_observation(path)


def test_radler(path: Path) -> None:
    xyz = white(N)
    write_radler(path, xyz, DT, tdi_generation="1.5")
    for form in (None, "radler"):
        observation = read_observation(path, form)
        assert observation.layout == "radler"
        np.testing.assert_array_equal(observation.tdi, xyz)
        assert (observation.dt, observation.t0, observation.generation) == (DT, 0.0, "1.5")
    gapped = read_observation(write_radler(path, _gapped(xyz, (5, 9)), DT, tdi_generation="1.5"))
    assert gapped.gap_fraction == pytest.approx(4 / N)


def test_radler_that_does_not_say_its_generation(path: Path) -> None:
    observation = read_observation(write_radler(path, noise(1 << 18, DT), DT))
    assert (observation.generation, observation.generation_from) == ("1.5", "noise")


def _radler(path: Path, content: Any) -> Path:
    with h5py.File(path, "w") as file:
        file[RADLER] = content
    return path


def test_radler_columns_in_another_order(path: Path) -> None:
    times, xyz = DT * np.arange(N), white(N)
    with pytest.raises(InputError, match=r"column 0 is not a time, column 3 is: .* t, X, Y, Z in"):
        read_observation(_radler(path, np.stack([*xyz, times], axis=1)))
    with pytest.raises(InputError, match=r"column 0 \(t\): not increasing at sample"):
        read_observation(_radler(path, np.stack([xyz[0], *xyz], axis=1)))
    # named, they may stand in any order
    rows = ldc2_rows(xyz, DT)[:, 0]
    rows = rows[["Z", "t", "X", "Y"]].astype([(name, "<f8") for name in "ZtXY"])
    _radler(path, rows)
    with h5py.File(path, "r+") as file:
        file[RADLER].attrs["tdi_generation"] = "1.5"
    np.testing.assert_array_equal(read_observation(path).tdi, xyz)


def test_radler_of_wrong_shapes_and_types(path: Path) -> None:
    for shape in ((N, 3), (4, N), (N,), (N, 4, 1)):
        with pytest.raises(InputError, match=rf"TDIdata: shape \({shape[0]}.*\(N, 4\) expected"):
            read_observation(_radler(path, np.zeros(shape)))
    with pytest.raises(InputError, match="TDIdata: type int64; floating point expected"):
        read_observation(_radler(path, np.zeros((N, 4), dtype=np.int64)))
    with pytest.raises(InputError, match="TDIdata: type complex128 is not supported"):
        read_observation(_radler(path, np.zeros((N, 4), dtype=complex)))
    with pytest.raises(InputError, match="TDIdata: 100 samples; at least 1024 needed"):
        read_observation(_radler(path, np.zeros((100, 4))))
    with h5py.File(path, "w") as file:
        file.create_group(RADLER)
    with pytest.raises(InputError, match="TDIdata: a group where a data set is expected"):
        read_observation(path)


def test_a_cadence_that_is_not_the_step(path: Path) -> None:
    write_radler(path, white(N), DT, tdi_generation="1.5")
    with h5py.File(path, "r+") as file:
        file["H5LISA/GWSources/GalBinaries/Cadence"][()] = 5.0
    with pytest.raises(InputError, match=r"GalBinaries/Cadence: 5\.0 s, but .* a step of 15\.0 s"):
        read_observation(path)
    with h5py.File(path, "r+") as file:
        del file["H5LISA/GWSources/GalBinaries/Cadence"]
        file["H5LISA/GWSources/GalBinaries/Cadence"] = np.zeros(3)
    with pytest.raises(InputError, match=r"Cadence: float64 of shape \(3,\); one number expected"):
        read_observation(path)
