"""slotflow.exports: results in other programs' formats, read with those programs' own readers."""

import importlib.util
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
from astropy import units
from astropy.coordinates import ICRS, BarycentricMeanEcliptic, SkyCoord

from slotflow import __version__
from slotflow.config import PriorSettings
from slotflow.errors import InputError, OutputExistsError
from slotflow.exports import EXPORTS, check_exports, export
from slotflow.parameters import AMPLITUDE, DEC, F0, FDOT, IOTA, NAMES, PHI0, PSI, RA
from slotflow.prior import log_prior
from slotflow.results import Result
from tests.test_catalogue import DRAWS, PROVENANCE, make_result

L3C = [
    "amplitude", "frequency", "frequency_dot", "initial_phase", "inclination", "polarization",
    "right_ascension", "declination", "logprior", "loglikelihood",
]  # fmt: skip
GLASS = [
    "Frequency", "Frequency Derivative", "Amplitude", "Ecliptic Longitude", "Ecliptic Latitude",
    "coslat", "cosinc", "Inclination", "Polarization", "Initial Phase", "SNR",
]  # fmt: skip
PRIOR = PriorSettings()


def write(name: str, result: Result, folder: Path, **options: Any) -> list[Path]:
    return export([name], result, PROVENANCE._replace(priors=(PRIOR,)), folder, "year", **options)


def entries(path: Path) -> dict[str, Any]:
    """What a file says about itself."""
    if path.suffix == ".json":
        return dict(json.loads(path.read_text("utf-8"))["meta_data"])
    with h5py.File(path) as file:
        return dict(file.attrs)


# ---- all of them


@pytest.mark.parametrize("name", EXPORTS)
def test_each_file_says_what_made_it(tmp_path: Path, name: str) -> None:
    paths = write(name, make_result(2), tmp_path)
    for path in paths:
        found = entries(path)
        assert found["input_sha256"] == "a" * 64
        assert found["model_sha256"] == "b" * 64
        assert found["seed"] == 3
        assert found["command"] == "slotflow"
        assert json.loads(found["versions"])["slotflow"] == __version__
        assert json.loads(found["settings"])["fmax"] == 1.6e-3
        assert "phase 2 pi f" in found["conventions"]
    left = {p for p in tmp_path.rglob("*") if p.is_file()}
    assert left == set(paths)  # no temporary file stays


@pytest.mark.parametrize("name", EXPORTS)
def test_what_is_there_stays_without_force(tmp_path: Path, name: str) -> None:
    paths = write(name, make_result(3), tmp_path)
    before = [path.read_bytes() for path in paths]
    with pytest.raises(OutputExistsError, match="exists already"):
        write(name, make_result(1), tmp_path)
    assert [path.read_bytes() for path in paths] == before
    again = write(name, replace(make_result(1), notes=("again",)), tmp_path, force=True)
    assert again[0] == paths[0]
    assert entries(again[0])["notes"] == '["again"]'
    left = {p for p in tmp_path.rglob("*") if p.is_file()}
    assert left == set(again)  # nothing of sources that are no more


@pytest.mark.parametrize("name", EXPORTS)
def test_folders_that_cannot_be(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write(name, make_result(1), tmp_path / "file")
    assert write(name, make_result(1), tmp_path / "a" / "b")


@pytest.mark.parametrize("name", EXPORTS)
def test_notes_longer_than_an_attribute_of_hdf5(tmp_path: Path, name: str) -> None:
    note = "x" * 70_000
    path = write(name, replace(make_result(1), notes=(note,)), tmp_path)[0]
    assert json.loads(entries(path)["notes"]) == [note]


def test_unknown_formats(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected one of glass, l3c, bilby"):
        export(["l3c", "csv"], make_result(1), PROVENANCE, tmp_path, "x")
    assert not list(tmp_path.iterdir())


def test_one_refusal_is_for_all(tmp_path: Path) -> None:
    write("bilby", make_result(1), tmp_path)
    with pytest.raises(OutputExistsError, match=r"year\.bilby: exists already"):
        export(["l3c", "bilby"], make_result(1), PROVENANCE, tmp_path, "year")
    assert not (tmp_path / "year.l3c.h5").exists()
    check_exports(["l3c"], tmp_path, "year")
    check_exports(["bilby"], tmp_path, "other")
    check_exports(["bilby"], tmp_path, "year", force=True)


# ---- glass


def test_glass_columns_are_the_samples(tmp_path: Path) -> None:
    """Sky and polarisation against astropy, the rest against the samples."""
    result = make_result(2)
    (path,) = write("glass", result, tmp_path)
    assert path.name == "year.glass.h5"
    for name, source in zip(("SF00000_1499", "SF00001_1500"), result.sources, strict=True):
        chain = pd.read_hdf(path, key=f"{name}_chain")
        assert sorted(chain.columns) == sorted(GLASS)
        s = source.samples
        for column, index in (
            ("Frequency", F0), ("Frequency Derivative", FDOT), ("Amplitude", AMPLITUDE),
            ("Inclination", IOTA), ("Initial Phase", PHI0),
        ):  # fmt: skip
            np.testing.assert_array_equal(chain[column], s[:, index])
        equatorial = SkyCoord(s[:, RA], s[:, DEC], unit="rad")
        ecliptic = equatorial.transform_to(BarycentricMeanEcliptic())
        turn = np.angle(np.exp(1j * (chain["Ecliptic Longitude"] - ecliptic.lon.to_value("rad"))))
        np.testing.assert_allclose(turn, 0.0, atol=1e-9)
        np.testing.assert_allclose(
            chain["Ecliptic Latitude"], ecliptic.lat.to_value("rad"), atol=1e-9
        )
        north = SkyCoord(ICRS(0 * units.rad, np.pi / 2 * units.rad))
        angle = ecliptic.position_angle(north.transform_to(BarycentricMeanEcliptic()))
        off = chain["Polarization"] - s[:, PSI] - angle.to_value("rad")
        np.testing.assert_allclose(np.angle(np.exp(2j * off)), 0.0, atol=1e-8)
        colatitude = np.pi / 2 - chain["Ecliptic Latitude"]
        np.testing.assert_allclose(chain["coslat"], np.cos(colatitude), atol=1e-12)
        np.testing.assert_allclose(chain["cosinc"], np.cos(chain["Inclination"]), atol=1e-12)
        assert (chain["SNR"] == source.snr).all()


def test_glass_lists_the_sources(tmp_path: Path) -> None:
    result = make_result(3)
    (path,) = write("glass", result, tmp_path)
    metadata = pd.read_hdf(path, key="metadata")
    assert list(metadata.index) == ["year"]
    assert metadata["Observation Time"].tolist() == [result.observation.duration]
    found = pd.read_hdf(path, key="detections")
    assert set(GLASS) | {"evidence", "chain file", "parent"} <= set(found.columns)
    assert found["chain file"].tolist() == [path.name] * 3
    for name, source in zip(found.index, result.sources, strict=True):
        row = found.loc[name]
        assert row["evidence"] == source.probability
        # one of the samples, that of the median frequency
        chain = pd.read_hdf(path, key=f"{name}_chain")
        place = np.flatnonzero(chain["Frequency"] == row["Frequency"])
        assert (chain["Frequency"] < row["Frequency"]).sum() == DRAWS // 2
        for column in GLASS:
            assert chain[column].iloc[place[0]] == row[column]


def test_glass_without_sources(tmp_path: Path) -> None:
    (path,) = write("glass", make_result(0), tmp_path)
    found = pd.read_hdf(path, key="detections")
    assert len(found) == 0
    assert set(GLASS) <= set(found.columns)
    with pd.HDFStore(path, "r") as store:
        assert sorted(store.keys()) == ["/detections", "/metadata"]


def test_older_pandas_knows_the_layout(tmp_path: Path) -> None:
    """pandas 1.5 and 2.1 read a table without this attribute as one of before 0.10, and fail."""
    (path,) = write("glass", make_result(1), tmp_path)
    with h5py.File(path) as file:
        for key, group in file.items():
            assert group.attrs["pandas_version"] == b"0.15.2", key


def test_glass_needs_pytables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find: Callable[..., Any] = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "tables" else find(name, *a)
    )
    with pytest.raises(InputError, match="PyTables is not installed"):
        write("glass", make_result(1), tmp_path)


def test_lisacattools_opens_it(tmp_path: Path) -> None:
    """Where it is installed."""
    catalogs = pytest.importorskip("lisacattools.catalog")
    result = make_result(3)
    write("glass", result, tmp_path)
    opened = catalogs.GWCatalogs.create(catalogs.GWCatalogType.UCB, str(tmp_path), "*.glass.h5")
    assert opened.get_catalogs_name() == ["year"]
    catalog = opened.get_last_catalog()
    names = catalog.get_detections()
    assert len(names) == 3
    assert catalog.get_detections(["SNR", "Frequency"]).shape == (3, 2)
    chain = catalog.get_source_samples(names[1])
    np.testing.assert_array_equal(chain["Frequency"], result.sources[1].samples[:, F0])


# ---- l3c


def test_l3c_is_one_structured_data_set_a_source(tmp_path: Path) -> None:
    result = make_result(2)
    (path,) = write("l3c", result, tmp_path)
    assert path.name == "year.l3c.h5"
    with h5py.File(path) as file:
        assert list(file) == ["00000_1499", "00001_1500"]
        for data, source in zip(file.values(), result.sources, strict=True):
            rows = data[()]
            assert list(rows.dtype.names) == L3C
            assert {rows.dtype[name].str for name in L3C} == {"<f8"}
            assert rows.shape == (DRAWS,)
            order = (AMPLITUDE, F0, FDOT, PHI0, IOTA, PSI, RA, DEC)
            for name, index in zip(L3C, order, strict=False):
                np.testing.assert_array_equal(rows[name], source.samples[:, index])
            expected = log_prior(source.samples, source.first_bin, PRIOR, 524_288 * 60.0)
            np.testing.assert_array_equal(rows["logprior"], expected)
            assert np.isnan(rows["loglikelihood"]).all()
            assert data.attrs["probability"] == source.probability


def test_l3c_without_prior_or_sources(tmp_path: Path) -> None:
    (path,) = export(["l3c"], make_result(1), PROVENANCE, tmp_path, "unknown")
    with h5py.File(path) as file:
        assert np.isnan(file["00000_1499"]["logprior"]).all()
    (path,) = write("l3c", make_result(0), tmp_path)
    with h5py.File(path) as file:
        assert not list(file)


# ---- bilby


def test_bilby_json_is_a_result(tmp_path: Path) -> None:
    result = make_result(2)
    paths = write("bilby", result, tmp_path)
    assert [path.name for path in paths] == [
        "year_00000_1499_result.json", "year_00001_1500_result.json",
    ]  # fmt: skip
    for path, source in zip(paths, result.sources, strict=True):
        content = json.loads(path.read_text("utf-8"))
        assert path.name == f"{content['label']}_result.json"  # found by label and outdir
        assert content["sampler"] == "slotflow"
        assert content["search_parameter_keys"] == list(NAMES)
        assert content["posterior"]["__dataframe__"] is True
        columns = content["posterior"]["content"]
        assert list(columns) == [*NAMES, "log_q"]
        for i, name in enumerate(NAMES):
            np.testing.assert_array_equal(columns[name], source.samples[:, i])
        assert np.isnan(content["log_evidence"])
        assert content["injection_parameters"] is None
        assert content["meta_data"]["probability"] == source.probability
        assert len(content["parameter_labels"]) == 8
        # nothing that a reader would run: no object but the data frame
        marks = re.findall(r'"(__\w+__)"', path.read_text("utf-8"))
        assert marks == ["__dataframe__"]


def test_bilby_priors_are_strings(tmp_path: Path) -> None:
    (path,) = write("bilby", make_result(1), tmp_path)
    words = json.loads(path.read_text("utf-8"))["priors"]
    kinds = {name: word.split("(")[0] for name, word in words.items()}
    assert kinds == {
        "f0": "Uniform", "fdot": "Uniform", "amplitude": "Prior", "ra": "Uniform",
        "dec": "Cosine", "psi": "Uniform", "iota": "Sine", "phi0": "Uniform",
    }  # fmt: skip
    low, high = (float(re.search(rf"{k}=([^,)]+)", words["f0"])[1]) for k in ("minimum", "maximum"))  # type: ignore[index]
    assert (high - low) * 524_288 * 60 == pytest.approx(192)
    assert "boundary='periodic'" in words["ra"]
    (path,) = export(["bilby"], make_result(1), PROVENANCE, tmp_path, "unknown")
    words = json.loads(path.read_text("utf-8"))["priors"]
    unknown = {name for name, word in words.items() if word.startswith("Prior(")}
    assert unknown == {"f0", "fdot", "amplitude", "ra", "dec"}


def test_bilby_opens_it(tmp_path: Path) -> None:
    """Where it is installed; the library itself never reads such files."""
    result_module = pytest.importorskip("bilby.core.result")
    result = make_result(1)
    (path,) = write("bilby", result, tmp_path)
    opened = result_module.read_in_result(str(path))
    np.testing.assert_array_equal(opened.posterior["f0"], result.sources[0].samples[:, F0])
    assert opened.priors["ra"].maximum == 2 * np.pi
    assert opened.search_parameter_keys == list(NAMES)
    assert opened.meta_data["model_sha256"] == "b" * 64


def test_without_sources_there_is_no_result(tmp_path: Path) -> None:
    assert write("bilby", make_result(0), tmp_path) == []
