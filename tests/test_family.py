"""slotflow.family: models by frequency; against one model that reads the whole range."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from astropy.table import Table
from hypothesis import given
from hypothesis import strategies as st

from slotflow import api, inference
from slotflow.checkpoint import Model, load_model, save_model
from slotflow.cli.main import run
from slotflow.errors import InputError
from slotflow.family import (
    JOIN_BINS,
    Family,
    family_posterior,
    joined,
    read_family,
    write_family,
)
from slotflow.merging import Comparison
from slotflow.parameters import F0
from slotflow.posterior import posterior
from slotflow.results import PosteriorSettings, Result, SourcePosterior, TileRecord
from slotflow.stored import model_for, open_bands
from tests.chain import example_observation, untrained_model
from tests.stored_set import write_stored_set

T = 524_288 * 60.0
SPLIT = 1.945e-3


def part(fmin: float, fmax: float, **prior: object) -> Model:
    """The untrained network, said to be trained between other frequencies."""
    model = untrained_model()
    settings = model.preset.prior.model_copy(update={"fmin": fmin, "fmax": fmax, **prior})
    preset = model.preset.model_copy(update={"prior": settings})
    return Model(preset, model.network, model.grid)


def source(f0: float, probability: float = 0.9) -> SourcePosterior:
    rng = np.random.default_rng(1)
    samples = np.tile([f0, 1e-17, 1e-22, 1.0, 0.2, 0.5, 1.0, 2.0], (200, 1))
    samples[:, F0] += 0.05 / T * rng.standard_normal(200)
    return SourcePosterior(samples, np.zeros(200), probability, 0, 0, 20.0)


def result_of(sources: list[SourcePosterior], low: float, high: float, slots: int) -> Result:
    record = TileRecord(0, low, high, 1.0, 1.0, 1, 1.0)
    return Result(
        tuple(sources), (record,), PosteriorSettings(low, high, 200, 0, "data", 0.5),
        untrained_model().preset.observation, 0.0, ("a note",), {"network": 1.0},
        np.eye(slots + 1)[:1],
    )  # fmt: skip


def test_ranges_meet_in_the_middle_of_what_both_know() -> None:
    models = [part(1e-3, 1.2e-3), part(1.2e-3, 1.4e-3), part(1.4e-3, 1.6e-3)]
    family = Family.of(models, ["a", "b", "c"])
    for (_, high), (low, _) in zip(family.ranges, family.ranges[1:], strict=False):
        assert low == high
    np.testing.assert_allclose(family.handovers, [1.2e-3, 1.4e-3], atol=1.0 / T)
    assert family.ranges[0][0] == family.trained[0]
    assert Family.of(models, ["a", "b", "c"], [None, 1.401e-3]).handovers[1] == 1.401e-3


def test_models_that_do_not_go_together() -> None:
    with pytest.raises(InputError, match=r"b: trained from 1\.29.* Hz, but a only up to 1\.20"):
        Family.of([part(1e-3, 1.2e-3), part(1.3e-3, 1.4e-3)], ["a", "b"])
    with pytest.raises(InputError, match=r"a: fmax 0\.0013 Hz is not between"):
        Family.of([part(1e-3, 1.2e-3), part(1.2e-3, 1.4e-3)], ["a", "b"], [1.3e-3])
    other = part(1.2e-3, 1.4e-3)
    observation = other.preset.observation.model_copy(update={"t0": 1.0})
    other.preset = other.preset.model_copy(update={"observation": observation})
    with pytest.raises(InputError, match="b: trained on another observation than a"):
        Family.of([part(1e-3, 1.2e-3), other], ["a", "b"])


def test_the_index_is_written_and_checked(tmp_path: Path) -> None:
    files = [tmp_path / "low.safetensors", tmp_path / "high.safetensors"]
    for file, ends in zip(files, ((1e-3, 1.2e-3), (1.2e-3, 1.4e-3)), strict=True):
        save_model(file, part(*ends))
    index = tmp_path / "models.json"
    write_family(index, files, [1.201e-3])
    family = read_family(index)
    assert family.handovers == (1.201e-3,)
    assert family.names == ("low.safetensors", "high.safetensors")
    assert family.models[1].preset == load_model(files[1]).preset
    content = json.loads(index.read_text())
    content["models"][0]["file"] = "../low.safetensors"
    (tmp_path / "out.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="the name of a file beside it"):
        read_family(tmp_path / "out.json")
    save_model(files[0], part(1e-3, 1.25e-3))
    with pytest.raises(InputError, match=r"low\.safetensors: not the file that models\.json lists"):
        read_family(index)
    for text in ("{}", "[]", "no", '{"format": 1, "models": [3]}'):
        index.write_text(text)
        with pytest.raises(InputError, match="not an index of models"):
            read_family(index)
    with pytest.raises(InputError, match="cannot be read"):
        read_family(tmp_path / "none.json")


@given(
    place=st.floats(-8.0, 8.0), left=st.floats(-0.04, 0.04), right=st.floats(-0.04, 0.04),
    sure=st.booleans(),
)  # fmt: skip
def test_a_source_near_the_handover_is_reported_once(
    place: float, left: float, right: float, sure: bool
) -> None:
    """Whichever side each model puts it on."""
    pair = []
    for side, shift in ((0, left), (1, right)):
        f0 = SPLIT + (place + shift) / T
        beyond = (f0 - SPLIT) * T * (1 if side == 0 else -1)
        seen = [source(f0, 0.9 if sure else 0.6)] if beyond <= JOIN_BINS else []
        low, high = (1.9e-3, SPLIT) if side == 0 else (SPLIT, 2e-3)
        pair.append(result_of(seen, low - JOIN_BINS / T, high + JOIN_BINS / T, 3 + side))
    comparison = Comparison(untrained_model().grid)
    whole = joined(pair, [SPLIT], comparison, (1.9e-3, 2e-3))
    assert len(whole.sources) == 1
    below, above = whole.tiles
    assert below.high == above.low
    assert whole.q_k.shape == (2, 5)
    np.testing.assert_allclose(whole.q_k.sum(axis=1), 1.0)
    assert whole.notes == ("a note",)
    assert whole.seconds == {"network": 2.0}


def test_one_model_cut_in_two_finds_what_it_finds_whole() -> None:
    """Both halves are the same network on the same windows; few bands differ by their place."""
    year = example_observation()
    # a handover where neither half has sources within the bins that both are asked for
    low, high = 1.9405e-3, 1.9475e-3
    family = Family.of([part(1.9e-3, SPLIT), part(SPLIT, 2e-3)], ["a", "b"], [SPLIT])
    done = []
    found = family_posterior(
        year, family, fmin=low, fmax=high, samples=50, keep_bands=True,
        progress=lambda number, total: done.append((number, total)),
    )  # fmt: skip
    assert done[-1][0] == done[-1][1]
    assert (found.settings.fmin, found.settings.fmax) == (low, high)
    assert [s.f0 for s in found.sources] == sorted(s.f0 for s in found.sources)
    assert all(low <= s.f0 <= high for s in found.sources)
    edges = [tile.low for tile in found.tiles]
    assert edges == sorted(edges)
    for left, right in zip(found.tiles, found.tiles[1:], strict=False):
        assert left.high == right.low
    for i, s in enumerate(found.sources):
        assert i in found.views[s.first_bin].sources
    alone = posterior(year, part(1.9e-3, 2e-3), fmin=low, fmax=high, samples=50)
    loud = [s.f0 for s in alone.sources if s.snr > 20.0]
    assert loud
    for f0 in loud:
        assert min(abs(s.f0 - f0) for s in found.sources) * T < 1.0


def test_frequencies_outside_are_refused() -> None:
    family = Family.of([part(1.9e-3, SPLIT), part(SPLIT, 2e-3)], ["a", "b"])
    with pytest.raises(InputError, match="expected within the trained range"):
        family_posterior(example_observation(), family, fmin=1.95e-3, fmax=3e-3)


@pytest.mark.parametrize("what", ["step", "table"])
def test_what_a_later_model_cannot_have_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Before the bands of the others, which may take minutes, are read."""
    monkeypatch.setattr("slotflow.family.posterior", lambda *_, **__: pytest.fail("read"))
    year, psd, words = example_observation(), "data", "reaches 1.953 mHz only"
    if what == "step":  # 4 samples of 5 bins a cycle: the lower model alone has its frequencies
        year = replace(year, tdi=year.tdi[:, ::4], dt=256.0)
    else:
        psd, words = str(tmp_path / "noise.txt"), r"column 1: covers 0\.001 to 0\.00196 Hz"
        Path(psd).write_text("1e-3 1e-40\n1.96e-3 1e-40\n")
    family = Family.of([part(1.9e-3, 1.92e-3), part(1.92e-3, 2e-3)], ["a", "b"])
    with pytest.raises(InputError, match=words):
        family_posterior(year, family, psd=psd)


def test_an_index_is_a_model_of_the_library(tmp_path: Path) -> None:
    files = [tmp_path / "low.safetensors", tmp_path / "high.safetensors"]
    for file, ends in zip(files, ((1.9e-3, SPLIT), (SPLIT, 2e-3)), strict=True):
        save_model(file, part(*ends))
    index = tmp_path / "models.json"
    write_family(index, files, [SPLIT])
    models = api.load_model(index)
    assert isinstance(models, api.Models)
    assert list(models.card) == ["low.safetensors", "high.safetensors"]
    assert "2 slotflow models of models.json, 0.00189" in repr(models)
    found = models.posterior(
        example_observation(), fmin=1.9445e-3, fmax=1.9455e-3, samples=20, keep_bands=False
    )
    assert found.provenance.model == str(index)
    assert {s.first_bin for s in found.result.sources} <= {t.first_bin for t in found.result.tiles}


def shares(folder: Path) -> Path:
    """Write an index of two models that share what the example has near 1.945 mHz."""
    for name, low, high in (("low", 1.89e-3, 1.95e-3), ("high", 1.94e-3, 2.0e-3)):
        save_model(folder / f"{name}.safetensors", part(low, high))
    write_family(
        folder / "models.json", [folder / "low.safetensors", folder / "high.safetensors"], [SPLIT]
    )
    return folder / "models.json"


def test_the_command_reads_an_index_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Broken off in the second model, it takes up what both had done, and leaves no folders."""
    index, out = shares(tmp_path), tmp_path / "out"
    command = [
        "posterior", "--model", str(index), "--fmin", "1.943e-3", "--fmax", "1.947e-3",
        "--samples", "20", "--min-probability", "0.0", "-o", str(out), "--print", "json",
    ]  # fmt: skip
    whole = tmp_path / "whole"
    assert run([*command[:-3], str(whole), "--print", "json"]) == 0
    read, calls = inference.BandReader._read, []

    def broken(self: inference.BandReader, block: list[Any]) -> Any:
        calls.append(len(block))
        if self.model.preset.prior.fmin > 1.9e-3:
            raise KeyboardInterrupt
        return read(self, block)

    with monkeypatch.context() as patch:
        patch.setattr(inference.BandReader, "_read", broken)
        assert run(command) == 130
    assert len(calls) >= 2
    kept = [path.name for path in out.iterdir() if path.is_dir()]
    assert kept == [".example.partial-low.safetensors"]
    capsys.readouterr()
    assert run(command) == 0
    said = capsys.readouterr()
    assert "are there from an earlier run" in said.err
    assert not [path for path in out.iterdir() if path.is_dir()]
    tables = [Table.read(f / "example.catalogue.ecsv", format="ascii.ecsv") for f in (whole, out)]
    assert len(tables[0]) > 0
    for name in tables[0].colnames:
        assert list(tables[0][name]) == list(tables[1][name])


def test_a_training_set_is_read_by_the_model_of_its_frequencies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FIRST + 128 bins is 1.941 mHz: the first model's; and the result is that model's alone."""
    index = shares(tmp_path)
    write_stored_set(tmp_path / "set")
    command = ["posterior", str(tmp_path / "set"), "--samples", "10", "-o", str(tmp_path / "out")]
    assert run([*command, "--model", str(index)]) == 0
    assert "bands of 256 bins: read by low.safetensors" in capsys.readouterr().err
    command[-1] = str(tmp_path / "alone")
    assert run([*command, "--model", str(tmp_path / "low.safetensors")]) == 0
    tables = [
        Table.read(tmp_path / f / "set.catalogue.ecsv", format="ascii.ecsv")
        for f in ("out", "alone")
    ]
    assert len(tables[0]) > 0
    for name in tables[0].colnames:
        np.testing.assert_array_equal(tables[0][name], tables[1][name])


def test_the_model_for_bands_is_of_their_length(tmp_path: Path) -> None:
    write_stored_set(tmp_path / "set")
    bands = open_bands(tmp_path / "set")
    low, high = part(1.8e-3, 1.95e-3), part(1.94e-3, 2.1e-3)
    assert model_for(bands, Family.of([low, high], ["a", "b"]))[0] == "a"
    low, high = part(1.8e-3, 1.92e-3), part(1.91e-3, 2.1e-3)
    assert model_for(bands, Family.of([low, high], ["a", "b"]))[0] == "b"
    other = part(1.8e-3, 1.95e-3, bins=128, margin=16)
    assert model_for(bands, Family.of([other, high], ["a", "b"]))[0] == "b"
    with pytest.raises(InputError, match=r"prior.bins: 256; the models read 128 \(a\)"):
        model_for(bands, Family.of([other], ["a"]))
