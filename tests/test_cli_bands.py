"""slotflow posterior of training sets, and of several inputs at once."""

import fcntl
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from slotflow import posterior as module
from slotflow.catalogue import read_summary
from slotflow.checkpoint import save_model
from slotflow.cli.main import run
from tests.chain import example_path, untrained_model
from tests.refusal import refused
from tests.stored_set import BANDS, write_stored_set

SHORT = ("--fmin", "1.9422e-3", "--fmax", "1.9425e-3", "--samples", "10")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model file and a training set."""
    folder = tmp_path_factory.mktemp("place")
    save_model(folder / "model.safetensors", untrained_model())
    write_stored_set(folder / "set.v1")
    return folder


def _command(place: Path, out: Path, *more: str | Path) -> list[str]:
    fixed = ["posterior", "--model", place / "model.safetensors", "--samples", "20", "-o", out]
    return [str(part) for part in (*fixed, *more)]


def test_a_training_set_beside_its_truth(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(_command(place, tmp_path, place / "set.v1", "--csv")) == 0
    said = capsys.readouterr()
    assert f"5 of {BANDS} true ones within a bin of one" in said.err
    assert f"note: bands 0:{BANDS} of" in said.err
    table = read_summary(tmp_path / "set.v1.catalogue.ecsv").table
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "set.v1.catalogue.csv", "set.v1.catalogue.ecsv", "set.v1.posterior.nc"
    ]  # fmt: skip
    lines = said.out.splitlines()
    assert lines[0].endswith("band  true f0 [nHz]  true amplitude  true SNR")
    matched = table[np.isfinite(table["true_f0"])]
    assert len(matched) == 5
    first = next(line for line in lines[1:] if line.rstrip().endswith("50.0"))
    offset = 1e9 * float(matched["true_f0"][0] - matched["f0"][0])
    assert f"{offset:+.2f}" in first
    assert abs(offset) < 32.0  # within a bin
    with xr.open_datatree(tmp_path / "set.v1.posterior.nc", engine="h5netcdf") as tree:
        assert tree["truth"].sizes["true_source"] == 5
        assert json.loads(tree.attrs["settings"])["samples"] == 20
        np.testing.assert_array_equal(tree["sample_stats"]["band"], table["band"])
        np.testing.assert_array_equal(
            np.quantile(tree["posterior"]["f0"][0], 0.5, axis=0), table["f0"]
        )
    # the same again is shown, other bands are another result
    assert run(_command(place, tmp_path, place / "set.v1", "--print", "json")) == 0
    said = capsys.readouterr()
    assert "shown from" in said.err
    content = json.loads(said.out)
    assert [one["band"] for one in content["sources"]] == table["band"].tolist()
    assert sum(one["true_f0"] is None for one in content["sources"]) == len(table) - 5
    assert run(_command(place, tmp_path, place / "set.v1", "--bands", "0:2")) == 2
    assert "bands by default, now 0:2" in capsys.readouterr().err


def test_an_interrupted_set_goes_on(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(module, "BATCH", 1)
    plain = module._here

    def interrupted(*arguments: Any) -> Iterator[Any]:
        for number, batch in enumerate(plain(*arguments)):
            if number == 2:
                raise KeyboardInterrupt
            yield batch

    monkeypatch.setattr(module, "_here", interrupted)
    assert run(_command(place, tmp_path / "a", place / "set.v1")) == 130
    assert "interrupted; 2 bands are kept in" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "a").iterdir()] == [".set.v1.partial"]
    monkeypatch.setattr(module, "_here", plain)
    assert run(_command(place, tmp_path / "a", place / "set.v1")) == 0
    assert f"2 of {BANDS} bands are there from an earlier run" in capsys.readouterr().err
    assert run(_command(place, tmp_path / "b", place / "set.v1")) == 0
    tables = [(tmp_path / name / "set.v1.catalogue.ecsv").read_text().splitlines() for name in "ab"]
    one, other = ([line for line in t if not line.startswith("#")] for t in tables)
    assert one == other


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--fmin", "1.9e-3"), ("--fmin", "does not go with bands of a training set")),
        (("--psd", "running"), ("--psd other than data and model",)),
        (("--export", "l3c"), ("--export",)),
        (("--plots", "pictures"), ("--plots",)),
        (("--format", "sangria"), ("--format",)),
        (("--bands", "3:9"), ("bands: 3:9", "holds the bands 0:5")),
        (("--bands", "all"), ("bands: expected A:B",)),
    ],
)
def test_what_bands_do_not_have(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...],
    named: tuple[str, ...],
) -> None:  # fmt: skip
    refused(_command(place, tmp_path / "out", place / "set.v1", *options), tmp_path, capsys, *named)
    assert not (tmp_path / "out").exists()


def test_bands_of_an_observation(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = _command(place, tmp_path, example_path(), "--bands", "0:2")
    refused(command, tmp_path, capsys, "--bands goes with a training set only")


def test_several_inputs_of_which_one_is_bad(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one.h5", "two.h5"):
        shutil.copy(example_path(), tmp_path / name)
    (tmp_path / "bad.h5").write_text("no data")
    names = ["one.h5", "bad.h5", "absent.h5", "two.h5"]
    model = ["--model", str(place / "model.safetensors")]
    inputs = [str(tmp_path / name) for name in names]
    assert run(["posterior", *inputs, *model, *SHORT, "--print", "json"]) == 2
    said = capsys.readouterr()
    errors = [line for line in said.err.splitlines() if line.startswith("slotflow: error: ")]
    assert len(errors) == 2
    assert f"{tmp_path / 'bad.h5'}: not an HDF5 file" in errors[0]
    assert f"{tmp_path / 'absent.h5'}: no such file" in errors[1]
    assert said.err.splitlines()[-1] == "slotflow: 2 of 4 inputs could not be done"
    results = [json.loads(line) for line in said.out.splitlines()]
    assert [Path(result["samples"]).name for result in results] == [
        "one.posterior.nc", "two.posterior.nc"
    ]  # fmt: skip
    assert results[0]["sources"] == results[1]["sources"]
    assert (tmp_path / "two.catalogue.ecsv").is_file()
    assert run(["posterior", inputs[0], inputs[3], *model, *SHORT]) == 0
    said = capsys.readouterr()
    assert said.err.count("shown from") == 2
    assert f"{inputs[3]}:" in said.out.splitlines()


def test_results_of_one_name(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a").mkdir()
    inputs = [tmp_path / "year.h5", tmp_path / "a" / "year.h5"]
    command = _command(place, tmp_path / "out", *inputs)
    refused(command, tmp_path, capsys, "2 inputs would have the results 'year' in")


def test_a_second_process_is_refused(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a lock that somebody holds; a file that is only left over does not count."""
    command = _command(place, tmp_path, example_path(), *SHORT[:4])
    with (tmp_path / ".example.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        refused(command, tmp_path, capsys, "another process is computing the results of example")
        assert (tmp_path / ".example.lock").exists()
    assert run(command) == 0
    assert not (tmp_path / ".example.lock").exists()
