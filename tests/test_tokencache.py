"""Cached searches: they follow their shards, resume, and do not depend on the workers."""

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
from slotflow.tokencache import ensure_searched, load_tokens

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
    first = sorted(folder.glob("components-*.npz"))[0]
    first.unlink()
    seen.clear()
    ensure_searched(data, grid, SETTINGS, 1, progress=lambda a, b: seen.append((a, b)))
    assert seen == [(1, 2), (2, 2)]
    again = load_tokens(data, SETTINGS, 1)
    for a, b in zip(whole, again, strict=True):
        assert np.array_equal(a, b, equal_nan=True)


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
    with pytest.raises(FileNotFoundError):
        load_tokens(other, SETTINGS, 1)


def test_fdot_beyond_the_coordinates_is_refused(folder: Path, grid: ResponseGrid) -> None:
    preset = Preset(prior=PRIOR.model_copy(update={"fdot_t2_max": 5.0}))
    simulate_dataset(preset, folder, 4, 5, shard_size=8, force=True)
    data = TrainingSet(folder)
    ensure_searched(data, grid, SETTINGS, 1)
    with pytest.raises(InputError, match=r"sample \d+: fdot T\^2 = .* is outside \[-0.1, 0.3\]"):
        load_tokens(data, SETTINGS, 1)
