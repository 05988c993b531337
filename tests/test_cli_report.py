"""slotflow report, the command, with the model that ships on a few bands."""

import fcntl
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from slotflow.cli.main import run
from slotflow.cli.report import HELD_OUT_SEED
from slotflow.manifest import read_manifest, write_manifest
from slotflow.refine import Refined, Refiner
from slotflow.refine_input import RefineBand
from slotflow.refined import Evidence
from slotflow.report import make

MODEL = Path(__file__).parents[1] / "data" / "model.safetensors"
FEW = ("--draws", "40", "--workers", "1")


@pytest.fixture(scope="module")
def bands(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bands") / "held-out"
    command = ["simulate", "--preset", "shipped", "--samples", "8", "--seed", "31", "-o"]
    assert run([*command, str(folder), "--workers", "1"]) == 0
    return folder


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary folders go: whatever happens, nothing stays there."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


def _no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("work was done before the refusal")

    monkeypatch.setattr(make, "collect", refuse)
    monkeypatch.setattr("slotflow.simulate.dataset.simulate_dataset", refuse)


def test_two_models_on_given_bands(
    tmp_path: Path, bands: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model beside a copy of itself: the same figures, no difference; conditions decide."""
    copy, out = tmp_path / "copy.safetensors", tmp_path / "out"
    shutil.copy(MODEL, copy)
    conditions = ("crps.f0 > 1e-12", "compared.copy.difference.ra != 0", "k_within_one < 0.5",
                  "outlying.share > 0.9")  # fmt: skip
    checks = [word for text in conditions for word in ("--fail-if", text)]
    command = ["report", "--data", str(bands), "--compare", str(copy), *FEW, "-o", str(out)]
    assert run([*command, *checks, "--junit", str(tmp_path / "verdicts.xml")]) == 1
    said = capsys.readouterr()
    failed = [line for line in said.err.splitlines() if "failed" in line]
    assert len(failed) == 1
    assert "crps.f0" in failed[0]
    assert 'failures="1"' in (tmp_path / "verdicts.xml").read_text()
    content = json.loads((out / "report.json").read_text())
    assert content["data"]["bands"] == 8
    assert content["data"]["seed"] == 31
    assert content["crps"] == content["compared"]["copy"]["crps"]
    assert set(content["compared"]["copy"]["difference"].values()) == {0.0}
    assert content["crps_snr10"]["f0"] < 0.01  # it is the model that ships
    assert content["outlying"] == content["compared"]["copy"]["outlying"]
    assert 0.0 < content["outlying"]["q50"] <= content["outlying"]["largest"]
    assert said.out.count("outside the training distribution") == 2
    assert content["details"]["models"][0]["model"]["training_seeds"] == [1]
    page = (out / "report.html").read_text("utf-8")
    assert page.lstrip().lower().startswith("<!doctype html")
    assert sorted(p.name for p in out.iterdir()) == ["report.html", "report.json"]
    assert f"report: {out / 'report.html'}" in said.out
    # what stands there is not replaced
    assert run(command) == 2
    assert "report.json: exists already" in capsys.readouterr().err


def test_fresh_bands(tmp_path: Path, temporary: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    command = ["report", "--simulate", "6", "--seed", "4", "--json-only", *FEW, "-o", str(out)]
    assert run(command) == 0
    assert [p.name for p in out.iterdir()] == ["report.json"]
    content = json.loads((out / "report.json").read_text())
    assert content["data"] | {"origin": "simulated", "path": None, "bands": 6} == content["data"]
    assert content["data"]["seed"] == HELD_OUT_SEED + 4
    assert content["details"]["seconds"]["simulation"] > 0.0
    said = capsys.readouterr()
    assert "6 bands" in said.out.splitlines()[0]
    assert "simulating: 6 bands in" in said.err


def test_refined_bands(
    tmp_path: Path, bands: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A refinement that leaves all draws where they are: ratios of 1, known to the conditions."""

    def same(_: Refiner, band: RefineBand, __: np.random.Generator) -> Refined:
        samples = np.stack([slot.samples for slot in band.slots])
        record = SimpleNamespace(
            slots=tuple(slot.number for slot in band.slots), warnings=("in doubt",),
            ln_z=Evidence(1.0, 0.1),
        )  # fmt: skip
        return Refined(samples, np.zeros(samples.shape[:2]), record)  # type: ignore[arg-type]

    monkeypatch.setattr(Refiner, "__call__", same)
    out = tmp_path / "out"
    command = ["report", "--data", str(bands), *FEW, "--refine", "2", "-o", str(out)]
    checks = ["--fail-if", "refined.ratio.f0 > 1", "--fail-if", "refined.warned > 1"]
    assert run([*command, *checks]) == 1
    said = capsys.readouterr()
    assert [line for line in said.err.splitlines() if "failed" in line] == [
        "slotflow: failed: refined.warned > 1.0 (refined.warned is 2)"
    ]
    assert "2 bands refined in" in said.out
    assert "2 with warnings" in said.out
    assert "CRPS over that of the exact posterior: f0 1.00, " in said.out
    content = json.loads((out / "report.json").read_text())
    assert set(content["refined"]["ratio"].values()) == {1.0}
    assert content["refined"]["crps"] == content["refined"]["crps_network"]
    assert content["details"]["settings"]["refine"] == 2
    assert 'id="refined-0"' in (out / "report.html").read_text("utf-8")


def test_an_interruption_leaves_nothing(
    tmp_path: Path, temporary: Path, bands: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("slotflow.report.page.render", interrupt)
    out = tmp_path / "out"
    assert run(["report", "--data", str(bands), *FEW, "-o", str(out)]) == 130
    assert not out.exists()
    monkeypatch.setattr("slotflow.simulate.dataset.simulate_dataset", interrupt)
    assert run(["report", "--simulate", "6", *FEW, "-o", str(out)]) == 130
    assert not out.exists()


def test_training_data_are_refused(
    tmp_path: Path, bands: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The model that ships was trained on seed 1, as its card says."""
    folder = tmp_path / "training"
    shutil.copytree(bands, folder)
    write_manifest(folder, read_manifest(folder)._replace(seed=1))
    _no_work(monkeypatch)
    command = ["report", "--data", str(folder), *FEW, "-o", str(tmp_path / "out")]
    assert run(command) == 2
    message = capsys.readouterr().err
    assert "seed 1 is that of the data" in message
    assert "model.safetensors" in message
    with pytest.raises(AssertionError, match="work was done"):
        run([*command, "--allow-training-data"])


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--fail-if", "crps.f1 > 0"], "no figure 'crps.f1'; there are"),
        (["--fail-if", "crps.f0 >"], "expected a figure"),
        (["--fail-if", "refined.ratio.f0 > 2"], "no figure 'refined.ratio.f0'"),
        (["--fail-if", "compared.x.nll > 0"], "no figure 'compared.x.nll'"),
        (["--junit", "x.xml"], "--junit needs --fail-if"),
        (["--data", "nowhere"], "nowhere: no such folder"),
        (["--data", "nowhere", "--simulate", "3"], "--simulate does not go with --data"),
        (["--model", "nowhere.safetensors"], "nowhere.safetensors: no such model file"),
        (["--compare", "nowhere.safetensors"], "nowhere.safetensors: no such model file"),
        (["--draws", "3"], "--draws"),
    ],
)
def test_what_is_refused_before_any_work(
    more: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    _no_work(monkeypatch)
    assert run(["report", *more]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert said in lines[0]
    assert list(tmp_path.iterdir()) == []


def test_help_shows_an_example_and_needs_nothing_heavy() -> None:
    heavy = ("torch", "jax", "numpy", "scipy", "jinja2")
    code = (
        "import sys; from slotflow.cli.main import run; run(['report', '--help']);"
        f" print('heavy:', [name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Example:" in done.stdout
    assert "[default: " in done.stdout
    assert "heavy: []" in done.stdout


def test_another_report_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _no_work(monkeypatch)
    with (tmp_path / ".report.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert run(["report", "--simulate", "1", "-o", str(tmp_path)]) == 2
    assert f"{tmp_path}: another report is being written there" in capsys.readouterr().err
    assert not (tmp_path / "report.json").exists()


def test_an_index_of_models_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = MODEL.with_name("models.json")
    assert run(["report", "--model", str(index), "-o", str(tmp_path / "out")]) == 2
    assert f"{index}: several models; a report is about one" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
