"""Bad input in every layout: exit code 2, one line that says what is wrong, no file touched."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from slotflow.checkpoint import save_model
from tests.chain import untrained_model
from tests.layouts import white, write_mojito, write_radler, write_sangria, write_spritz, xyz2
from tests.refusal import refused

N = 4096
Rows = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    save_model(path, untrained_model())
    return path


PLACES = {
    "sangria": "obs/tdi",
    "spritz": "obs/tdi",
    "radler": "H5LISA/PreProcess/TDIdata",
    "mojito": "tdis/X2",
}


def _write_as(form: str, path: Path, xyz: Rows, dt: float = 60.0) -> Path:
    if form == "mojito":
        return write_mojito(path, xyz2(xyz), dt)
    writer = {"sangria": write_sangria, "spritz": write_spritz, "radler": write_radler}[form]
    return writer(path, xyz, dt, tdi_generation="2.0", orbit="equal_arm")


def _one_channel(xyz: Rows) -> Rows:
    xyz[1, 100:110] = np.nan
    return xyz


def _alone(xyz: Rows) -> Rows:
    xyz[:, [100, 2000]] = np.nan
    return xyz


def _half(xyz: Rows) -> Rows:
    xyz[:, :2048] = np.nan
    return xyz


def _flat(xyz: Rows) -> Rows:
    xyz[0] = 0.0
    return xyz


def _infinite(xyz: Rows) -> Rows:
    xyz[:, 100:110] = np.inf
    return xyz


SERIES: Mapping[str, tuple[Callable[[Rows], Rows], tuple[str, ...]]] = {
    "NaN in one channel": (_one_channel, ("10 of 4096", "not finite", "t = 6000 s")),
    "NaN alone": (_alone, ("2 of 4096", "not finite", "t = 6000 s")),
    "infinity": (_infinite, ("10 of 4096", "not finite", "t = 6000 s")),
    "gaps of half of it": (_half, ("50.0%", "gaps")),
    "a constant channel": (_flat, ("constant", "X")),
    "too short": (lambda xyz: xyz, ("4096 samples", "524288 samples")),
}


@pytest.mark.parametrize("case", SERIES)
@pytest.mark.parametrize("form", PLACES)
def test_series(
    form: str, case: str, tmp_path: Path, model_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, named = SERIES[case]
    path = _write_as(form, tmp_path / "input.h5", change(white(N)))
    refused(["posterior", path, "--model", model_file], tmp_path, capsys, str(path), *named)


def _external(file: h5py.File, place: str) -> None:
    del file[place]
    file[place] = h5py.ExternalLink("other.h5", "/data")


def _soft(file: h5py.File, place: str) -> None:
    top = place.split("/")[0]
    del file[top]
    file[top] = h5py.SoftLink(f"/{top}")


def _enormous(file: h5py.File, place: str) -> None:
    kind, shape = file[place].dtype, file[place].shape
    del file[place]
    chunk = (4096, *shape[1:])
    file.create_dataset(place, (10**15, *shape[1:]), dtype=kind, chunks=chunk)[:1] = 1.0
    if "sampling" in file[place].parent:
        file[place].parent["sampling"].attrs["size"] = 10**15


def _empty(file: h5py.File, place: str) -> None:
    top = place.split("/")[0]
    del file[top]
    file.create_group(top)


def _elsewhere(file: h5py.File, place: str) -> None:
    data = file[place][:]
    del file[place]
    data.tofile(Path(file.filename).with_suffix(".bin"))
    size = [(str(Path(file.filename).with_suffix(".bin")), 0, data.nbytes)]
    file.create_dataset(place, data.shape, data.dtype, external=size)


STRUCTURES: Mapping[str, tuple[Callable[[h5py.File, str], None], str]] = {
    "an external link": (_external, "external link"),
    "a loop of links": (_soft, "soft link"),
    "1e15 samples": (_enormous, "declares"),
    "an empty group": (_empty, "empty"),
    "external storage": (_elsewhere, "external storage"),
}


@pytest.mark.parametrize("case", STRUCTURES)
@pytest.mark.parametrize("form", PLACES)
def test_structures(
    form: str, case: str, tmp_path: Path, model_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, named = STRUCTURES[case]
    path = _write_as(form, tmp_path / "input.h5", white(N))
    with h5py.File(path, "r+") as file:
        change(file, PLACES[form])
    refused(["posterior", path, "--model", model_file], tmp_path, capsys, str(path), named)


@pytest.mark.parametrize("form", PLACES)
def test_steps_and_ends(
    form: str, tmp_path: Path, model_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _write_as(form, tmp_path / "input.h5", white(N), 7.3)
    refused(["posterior", path, "--model", model_file], tmp_path, capsys, str(path), "7.3", "60.0")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    refused(["posterior", path, "--model", model_file], tmp_path, capsys, str(path))


def test_hertz_without_the_laser(
    tmp_path: Path, model_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _write_as("mojito", tmp_path / "input.h5", white(N))
    with h5py.File(path, "r+") as file:
        del file.attrs["laser_frequency"]
    refused(
        ["posterior", path, "--model", model_file], tmp_path, capsys, str(path),
        "'laser_frequency'", "Hz",
    )  # fmt: skip
