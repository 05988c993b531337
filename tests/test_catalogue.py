"""slotflow.catalogue: results on disk."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import arviz_base
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from astropy import units
from astropy.coordinates import BarycentricMeanEcliptic, SkyCoord
from astropy.table import Table

from slotflow import __version__
from slotflow.catalogue import (
    Provenance,
    read_identity,
    read_summary,
    to_datatree,
    to_table,
    write_csv,
    write_netcdf,
    write_table,
)
from slotflow.cli import show
from slotflow.config import ObservationSettings
from slotflow.errors import InputError
from slotflow.parameters import F0, NAMES
from slotflow.results import PosteriorSettings, Result, SourcePosterior, TileRecord

DRAWS = 300
PROVENANCE = Provenance(
    "input.h5",
    "a" * 64,
    "model.safetensors",
    "b" * 64,
    {"fmin": None, "samples": DRAWS},
    "slotflow",
)


def make_result(sources: int) -> Result:
    """A result of sources 1 microhertz apart, their right ascensions around zero."""
    rng = np.random.default_rng(5)
    found = []
    for k in range(sources):
        samples = np.stack(
            [
                1.5e-3 + 1e-6 * k + 1e-9 * rng.standard_normal(DRAWS),
                1e-17 * rng.random(DRAWS),
                1e-22 * (1 + 0.1 * rng.random(DRAWS)),
                np.mod(0.02 + 0.1 * rng.standard_normal(DRAWS), 2 * np.pi),
                0.3 + 0.05 * rng.standard_normal(DRAWS),
                np.pi * rng.random(DRAWS),
                0.8 + 0.05 * rng.standard_normal(DRAWS),
                2 * np.pi * rng.random(DRAWS),
            ],
            axis=-1,
        )
        found.append(SourcePosterior(samples, rng.random(DRAWS), 0.9 - 0.1 * k, 47_000, k, 12.0))
    settings = PosteriorSettings(1.4e-3, 1.6e-3, DRAWS, 3, "data", 0.5)
    tiles = (TileRecord(47_000, 1.4e-3, 1.6e-3, 1.1, 0.9, 4, 1.7),)
    return Result(
        tuple(found), tiles, settings, ObservationSettings(), 0.0, ("a note",), {"search": 1.0}
    )


@pytest.mark.parametrize("sources", [0, 1, 3])
def test_samples_survive(tmp_path: Path, sources: int) -> None:
    result = make_result(sources)
    path = tmp_path / "x.posterior.nc"
    write_netcdf(to_datatree(result, PROVENANCE), path)
    with xr.open_datatree(path, engine="h5netcdf") as tree:
        assert dict(tree["posterior"].sizes) == {"chain": 1, "draw": DRAWS, "source": sources}
        assert set(tree["posterior"].data_vars) == set(NAMES)
        for k, source in enumerate(result.sources):
            for i, name in enumerate(NAMES):
                np.testing.assert_array_equal(
                    tree["posterior"][name][0, :, k], source.samples[:, i]
                )
            np.testing.assert_array_equal(tree["sample_stats"]["log_q"][0, :, k], source.log_q)
            assert tree["sample_stats"]["probability"][k] == source.probability
        assert tree["posterior"]["f0"].attrs["units"] == "Hz"
        assert tree["observed_data"]["level_a"].values.tolist() == [1.1]
        attributes = tree.attrs
    assert attributes["input_sha256"] == "a" * 64
    assert attributes["model_sha256"] == "b" * 64
    assert json.loads(attributes["settings"])["seed"] == 3
    assert json.loads(attributes["versions"])["slotflow"]
    assert read_identity(path) == PROVENANCE.identity
    assert [p.name for p in tmp_path.iterdir()] == [path.name]  # no temporary file stays


@pytest.mark.parametrize("sources", [0, 1, 3])
def test_the_table_survives(tmp_path: Path, sources: int) -> None:
    result = make_result(sources)
    path = tmp_path / "x.catalogue.ecsv"
    written = to_table(result, PROVENANCE)
    write_table(written, path)
    found = read_summary(path)
    assert found.identity == PROVENANCE.identity
    assert len(found.table) == sources
    assert json.loads(found.meta["notes"]) == ["a note"]
    for name in written.colnames:
        np.testing.assert_array_equal(found.table[name], written[name])
        assert found.table[name].unit == written[name].unit
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    for k, source in enumerate(result.sources):
        assert found.table["f0"][k] == np.median(source.samples[:, F0])
        low, high = np.quantile(source.samples[:, F0], [0.05, 0.95])
        assert (found.table["f0_lower"][k], found.table["f0_upper"][k]) == (low, high)
        assert found.table["ra_lower"][k] > found.table["ra_upper"][k]  # through zero


@pytest.mark.parametrize("sources", [0, 2])
def test_csv_is_what_any_program_reads(tmp_path: Path, sources: int) -> None:
    table = to_table(make_result(sources), PROVENANCE)
    path = tmp_path / "x.catalogue.csv"
    write_csv(table, path)
    with path.open(encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream)
        rows = list(reader)
        header = list(reader.fieldnames or [])
    assert len(rows) == sources
    assert header[: len(table.colnames)] == table.colnames
    assert {"ra", "dec", "ecliptic_longitude", "ecliptic_latitude"} <= set(header)
    for k, row in enumerate(rows):
        for name in table.colnames:
            assert float(row[name]) == table[name][k]  # all digits
        assert row["version"] == __version__
        assert (row["input_sha256"], row["model_sha256"]) == ("a" * 64, "b" * 64)
        assert (row["seed"], row["command"]) == ("3", "slotflow")
    frame = pd.read_csv(path)
    assert list(frame.columns) == header
    assert len(frame) == sources
    assert table.colnames == to_table(make_result(sources), PROVENANCE).colnames  # left alone
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_arviz_reads_the_samples(tmp_path: Path) -> None:
    result = make_result(3)
    path = tmp_path / "x.posterior.nc"
    write_netcdf(to_datatree(result, PROVENANCE), path)
    tree = arviz_base.convert_to_datatree(str(path))
    assert set(tree.children) == {"posterior", "sample_stats", "observed_data"}
    drawn = arviz_base.extract(tree, var_names="f0")
    assert dict(drawn.sizes) == {"source": 3, "sample": DRAWS}
    np.testing.assert_array_equal(drawn.values[1], result.sources[1].samples[:, F0])
    log_q = arviz_base.extract(tree, group="sample_stats", var_names="log_q")
    np.testing.assert_array_equal(log_q.values[2], result.sources[2].log_q)
    tree.close()


def test_counts_are_kept(tmp_path: Path) -> None:
    q_k = np.array([[0.1, 0.6, 0.3]])
    path = tmp_path / "x.nc"
    write_netcdf(to_datatree(replace(make_result(1), q_k=q_k), PROVENANCE), path)
    with xr.open_datatree(path, engine="h5netcdf") as tree:
        assert tree["sample_stats"]["q_k"].dims == ("tile", "count")
        np.testing.assert_array_equal(tree["sample_stats"]["q_k"], q_k)
    assert "q_k" not in to_datatree(make_result(1), PROVENANCE)["sample_stats"]


def test_ecliptic_coordinates_are_astropys() -> None:
    source = make_result(1).sources[0]
    source.samples[:, 3:5] = [2.1, -0.7]
    result = Result(
        (source,), (), PosteriorSettings(1.4e-3, 1.6e-3, DRAWS, 3, "data", 0.5),
        ObservationSettings(), 0.0, (), {},
    )  # fmt: skip
    row = to_table(result, PROVENANCE)[0]
    sky = SkyCoord(2.1, -0.7, unit="rad").transform_to(BarycentricMeanEcliptic())
    assert row["ecliptic_longitude"] == pytest.approx(sky.lon.to_value(units.rad), abs=1e-9)
    assert row["ecliptic_latitude"] == pytest.approx(sky.lat.to_value(units.rad), abs=1e-9)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.catalogue.ecsv"
    path.write_text("old")
    table = to_table(make_result(1), PROVENANCE)
    folder = tmp_path / "absent" / "x.catalogue.ecsv"
    with pytest.raises(InputError, match="cannot be written"):
        write_table(table, folder)
    with pytest.raises(InputError, match="cannot be written"):
        write_csv(table, folder)
    with pytest.raises(InputError, match="cannot be written"):
        write_netcdf(to_datatree(make_result(1), PROVENANCE), folder.with_name("x.nc"))
    assert path.read_text() == "old"


@pytest.mark.parametrize(
    "text",
    ["", "old", "a,b\n1,2\n", "# %ECSV 1.0\n# ---\n# {", "# %ECSV 1.0\n# ---\n# datatype: 3\n"],
)
def test_what_is_not_a_catalogue(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.ecsv"
    path.write_text(text)
    with pytest.raises(InputError, match=r"x\.ecsv"):
        read_summary(path)
    assert read_identity(path) is None


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("fmin", "fmim", "metadata 'settings': fmin None; a number expected"),
        ("- {settings: ", "- {other: ", "metadata 'settings': missing or not JSON"),
        ('["a note"]', "[a note]", "metadata 'notes': missing or not JSON"),
        ('["a note"]', "3", "metadata 'notes': 3; a list expected"),
        ("name: snr, datatype: float64", "name: snr, datatype: string", "column 'snr': numbers"),
        (" 0.9 ", ' "" ', "column 'probability': numbers expected"),
    ],
)
def test_an_edited_table(tmp_path: Path, old: str, new: str, named: str) -> None:
    path = tmp_path / "x.catalogue.ecsv"
    write_table(to_table(make_result(1), PROVENANCE), path)
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")
    with pytest.raises(InputError, match=rf"x\.catalogue\.ecsv: .*{re.escape(named)}"):
        read_summary(path)


def test_another_programs_table(tmp_path: Path) -> None:
    path = tmp_path / "x.ecsv"
    Table({"source": [1]}).write(path, format="ascii.ecsv")
    with pytest.raises(InputError, match="schema"):
        read_summary(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_summary(tmp_path / "absent.ecsv")


def scored_result(sources: int) -> Result:
    """Two bands, of which the second, with the sources, lies outside the training distribution."""
    result = make_result(sources)
    tiles = (
        TileRecord(46_800, 1.3e-3, 1.4e-3, 1.0, 1.0, 2, 0.0, -0.3, 0.5),
        result.tiles[0]._replace(outlying=1.75, outlying_p=0.002),
    )
    return replace(result, tiles=tiles)


@pytest.mark.parametrize("sources", [0, 2])
def test_scores_of_the_bands_are_written(tmp_path: Path, sources: int) -> None:
    result = scored_result(sources)
    write_netcdf(to_datatree(result, PROVENANCE), tmp_path / "x.nc")
    with xr.open_datatree(tmp_path / "x.nc", engine="h5netcdf") as tree:
        assert tree["observed_data"]["outlying"].values.tolist() == [-0.3, 1.75]
        assert tree["observed_data"]["outlying_p"].values.tolist() == [0.5, 0.002]
        known = json.loads(tree.attrs["outlying"])
    assert known == {
        "bands": 2,
        "outside": [
            {"first_bin": 47_000, "low": 1.4e-3, "high": 1.6e-3, "score": 1.75, "p_value": 0.002}
        ],
    }
    write_table(to_table(result, PROVENANCE), tmp_path / "x.ecsv")
    found = read_summary(tmp_path / "x.ecsv")
    assert found.table["outlying"].tolist() == [1.75] * sources
    (line,) = show.outlying_lines(found)
    assert "1 of 2 bands" in line
    assert "1.75" in line
    content = json.loads(show.as_json(found, tmp_path / "x.ecsv", tmp_path / "x.nc"))
    assert content["outlying"] == known
    assert [one["outlying"] for one in content["sources"]] == [1.75] * sources
    marked = [text for text in show.table_lines(found) if "outside, 1.75" in text]
    assert len(marked) == sources


def test_without_a_score_nothing_is_said_of_it(tmp_path: Path) -> None:
    """As under a model that has none, and in results of earlier versions."""
    result = make_result(1)
    assert "outlying" not in to_datatree(result, PROVENANCE)["observed_data"]
    table = to_table(result, PROVENANCE)
    assert "outlying" not in table.colnames
    assert "outlying" not in table.meta
    write_table(table, tmp_path / "x.ecsv")
    found = read_summary(tmp_path / "x.ecsv")
    assert show.outlying_lines(found) == []
    content = json.loads(show.as_json(found, tmp_path / "x.ecsv", tmp_path / "x.nc"))
    assert content["outlying"] is None
    assert not any("outside" in line for line in show.table_lines(found))


@pytest.mark.parametrize(
    "text", ["[1]", "{}", '{"bands": 1}', '{"bands": 1, "outside": [{"low": 1}]}', "x", "null",
             '{"bands": 1, "outside": [{"first_bin": 1, "low": NaN, "high": 1, "score": 1,'
             ' "p_value": 1}]}'],
)  # fmt: skip
def test_an_edited_summary_of_scores_is_refused(tmp_path: Path, text: str) -> None:
    table = to_table(scored_result(1), PROVENANCE)
    table.meta["outlying"] = text
    write_table(table, tmp_path / "x.ecsv")
    with pytest.raises(InputError, match=r"x\.ecsv: metadata 'outlying': "):
        read_summary(tmp_path / "x.ecsv")
