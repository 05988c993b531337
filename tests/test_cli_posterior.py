"""slotflow posterior, the command: interrupted runs, formats, tables of noise, what it writes."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotflow import posterior as module
from slotflow.catalogue import read_summary
from slotflow.checkpoint import save_model
from slotflow.cli.main import run
from slotflow.cli.posterior_output import left
from slotflow.config import ObservationSettings
from slotflow.noise import standard_psd
from slotflow.results import Result
from tests.chain import untrained_model

BAND = ("--fmin", "1.940e-3", "--fmax", "1.945e-3", "--samples", "20")


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    save_model(path, untrained_model())
    return path


def _command(model_file: Path, folder: Path, *more: str) -> list[str]:
    return ["posterior", "--model", str(model_file), "--output", str(folder), *BAND, *more]


def _rows(table: Path) -> list[str]:
    return [line for line in table.read_text().splitlines() if not line.startswith("#")]


def test_an_interrupted_run_goes_on(
    tmp_path: Path, model_file: Path, monkeypatch: pytest.MonkeyPatch,
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
    out = tmp_path / "out"
    assert run(_command(model_file, out)) == 130
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        f"slotflow: interrupted; 2 bands are kept in {out / '.example.partial'}:"
        " the same command goes on"
    ]
    assert [path.name for path in out.iterdir()] == [".example.partial"]

    monkeypatch.setattr(module, "_here", plain)
    assert run(_command(model_file, out)) == 0
    assert "slotflow: 2 of 3 bands are there from an earlier run" in capsys.readouterr().err
    assert sorted(path.name for path in out.iterdir()) == [
        "example.catalogue.ecsv", "example.posterior.nc",
    ]  # fmt: skip
    assert run(_command(model_file, tmp_path / "whole")) == 0
    assert "earlier run" not in capsys.readouterr().err
    name = "example.catalogue.ecsv"
    assert _rows(out / name) == _rows(tmp_path / "whole" / name)


def test_an_interruption_before_anything_is_done(
    tmp_path: Path, model_file: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def interrupted(*_: Any) -> Iterator[Any]:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(module, "_here", interrupted)
    assert run(_command(model_file, tmp_path)) == 130
    assert capsys.readouterr().err.splitlines() == ["slotflow: interrupted"]
    assert not any(tmp_path.iterdir())


def test_csv_and_json(tmp_path: Path, model_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(_command(model_file, tmp_path, "--print", "json", "--csv")) == 0
    content = json.loads(capsys.readouterr().out)
    table = read_summary(tmp_path / "example.catalogue.ecsv").table
    with (tmp_path / "example.catalogue.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(content["sources"]) == len(rows) == len(table) > 0
    for one, row, record in zip(content["sources"], rows, table, strict=True):
        assert one["f0"] == float(row["f0"]) == record["f0"]
    # a table of the results before does not stay beside new ones
    (tmp_path / "example.catalogue.csv").write_text("of before")
    assert run(_command(model_file, tmp_path, "--force")) == 0
    with (tmp_path / "example.catalogue.csv").open() as file:
        assert [row["f0"] for row in csv.DictReader(file)] == [row["f0"] for row in rows]
    (tmp_path / "example.catalogue.csv").unlink()
    assert run(_command(model_file, tmp_path, "--csv")) == 0  # from the table that stands there
    assert "shown from" in capsys.readouterr().err
    assert (tmp_path / "example.catalogue.csv").is_file()


def test_exports_and_pictures_come_with_the_results(
    tmp_path: Path, model_file: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    calls: list[tuple[Any, ...]] = []

    def pictures(result: Result, folder: Path, *_: Any, force: bool) -> list[Path]:
        calls.append((len(result.views), len(result.tiles), folder, force))
        return [folder / "band-1.png"]

    monkeypatch.setattr("slotflow.plots.write_plots", pictures)
    more = ["--export", "l3c", "--plots", str(tmp_path / "pictures"), "--samples", "60"]
    assert run(_command(model_file, tmp_path, *more)) == 0
    said = capsys.readouterr().err
    written = [line.split(": ")[-1] for line in said.splitlines() if ": export: " in line]
    assert written
    assert all(Path(name).is_file() for name in written)
    assert "1 pictures in" in said
    assert calls == [(3, 3, tmp_path / "pictures", False)]  # with the bands as they were seen
    # what stands is not replaced without being told to, and that is said before any work
    assert run(_command(model_file, tmp_path, *more)) == 2
    refused = capsys.readouterr().err
    assert "exists already" in refused
    assert "bands" not in refused
    assert run(_command(model_file, tmp_path, *more, "--force")) == 0
    assert run(_command(model_file, tmp_path, *more[2:4], "--samples", "20")) == 2
    assert "pictures need at least 50" in capsys.readouterr().err
    assert not (tmp_path / ".example.partial").exists()
    assert calls[-1][-1] is True


def test_the_layout_can_be_named(
    tmp_path: Path, model_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(_command(model_file, tmp_path, "--format", "mojito")) == 2
    assert "not in the format 'mojito'" in capsys.readouterr().err
    assert run(_command(model_file, tmp_path, "--format", "sangria")) == 0
    capsys.readouterr()
    # the other layout of a file that holds two is another result
    assert run(_command(model_file, tmp_path, "--format", "radler")) == 2
    assert "(format sangria, now radler)" in capsys.readouterr().err
    assert run(_command(model_file, tmp_path, "--format", "table")) == 2
    assert "'table' is not one of 'auto', 'sangria'" in capsys.readouterr().err


def test_a_table_of_noise_is_part_of_what_made_a_result(
    tmp_path: Path, model_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noise = tmp_path / "noise.txt"
    frequency = np.linspace(0.9e-3, 2.3e-3, 2000)
    density = standard_psd(frequency, ObservationSettings())
    np.savetxt(noise, np.stack([frequency, *density], axis=-1))
    out = tmp_path / "out"
    assert run(_command(model_file, out, "--psd", str(noise))) == 0
    assert "level was taken from the table" in capsys.readouterr().err
    table = read_summary(out / "example.catalogue.ecsv")
    assert json.loads(table.meta["settings"])["psd"] == str(noise)
    # it is the model's own: what the model's density gives
    assert run(_command(model_file, tmp_path / "model", "--psd", "model")) == 0
    known = read_summary(tmp_path / "model" / "example.catalogue.ecsv").table
    np.testing.assert_allclose(table.table["f0"], known["f0"], rtol=1e-9)
    np.testing.assert_allclose(table.table["amplitude"], known["amplitude"], rtol=0.02)
    capsys.readouterr()
    np.savetxt(noise, np.stack([frequency, *(2.0 * density)], axis=-1))
    assert run(_command(model_file, out, "--psd", str(noise))) == 2
    assert "another psd" in capsys.readouterr().err
    assert run(_command(model_file, tmp_path / "none", "--psd", "both")) == 2
    error = capsys.readouterr().err
    assert "'--psd': 'both': expected data, running, model or the file of a table" in error
    noise.write_text("1e-3 1e-40\n1.1e-3 1e-40\n")
    assert run(_command(model_file, tmp_path / "none", "--psd", str(noise))) == 2
    assert f"{noise}: column 1: covers 0.001 to 0.0011 Hz" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((10.0, 5, 20), "0:00:40 left"),
        ((2.0, 1, 3600), "2:00:00 left"),
        ((10.0, 0, 20), ""),
        ((10.0, 20, 0), ""),
    ],
)
def test_time_left(arguments: tuple[float, int, int], text: str) -> None:
    assert left(*arguments) == text
