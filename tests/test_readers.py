"""slotflow.readers: telling layouts apart, attributes, and what no layout may be."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import scipy.fft

from slotflow.bands import aet_to_xyz
from slotflow.cli.main import run
from slotflow.errors import InputError
from slotflow.noise import instrument_psd, total_psd
from slotflow.readers import read_observation, read_truth
from slotflow.store import write_shard
from tests.layouts import white, write_radler
from tests.test_store import make_band

N, DT = 4096, 60.0
KIND = [("t", "<f8"), ("X", "<f8"), ("Y", "<f8"), ("Z", "<f8")]


def _rows(samples: int = N, dt: float = DT, kind: Any = KIND) -> np.ndarray:
    rows = np.zeros((samples, 1), dtype=kind)
    rng = np.random.default_rng(1)
    for name in rows.dtype.names or ():
        rows[name][:, 0] = (
            np.arange(samples) * dt if name == "t" else 1e-20 * rng.standard_normal(samples)
        )
    return rows


def _write(path: Path, rows: Any, name: str = "obs/tdi", **attributes: Any) -> Path:
    with h5py.File(path, "w") as file:
        file[name] = rows
        file[name].attrs.update({"tdi_generation": "1.5"} | attributes)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "input.h5"


@pytest.mark.parametrize("shape", [(N,), (N, 1)])
@pytest.mark.parametrize("kind", ["<f8", "<f4", ">f8"])
def test_reads_the_layout(path: Path, shape: tuple[int, ...], kind: str) -> None:
    rows = _rows(kind=[("t", "<f8"), *((name, kind) for name in "ZXY")])  # by name, not place
    _write(path, rows.reshape(shape))
    observation = read_observation(path)
    assert observation.tdi.dtype == np.float64
    np.testing.assert_array_equal(observation.tdi, np.stack([rows[c][:, 0] for c in "XYZ"]))
    assert (observation.dt, observation.start, observation.t0) == (DT, 0.0, 0.0)
    assert observation.generation == "1.5"
    assert observation.generation_from == "attribute"
    assert observation.orbit is None


def test_attributes_and_a_late_start(path: Path) -> None:
    rows = _rows(dt=5.0)
    rows["t"] += 1e8
    _write(path, rows, tdi_generation=2, t0=97729089.3, orbit="equal_arm", orbit_L=2.5e9)
    observation = read_observation(path)
    assert observation.dt == 5.0
    assert observation.start == 1e8
    assert observation.t0 == 97729089.3
    assert observation.generation == "2.0"
    assert observation.orbit == "equal_arm"
    assert observation.orbit_parameters == {"L": 2.5e9}


def test_times_of_a_step_that_is_no_round_number(path: Path) -> None:
    _write(path, _rows(dt=1 / 3))
    np.testing.assert_allclose(read_observation(path).dt, 1 / 3, rtol=1e-9)


def _noise(psd: Callable[..., np.ndarray], generation: str, samples: int) -> np.ndarray:
    rng = np.random.default_rng(4)
    frequency = np.maximum(np.fft.rfftfreq(samples, DT), 1e-5)
    noise = rng.standard_normal((3, frequency.size, 2)).view(complex)[..., 0]
    noise *= np.sqrt(0.25 * samples * DT * psd(frequency, tdi_generation=generation))
    return aet_to_xyz(scipy.fft.irfft(noise, n=samples) / DT)


@pytest.mark.parametrize("generation", ["1.5", "2.0"])
@pytest.mark.parametrize("psd", [instrument_psd, total_psd])
def test_generation_from_the_noise(path: Path, generation: str, psd: Any) -> None:
    xyz = _noise(psd, generation, 262_144)
    rows = _rows(262_144)
    for name, series in zip("XYZ", xyz, strict=True):
        rows[name][:, 0] = series
    with h5py.File(path, "w") as file:
        file["obs/tdi"] = rows
    observation = read_observation(path)
    assert observation.generation == generation
    assert observation.generation_from == "noise"
    for name in "XYZ":
        rows[name] *= 1e3
    with h5py.File(path, "w") as file:
        file["obs/tdi"] = rows
    with pytest.raises(InputError, match=r"no attribute 'tdi_generation'.*fits neither"):
        read_observation(path)


def test_generation_that_cannot_be_told(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["obs/tdi"] = _rows()
    with pytest.raises(InputError, match=r"fits neither TDI 1\.5 nor 2"):
        read_observation(path)
    with pytest.raises(InputError, match=r"attribute 'tdi_generation': '3'; '1.5' or '2.0'"):
        read_observation(_write(path, _rows(), tdi_generation="3"))


def test_a_training_set_is_no_observation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message says which command takes it."""
    folder = tmp_path / "training-data"
    folder.mkdir()
    with pytest.raises(InputError, match="training-data: not a file"):
        read_observation(folder)
    shard = folder / "shard-00000.h5"
    write_shard(shard, [make_band(0)], {"seed": 1})
    (folder / "manifest.json").write_text("{}")
    said = (
        "training set of slotflow simulate: bands, not an observation; slotflow train and slotflow"
        " posterior take"
    )
    with pytest.raises(InputError, match=rf"shard-00000\.h5: a shard of a {said} its folder"):
        read_observation(shard)
    with pytest.raises(InputError, match=rf"training-data: a {said} it"):
        read_observation(folder)
    for path in (shard, folder):  # a manifest that is none
        assert run(["posterior", str(path), "-o", str(tmp_path / "out")]) == 2
        out, err = capsys.readouterr()
        assert "manifest.json: schema_version" in err
        assert (out, err.count("\n")) == ("", 1)


def test_no_tdi(path: Path) -> None:
    with pytest.raises(
        InputError, match=r"no TDI data: obs/tdi .*PreProcess/TDIdata .*tdis .* file holds strain"
    ):
        read_observation(_write(path, _rows(), name="strain"))
    with h5py.File(path, "w") as file:
        file.create_group("obs")
        file.create_group("H5LISA")
    with pytest.raises(InputError, match=r"the file holds H5LISA \(empty\), obs \(empty\)"):
        read_observation(path)
    with h5py.File(path, "w"):
        pass
    with pytest.raises(InputError, match="the file holds nothing"):
        read_observation(path)
    with pytest.raises(InputError, match=r"input\.h5: no such file"):
        read_observation(path.parent / "none" / "input.h5")
    with h5py.File(path, "w") as file:
        file.create_group("obs/tdi")
    with pytest.raises(InputError, match="obs/tdi: a group where a data set is expected"):
        read_observation(path)


def test_wrong_shapes_and_types(path: Path) -> None:
    with pytest.raises(InputError, match=r"no field 't' \(fields: none: not a compound type"):
        read_observation(_write(path, np.zeros((N, 4))))
    with pytest.raises(InputError, match=r"no field 'Z' \(fields: t, X, Y\)"):
        read_observation(_write(path, _rows(kind=KIND[:3])))
    with pytest.raises(InputError, match=r"shape \(2048, 2\); \(N,\) or \(N, 1\) expected"):
        read_observation(_write(path, _rows().reshape(N // 2, 2)))
    with pytest.raises(InputError, match="field 'Y': type int32; floating point expected"):
        read_observation(_write(path, _rows(kind=[*KIND[:2], ("Y", "<i4"), KIND[3]])))
    with pytest.raises(InputError, match="100 samples; at least 1024 needed"):
        read_observation(_write(path, _rows(100)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(path: Path, bad: float) -> None:
    rows = _rows()
    rows["Y"][1000:1010] = bad
    with pytest.raises(
        InputError, match=r"input\.h5: obs/tdi, field 'Y': 10 of 4096 values.*t = 60000 s"
    ):
        read_observation(_write(path, rows))
    rows = _rows()
    rows["t"][7] = bad
    with pytest.raises(InputError, match=r"field 't': 1 of 4096 values.*sample 7"):
        read_observation(_write(path, rows))


def test_times_that_are_not_uniform(path: Path) -> None:
    rows = _rows()
    rows["t"][2000:] += 3600.0
    with pytest.raises(InputError, match=r"1 jump, the first of 3660 s after t = 119940 s.*NaN"):
        read_observation(_write(path, rows))
    rows = _rows()
    rows["t"][5] += 20.0
    with pytest.raises(InputError, match="not uniformly sampled: at sample 5 20 s from"):
        read_observation(_write(path, rows))
    rows = _rows()
    rows["t"][5] = rows["t"][4]
    with pytest.raises(InputError, match="not increasing at sample 5"):
        read_observation(_write(path, rows))
    rows = _rows()
    rows["t"] *= 1 + 1e-4 * np.linspace(0, 1, N)[:, None]  # a clock that drifts
    with pytest.raises(InputError, match="not uniformly sampled"):
        read_observation(_write(path, rows))


def test_a_constant_channel(path: Path) -> None:
    rows = _rows()
    rows["Z"] = 0.0
    with pytest.raises(InputError, match=r"field 'Z': constant \(0 in all samples\)"):
        read_observation(_write(path, rows))


def test_attributes_that_are_no_numbers(path: Path) -> None:
    with pytest.raises(InputError, match="attribute 't0': 'noon'; a finite number expected"):
        read_observation(_write(path, _rows(), t0="noon"))


def test_a_form_that_does_not_fit(path: Path) -> None:
    _write(path, _rows())
    with pytest.raises(InputError, match="format: 'csv'; one of sangria, spritz, radler, mojito"):
        read_observation(path, "csv")
    for form, place in (("radler", "H5LISA/PreProcess/TDIdata"), ("mojito", "tdis")):
        with pytest.raises(InputError, match=f"not in the format '{form}': {place} is absent; the"):
            read_observation(path, form)
    with pytest.raises(InputError, match=r"'spritz', which holds TDI 2: TDI 1\.5"):
        read_observation(path, "spritz")
    assert read_observation(_write(path, _rows(), tdi_generation="2"), "spritz").layout == "spritz"
    write_radler(path, white(N), DT, tdi_generation="1.5")
    with pytest.raises(InputError, match="not in the format 'sangria': obs/tdi is absent; the"):
        read_observation(path, "sangria")


def test_two_layouts_in_one_file(path: Path) -> None:
    write_radler(path, white(N), DT, tdi_generation="1.5")
    with h5py.File(path, "r+") as file:
        file["obs/tdi"] = _rows()
    with pytest.raises(InputError, match=r"holds obs/tdi and H5LISA/.*format, sangria or radler"):
        read_observation(path)
    assert read_observation(path, "radler").layout == "radler"


def test_two_generations_in_the_attributes(path: Path) -> None:
    _write(path, _rows(), tdi_generation="1.5")
    with h5py.File(path, "r+") as file:
        file.attrs["tdi_generation"] = 2.0
    with pytest.raises(
        InputError,
        match=r"two TDI generations: TDI 1\.5 by attribute .* of obs/tdi and TDI 2",
    ):
        read_observation(path)


@pytest.mark.parametrize("form", ["sangria", "radler", "mojito"])
def test_a_header_that_announces_much_costs_nothing(path: Path, form: str) -> None:
    """1e15 samples declared, none or few of them stored: refused before memory is taken."""
    with h5py.File(path, "w") as file:
        if form == "sangria":
            file.create_dataset("obs/tdi", (10**15,), dtype=KIND, chunks=(4096,))[:4096] = 1.0
        elif form == "radler":
            name = "H5LISA/PreProcess/TDIdata"
            file.create_dataset(name, (10**15, 4), dtype="<f8", chunks=(4096, 4))[:4096] = 1.0
        else:
            file.attrs["laser_frequency"] = 2.816e14
            for name in ("X2", "Y2", "Z2"):
                file.create_dataset(f"tdis/{name}", (10**15,), "<f8", chunks=(4096,))[:4096] = 1.0
            sampling = file.create_group("tdis/sampling")
            sampling.attrs.update({"t0": 0.0, "dt": 0.25, "size": 10**15})
    assert path.stat().st_size < 1_000_000
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=r"input\.h5: .*: declares \d+ bytes"):
            read_observation(path)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_truth_that_does_not_fit_together(path: Path) -> None:
    _write(path, _rows())
    assert read_truth(path) is None
    with h5py.File(path, "a") as file:
        file["truth/names"] = np.array([b"a", b"b"])
        file["truth/sources"] = np.zeros((3, 8))
        file["truth/snr"] = np.zeros(2)
    with pytest.raises(InputError, match=r"truth: shapes .* got \(2,\), \(3, 8\), \(2,\)"):
        read_truth(path)
    with h5py.File(path, "r+") as file:
        del file["truth"]
        file.create_group("truth")
    with pytest.raises(InputError, match="truth/names: no such data set"):
        read_truth(path)
