"""slotflow.stored: bands of a training set, read as the bands of an observation are."""

import json
import pickle
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from slotflow import posterior as batches
from slotflow.checkpoint import Model
from slotflow.config import Preset
from slotflow.errors import InputError
from slotflow.manifest import file_sha256, read_manifest, write_manifest
from slotflow.noise import instrument_psd, total_psd
from slotflow.parameters import F0
from slotflow.resume import Partial
from slotflow.setcheck import checked_manifest
from slotflow.stored import BandPosterior, StoredRun, match_by_frequency, open_bands
from tests.chain import untrained_model
from tests.stored_set import BANDS, COUNTS, FIRST, write_stored_set

T = untrained_model().preset.observation.duration


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[np.ndarray]]:
    folder = tmp_path_factory.mktemp("made") / "bands"
    return folder, write_stored_set(folder)


def read(folder: Path, bands: str | None = None, **options: Any) -> list[BandPosterior]:
    run = StoredRun(open_bands(folder, bands), untrained_model(), **({"samples": 40} | options))
    return list(run.bands())


@pytest.fixture(scope="module")
def everything(made: tuple[Path, list[np.ndarray]]) -> list[BandPosterior]:
    return read(made[0])


def assert_same(some: Sequence[BandPosterior], others: Sequence[BandPosterior]) -> None:
    for a, b in zip(some, others, strict=True):
        assert (a.number, a.outcome.record) == (b.number, b.outcome.record)
        np.testing.assert_array_equal(a.match, b.match)
        for one, other in zip(a.outcome.sources, b.outcome.sources, strict=True):
            np.testing.assert_array_equal(one.samples, other.samples)
            np.testing.assert_array_equal(one.log_q, other.log_q)


def test_every_loud_source_is_found_where_it_is(
    made: tuple[Path, list[np.ndarray]], everything: list[BandPosterior]
) -> None:
    """The network believes every slot, and draws about the components: the search finds them."""
    assert [band.number for band in everything] == list(range(BANDS))
    for band, true in zip(everything, made[1], strict=True):
        np.testing.assert_array_equal(band.truth, true)
        assert band.outcome.record.first_bin == FIRST
        found = [band.outcome.sources[i].f0 for i in np.flatnonzero(band.match >= 0)]
        assert len(found) == len(true)
        np.testing.assert_allclose(found, true[:, F0], atol=0.5 / T)
        assert all(source.first_bin == FIRST for source in band.outcome.sources)
        frequencies = [source.f0 for source in band.outcome.sources]
        assert frequencies == sorted(frequencies)
    # no foreground was put in: what is left is the instrument's share of the whitening density
    levels = [band.outcome.record.level_a for band in everything]
    frequency = (FIRST + 0.5 * 256) / T
    share = instrument_psd(np.array([frequency]))[0] / total_psd(np.array([frequency]))[0]
    np.testing.assert_allclose(np.mean(levels), share, rtol=0.25)


def test_a_band_does_not_depend_on_the_others(
    made: tuple[Path, list[np.ndarray]], everything: list[BandPosterior]
) -> None:
    folder, _ = made
    assert_same(read(folder, "3"), everything[3:4])
    assert_same(read(folder, "1:4"), everything[1:4])
    assert_same(read(folder / "shard-00001.h5"), everything[3:5])
    # the same bin and the same slot, but draws of their own
    one, other = (everything[n].outcome.sources[0].log_q for n in (0, 3))
    assert not np.array_equal(one, other)


def test_another_seed_and_another_draw_of_the_noise(
    made: tuple[Path, list[np.ndarray]], everything: list[BandPosterior]
) -> None:
    other = read(made[0], "0", seed=1)[0].outcome
    assert other.record == everything[0].outcome.record
    assert not np.array_equal(other.sources[0].samples, everything[0].outcome.sources[0].samples)
    again = StoredRun(open_bands(made[0], "0", draw=1), untrained_model(), samples=40)
    assert next(again.bands()).outcome.record != everything[0].outcome.record


def test_the_sets_own_density_is_taken_as_it_is(made: tuple[Path, list[np.ndarray]]) -> None:
    record = read(made[0], "0", psd="model")[0].outcome.record
    assert (record.level_a, record.level_e) == (1.0, 1.0)
    with pytest.raises(InputError, match="psd: 'running': bands of a training set are whitened"):
        read(made[0], psd="running")


def test_kept_batches_are_read_again(
    made: tuple[Path, list[np.ndarray]], everything: list[BandPosterior], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(batches, "BATCH", 2)
    run = StoredRun(
        open_bands(made[0]), untrained_model(), samples=40, partial=Partial(tmp_path / "p", "x")
    )
    stream = run.bands()
    first = [next(stream) for _ in range(3)]
    stream.close()  # type: ignore[attr-defined]
    partial, seen = Partial(tmp_path / "p", "x"), list[tuple[int, int]]()
    again = StoredRun(open_bands(made[0]), untrained_model(), samples=40, partial=partial)
    assert_same(list(again.bands(lambda *done: seen.append(done))), everything)
    assert_same(first, everything[:3])
    assert seen[0] == (4, BANDS)
    assert partial.bands == BANDS


def test_a_reader_can_go_to_another_process(
    made: tuple[Path, list[np.ndarray]], everything: list[BandPosterior]
) -> None:
    """The set is opened again there."""
    stored = open_bands(made[0])
    run = StoredRun(stored, untrained_model(), samples=40)
    plan = stored.tiles(untrained_model().preset)
    run.reader.whitening.of(plan[0])  # a file of it is open here
    reader = pickle.loads(pickle.dumps(run.reader))
    outcome = next(iter(reader(plan[3:4])))
    assert outcome.record == everything[3].outcome.record
    np.testing.assert_array_equal(outcome.q_k, everything[3].outcome.q_k)


def model_with(**sections: dict[str, Any]) -> Model:
    """The untrained model as if it had been trained on other settings."""
    model = untrained_model()
    content = model.preset.model_dump(mode="json")
    for name, values in sections.items():
        content[name] |= values
    return Model(Preset.model_validate(content), model.network, model.grid)


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("prior", "bins", 512),
        ("observation", "samples", 262_144),
        ("observation", "t0", 1e6),
        ("observation", "tukey", 0.1),
        ("observation", "tdi_generation", "2.0"),
        ("observation", "orbit", "keplerian"),
        ("observation", "arm_length", 2.4e9),
        ("observation", "orbit_lambda1", 0.5),
    ],
)
def test_what_differs_from_the_model_is_named(
    made: tuple[Path, list[np.ndarray]], section: str, name: str, value: Any
) -> None:
    model = model_with(**{section: {name: value}})
    label = "T (s)" if name == "samples" else name
    with pytest.raises(InputError, match=r"manifest\.json: ") as refused:
        StoredRun(open_bands(made[0]), model)
    assert label in str(refused.value)
    assert "the model was trained on" in str(refused.value)


def test_what_only_makes_the_result_doubtful_is_a_note(
    made: tuple[Path, list[np.ndarray]],
) -> None:
    stored = open_bands(made[0])
    assert len(StoredRun(stored, untrained_model()).notes) == 1
    prior = {"snr_min": 7.0, "fmax": 1.5e-3, "margin": 40}
    notes = StoredRun(stored, model_with(prior=prior, observation={"foreground": False})).notes
    assert "prior.snr_min 5.0, there 7.0" in notes[1]
    assert "observation.foreground True, there False" in notes[1]
    assert "margin" not in notes[1]
    assert "out of distribution" in notes[1]
    assert f"{BANDS} of {BANDS} bands have their centre outside the trained" in notes[2]


@pytest.mark.parametrize("bands", ["5:6", "0:6", "3:3", "4:2", "-1:2", "a", "1:2:3", "", "1e3"])
def test_bands_that_are_not_there(made: tuple[Path, list[np.ndarray]], bands: str) -> None:
    with pytest.raises(InputError, match=r"^bands: "):
        open_bands(made[0], bands)


def test_a_shard_holds_its_own_bands_alone(made: tuple[Path, list[np.ndarray]]) -> None:
    with pytest.raises(InputError, match=r"bands: 0:2: .*shard-00001\.h5 holds the bands 3:5"):
        open_bands(made[0] / "shard-00001.h5", "0:2")


def test_a_shard_that_was_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "bands"
    write_stored_set(folder)
    one, other = folder / "shard-00000.h5", folder / "shard-00001.h5"
    one.write_bytes(other.read_bytes())
    assert len(open_bands(folder, "3:5")) == 2  # not looked at
    with pytest.raises(InputError, match=r"shard-00000\.h5: SHA-256 differs"):
        open_bands(folder)
    manifest = read_manifest(folder)  # and where the manifest was made to fit
    shards = (manifest.shards[0]._replace(sha256=file_sha256(one)), manifest.shards[1])
    write_manifest(folder, manifest._replace(shards=shards))
    with pytest.raises(InputError, match="expected shape"):
        list(StoredRun(open_bands(folder), untrained_model(), samples=5).bands())
    with pytest.raises(InputError, match=r"shard-00007\.h5: not listed in"):
        open_bands(folder / "shard-00007.h5")


def test_sources_are_matched_by_frequency() -> None:
    true = np.array([10.0, 11.0, 30.0])
    np.testing.assert_array_equal(match_by_frequency(np.array([10.6, 10.9]), true), [0, 1])
    np.testing.assert_array_equal(match_by_frequency(np.array([10.9, 10.95]), true), [0, 1])
    np.testing.assert_array_equal(match_by_frequency(np.array([28.9, 31.1]), true), [-1, -1])
    np.testing.assert_array_equal(match_by_frequency(np.array([30.2, 30.1]), true), [-1, 2])
    assert match_by_frequency(np.array([]), true).shape == (0,)
    np.testing.assert_array_equal(match_by_frequency(np.array([1.0]), np.array([])), [-1])
    assert sum(COUNTS) == BANDS


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"samples": 2**31, "shard_size": 1}, "did not finish"),
        ({"samples": 10**30}, "samples: out of range"),
        ({"samples": float("inf")}, "field missing or wrong"),
        ({"seed": -1}, "seed: out of range"),
        ({"shard_size": 0}, "shard_size: out of range"),
        ({"settings": [1]}, "field missing or wrong"),
    ],
)
def test_a_manifest_of_a_stranger(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    """Numbers beyond sense are refused before anything is made of them."""
    folder = tmp_path / "bands"
    write_stored_set(folder)
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(InputError, match=said):
        open_bands(folder)
    if "finish" not in said:
        with pytest.raises(InputError, match=f"{said}.*make the whole set again"):
            checked_manifest(folder)
        return
    started = time.process_time()
    checked_manifest(folder)
    assert time.process_time() - started < 1.0


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("noise_scale", np.nan, "a scale of the noise: a value that cannot be"),
        ("oms_scale", 0.0, "a scale of the noise: a value that cannot be"),
        ("first_bin", -5, "first_bin: a value that cannot be"),
        ("count", 99, "count: a value that cannot be"),
        ("count", -1, "count: a value that cannot be"),
    ],
)
def test_a_shard_of_a_stranger(tmp_path: Path, name: str, value: float, said: str) -> None:
    """As its checksum says, but with values that no simulation writes."""
    folder = tmp_path / "bands"
    write_stored_set(folder)
    path = folder / "shard-00000.h5"
    with h5py.File(path, "a") as file:
        file[name][0] = value
    manifest = read_manifest(folder)
    shards = (manifest.shards[0]._replace(sha256=file_sha256(path)), manifest.shards[1])
    write_manifest(folder, manifest._replace(shards=shards))
    with pytest.raises(InputError, match=rf"shard-00000\.h5: {said}"):
        read(folder, "0:2", samples=5)
