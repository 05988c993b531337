"""Refined results: in Python, on disk, printed, resumed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from slotflow import posterior as module
from slotflow.api import Model
from slotflow.catalogue import read_summary
from slotflow.checkpoint import save_model
from slotflow.cli.main import run
from slotflow.cli.show import refinement_lines
from slotflow.errors import InputError
from slotflow.inference import BandReader
from slotflow.manifest import file_sha256
from slotflow.posterior import posterior
from slotflow.refined import RefineSettings
from slotflow.results import Result
from tests.chain import example_observation, untrained_model

RANGE: dict[str, Any] = {"fmin": 1.940e-3, "fmax": 1.9435e-3, "samples": 60}
BAND = ("--fmin", "1.940e-3", "--fmax", "1.9435e-3", "--samples", "60")


def _infer(**options: Any) -> Result:
    return posterior(example_observation(), untrained_model(), **RANGE, **options)


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    save_model(path, untrained_model())
    return path


@pytest.fixture(scope="module")
def refined() -> Result:
    return _infer(refine=RefineSettings("importance", evidence=False))


def test_an_untrained_network_is_not_believed(refined: Result) -> None:
    assert refined.refinements
    for record in refined.refinements:
        assert record.warnings
    notes = [note for note in refined.notes if "refinement:" in note]
    assert len(notes) == sum(len(record.warnings) for record in refined.refinements)


def test_refined_draws_belong_to_the_same_sources(refined: Result) -> None:
    plain = _infer()
    assert not plain.refinements
    assert plain.refine is None
    before = {(s.first_bin, s.slot): s.samples for s in plain.sources}
    for record in refined.refinements:
        for slot, samples in zip(record.slots, record.before, strict=True):
            if (record.first_bin, slot) in before:
                assert np.array_equal(samples, before[record.first_bin, slot])


def test_the_same_seed_gives_the_same_draws(refined: Result) -> None:
    again = _infer(refine=RefineSettings("importance", evidence=False))
    for one, other in zip(refined.sources, again.sources, strict=True):
        assert np.array_equal(one.samples, other.samples)
        assert np.array_equal(one.log_q, other.log_q)


@pytest.mark.slow
def test_bands_are_given_out_one_by_one(refined: Result) -> None:
    """Each takes seconds: even few of them are worth a process each, and no bit depends on it."""
    seen: list[int] = []
    again = _infer(
        refine=RefineSettings("importance", evidence=False), processes=2,
        progress=lambda done, _: seen.append(done),
    )  # fmt: skip
    assert seen == list(range(len(refined.tiles) + 1))
    for one, other in zip(refined.sources, again.sources, strict=True):
        assert np.array_equal(one.samples, other.samples)
        assert np.array_equal(one.log_q, other.log_q)


def test_on_disk(tmp_path: Path, model_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["posterior", "--model", str(model_file), "--output", str(tmp_path), *BAND]
    assert run([*command, "--refine", "importance"]) == 0
    said = capsys.readouterr()
    assert "refinement: " in said.err
    tree = xr.open_datatree(tmp_path / "example.posterior.nc")
    group, sources = tree["refinement"], tree["posterior"].sizes["source"]
    assert json.loads(group.attrs["settings"])["method"] == "importance"
    assert group["divergence"].dims == ("source", "parameter")
    assert tree["amortised"]["f0"].shape == (1, 60, sources)
    bands = group.sizes["band"]
    for name in ("ln_z", "ln_z_error", "more", "fewer", "efficiency", "evaluations", "number"):
        assert group[name].shape == (bands,)
    tree.close()
    found = read_summary(tmp_path / "example.catalogue.ecsv")
    lines = refinement_lines(found)
    assert len(lines) == 1 + len(json.loads(found.meta["refinement"]))
    assert all(line in said.out for line in lines)
    # shown again, and not taken for a result without refinement
    assert run([*command, "--refine", "importance"]) == 0
    again = capsys.readouterr()
    assert "shown from" in again.err
    assert again.out == said.out
    assert run([*command, "--refine", "importance", "--print", "json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["refinement"] == json.loads(found.meta["refinement"]) != []
    assert run(command) == 2
    assert "refine" in capsys.readouterr().err


def test_unrefined_results_have_nothing_new(tmp_path: Path, model_file: Path) -> None:
    command = ["posterior", "--model", str(model_file), "--output", str(tmp_path), *BAND]
    assert run(command) == 0
    tree = xr.open_datatree(tmp_path / "example.posterior.nc")
    assert set(tree.children) == {"posterior", "sample_stats", "observed_data"}
    for name in ("identity", "settings", "seconds", "notes"):
        assert "refine" not in tree.attrs[name]
    tree.close()
    assert refinement_lines(read_summary(tmp_path / "example.catalogue.ecsv")) == []


def test_an_interrupted_refinement_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refined: Result
) -> None:
    from slotflow.resume import Partial

    monkeypatch.setattr(module, "BATCH", 1)
    settings = RefineSettings("importance", evidence=False)
    partial = Partial(tmp_path / "partial", "one run")
    _infer(refine=settings, partial=partial)

    def refuse(*_: Any) -> Any:
        raise AssertionError("read again")

    monkeypatch.setattr(BandReader, "_search", refuse)
    again = _infer(refine=settings, partial=Partial(tmp_path / "partial", "one run"))
    for one, other in zip(refined.refinements, again.refinements, strict=True):
        assert np.array_equal(one.before, other.before)
        assert one.warnings == other.warnings
        assert one.ln_z == pytest.approx(other.ln_z, nan_ok=True)
    for mine, theirs in zip(refined.sources, again.sources, strict=True):
        assert np.array_equal(mine.samples, theirs.samples)
    monkeypatch.undo()
    monkeypatch.setattr(module, "BATCH", 1)
    plain = _infer(partial=Partial(tmp_path / "partial", "one run"))  # not taken for refined
    assert not plain.refinements


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(InputError, match="refine: method: expected importance or smc"):
        _infer(refine="mcmc")


def test_in_python(model_file: Path) -> None:
    model = Model(untrained_model(), model_file, file_sha256(model_file))
    options = RANGE | {"refine": RefineSettings("importance", evidence=False)}
    result = model.posterior(example_observation(), **options)
    assert len(result.refinements) == len(result.result.tiles)
    assert "refinement" in result.to_arviz().children
    assert "importance" in result.provenance.identity
