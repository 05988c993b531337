"""Training sets on disk: what is written comes back, and what is damaged is named."""

import dataclasses
import json
import pickle
from pathlib import Path

import h5py
import numpy as np
import pytest

from slotflow import manifest, store
from slotflow.config import Preset, PriorSettings
from slotflow.errors import InputError, NonFiniteError
from slotflow.noise import instrument_psd, total_psd

K, MOST, SEED = 64, 3, 11


def settings() -> dict:
    prior = {"bins": K, "max_sources": MOST, "wide_window": 48, "narrow_window": 24}
    preset = Preset.model_validate({"prior": prior})
    return preset.model_dump(mode="json", include={"observation", "prior"})


def make_band(i: int) -> store.Band:
    rng = np.random.default_rng(i)

    def spectrum() -> np.ndarray:
        values = rng.standard_normal((3, K, 2)).astype(np.float32).view(np.complex64)[..., 0]
        values[2] = 0.0
        return values

    count = i % (MOST + 1)
    sources = np.full((MOST, 8), np.nan)
    sources[:count] = rng.random((count, 8))
    snr = np.full(MOST, np.nan)
    snr[:count] = 5.0 + rng.random(count)
    outside = np.full((PriorSettings().max_outside, 8), np.nan)
    return store.Band(
        40_000 + i, spectrum(), spectrum(), sources, snr, count, outside, 0, 1.0 + i, 100 + i, i
    )


def write_set(directory: Path, rows: tuple[int, ...] = (5, 5, 2)) -> list[store.Band]:
    directory.mkdir(parents=True, exist_ok=True)
    bands = [make_band(i) for i in range(sum(rows))]
    entries, start = [], 0
    for number, n in enumerate(rows):
        part = bands[start : start + n]
        entries.append(
            store.write_shard(directory / manifest.shard_name(number), part, {"seed": 1})
        )
        start += n
    listed = manifest.Manifest(
        manifest.SCHEMA_VERSION, len(bands), SEED, rows[0], settings(), tuple(entries)
    )
    manifest.write_manifest(directory, listed)
    return bands


def edit_manifest(directory: Path, **changes: object) -> None:
    path = directory / manifest.MANIFEST
    content = json.loads(path.read_text("utf-8")) | changes
    path.write_text(json.dumps(content), "utf-8")


def test_labels_come_back(tmp_path: Path) -> None:
    bands = write_set(tmp_path)
    data = store.TrainingSet(tmp_path, verify=True)
    assert len(data) == 12
    assert data.seed == SEED
    assert data.settings == settings()
    assert data.prior.bins == K
    arrays = data.arrays()
    for field in dataclasses.fields(store.Arrays):
        expected = np.stack([np.asarray(getattr(b, field.name)) for b in bands])
        np.testing.assert_array_equal(getattr(arrays, field.name), expected)
    for i, band in enumerate(bands):
        np.testing.assert_array_equal(data.sources(i), band.sources[: band.count])
    data.close()


def test_a_band_is_signal_foreground_and_noise(tmp_path: Path) -> None:
    bands = write_set(tmp_path)
    data = store.TrainingSet(tmp_path)
    rest = np.stack(
        [data.band(i, d) - bands[i].signal - bands[i].foreground for i in range(12) for d in (0, 1)]
    )
    f = (40_000 + np.arange(K)) / data.observation.duration
    ratio = instrument_psd(f) / total_psd(f)
    power = np.mean(np.abs(rest) ** 2, axis=(0, 2))
    np.testing.assert_allclose(power, ratio.mean(axis=1), rtol=0.15)
    assert data.band(0).dtype == np.complex64
    assert data.band(0).shape == (3, K)


def test_noise_depends_on_seed_sample_and_draw_alone(tmp_path: Path) -> None:
    write_set(tmp_path / "a")
    write_set(tmp_path / "b", (4, 4, 4))  # other shards
    one, two = store.TrainingSet(tmp_path / "a"), store.TrainingSet(tmp_path / "b")
    for i in (0, 4, 5, 11):
        np.testing.assert_array_equal(one.band(i, 3), two.band(i, 3))
        assert (one.band(i, 3) != one.band(i, 4)).any()
    np.testing.assert_array_equal(
        one.bands(3, 12, 2), np.stack([one.band(i, 2) for i in range(3, 12)])
    )
    assert one.bands(4, 4).shape == (0, 3, K)
    edit_manifest(tmp_path / "b", seed=SEED + 1)
    assert (store.TrainingSet(tmp_path / "b").band(0) != one.band(0)).any()


def test_it_can_be_pickled_after_reading(tmp_path: Path) -> None:
    write_set(tmp_path)
    data = store.TrainingSet(tmp_path)
    expected = data.band(7)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(data)).band(7), expected)


def test_few_files_are_open_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_OPEN_FILES", 2)
    bands = write_set(tmp_path, (2, 2, 2, 2, 2))
    data = store.TrainingSet(tmp_path)
    assert [len(data.sources(i)) for i in range(10)] == [b.count for b in bands]
    assert len(data._files) == 2


@pytest.mark.parametrize("index", [-1, 12])
def test_no_such_sample(tmp_path: Path, index: int) -> None:
    write_set(tmp_path)
    with pytest.raises(IndexError, match=str(index)):
        store.TrainingSet(tmp_path).band(index)


def test_equal_bands_make_equal_files(tmp_path: Path) -> None:
    bands = [make_band(i) for i in range(3)]
    one = store.write_shard(tmp_path / "shard-00000.h5", bands, {"seed": 1})
    two = store.write_shard(tmp_path / "shard-00001.h5", bands, {"seed": 1})
    assert one.sha256 == two.sha256
    assert sorted(p.name for p in tmp_path.iterdir()) == ["shard-00000.h5", "shard-00001.h5"]


def test_a_spectrum_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    bad = make_band(1)
    bad.signal[0, 3] = np.nan
    with pytest.raises(NonFiniteError, match=r"shard-00000.*sample 1 .*signal"):
        store.write_shard(tmp_path / "shard-00000.h5", [make_band(0), bad], {})
    with pytest.raises(ValueError, match="at least one"):
        store.write_shard(tmp_path / "shard-00000.h5", [], {})


def test_a_stored_nan_is_named(tmp_path: Path) -> None:
    write_set(tmp_path)
    with h5py.File(tmp_path / "shard-00001.h5", "r+") as file:
        file["foreground"][3, 0, 5] = np.inf
    data = store.TrainingSet(tmp_path)
    data.band(5)
    with pytest.raises(NonFiniteError, match=r"shard-00001\.h5: sample 3 .*foreground"):
        data.band(8)
    with pytest.raises(InputError, match=r"shard-00001\.h5: SHA-256"):
        store.TrainingSet(tmp_path, verify=True)


def test_a_flipped_byte_is_found(tmp_path: Path) -> None:
    write_set(tmp_path)
    path = tmp_path / "shard-00000.h5"
    with h5py.File(path) as file:
        offset = file["signal"].id.get_chunk_info(0).byte_offset
    content = bytearray(path.read_bytes())
    content[offset + 100] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"shard-00000\.h5: signal: damaged"):
        store.TrainingSet(tmp_path).band(0)


def break_missing(d: Path) -> None:
    (d / manifest.MANIFEST).unlink()


def break_json(d: Path) -> None:
    (d / manifest.MANIFEST).write_text("{", "utf-8")


def break_list(d: Path) -> None:
    (d / manifest.MANIFEST).write_text("[]", "utf-8")


def break_version(d: Path) -> None:
    edit_manifest(d, schema_version=99)


def break_field(d: Path) -> None:
    edit_manifest(d, seed="many")


def break_path(d: Path) -> None:
    edit_manifest(d, shards=[{"name": "../shard-00000.h5", "rows": 5, "sha256": ""}])


def break_rows(d: Path) -> None:
    edit_manifest(d, samples=40)


def break_settings(d: Path) -> None:
    edit_manifest(d, settings={"observation": {}, "prior": {"binz": 3}})


def break_shard(d: Path) -> None:
    (d / "shard-00001.h5").unlink()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (break_missing, "not a training set"),
        (break_json, "cannot be read"),
        (break_list, "schema_version"),
        (break_version, "schema_version.*99"),
        (break_field, "manifest.json: field"),
        (break_path, "shards: expected a name"),
        (break_rows, "samples: 40"),
        (break_settings, "binz"),
        (break_shard, r"shard-00001\.h5.*missing"),
    ],
)
def test_a_damaged_set_is_refused_when_opened(tmp_path: Path, damage, words: str) -> None:
    write_set(tmp_path)
    damage(tmp_path)
    with pytest.raises(InputError, match=words):
        store.TrainingSet(tmp_path)


def shard_garbage(path: Path) -> None:
    path.write_bytes(b"not HDF5")


def shard_version(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file.attrs["schema_version"] = 7


def shard_without(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["snr"]


def shard_shape(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["signal"]
        file["signal"] = np.zeros((5, 3, 9), dtype=np.complex64)


def shard_type(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["count"]
        file["count"] = np.array([b"a"] * 5)


def shard_link(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["count"]
        file["count"] = h5py.ExternalLink("shard-00001.h5", "/count")


def shard_virtual(path: Path) -> None:
    layout = h5py.VirtualLayout((5,), dtype=np.int64)
    layout[:] = h5py.VirtualSource("shard-00001.h5", "count", shape=(5,))
    with h5py.File(path, "r+") as file:
        del file["count"]
        file.create_virtual_dataset("count", layout)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (shard_garbage, "not a readable HDF5"),
        (shard_version, "schema_version.*7"),
        (shard_without, "'snr' is missing"),
        (shard_shape, "signal: expected shape"),
        (shard_type, "count: unexpected type"),
        (shard_link, "external link"),
        (shard_virtual, "other files"),
    ],
)
def test_a_damaged_shard_is_refused_when_read(tmp_path: Path, damage, words: str) -> None:
    write_set(tmp_path)
    damage(tmp_path / "shard-00000.h5")
    data = store.TrainingSet(tmp_path)
    with pytest.raises(InputError, match=rf"shard-00000\.h5.*{words}"):
        data.band(0)
    assert data.band(6).shape == (3, K)  # the others can be read
