"""Simulated bands: reproducible, as the prior says, and equal to an independent sum."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from slotflow.config import Preset
from slotflow.errors import InputError
from slotflow.manifest import MANIFEST, read_manifest
from slotflow.noise import total_psd, window_power
from slotflow.response import response
from slotflow.simulate import dataset, sample
from slotflow.simulate.foreground import POOL_SIZE
from slotflow.simulate.orbits import response_grid
from slotflow.simulate.waveforms import accumulate
from slotflow.store import Band, TrainingSet

PRESET = Preset()
T = PRESET.observation.duration
K = PRESET.prior.bins


@pytest.fixture(autouse=True, scope="module")
def _small_pools():
    """Fewer foreground binaries than a training set has: faster."""
    patch = pytest.MonkeyPatch()
    patch.setattr(sample, "POOL_SIZE", 256)
    sample._pool.cache_clear()
    yield
    patch.undo()
    sample._pool.cache_clear()


@pytest.fixture(scope="module")
def bands(_small_pools) -> list[Band]:
    """Three groups of one set."""
    return [
        b for g in range(3) for b in dataset.simulate_group(PRESET, 5, range(g * 64, g * 64 + 64))
    ]


def same(one: Band, two: Band) -> bool:
    return all(
        np.array_equal(
            getattr(one, f.name), getattr(two, f.name), equal_nan=np.ndim(getattr(one, f.name)) > 0
        )
        for f in dataclasses.fields(Band)
    )


@pytest.mark.parametrize("index", [0, 63, 64, 150])
def test_a_sample_depends_on_seed_and_index_alone(bands: list[Band], index: int) -> None:
    assert same(dataset.simulate_band(PRESET, 5, index), bands[index])
    assert not same(dataset.simulate_band(PRESET, 6, index), bands[index])


def test_the_signal_is_the_sum_of_the_recorded_sources(bands: list[Band]) -> None:
    """Against the compiled response: an independent evaluation of the labels."""
    grid = response_grid(PRESET.observation, sample.RESPONSE_BINS)
    for band in bands[:20]:
        sources = np.concatenate([band.sources[: band.count], band.outside[: band.outside_count]])
        h, first = response(sources, grid)
        f = (band.first_bin + np.arange(K)) / T
        level = np.sqrt(total_psd(f) * T / 2 * window_power(0.05))
        expected = accumulate(h, first, band.first_bin, K) / level
        assert np.abs(band.signal[:2] - expected[:2]).max() < 1e-5 * max(1, np.abs(expected).max())
        np.testing.assert_array_equal(band.signal[2], 0.0)
        np.testing.assert_array_equal(band.foreground[2], 0.0)


def test_the_snr_is_the_recorded_one(bands: list[Band]) -> None:
    """By a full-length, un-windowed response: SNR^2 = 4 / (T S) sum |h|^2."""
    grid = response_grid(PRESET.observation, 1024, window=False)
    sources = np.concatenate([b.sources[: b.count] for b in bands])
    recorded = np.concatenate([b.snr[: b.count] for b in bands])
    h, first = response(sources, grid)
    f = (first[:, None] + np.arange(1024)) / T
    psd = total_psd(f.ravel())[0].reshape(f.shape)
    snr = np.sqrt((4 / T * (np.abs(h[:, :2]) ** 2).sum(axis=1) / psd).sum(axis=1))
    # the window weighs the year's ends less: 3% of the year
    np.testing.assert_allclose(snr, recorded, rtol=0.03)


def test_targets_lie_in_the_window_and_follow_the_prior(bands: list[Band]) -> None:
    prior = PRESET.prior
    for band in bands:
        centre = (band.first_bin + K // 2) / T
        assert prior.fmin <= centre <= prior.fmax
        width = 192 if centre < 1.7e-3 else 96
        low, high = dataset.window_of_interest(band.first_bin, prior, T)
        assert high - low == width
        assert low - band.first_bin == band.first_bin + K - high  # central
        place = band.sources[: band.count, 0] * T
        assert ((place >= low) & (place < high)).all()
        assert (np.diff(place) >= 0).all()
        other = band.outside[: band.outside_count, 0] * T
        assert ((other < low) | (other >= high)).all()
        assert ((other >= band.first_bin - 32) & (other < band.first_bin + K + 32)).all()
        assert np.isnan(band.sources[band.count :]).all()
        assert np.isnan(band.snr[band.count :]).all()
    s = np.concatenate([b.sources[: b.count] for b in bands])
    assert ((s[:, 1] * T**2 >= -0.1) & (s[:, 1] * T**2 <= 0.3)).all()
    assert ((s[:, 5] >= 0) & (s[:, 5] < np.pi / 2)).all()
    snr = np.concatenate([b.snr[: b.count] for b in bands])
    assert ((snr >= 5) & (snr <= 100)).all()
    assert np.log(snr).mean() == pytest.approx(np.log(np.sqrt(500)), abs=0.15)
    counts = np.bincount([b.count for b in bands], minlength=5) / len(bands)
    np.testing.assert_allclose(counts, [0.1, 0.225, 0.225, 0.225, 0.225], atol=0.1)


def test_outside_is_as_dense_as_inside(bands: list[Band]) -> None:
    prior = PRESET.prior
    widths = np.array([prior.window((b.first_bin + K // 2) / T) for b in bands])
    expected = 0.9 * 2.5 / widths * (K - widths + 64)
    total = sum(b.outside_count for b in bands)
    assert total == pytest.approx(expected.sum(), abs=4 * np.sqrt(expected.sum()))


def test_blocks_cover_the_range_evenly() -> None:
    places = np.array([sample.block_bin(PRESET, 9, g) for g in range(40)]) / T
    edges = np.linspace(1.0e-3, 2.1e-3, 6)
    assert np.histogram(places, edges)[0].min() >= 6
    assert places.min() >= 0.999e-3
    assert places.max() <= 2.101e-3


def test_rate_scale_is_recorded_and_used(bands: list[Band]) -> None:
    scale = np.array([b.rate_scale for b in bands])
    assert ((scale >= 0.5) & (scale <= 2.0)).all()
    f = np.array([(b.first_bin + K // 2) / T for b in bands])
    members = np.array([b.members + b.removed for b in bands])
    expected = scale * 5.3e6 * (f / 3e-3) ** (-11 / 3) * (K + 64) / T
    assert ((members - expected) / np.sqrt(expected)).std() == pytest.approx(1.0, abs=0.25)
    power = np.array([np.mean(np.abs(b.foreground[:2]) ** 2) for b in bands])
    assert np.corrcoef(np.log(scale), np.log(power))[0, 1] > 0.7
    assert 0.2 < power.mean() < 1.5


def test_a_set_is_resumed_extended_and_protected(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    dataset.simulate_dataset(
        PRESET, tmp_path, 10, 5, shard_size=4, progress=lambda a, b: seen.append((a, b))
    )
    assert seen == [(0, 10), (4, 10), (8, 10), (10, 10)]
    first = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in tmp_path.glob("shard-*")}
    data = TrainingSet(tmp_path, verify=True)
    assert len(data) == 10
    np.testing.assert_array_equal(
        data.arrays().first_bin[3], dataset.simulate_band(PRESET, 5, 3).first_bin
    )

    # a shard that is lost or damaged is made again, bit by bit; the others stay
    (tmp_path / "shard-00000.h5").unlink()
    (tmp_path / "shard-00002.h5").write_bytes(b"damaged")
    dataset.simulate_dataset(PRESET, tmp_path, 10, 5, shard_size=4)
    again = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in tmp_path.glob("shard-*")}
    assert {k: v[0] for k, v in again.items()} == {k: v[0] for k, v in first.items()}
    assert again["shard-00001.h5"] == first["shard-00001.h5"]

    dataset.simulate_dataset(PRESET, tmp_path, 13, 5, shard_size=4)
    assert len(TrainingSet(tmp_path, verify=True)) == 13
    assert (tmp_path / "shard-00000.h5").read_bytes() == first["shard-00000.h5"][0]

    other = PRESET.model_copy(update={"prior": PRESET.prior.model_copy(update={"snr_max": 50.0})})
    with pytest.raises(InputError, match=r"prior\.snr_max: made with 100\.0, now 50\.0; give"):
        dataset.simulate_dataset(other, tmp_path, 13, 5, shard_size=4)
    with pytest.raises(InputError, match="seed: made with 5, now 6"):
        dataset.simulate_dataset(PRESET, tmp_path, 13, 6, shard_size=4)
    with pytest.raises(InputError, match="samples"):
        dataset.simulate_dataset(PRESET, tmp_path, 5, 5, shard_size=4)
    assert len(TrainingSet(tmp_path, verify=True)) == 13
    dataset.simulate_dataset(other, tmp_path, 3, 5, shard_size=4, force=True)
    assert TrainingSet(tmp_path, verify=True).prior.snr_max == 50.0
    assert len(list(tmp_path.glob("shard-*"))) == 1


def test_a_run_broken_off_with_gaps_is_resumed(tmp_path: Path) -> None:
    """Workers may finish a later shard first."""
    dataset.simulate_dataset(PRESET, tmp_path, 6, 5, shard_size=2)
    whole = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    manifest = read_manifest(tmp_path)
    partial = manifest._replace(shards=(manifest.shards[2],))
    dataset.write_manifest(tmp_path, partial)
    with pytest.raises(InputError, match="did not finish"):
        TrainingSet(tmp_path)
    dataset.simulate_dataset(PRESET, tmp_path, 6, 5, shard_size=2)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == whole
    (tmp_path / MANIFEST).unlink()
    with pytest.raises(InputError, match="not a training set"):
        dataset.simulate_dataset(PRESET, tmp_path, 6, 5, shard_size=2)


@pytest.mark.slow
def test_files_do_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    for workers in (1, 2):
        with pytest.MonkeyPatch.context() as patch:
            # full pools, as the worker processes have them
            patch.setattr(sample, "POOL_SIZE", POOL_SIZE)
            sample._pool.cache_clear()
            dataset.simulate_dataset(PRESET, tmp_path / str(workers), 6, 5, workers, shard_size=3)
    sample._pool.cache_clear()
    one, two = (read_manifest(tmp_path / str(w)) for w in (1, 2))
    assert one == two


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"samples": 0}, "samples"),
        ({"workers": 0}, "workers"),
        ({"shard_size": 0}, "shard_size"),
        ({"seed": -1}, "seed"),
        ({"observation": {"tdi_generation": "2.0"}}, "tdi_generation"),
        ({"prior": {"fmin": 5e-6}}, "fmin"),
        ({"prior": {"fmax": 8.33e-3}}, "fmax"),
    ],
)
def test_bad_requests_are_named(tmp_path: Path, arguments: dict, words: str) -> None:
    sections = {k: arguments.pop(k) for k in ("observation", "prior") if k in arguments}
    preset = Preset.model_validate(sections)
    with pytest.raises(InputError, match=words):
        dataset.simulate_dataset(
            preset, tmp_path / "set", **({"samples": 2, "seed": 1} | arguments)
        )
    assert not (tmp_path / "set").exists()


def test_a_smaller_band_and_a_wider_frequency_range(tmp_path: Path) -> None:
    prior = {"bins": 64, "wide_window": 32, "narrow_window": 32, "fmin": 3.5e-3, "fmax": 4e-3}
    preset = Preset.model_validate({"prior": prior})
    band = dataset.simulate_group(preset, 1, range(32))
    assert band[0].signal.shape == (3, 64)
    spread = np.concatenate([b.sources[: b.count, 1] for b in band]) * T**2
    assert spread.max() > 0.3  # the prior widens above 3 mHz
    assert spread.max() <= 0.3 * (4e-3 / 3e-3) ** (11 / 3) * 1.01
