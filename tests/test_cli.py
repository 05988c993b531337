"""slotflow.cli: help, and the round trip simulate, train, posterior through the commands."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from slotflow.catalogue import read_summary
from slotflow.cli.main import run
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
    assert run([*arguments, "--output", "elsewhere", "--format", "json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["settings"]["seed"] == 5
    assert len(content["sources"]) == len(read_summary(table).table)
    monkeypatch.delenv("SLOTFLOW_POSTERIOR_SEED")

    before = table.read_text().splitlines()
    assert run([*arguments, "--force"]) == 0  # the same numbers, computed again
    rows = [line for line in table.read_text().splitlines() if not line.startswith("#")]
    assert rows == [line for line in before if not line.startswith("#")]
    assert table.stat().st_mtime_ns != stamps[0]


def _am_cvn_is_found(table: Path) -> None:
    truth = read_truth(example_path())
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
        .replace("samples: 256", "samples: 40").replace("passes: 10000", "passes: 640")
    )  # fmt: skip
    arguments = ["train", "--preset", "few.yaml", "--workers", "1"]
    assert run(arguments) == 0
    first = capsys.readouterr()
    assert "simulating 40 bands first" in first.err
    assert "training-data: 40 bands" in first.out
    assert Path("run-few/model.safetensors").is_file()
    assert run(arguments) == 0  # done already: the same figures
    second = capsys.readouterr()
    assert "simulating" not in second.err
    assert [x for x in second.out.splitlines() if x.startswith("held out")] == [
        x for x in first.out.splitlines() if x.startswith("held out")
    ]
    kept = Path("run-few/model.safetensors").read_bytes()
    assert run([*arguments, "--seed", "9"]) == 2
    assert "other settings" in capsys.readouterr().err
    assert Path("run-few/model.safetensors").read_bytes() == kept
    assert run([*arguments, "--seed", "9", "--force"]) == 0
    assert Path("run-few/model.safetensors").read_bytes() != kept
