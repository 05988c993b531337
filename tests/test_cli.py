"""slotflow.cli: help, and the round trip simulate, train, posterior through the commands."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from slotflow.catalogue import read_summary
from slotflow.cli.main import run
from slotflow.cli.train import training_text
from slotflow.errors import InputError
from slotflow.manifest import read_manifest, write_manifest
from slotflow.parameters import F0
from slotflow.readers import read_truth
from tests.chain import example_path

T = 524_288 * 60.0
COMMANDS = ("simulate", "train", "posterior")


def _python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
    )  # fmt: skip
    return done.stdout


@pytest.mark.parametrize("arguments", [[], *([name] for name in COMMANDS)])
def test_help_shows_an_example(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*arguments, "--help"]) == 0
    out = capsys.readouterr().out
    assert "Example:" in out
    assert "slotflow posterior" in out or "posterior" not in arguments
    if arguments:
        assert "[default: " in out


def test_help_needs_no_heavy_import() -> None:
    heavy = ("torch", "jax", "numpy", "pydantic", "astropy", "xarray", "h5py")
    code = (
        "import sys; from slotflow.cli.main import run; run(['posterior', '--help']);"
        f" print('heavy:', [name for name in {heavy!r} if name in sys.modules])"
    )
    assert "heavy: []" in _python(code)


def test_posterior_needs_no_jax() -> None:
    code = (
        "import sys; import slotflow.posterior, slotflow.catalogue;"
        " print('jax' in sys.modules or 'slotflow.simulate' in sys.modules)"
    )
    assert _python(code).strip() == "False"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    from slotflow import __version__

    assert run(["--version"]) == 0
    assert __version__ in capsys.readouterr().out


def test_interrupt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("slotflow.cli.simulate.simulate_bands", interrupt)
    assert run(["simulate"]) == 130
    assert capsys.readouterr().err.strip().splitlines()[-1] == "slotflow: interrupted"


@pytest.mark.slow
def test_round_trip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Simulate, train, posterior; each command as a user gives it, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    assert run(["simulate", "-o", "data", "--preset", "tiny", "--workers", "1"]) == 0
    shards = sorted(path.name for path in Path("data").iterdir())
    assert "manifest.json" in shards
    assert run(["train", "data", "--preset", "tiny", "-o", "out", "--workers", "1"]) == 0
    printed = capsys.readouterr().out
    assert "held out" in printed
    assert "CRPS" in printed
    model = tmp_path / "out" / "model.safetensors"
    assert f"model: {model.relative_to(tmp_path)}" in printed

    arguments = ["posterior", "--model", str(model), "--fmin", "1.94e-3", "--fmax", "1.948e-3"]
    assert run(arguments) == 0
    printed = capsys.readouterr().out
    table = tmp_path / "example.catalogue.ecsv"
    samples = tmp_path / "example.posterior.nc"
    assert "samples: example.posterior.nc" in printed
    _am_cvn_is_found(table)
    stamps = table.stat().st_mtime_ns, samples.stat().st_mtime_ns

    assert run(arguments) == 0  # shown again, not computed
    again = capsys.readouterr()
    assert again.out == printed
    assert "shown from" in again.err
    assert (table.stat().st_mtime_ns, samples.stat().st_mtime_ns) == stamps

    monkeypatch.setenv("SLOTFLOW_POSTERIOR_SEED", "5")  # every option, from the environment too
    assert run(arguments) == 2
    assert "seed 0, now 5" in capsys.readouterr().err
    assert run([*arguments, "--output", "elsewhere", "--print", "json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["settings"]["seed"] == 5
    assert len(content["sources"]) == len(read_summary(table).table)
    monkeypatch.delenv("SLOTFLOW_POSTERIOR_SEED")

    before = table.read_text().splitlines()
    assert run([*arguments, "--force"]) == 0  # the same numbers, computed again
    rows = [line for line in table.read_text().splitlines() if not line.startswith("#")]
    assert rows == [line for line in before if not line.startswith("#")]
    assert table.stat().st_mtime_ns != stamps[0]

    # A year of the user's own: the known binaries and noise
    Path("year").mkdir()
    catalogue = Path(__file__).parents[1] / "data" / "verification_binaries.csv"
    year = ["simulate", "--observation", "year/input.h5", "--catalogue", str(catalogue)]
    assert run([*year, "--no-galaxy", "--seed", "4"]) == 0
    assert "13 sources, 0 binaries" in capsys.readouterr().out
    band = ["--fmin", "1.942e-3", "--fmax", "1.946e-3"]
    assert run(["posterior", "year/input.h5", "--model", str(model), *band]) == 0
    shown = capsys.readouterr()
    assert "samples: year/input.posterior.nc" in shown.out
    assert "data without the Galaxy" in shown.err  # the model's noise has its confusion
    written = Path("year/input.catalogue.ecsv")
    _am_cvn_is_found(written, Path("year/input.h5"))
    command = ["slotflow", "posterior", "year/input.h5", "--model", str(model), *band]
    assert read_summary(written).meta["command"] == shlex.join(command)


def _am_cvn_is_found(table: Path, observation: Path | None = None) -> None:
    truth = read_truth(observation if observation is not None else example_path())
    assert truth is not None
    f0 = truth.sources[truth.names.index("AM CVn"), F0]
    found = read_summary(table).table
    nearest = int(np.argmin(np.abs(found["f0"] - f0)))
    assert abs(found["f0"][nearest] - f0) * T < 1.0
    assert found["probability"][nearest] > 0.5


@pytest.mark.slow
def test_train_simulates_first_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("few.yaml").write_text(
        Path(__file__).parents[1].joinpath("slotflow/presets/tiny.yaml").read_text()
        .replace("samples: 256", "samples: 128").replace("passes: 10000", "passes: 640")
    )  # fmt: skip
    arguments = ["train", "--preset", "few.yaml", "--workers", "1"]
    assert run(arguments) == 0
    first = capsys.readouterr()
    assert "simulating 128 bands first" in first.err
    assert "training-data: 128 bands" in first.out
    assert Path("run-few/model.safetensors").is_file()
    assert run(arguments) == 0  # done already: the same figures
    second = capsys.readouterr()
    assert "simulating" not in second.err
    assert [x for x in second.out.splitlines() if x.startswith("held out")] == [
        x for x in first.out.splitlines() if x.startswith("held out")
    ]
    kept = Path("run-few/model.safetensors").read_bytes()
    Path("training-data").rename("away")  # refused before the bands are simulated again
    assert run([*arguments, "--seed", "9"]) == 2
    refused = capsys.readouterr()
    assert "model.safetensors: of a run with other settings: train.seed 1, now 9" in refused.err
    assert len(refused.err.splitlines()) == 1
    assert not Path("training-data").exists()
    Path("away").rename("training-data")
    assert Path("run-few/model.safetensors").read_bytes() == kept
    assert run([*arguments, "--seed", "9", "--force"]) == 0
    assert Path("run-few/model.safetensors").read_bytes() != kept


@pytest.mark.slow
def test_train_takes_up_a_simulation_that_was_broken_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("slotflow.cli.train.search", _stop)  # only what comes before it
    data = Path("data")
    train = ["train", str(data), "--preset", "tiny", "--workers", "1"]
    assert run(["simulate", "-o", "data", "--samples", "4", "--seed", "7", "--workers", "1"]) == 0
    whole = {path.name: path.read_bytes() for path in data.iterdir() if path.suffix in SET_FILES}

    manifest = read_manifest(data)  # as it stands after the first of several shards, or of none
    write_manifest(data, manifest._replace(shards=()))
    (data / "shard-00000.h5").unlink()
    (data / ".shard-00000.h5.123.tmp").write_bytes(b"half")
    (data / ".manifest.json.123.tmp").write_text("{")
    capsys.readouterr()
    assert run(train) == 2
    assert "data: 0 of 4 bands are there: simulating the others" in capsys.readouterr().err
    assert {name: (data / name).read_bytes() for name in whole} == whole

    for name in whole:  # ended before the manifest was there
        (data / name).unlink()
    few = Path("few.yaml")
    few.write_text("train: {samples: 3}")
    assert run(["train", str(data), "--preset", "few.yaml", "--workers", "1"]) == 2
    assert "data holds no training set: simulating 3 bands first" in capsys.readouterr().err
    assert read_manifest(data).samples == 3

    few.write_text("prior: {snr_max: 50}")  # another prior: nothing is replaced
    write_manifest(data, read_manifest(data)._replace(shards=()))
    assert run(["train", str(data), "--preset", "few.yaml", "--workers", "1"]) == 2
    assert "data: prior.snr_max: made with 100.0, now 50.0" in capsys.readouterr().err
    assert (data / "shard-00000.h5").is_file()


SET_FILES = (".h5", ".json")


def _stop(*_: object) -> None:
    raise InputError("enough")


def test_what_the_system_refuses_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for error, words in (
        (OSError(28, "No space left on device", "run/state.pt"), "run/state.pt: No space left"),
        (PermissionError(13, "Permission denied"), "Permission denied"),
        (OSError("unable to lock file"), "unable to lock file"),
    ):

        def refuse(*_: object, error: OSError = error) -> None:
            raise error

        monkeypatch.setattr("slotflow.cli.simulate.simulate_bands", refuse)
        assert run(["simulate"]) == 2
        assert capsys.readouterr().err.startswith(f"slotflow: error: {words}")


def test_the_command_is_the_one_that_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def stop(*arguments: object) -> None:
        seen.append(str(arguments[-1]))
        raise InputError("enough")

    monkeypatch.setattr("slotflow.cli.posterior.provenance_of", stop)
    monkeypatch.setattr(sys, "argv", ["pytest", "-q"])
    assert run(["posterior", "my input.h5", "--samples", "7"]) == 2
    monkeypatch.setattr(sys, "argv", ["slotflow", "posterior", "--seed", "3"])
    assert run() == 2
    assert seen == ["slotflow posterior 'my input.h5' --samples 7", "slotflow posterior --seed 3"]


def test_a_run_shows_terms_rate_and_time_left() -> None:
    text = training_text({"nll": -1.25, "sky": 0.0, "psi": 0.5}, 812.4, 3725.2)
    assert text == "nll -1.25, psi 0.5; 812 samples/s, 1:02:05 left"
