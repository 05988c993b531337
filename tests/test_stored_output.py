"""slotflow.stored_output: bands appended to a file that other tools read as one."""

import json
import tracemalloc
from pathlib import Path

import arviz_base
import h5py
import numpy as np
import xarray as xr

from slotflow.parameters import NAMES, PARAMETERS
from slotflow.results import BandOutcome, SourcePosterior, TileRecord
from slotflow.stored import BandPosterior
from slotflow.stored_output import StoredOutput

DRAWS = 30
# band, sources found, true sources, which true source each is taken for
BANDS = ((4, 2, 1, (-1, 0)), (5, 0, 0, ()), (6, 1, 2, (1,)), (9, 1, 0, (-1,)))


def band(number: int, found: int, true: int, match: tuple[int, ...], draws: int) -> BandPosterior:
    rng = np.random.default_rng(number)
    sources = tuple(
        SourcePosterior(
            rng.uniform(0.5, 1.0, (draws, 8)), rng.standard_normal(draws), 0.9, 100 + number, slot,
            9.0 + slot,
        )
        for slot in range(found)
    )  # fmt: skip
    record = TileRecord(100 + number, 1e-3, 2e-3, 1.0, 1.1, 3, 1.5)
    outcome = BandOutcome(record, np.ones(2), rng.dirichlet(np.ones(4)), sources, None)
    truth = rng.uniform(0.5, 1.0, (true, 8))
    return BandPosterior(number, outcome, truth, np.full(true, 7.0), np.array(match, dtype=int))


def write(path: Path, draws: int = DRAWS) -> tuple[StoredOutput, list[BandPosterior]]:
    bands = [band(*row, draws) for row in BANDS]
    output = StoredOutput(path, draws, 4)
    for one in bands:
        output.add(one)
    output.close({"seed": 3, "notes": json.dumps(["a note"])})
    return output, bands


def test_it_opens_as_one_tree(tmp_path: Path) -> None:
    _, bands = write(tmp_path / "a.nc")
    sources = [source for one in bands for source in one.outcome.sources]
    with xr.open_datatree(tmp_path / "a.nc", engine="h5netcdf") as tree:
        posterior = tree["posterior"]
        assert dict(posterior.sizes) == {"chain": 1, "draw": DRAWS, "source": len(sources)}
        for i, parameter in enumerate(PARAMETERS):
            variable = posterior[parameter.name]
            assert variable.dims == ("chain", "draw", "source")
            assert variable.attrs["units"] == (parameter.unit or "1")
            expected = np.stack([source.samples[:, i] for source in sources], axis=1)
            np.testing.assert_array_equal(variable[0], expected)
        stats = tree["sample_stats"]
        np.testing.assert_array_equal(stats["band"], [4, 4, 6, 9])
        np.testing.assert_array_equal(stats["true_source"], [-1, 0, 2, -1])
        np.testing.assert_array_equal(stats["log_q"][0, :, 3], sources[3].log_q)
        np.testing.assert_array_equal(tree["observed_data"]["band"], [4, 5, 6, 9])
        np.testing.assert_array_equal(
            tree["observed_data"]["q_k"], np.stack([one.outcome.q_k for one in bands])
        )
        truth = tree["truth"]
        np.testing.assert_array_equal(truth["band"], [4, 6, 6])
        np.testing.assert_array_equal(truth["source"], [1, -1, 2])
        np.testing.assert_array_equal(truth["iota"], np.concatenate([b.truth for b in bands])[:, 6])
        # both ways round: the matched pairs are the same
        for source, row in enumerate(stats["true_source"].values.tolist()):
            assert row < 0 or truth["source"].values[row] == source
        assert tree.attrs["seed"] == 3


def test_arviz_takes_it(tmp_path: Path) -> None:
    _, bands = write(tmp_path / "a.nc")
    tree = arviz_base.convert_to_datatree(str(tmp_path / "a.nc"))
    stacked = arviz_base.extract(tree, var_names=["f0"])
    assert stacked.sizes["sample"] == DRAWS
    np.testing.assert_allclose(
        stacked.values[0].mean(), bands[0].outcome.sources[0].samples[:, 0].mean()
    )


def test_the_table_has_the_truth_beside(tmp_path: Path) -> None:
    output, bands = write(tmp_path / "a.nc")
    table = output.table()
    assert table["source"].tolist() == [0, 1, 2, 3]
    assert table["band"].tolist() == [4, 4, 6, 9]
    assert table["band"].dtype.kind == "i"
    assert np.isnan(table["true_f0"]).tolist() == [True, False, False, True]
    for i, name in enumerate(NAMES):
        assert table[f"true_{name}"][1] == bands[0].truth[0, i]
        assert table[f"true_{name}"][2] == bands[2].truth[1, i]
    assert str(table["true_f0"].unit) == "Hz"
    assert table["true_snr"][2] == 7.0
    np.testing.assert_allclose(
        table["f0"], [np.median(s.samples[:, 0]) for b in bands for s in b.outcome.sources]
    )
    assert output.found() == (4, 3, 2)


def test_bands_without_sources(tmp_path: Path) -> None:
    output = StoredOutput(tmp_path / "a.nc", 10, 4)
    output.add(band(0, 0, 0, (), 10))
    output.close({})
    assert len(output.table()) == 0
    assert "true_f0" in output.table().colnames
    with xr.open_datatree(tmp_path / "a.nc", engine="h5netcdf") as tree:
        assert tree["posterior"].sizes["source"] == 0
        assert tree["truth"].sizes["true_source"] == 0


def test_memory_does_not_grow_with_the_samples(tmp_path: Path) -> None:
    """80 sources of 10,000 draws are 58 MB on disk; a tenth of it at most is held."""
    output, one = StoredOutput(tmp_path / "a.nc", 10_000, 4), band(1, 2, 1, (-1, 0), 10_000)
    output.add(one)
    tracemalloc.start()
    for _ in range(40):
        output.add(one)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    output.close({})
    assert peak < 6e6
    with h5py.File(tmp_path / "a.nc") as file:
        assert file["posterior/ra"].shape == (1, 10_000, 82)
        np.testing.assert_array_equal(
            file["posterior/ra"][0, :, 81], one.outcome.sources[1].samples[:, 3]
        )
    assert (tmp_path / "a.nc").stat().st_size > 50e6
