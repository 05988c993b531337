"""Cached searches and tokens: they follow their shards, resume, and damage is found."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from slotflow.config import ComponentSettings, ObservationSettings, Preset, PriorSettings
from slotflow.errors import InputError
from slotflow.response import ResponseGrid
from slotflow.simulate.dataset import simulate_dataset
from slotflow.simulate.orbits import response_grid
from slotflow.store import TrainingSet
from slotflow.tokencache import ensure_searched, load_tokens, open_tokens
from slotflow.tokendata import TokenData

SETTINGS = ComponentSettings(sky_points=48, max_components=6)
PRIOR = PriorSettings(fmin=1.8e-3, fmax=1.9e-3)


@pytest.fixture(scope="module")
def grid(observation: ObservationSettings) -> ResponseGrid:
    return response_grid(observation, SETTINGS.slow_samples)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "set"
    simulate_dataset(Preset(prior=PRIOR), folder, 12, 3, shard_size=8)
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "set"))


def test_components_stand_for_loud_targets(folder: Path, grid: ResponseGrid) -> None:
    data = TrainingSet(folder)
    ensure_searched(data, grid, SETTINGS, 1)
    tokens = load_tokens(data, SETTINGS, 1)
    loud = np.nan_to_num(tokens.snr) > 20
    assert loud.sum() > 3
    assert (tokens.component[loud] >= 0).mean() > 0.8
    assert np.array_equal(tokens.sample, np.arange(12))
    assert np.array_equal(tokens.number, np.isfinite(tokens.snr).sum(axis=1))


def test_draws_differ_and_follow_each_other(folder: Path, grid: ResponseGrid) -> None:
    data = TrainingSet(folder)
    ensure_searched(data, grid, SETTINGS, 2)
    tokens = load_tokens(data, SETTINGS, 2)
    assert np.array_equal(tokens.sample, np.tile(np.arange(12), 2))
    assert np.array_equal(tokens.sources[:12], tokens.sources[12:])
    assert not np.allclose(tokens.reference[:12], tokens.reference[12:])


def test_interrupted_search_goes_on(folder: Path, grid: ResponseGrid) -> None:
    data = TrainingSet(folder)
    seen: list[tuple[int, int]] = []
    ensure_searched(data, grid, SETTINGS, 1, progress=lambda a, b: seen.append((a, b)))
    assert seen == [(0, 2), (1, 2), (2, 2)]
    whole = load_tokens(data, SETTINGS, 1)
    for kind in ("components-*.npz", "tokens-*.bin"):
        sorted(folder.glob(kind))[0].unlink()
    seen.clear()
    ensure_searched(data, grid, SETTINGS, 1, progress=lambda a, b: seen.append((a, b)))
    assert seen == [(1, 2), (2, 2)]
    assert_equal(whole, load_tokens(data, SETTINGS, 1))


def assert_equal(a: TokenData, b: TokenData) -> None:
    for name in TokenData._fields:
        assert np.array_equal(getattr(a, name), getattr(b, name), equal_nan=True), name


def test_tokens_follow_from_components(
    folder: Path, grid: ResponseGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lost or damaged tokens are made of the components that stand there, without a search."""
    data = TrainingSet(folder)
    ensure_searched(data, grid, SETTINGS, 1)
    whole = load_tokens(data, SETTINGS, 1)
    lost, damaged = sorted(folder.glob("tokens-*.bin"))
    lost.unlink()
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)

    def refuse(*_: object) -> None:
        raise AssertionError("searched again")

    with monkeypatch.context() as patch:
        patch.setattr("slotflow.tokencache.ComponentSearch", refuse)
        ensure_searched(data, grid, SETTINGS, 1)
    assert_equal(whole, load_tokens(data, SETTINGS, 1))


def test_damaged_components_are_searched_again(folder: Path, grid: ResponseGrid) -> None:
    data = TrainingSet(folder)
    ensure_searched(data, grid, SETTINGS, 1)
    whole = load_tokens(data, SETTINGS, 1)
    for path in folder.glob("tokens-*.bin"):
        path.unlink()
    cut, flipped = sorted(folder.glob("components-*.npz"))
    cut.write_bytes(cut.read_bytes()[:900])
    content = bytearray(flipped.read_bytes())
    content[len(content) // 2] ^= 1
    flipped.write_bytes(content)
    ensure_searched(data, grid, SETTINGS, 1)
    assert_equal(whole, load_tokens(data, SETTINGS, 1))


def test_damaged_tokens_are_one_error(folder: Path, grid: ResponseGrid) -> None:
    data = TrainingSet(folder)
    ensure_searched(data, grid, SETTINGS, 1)
    store = open_tokens(data, SETTINGS, 1)
    path = store.paths[0]
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(InputError, match=rf"{path.name}: damaged: expected \d+ bytes; got \d+"):
        open_tokens(data, SETTINGS, 1)
    with pytest.raises(InputError, match=f"{path.name}: damaged: shorter than it was"):
        store.rows(np.arange(8))
    path.write_bytes(b"x" + whole[1:])
    with pytest.raises(InputError, match=f"{path.name}: damaged: its header"):
        open_tokens(data, SETTINGS, 1)
    store.close()
    path.write_bytes(whole[:-9] + b"x" + whole[-8:])
    with pytest.raises(InputError, match=f"{path.name}: damaged: record 7 "):
        store.rows(np.arange(12))
    store.close()
    path.unlink()
    with pytest.raises(InputError, match=f"{path.name}: cannot be read: No such file"):
        store.rows(np.arange(12))
    ensure_searched(data, grid, SETTINGS, 1)
    assert path.read_bytes() == whole


def test_workers_make_the_same_files(folder: Path, tmp_path: Path, grid: ResponseGrid) -> None:
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    ensure_searched(TrainingSet(folder), grid, SETTINGS, 1)
    ensure_searched(TrainingSet(other), grid, SETTINGS, 1, workers=2)
    names = sorted(path.name for path in folder.glob("tokens-*.bin"))
    assert len(names) == 2
    for name in names:
        assert (folder / name).read_bytes() == (other / name).read_bytes()


def test_another_set_in_the_same_folder_is_searched_anew(folder: Path, grid: ResponseGrid) -> None:
    """Neither other seeds nor more samples may meet the old components."""
    preset = Preset(prior=PRIOR)
    ensure_searched(TrainingSet(folder), grid, SETTINGS, 1)
    simulate_dataset(preset, folder, 18, 3, shard_size=8)  # the partial shard grows
    longer = TrainingSet(folder)
    ensure_searched(longer, grid, SETTINGS, 1)
    assert len(load_tokens(longer, SETTINGS, 1).number) == 18
    simulate_dataset(preset, folder, 12, 4, shard_size=8, force=True)
    other = TrainingSet(folder)
    with pytest.raises(InputError, match="no such file: the search of components is not done"):
        load_tokens(other, SETTINGS, 1)


def test_fdot_beyond_the_coordinates_is_refused(folder: Path, grid: ResponseGrid) -> None:
    preset = Preset(prior=PRIOR.model_copy(update={"fdot_t2_max": 5.0}))
    simulate_dataset(preset, folder, 4, 5, shard_size=8, force=True)
    with pytest.raises(InputError, match=r"sample \d+: fdot T\^2 = .* is outside \[-0.1, 0.3\]"):
        ensure_searched(TrainingSet(folder), grid, SETTINGS, 1)
