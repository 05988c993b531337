"""Simulated bands: reproducible, as the prior says, and equal to an independent sum."""

import dataclasses
from pathlib import Path

import h5py
import numpy as np
import pytest

from slotflow.config import ObservationSettings, PopulationSettings, Preset, PriorSettings
from slotflow.errors import InputError
from slotflow.manifest import MANIFEST, read_manifest
from slotflow.noise import instrument_psd, total_psd, window_power
from slotflow.response import response
from slotflow.simulate import bright, dataset, sample
from slotflow.simulate.orbits import response_grid
from slotflow.simulate.waveforms import accumulate, jaxgb_response
from slotflow.store import Band, TrainingSet

PRESET = Preset()
T = PRESET.observation.duration
K = PRESET.prior.bins


@pytest.fixture(scope="module")
def bands() -> list[Band]:
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
    """Against jaxgb: an independent evaluation of the labels."""
    for band in bands[:20]:
        sources = np.concatenate([band.sources[: band.count], band.outside[: band.outside_count]])
        h, first = jaxgb_response(sources, PRESET.observation, 512)
        f = (band.first_bin + np.arange(K)) / T
        level = np.sqrt(total_psd(f, duration=T) * T / 2 * window_power(0.05))
        expected = accumulate(h, first, band.first_bin, K) / level
        # relative to the loudest source, also where it lies outside and only its foot is here
        loudest = np.abs(h).max() / level[0].min()
        assert np.abs(band.signal[:2] - expected[:2]).max() < 3e-4 * max(1, loudest)
        np.testing.assert_array_equal(band.signal[2], 0.0)
        np.testing.assert_array_equal(band.foreground[2], 0.0)


def test_the_snr_is_the_recorded_one(bands: list[Band]) -> None:
    """By a full-length, un-windowed response: SNR^2 = 4 / (T S) sum |h|^2."""
    grid = response_grid(PRESET.observation, 1024, window=False)
    sources = np.concatenate([b.sources[: b.count] for b in bands])
    recorded = np.concatenate([b.snr[: b.count] for b in bands])
    h, first = response(sources, grid)
    f = (first[:, None] + np.arange(1024)) / T
    psd = total_psd(f.ravel(), duration=T)[0].reshape(f.shape)
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

    def contents() -> dict[str, bytes]:
        return {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.suffix in (".h5", ".json")}

    whole = contents()
    manifest = read_manifest(tmp_path)
    partial = manifest._replace(shards=(manifest.shards[2],))
    dataset.write_manifest(tmp_path, partial)
    with pytest.raises(InputError, match="did not finish"):
        TrainingSet(tmp_path)
    dataset.simulate_dataset(PRESET, tmp_path, 6, 5, shard_size=2)
    assert contents() == whole
    (tmp_path / MANIFEST).unlink()
    with pytest.raises(InputError, match="not a training set"):
        dataset.simulate_dataset(PRESET, tmp_path, 6, 5, shard_size=2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"samples": 0}, "samples"),
        ({"workers": 0}, "workers"),
        ({"shard_size": 0}, "shard_size"),
        ({"seed": -1}, "seed"),
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


def changed(**prior: object) -> Preset:
    return Preset(prior=PriorSettings(**prior))


def test_noise_amplitudes_are_drawn_and_used(tmp_path: Path) -> None:
    """By the instrument's own formula: each noise alone scales its part of the density."""
    preset = changed(
        oms_scale_min=0.5, oms_scale_max=2.0, acceleration_scale_min=0.25,
        acceleration_scale_max=4.0, noise_scale_min=3.0, noise_scale_max=3.0,
    )  # fmt: skip
    dataset.simulate_dataset(preset, tmp_path, 64, 3, shard_size=64)
    data = TrainingSet(tmp_path)
    labels = data.arrays()
    assert labels.oms_scale.min() > 0.5
    assert labels.oms_scale.max() < 2.0
    assert np.log(labels.acceleration_scale).std() == pytest.approx(np.log(16) / 12**0.5, rel=0.3)
    np.testing.assert_allclose(labels.noise_scale, 3.0)
    ratio = []
    for i in range(64):
        f = (labels.first_bin[i] + np.arange(K)) / T
        only_oms = instrument_psd(f, acceleration_scale=1e-9)
        only_acceleration = instrument_psd(f, oms_scale=1e-9)
        expected = 9.0 * (
            labels.oms_scale[i] ** 2 * only_oms
            + labels.acceleration_scale[i] ** 2 * only_acceleration
        )
        expected /= total_psd(f, duration=T)
        with h5py.File(tmp_path / "shard-00000.h5") as file:
            noise = data.band(i) - file["signal"][i] - file["foreground"][i]
        ratio.append(np.mean(np.abs(noise) ** 2 / expected))
    assert np.mean(ratio) == pytest.approx(1.0, abs=0.02)
    assert np.std(ratio) < 0.06


@pytest.mark.parametrize(
    ("law", "moment"),
    [("log_uniform", lambda r: (r - 1) / np.log(r)), ("uniform", lambda r: 0.5 * (1 + r)),
     ("euclidean", lambda r: 1.5 * (1 - r**-2.0) / (1 - r**-3.0))],
)  # fmt: skip
def test_snr_laws_have_their_mean(law: str, moment) -> None:
    prior = PriorSettings(snr_law=law, snr_min=5.0, snr_max=50.0)
    snr = bright._draw_snr(np.random.default_rng(1), prior, 40_000)
    assert snr.min() >= 5.0
    assert snr.max() <= 50.0
    assert snr.mean() == pytest.approx(5.0 * moment(10.0), rel=0.02)


def test_a_galactic_sky_is_the_galaxys() -> None:
    """Half of the sources within 30 degrees of the Galactic centre; isotropic: 7%."""
    centre = np.radians([266.405, -28.936])
    near = {}
    for sky in ("isotropic", "galactic"):
        ra, dec = bright._draw_sky(np.random.default_rng(2), changed(sky=sky), 5000)
        cosine = np.sin(dec) * np.sin(centre[1])
        cosine += np.cos(dec) * np.cos(centre[1]) * np.cos(ra - centre[0])
        near[sky] = np.mean(cosine > np.cos(np.radians(30)))
    assert near["isotropic"] == pytest.approx(0.067, abs=0.015)
    assert near["galactic"] > 0.35


def test_without_foreground_the_density_is_the_instruments() -> None:
    preset = Preset(observation=ObservationSettings(foreground=False))
    band = sample.simulate_band(preset, 5, 3)
    assert band.members == band.removed == 0
    np.testing.assert_array_equal(band.foreground, 0.0)
    sources = band.sources[: band.count]
    grid = response_grid(PRESET.observation, 1024, window=False)
    h, first = response(sources, grid)
    f = (first[:, None] + np.arange(1024)) / T
    psd = instrument_psd(f.ravel())[0].reshape(f.shape)
    snr = np.sqrt((4 / T * (np.abs(h[:, :2]) ** 2).sum(axis=1) / psd).sum(axis=1))
    np.testing.assert_allclose(snr, band.snr[: band.count], rtol=0.03)


def test_a_denser_population_has_more_members() -> None:
    dense = Preset(population=PopulationSettings(density=2 * 5.3e6))
    one = [sample.simulate_band(PRESET, 5, i) for i in range(6)]
    two = [sample.simulate_band(dense, 5, i) for i in range(6)]
    ratio = sum(b.members + b.removed for b in two) / sum(b.members + b.removed for b in one)
    assert ratio == pytest.approx(2.0, rel=0.05)
