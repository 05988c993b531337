"""slotflow.api: the library in Python, on the example that ships."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
import xarray as xr

import slotflow
from slotflow import Posterior
from slotflow.catalogue import difference, read_identity, read_summary
from slotflow.checkpoint import load_model
from slotflow.data import shipped
from slotflow.errors import InputError, OutputExistsError
from slotflow.parameters import F0, NAMES, RA
from slotflow.posterior import posterior
from slotflow.readers import Observation, read_observation
from tests.chain import example_path

LOW, HIGH = 1.9435e-3, 1.9445e-3  # Hz: the band of AM CVn
MODEL = shipped("model.safetensors")
OPTIONS = {"fmin": LOW, "fmax": HIGH, "samples": 200, "seed": 5}


@pytest.fixture(scope="module")
def year() -> Observation:
    return slotflow.read(example_path())


@pytest.fixture(scope="module")
def model() -> slotflow.Model | slotflow.Models:
    return slotflow.load_model()


@pytest.fixture(scope="module")
def result(year: Observation, model: slotflow.Model | slotflow.Models) -> Posterior:
    return model.posterior(year, **OPTIONS)


def test_import_is_cheap() -> None:
    heavy = ("torch", "jax", "astropy", "numpy", "h5py", "pydantic", "xarray", "slotflow.api")
    code = (
        "import sys, slotflow; slotflow.__version__; dir(slotflow);"
        f" print([name for name in {heavy!r} if name in sys.modules]);"
        " slotflow.read; print('torch' in sys.modules, 'astropy' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split("\n")[:2] == ["[]", "False False"]


def test_names() -> None:
    assert {"read", "load_model", "Model", "Posterior", "Source"} <= set(dir(slotflow))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        slotflow.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_read_reads(year: Observation) -> None:
    np.testing.assert_array_equal(year.tdi, read_observation(example_path()).tdi)
    with pytest.raises(InputError, match=r"absent\.h5"):
        slotflow.read("absent.h5")


def test_models(model: slotflow.Model | slotflow.Models, tmp_path: Path) -> None:
    assert model.card["model.safetensors"]["held_out"]
    assert "models.json" in repr(model)
    with pytest.raises(InputError, match="no such model file"):
        slotflow.load_model(tmp_path / "absent.safetensors")
    assert slotflow.load_model(model.path).sha256 == model.sha256


def test_samples_are_those_of_the_library(
    result: Posterior, year: Observation, model: slotflow.Model
) -> None:
    direct = posterior(year, load_model(MODEL), **OPTIONS)  # type: ignore[arg-type]
    assert len(result) == len(direct.sources) > 0
    for source, other in zip(result, direct.sources, strict=True):
        np.testing.assert_array_equal(source.record.samples, other.samples)
        table = source.samples
        assert table.colnames == [*NAMES, "log_q"]
        np.testing.assert_array_equal(table["ra"], other.samples[:, RA])
        np.testing.assert_array_equal(table["log_q"], other.log_q)
        assert str(table["fdot"].unit) == "Hz / s"


def test_threads_are_given_back(year: Observation, model: slotflow.Model | slotflow.Models) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with pytest.raises(InputError, match="samples"):
            model.posterior(year, samples=0)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    with pytest.raises(TypeError, match="wrong"):
        model.posterior(year, wrong=1)


def test_summaries(result: Posterior) -> None:
    source = max(result, key=lambda one: one.snr)
    f0 = source.record.samples[:, F0]
    assert source.f0 == source.median["f0"] == np.median(f0)
    assert source.interval(0.5)["f0"] == tuple(np.quantile(f0, [0.25, 0.75]))
    wide, narrow = source.interval()["amplitude"], source.interval(0.5)["amplitude"]
    assert wide[0] < narrow[0] < source.median["amplitude"] < narrow[1] < wide[1]
    assert 0.5 <= source.probability <= 1.0
    assert f"{source.f0 * 1e3:.7f}" in repr(source)
    for mass in (0.0, 1.0, 90.0):
        with pytest.raises(ValueError, match="mass"):
            source.interval(mass)


def test_a_sequence(result: Posterior) -> None:
    assert [one.f0 for one in result] == sorted(one.f0 for one in result)
    assert result[-1] is result.sources[-1]
    assert result[:1] == result.sources[:1]
    assert repr(result).startswith(f"<{len(result)} sources")
    assert len(result.table()) == len(result)
    assert result.to_arviz()["posterior"].sizes["source"] == len(result)
    assert result.notes == result.result.notes


def test_files_are_the_commands(result: Posterior, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    paths = result.write(folder, exports=["l3c", "bilby"])
    names = [path.name for path in paths]
    assert names[:4] == [
        "example.posterior.nc", "example.catalogue.ecsv", "example.catalogue.csv", "example.l3c.h5",
    ]  # fmt: skip
    assert all(path.is_file() for path in paths)
    found = read_summary(paths[1])
    assert len(found.table) == len(result)
    assert read_identity(paths[0]) == found.identity == result.provenance.identity
    settings = json.loads(found.identity)["settings"]
    assert settings == OPTIONS | {"psd": "data", "min_probability": 0.5}
    assert found.meta["command"].startswith("model.posterior(observation, fmin=0.0019435")
    other = result.provenance._replace(requested=settings | {"seed": 6})
    assert difference(found.identity, other.identity) == "seed 5, now 6"
    with xr.open_datatree(paths[0], engine="h5netcdf") as tree:
        assert tree.attrs["model_sha256"] == result.provenance.model_sha256
    with h5py.File(paths[3]) as file:
        assert np.isfinite(next(iter(file.values()))["logprior"]).mean() > 0.9
    with pytest.raises(OutputExistsError, match=r"example\.posterior\.nc"):
        result.write(folder)
    result.write(folder, stem="again")
    result.write(folder, force=True)


def test_input_is_named_by_its_checksum(
    result: Posterior, year: Observation, model: slotflow.Model
) -> None:
    """Also a series that is from no file."""
    assert len(result.provenance.input_sha256) == 64
    assert result.provenance.input == str(example_path())
    made = replace(year, path=Path("made.h5"))
    again = model.posterior(made, **OPTIONS | {"samples": 1}, keep_bands=False)
    assert again.provenance.input_sha256 != result.provenance.input_sha256
    assert len(again.provenance.input_sha256) == 64


def test_pictures(result: Posterior) -> None:
    loudest = max(result, key=lambda one: one.snr)
    bands = set(result.result.views)
    assert loudest.record.first_bin in bands
    for figure in (
        result.plot_band(), result.plot_band(min(bands)), result.plot_slots(),
        result.plot_corner(), result.plot_sky(0), loudest.plot_sky(),
    ):  # fmt: skip
        assert figure.axes
    with pytest.raises(InputError, match="bands kept"):
        result.plot_band(1)


def test_nothing_found_is_a_result(
    year: Observation, model: slotflow.Model | slotflow.Models, tmp_path: Path
) -> None:
    result = model.posterior(year, **OPTIONS | {"samples": 1, "min_probability": 1.0})
    assert len(result) == 0
    assert list(result) == []
    with pytest.raises(InputError, match="no source was found"):
        result.plot_corner()
    assert result.plot_band().axes
    paths = result.write(tmp_path, exports=["glass", "l3c", "bilby"])
    assert all(path.is_file() for path in paths)
    assert len(read_summary(tmp_path / "example.catalogue.ecsv").table) == 0
