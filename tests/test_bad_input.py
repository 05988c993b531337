"""Bad input of every kind: exit code 2, one line that says what is wrong, no file touched."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from slotflow.checkpoint import save_model
from slotflow.cli.main import run
from tests.chain import example_path, untrained_model
from tests.refusal import refused

N = 4096
KIND = [("t", "<f8"), ("X", "<f8"), ("Y", "<f8"), ("Z", "<f8")]
Rows = np.ndarray[Any, Any]
BAND = ("--fmin", "1.94e-3", "--fmax", "1.945e-3")


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    save_model(path, untrained_model())
    return path


def _rows(samples: int = N, dt: float = 60.0) -> Rows:
    rows = np.zeros(samples, dtype=KIND)
    rows["t"] = dt * np.arange(samples)
    for name in "XYZ":
        rows[name] = 1e-20 * np.random.default_rng(1).standard_normal(samples)
    return rows


def _write(path: Path, rows: Any, name: str = "obs/tdi", **attributes: Any) -> Path:
    with h5py.File(path, "w") as file:
        file[name] = rows
        file[name].attrs.update({"tdi_generation": "1.5", "orbit": "equal_arm"} | attributes)
    return path


def _nan(rows: Rows) -> Any:
    rows["Y"][[100, 2000]] = np.nan
    return rows


def _gap(rows: Rows) -> Any:
    return np.delete(rows, slice(1000, 1100))


def _second(rows: Rows) -> Any:
    both = np.zeros(len(rows), dtype=[*KIND, *((f"{name}2", "<f8") for name in "XYZ")])
    for name in rows.dtype.names or ():
        both[name] = rows[name]
    return both


def _constant(rows: Rows) -> Any:
    rows["Z"] = 3e-21
    return rows


def _integers(rows: Rows) -> Any:
    return rows.astype([("t", "<f8"), *((name, "<i4") for name in "XYZ")])


def _complex(rows: Rows) -> Any:
    return rows.astype([("t", "<f8"), *((name, "<c16") for name in "XYZ")])


def _backwards(rows: Rows) -> Any:
    rows["t"] = rows["t"][::-1].copy()
    return rows


CONTENTS: Mapping[str, tuple[Callable[[Rows], Any], tuple[str, ...]]] = {
    "NaN": (_nan, ("field 'Y'", "2 of 4096", "t = 6000 s")),
    "rows left out": (_gap, ("field 't'", "1 jump", "6060 s", "with NaN in X, Y and Z")),
    "constant channel": (_constant, ("field 'Z'", "constant", "3e-21")),
    "two generations": (_second, ("two TDI generations", "X, Y, Z and X2, Y2, Z2")),
    "two columns": (lambda rows: rows.reshape(-1, 2), ("shape", "(2048, 2)")),
    "integers": (_integers, ("field 'X'", "int32")),
    "complex": (_complex, ("obs/tdi", "complex128")),
    "field missing": (lambda rows: rows[["t", "X", "Y"]], ("no field 'Z'",)),
    "not a table": (lambda rows: rows["X"], ("no field 't'",)),
    "time runs back": (_backwards, ("field 't'", "not increasing")),
    "very short": (lambda rows: rows[:100], ("100 samples", "at least 1024")),
    "too short": (lambda rows: rows, ("4096 samples", "524288 samples")),
}


@pytest.mark.parametrize("case", CONTENTS)
def test_contents(
    case: str, tmp_path: Path, model_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, named = CONTENTS[case]
    path = _write(tmp_path / "input.h5", change(_rows()))
    refused(["posterior", path, "--model", model_file], tmp_path, capsys, str(path), *named)


def test_missing_file(tmp_path: Path, model_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "absent.h5"
    refused(["posterior", path, "--model", model_file], tmp_path, capsys, str(path), "no such file")
    refused(["posterior", tmp_path, "--model", model_file], tmp_path, capsys, "not a file")


def test_not_hdf5(tmp_path: Path, model_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "input.h5"
    for content in (b"", b"t,X,Y,Z\n0,1,2,3\n"):
        path.write_bytes(content)
        refused(
            ["posterior", path, "--model", model_file], tmp_path, capsys, str(path), "not an HDF5"
        )


def test_truncated(tmp_path: Path, model_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _write(tmp_path / "input.h5", _rows())
    whole = path.read_bytes()
    for size in (len(whole) // 2, 200):
        path.write_bytes(whole[:size])
        refused(["posterior", path, "--model", model_file], tmp_path, capsys, str(path))


def test_no_tdi(tmp_path: Path, model_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _write(tmp_path / "input.h5", _rows(), name="strain/data")
    refused(
        ["posterior", path, "--model", model_file], tmp_path, capsys, str(path), "obs/tdi", "strain"
    )


def test_time_step(tmp_path: Path, model_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _write(tmp_path / "input.h5", _rows(dt=7.3))
    refused(["posterior", path, "--model", model_file], tmp_path, capsys, str(path), "7.3", "60.0")


@pytest.mark.parametrize(
    ("attributes", "named"),
    [
        ({"tdi_generation": "3"}, "'3'"),
        ({"orbit": "keplerian"}, "'keplerian'"),
        ({"orbit_m_init1": 0.5}, "orbit_m_init1"),
        ({"t0": 1e6}, "t0"),
    ],
)
def test_attributes(
    attributes: dict[str, Any], named: str, tmp_path: Path, model_file: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = _write(tmp_path / "input.h5", _rows(), **attributes)
    refused(["posterior", path, "--model", model_file], tmp_path, capsys, str(path), named)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--fmin", "0.5e-3"), ("fmin", "0.0005", "trained range")),
        (("--fmax", "5e-3"), ("fmax", "0.005", "trained range")),
        (("--fmin", "2e-3", "--fmax", "1.9e-3"), ("fmin", "0.002", "0.0019")),
        (("--fmin", "nan"), ("fmin", "nan")),
        (("--fmin", "low"), ("--fmin", "'low'")),
        (("--samples", "0"), ("--samples", "0")),
        (("--seed", "-3"), ("--seed", "-3")),
        (("--psd", "measured"), ("--psd", "'measured'")),
        (("--min-probability", "1.5"), ("--min-probability", "1.5")),
        (("--sample", "3"), ("--sample",)),
    ],
)
def test_options(
    options: tuple[str, ...], named: tuple[str, ...], tmp_path: Path, model_file: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    arguments = ["posterior", "--model", model_file, "--output", tmp_path / "out", *options]
    refused(arguments, tmp_path, capsys, *named)
    assert not (tmp_path / "out").exists()


def test_model(tmp_path: Path, model_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    absent, text = tmp_path / "absent.safetensors", tmp_path / "text.safetensors"
    text.write_text("weights")
    pickle = tmp_path / "pickle.safetensors"
    torch.save({"weights": torch.ones(3)}, pickle)
    short = tmp_path / "short.safetensors"
    short.write_bytes(model_file.read_bytes()[:-100])
    for path in (absent, text, pickle, short):
        arguments = ["posterior", "--model", path, "--output", tmp_path]
        refused(arguments, tmp_path, capsys, str(path))


def test_outputs_of_other_settings(
    tmp_path: Path, model_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["posterior", "--model", str(model_file), "--output", str(tmp_path), *BAND]
    assert run([*base, "--samples", "20"]) == 0
    samples, table = tmp_path / "example.posterior.nc", tmp_path / "example.catalogue.ecsv"
    refused([*base, "--samples", "30"], tmp_path, capsys, str(samples), "samples 20, now 30")
    refused([*base, "--samples", "20", "--seed", "1"], tmp_path, capsys, "seed 0, now 1")
    samples.write_text("mine")
    refused([*base, "--samples", "20"], tmp_path, capsys, str(samples))
    samples.unlink()
    written = table.read_text()
    table.write_text(written.replace('{"fmin": 0.00194', '{"fmim": 0.00194'))
    refused([*base, "--samples", "20"], tmp_path, capsys, str(table), "metadata 'settings': fmin")
    table.write_text("mine")
    refused([*base, "--samples", "20"], tmp_path, capsys, str(table))
    assert run([*base, "--samples", "30", "--force"]) == 0
    assert "mine" not in table.read_text()


def test_output_folder_is_a_file(
    tmp_path: Path, model_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "results"
    place.write_text("a file")
    for output in (place, place / "below"):
        arguments = ["posterior", "--model", model_file, "--output", output, *BAND]
        refused(arguments, tmp_path, capsys, str(output))


# ---- train and simulate


def test_gpus_that_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    refused(["train", "--gpus", "8"], tmp_path, capsys, "--gpus 8", "PyTorch sees: 0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    refused(["train", "--gpus", "2"], tmp_path, capsys, "--gpus 2", "PyTorch sees: 1")
    together = ["train", "--gpus", "1", "--processes", "2"]
    refused(together, tmp_path, capsys, "--processes")
    assert not any(tmp_path.iterdir())  # nothing simulated either


def _training_set(folder: Path) -> Path:
    assert run(["simulate", "-o", str(folder), "--samples", "2", "--workers", "1"]) == 0
    return folder


def test_training_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = _training_set(tmp_path / "data")
    preset = tmp_path / "mine.yaml"
    preset.write_text("prior: {snr_max: 80}\n")
    out = tmp_path / "out"
    arguments = ["train", data, "--preset", preset, "-o", out]
    refused(arguments, tmp_path, capsys, str(data), "prior.snr_max", "100.0", "80.0")
    again = ["simulate", "-o", data, "--samples", "2", "--workers", "1"]
    refused([*again, "--seed", "2"], tmp_path, capsys, str(data), "seed")
    refused(
        [*again, "--preset", preset], tmp_path, capsys, f"{data}: prior.snr_max", "100.0", "80.0"
    )
    (data / "shard-00000.h5").unlink()
    refused(["train", data, "-o", out], tmp_path, capsys, "shard-00000.h5", "missing")
    (data / "manifest.json").write_text("{")
    refused(["train", data, "-o", out], tmp_path, capsys, "manifest.json")
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    refused(["train", other, "-o", out], tmp_path, capsys, str(other), "not a training set")
    assert not out.exists()


def test_presets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    preset = tmp_path / "mine.yaml"
    for text, named in (
        ("prior: {snr_mix: 3}", "prior.snr_mix"),
        ("train: {batch: none}", "train.batch"),
        ("model: {heads: 5}", "heads 5"),
        ("prior: [", "YAML"),
    ):
        preset.write_text(text)
        for command in ("simulate", "train"):
            arguments = [command, "--preset", preset, "-o", tmp_path / "out"]
            refused(arguments, tmp_path, capsys, str(preset), named)
    refused(
        ["train", "--preset", "huge", "-o", tmp_path / "out"], tmp_path, capsys, "huge", "small"
    )
    preset.write_bytes(b"\xff\xfe")
    refused(["train", "--preset", preset], tmp_path, capsys, str(preset), "UTF-8")
    assert not (tmp_path / "out").exists()


def test_folders_that_cannot_be_made(
    tmp_path: Path, model_file: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "notes.txt"
    place.write_text("mine")
    below = place / "below" / "run"
    refused(["simulate", "-o", below], tmp_path, capsys, str(below), f"{place} is a file")
    refused(["train", "-o", below], tmp_path, capsys, str(below), f"{place} is a file")
    refused(["train", below], tmp_path, capsys, str(below), f"{place} is a file")
    refused(
        ["simulate", "--observation", below / "x.h5"], tmp_path, capsys, str(below), "is a file"
    )
    # As for a user without the right to write into the folder
    monkeypatch.setattr("os.access", lambda path, *_: not Path(path).is_dir())
    posterior = ["posterior", "--model", model_file, "--output"]
    for command in (["simulate", "-o"], ["train", "-o"], posterior):
        arguments = [*command, tmp_path / "new" / "folder"]
        refused(arguments, tmp_path, capsys, f"{tmp_path} is not writable")
    assert not (tmp_path / "new").exists()


def test_a_model_that_stands_there(
    tmp_path: Path, model_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    standing = tmp_path / "model.safetensors"
    standing.write_bytes(model_file.read_bytes())
    data = tmp_path / "data"
    refused(["train", data, "-o", tmp_path], tmp_path, capsys, str(standing), "exists already")
    refused(["train", data, "-o", standing], tmp_path, capsys, str(standing), "a file")
    refused(["train", standing], tmp_path, capsys, str(standing), "a file")
    refused(["simulate", "-o", standing], tmp_path, capsys, str(standing), "a file")


def test_observation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "input.h5"
    path.write_text("mine")
    base = ["simulate", "--observation", path]
    refused(base, tmp_path, capsys, str(path), "exists already", "--force")
    path.unlink()
    absent = tmp_path / "absent.csv"
    refused([*base, "--catalogue", absent], tmp_path, capsys, str(absent))
    catalogue = tmp_path / "sources.csv"
    catalogue.write_text("f0,fdot,amplitude,ra,dec,psi,iota,phi0\n1.5e-3,0,1e-22,1,2,0,0,0\n")
    refused([*base, "--catalogue", catalogue], tmp_path, capsys, str(catalogue), "'dec'", "'2'")
    refused([*base, "--samples", "3"], tmp_path, capsys, "--samples", "--observation")
    refused(["simulate", "--catalogue", catalogue], tmp_path, capsys, "--catalogue")
    assert not path.exists()


def test_no_orbit_is_a_note_not_an_error(
    tmp_path: Path, model_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "year.h5"
    path.write_bytes(example_path().read_bytes())
    with h5py.File(path, "r+") as file:
        for name in [name for name in file["obs/tdi"].attrs if name.startswith("orbit")]:
            del file["obs/tdi"].attrs[name]
    assert run(["posterior", str(path), "--model", str(model_file), "--samples", "5", *BAND]) == 0
    out, err = capsys.readouterr()
    assert "slotflow: note: " in err
    assert "names no orbit" in err
    assert " from 1.9400 to 1.9450 mHz" in out
    assert (tmp_path / "year.posterior.nc").is_file()  # beside the input
