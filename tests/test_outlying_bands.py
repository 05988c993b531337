"""slotflow.outlying_bands: of a searched set and at inference the vectors are the same."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from slotflow.errors import InputError
from slotflow.outlying_bands import set_vectors
from slotflow.outlying_features import KINDS, BandVectors, widths
from slotflow.store import TrainingSet
from slotflow.stored import BandPosterior, StoredRun, open_bands
from slotflow.stored_output import StoredOutput
from slotflow.tokencache import ensure_searched
from tests.chain import untrained_model
from tests.outlying_example import plain_score
from tests.stored_set import BANDS, write_stored_set

MODEL = replace(
    untrained_model(), outlying=plain_score(widths(untrained_model().preset.model), 10.0)
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("set") / "bands"
    write_stored_set(path)
    return path


@pytest.fixture(scope="module")
def read(folder: Path) -> list[BandPosterior]:
    return list(StoredRun(open_bands(folder), MODEL, samples=20).bands())


@pytest.fixture(scope="module")
def fitted(folder: Path, read: list[BandPosterior]) -> list[BandVectors]:
    data = TrainingSet(folder)
    with pytest.raises(InputError):  # before it is searched
        set_vectors(MODEL, data)
    ensure_searched(data, MODEL.grid, MODEL.preset.components, 1)
    return set_vectors(MODEL, data)


def test_the_score_is_that_of_the_sets_vectors(
    read: list[BandPosterior], fitted: list[BandVectors]
) -> None:
    """The network reads other batches there, so that the last digits may differ."""
    assert MODEL.outlying is not None
    assert len(read) == len(fitted) == BANDS
    for one, band in zip(read, fitted, strict=True):
        assert tuple(band.vectors) == KINDS
        score = MODEL.outlying(band)
        assert one.outcome.record.outlying == pytest.approx(score.value, rel=1e-4)
        assert one.outcome.record.outlying_p == pytest.approx(score.p_value, rel=1e-3)
    scores = {one.outcome.record.outlying for one in read}
    assert len(scores) == BANDS  # of different bands


def test_some_bands_alone(folder: Path, fitted: list[BandVectors]) -> None:
    told: list[tuple[int, int]] = []
    some = set_vectors(MODEL, TrainingSet(folder), 4, lambda *done: told.append(done))
    assert told[-1] == (4, 4)
    assert len(some) == 4
    for a, b in zip(some, fitted, strict=False):
        np.testing.assert_array_equal(a.conditions, b.conditions)
        for name in KINDS:
            np.testing.assert_allclose(a.vectors[name], b.vectors[name], rtol=1e-4, atol=1e-5)


def test_a_model_without_a_score_gives_none(folder: Path, read: list[BandPosterior]) -> None:
    without = StoredRun(open_bands(folder, "0:2"), untrained_model(), samples=20)
    for one, other in zip(without.bands(), read, strict=False):
        record = one.outcome.record
        assert record.outlying is None
        assert record.outlying_p is None
        assert not record.outside
        # and all else is as with one
        assert record == other.outcome.record._replace(outlying=None, outlying_p=None)
        for a, b in zip(one.outcome.sources, other.outcome.sources, strict=True):
            np.testing.assert_array_equal(a.samples, b.samples)


def test_scores_stand_beside_the_bands_that_are_written(
    tmp_path: Path, read: list[BandPosterior]
) -> None:
    output = StoredOutput(tmp_path / "a.nc", 20, MODEL.preset.model.slots + 1, scored=True)
    for one in read:
        output.add(one)
    output.close({})
    wanted = [one.outcome.record.outlying for one in read]
    with xr.open_datatree(tmp_path / "a.nc", engine="h5netcdf") as tree:
        assert tree["observed_data"]["outlying"].values.tolist() == wanted
    per_source = [one.outcome.record.outlying for one in read for _ in one.outcome.sources]
    assert output.table()["outlying"].tolist() == per_source
    assert [tile.outlying for tile in output.tiles] == wanted
    plain = StoredOutput(tmp_path / "b.nc", 20, MODEL.preset.model.slots + 1)
    plain.add(read[0])
    plain.close({})
    assert "outlying" not in plain.table().colnames
    with xr.open_datatree(tmp_path / "b.nc", engine="h5netcdf") as tree:
        assert "outlying" not in tree["observed_data"]
