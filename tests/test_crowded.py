"""The settings, simulations and search of bands above 2.1 mHz, where sources crowd."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slotflow import bands
from slotflow.checkpoint import Model
from slotflow.componentcache import search_hash
from slotflow.components import ComponentSearch
from slotflow.config import (
    ComponentSettings,
    ObservationSettings,
    Preset,
    PriorSettings,
    load_preset,
    parse_preset,
)
from slotflow.errors import InputError
from slotflow.labels import (
    from_local_units,
    standing_components,
    to_local_units,
    window_edges,
)
from slotflow.model import SlotFlow
from slotflow.noise import model_psd, total_psd, window_power
from slotflow.parameters import F0, FDOT, FDOT_T2_PRIOR, fdot_widening, fold
from slotflow.posterior import posterior
from slotflow.simulate.bright import cut_poisson, interpolated, response_snr, snr_psd
from slotflow.simulate.orbits import response_grid
from slotflow.simulate.population import (
    amplitude,
    chirp,
    draw_members,
    expected_number,
)
from slotflow.simulate.sample import block_bin, simulate_group
from slotflow.simulate.waveforms import accumulate, jaxgb_response
from slotflow.store import Band
from slotflow.templates import DRIFT_SPACING, drift_grid
from slotflow.tokencache import band_sigma
from slotflow.tokens import references, token_features
from slotflow.waveform import response_ae
from tests.chain import example_observation
from tests.synthetic import random_sources

CROWDED, HIGH = load_preset("crowded"), load_preset("high")
YEAR = CROWDED.observation.duration


@pytest.fixture(scope="module")
def crowded() -> list[Band]:
    """Bands of twelve groups."""
    return [b for g in range(12) for b in simulate_group(CROWDED, 5, range(64 * g, 64 * g + 3))]


def test_dumps_of_settings_that_came_later_are_left_out() -> None:
    """Names and hashes of sets, searches and models made before them must not move."""
    assert search_hash(ComponentSettings()) == "d1d717875662"
    dump = PriorSettings().model_dump(mode="json")
    assert not {"segments", "density", "confusion_share", "max_outside"} & set(dump)
    for preset in (Preset(), CROWDED, HIGH):
        assert parse_preset(preset.model_dump(mode="json"), "again") == preset
    assert CROWDED.prior.model_dump(mode="json")["segments"][1] == {"start": 2.4e-3, "window": 48}


@pytest.mark.parametrize(
    ("prior", "words"),
    [
        ({"segments": [{"start": 2e-3, "window": 32}]}, "segments must begin at fmin"),
        ({"segments": [{"start": 0, "window": 32}] * 2}, "each above the one before"),
        ({"segments": [{"start": 0, "window": 33}]}, "multiple of 2"),
        ({"segments": [{"start": 0, "window": 258}]}, "not be wider than the band"),
        ({"density": [[2e-3, 0.1], [1e-3, 0.1]]}, "density: rows of growing frequency"),
        ({"density": [[1e-3, 0.1]]}, "empty_fraction has no effect with density"),
        ({"confusion_share": [[1e-3, -0.1]]}, "values above 0"),
    ],
)
def test_bad_settings_are_named(prior: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_preset({"prior": prior}, "here")


@settings(deadline=None, max_examples=200)
@example(starts=[1e-3, 1.0999999999999998e-3], windows=[1, 30, 1, 1, 1], width=1.004866e-4)
@given(
    starts=st.lists(st.floats(1e-3, 1.1e-3), min_size=1, max_size=4, unique=True),
    windows=st.lists(st.integers(1, 64), min_size=5, max_size=5),
    width=st.floats(1e-7, 2e-4),
)
def test_every_frequency_belongs_to_one_band(
    starts: list[float], windows: list[int], width: float
) -> None:
    rows = zip([0.0, *sorted(starts)], windows, strict=False)
    segments = [{"start": f, "window": 2 * w} for f, w in rows]
    prior = PriorSettings.model_validate(
        {"bins": 128, "fmin": 1e-3, "fmax": 1e-3 + width, "segments": segments}
    )
    grid = bands.tile_grid(prior, YEAR)
    assert (grid[0].low, grid[-1].high) == bands.trained_range(prior, YEAR)
    assert all(left.high == right.low for left, right in pairwise(grid))
    for tile in grid:
        assert tile.low < tile.high
        low, high = window_edges(tile.first_bin, prior, YEAR)
        assert 0 <= low < high <= prior.bins
        assert tile.first_bin + low <= tile.low * YEAR + 1e-6
        assert tile.high * YEAR <= tile.first_bin + high + 1e-6


def test_blocks_lie_as_densely_as_the_tiles() -> None:
    prior = CROWDED.prior
    places = np.array([block_bin(CROWDED, 3, g) for g in range(2000)]) / YEAR
    tiles = np.array([tile.low for tile in bands.tile_grid(prior, YEAR)])
    for low, high in pairwise([2.1e-3, 2.4e-3, 2.6e-3, 3.3e-3, 3.6e-3, 4e-3]):
        share = np.mean((tiles >= low) & (tiles < high))
        # tiles keep two bins to the guard on either side, windows do not
        assert np.mean((places >= low) & (places < high)) == pytest.approx(share, abs=0.025)


def test_the_signal_at_3_millihertz_is_jaxgbs_sum(crowded: list[Band]) -> None:
    bins = CROWDED.prior.bins
    near = [band for band in crowded if 2.7e-3 < band.first_bin / YEAR < 3.9e-3][:6]
    assert max(band.outside_count for band in near) > 8
    for band in near:
        sources = np.concatenate([band.sources[: band.count], band.outside[: band.outside_count]])
        h, first = jaxgb_response(sources, CROWDED.observation, 512)
        f = (band.first_bin + np.arange(bins)) / YEAR
        level = np.sqrt(total_psd(f, duration=YEAR) * YEAR / 2 * window_power(0.05))
        expected = accumulate(h, first, band.first_bin, bins) / level
        loudest = np.abs(h).max() / level[0].min()
        assert np.abs(band.signal[:2] - expected[:2]).max() < 3e-4 * max(1, loudest)


def test_snr_is_against_what_stays_of_the_confusion(crowded: list[Band]) -> None:
    f = np.array([2.2e-3, 3e-3])
    model = model_psd(f, CROWDED.observation)
    confusion = (model.total - model.instrument)[0]
    expected = model.instrument[0] + confusion * [0.80, 0.08]
    np.testing.assert_allclose(snr_psd(f, CROWDED)[0], expected, rtol=1e-12)
    for band in [one for one in crowded if one.count][:8]:
        responses, firsts = response_ae(
            band.sources[: band.count], response_grid(CROWDED.observation, 256)
        )
        start = int(firsts.min())
        k = np.arange(start, int(firsts.max()) + 256)
        level = np.sqrt(snr_psd(k / YEAR, CROWDED)[:2] * 0.5 * YEAR * window_power(0.05))
        snr = response_snr(responses, firsts, level, start)
        np.testing.assert_allclose(snr, band.snr[: band.count], rtol=1e-9)


def test_numbers_follow_the_density() -> None:
    """The cut Poisson law's mean and variance against its sums, and the whole population's."""
    rng = np.random.default_rng(1)
    drawn = np.array([cut_poisson(rng, 5.0, 6) for _ in range(4000)])
    k = np.arange(7)
    p = 5.0**k / np.array([1, 1, 2, 6, 24, 120, 720])
    mean = (k * p).sum() / p.sum()
    assert drawn.max() == 6
    assert drawn.mean() == pytest.approx(mean, abs=5 * drawn.std() / 4000**0.5)


def test_targets_and_others_are_as_dense_as_the_settings_say(crowded: list[Band]) -> None:
    prior = CROWDED.prior
    centres = np.array([(b.first_bin + prior.bins // 2) / YEAR for b in crowded])
    rates = np.array([b.rate_scale for b in crowded]) * interpolated(prior.density, centres)
    widths = np.array([prior.window(f) for f in centres])
    targets = np.array([b.count for b in crowded])
    outside = np.array([b.outside_count for b in crowded])
    rest = prior.bins - widths + 2 * prior.margin
    for counts, means in ((targets, rates * widths), (outside, rates * rest)):
        assert counts.sum() == pytest.approx(means.sum(), abs=5 * means.sum() ** 0.5)
    for band in crowded:
        low, high = window_edges(band.first_bin, prior, YEAR)
        place = band.sources[: band.count, F0] * YEAR - band.first_bin
        assert ((place >= low) & (place < high)).all()


@pytest.mark.parametrize(
    ("preset", "frequency"), [(CROWDED, 2.3e-3), (CROWDED, 3e-3), (HIGH, 5e-3), (HIGH, 7e-3)]
)
def test_the_densities_are_the_populations(preset: Preset, frequency: float) -> None:
    """Members above SNR 5, against the density in which SNRs are taken."""
    rng, n = np.random.default_rng(2), 1500
    drawn = draw_members(rng, n)
    sources = np.zeros((n, 8))
    sources[:, 0], sources[:, 3], sources[:, 4] = frequency, drawn.ra, drawn.dec
    sources[:, 1] = chirp(frequency, drawn.chirp_mass)
    sources[:, 2] = amplitude(frequency, drawn.chirp_mass, drawn.distance)
    sources[:, 5] = rng.uniform(0, np.pi, n)
    sources[:, 6] = np.arccos(rng.uniform(-1, 1, n))
    grid = response_grid(preset.observation, 128)
    h, _ = response_ae(sources, grid)
    psd = snr_psd(np.array([frequency]), preset)[0, 0]
    snr = np.sqrt(4 / (YEAR * psd * np.mean(grid.window**2)) * (np.abs(h) ** 2).sum((1, 2)))
    per_bin = expected_number(frequency - 0.5 / YEAR, frequency + 0.5 / YEAR)
    expected = float(interpolated(preset.prior.density, frequency))
    assert per_bin * np.mean(snr > 5.0) == pytest.approx(expected, rel=0.2)


@pytest.mark.parametrize("frequency", [1.5e-3, 3.9e-3, 7.5e-3])
def test_local_units_hold_the_range_of_fdot(frequency: float) -> None:
    rng = np.random.default_rng(0)
    sources = fold(random_sources(rng, 50, frequency, frequency + 1e-6, YEAR))
    low, high = FDOT_T2_PRIOR
    sources[:, FDOT] = np.linspace(low, high, 50) * fdot_widening(sources[:, F0]) / YEAR**2
    first = int(frequency * YEAR)
    local = to_local_units(sources, first, YEAR)
    np.testing.assert_allclose(local[:, 1], np.linspace(low, high, 50), atol=1e-12)
    np.testing.assert_allclose(from_local_units(local, first, YEAR), sources, rtol=1e-12)


def test_drifts_of_the_templates_cover_the_prior() -> None:
    assert drift_grid(1.5e-3).tolist() == [0.5 * sum(FDOT_T2_PRIOR)]
    for frequency in (3.5e-3, 5.5e-3, 8e-3):
        drifts, widening = drift_grid(frequency), float(fdot_widening(frequency))
        ends = np.array(FDOT_T2_PRIOR) * widening
        places = np.linspace(*ends, 101)
        assert np.abs(places[:, None] - drifts).min(axis=1).max() <= 0.5 * DRIFT_SPACING + 1e-9


def _noisy(band: Band, preset: Preset, rng: np.random.Generator) -> np.ndarray:
    """The band with its instrument's noise, by the model's two densities."""
    bins = preset.prior.bins
    model = model_psd((band.first_bin + np.arange(bins)) / YEAR, preset.observation)
    noise = rng.normal(size=(3, bins)) + 1j * rng.normal(size=(3, bins))
    noise *= np.sqrt(0.5 * model.instrument / model.total)
    return (band.signal + band.foreground + noise).astype(np.complex64)


def _share_found(found_bands: list[Band], preset: Preset, loud: float) -> tuple[int, int]:
    """Targets above an SNR with a component of their own within a bin, and all of them."""
    rng = np.random.default_rng(3)
    grid = response_grid(preset.observation, preset.components.slow_samples)
    search, bins = ComponentSearch(grid, preset.components), preset.prior.bins
    hits = number = 0
    for band in found_bands:
        sigma = band_sigma(preset.observation, band.first_bin, bins)
        found = search(_noisy(band, preset, rng), band.first_bin, sigma)
        reference = references(found.components)
        count = band.count
        others = band.outside[: min(band.outside_count, len(band.outside))]
        sources = np.concatenate([band.sources[:count], others])
        snr = np.concatenate([band.snr[:count], np.full(len(others), 10.0)])
        own = standing_components(reference, sources, snr, band.first_bin, YEAR)[:count]
        place = band.sources[:count, F0] * YEAR - band.first_bin
        near = (own >= 0) & (np.abs(place - reference[own.clip(0), 0]) <= 1.0)
        wanted = band.snr[:count] > loud
        hits, number = hits + int((near & wanted).sum()), number + int(wanted.sum())
    return hits, number


def test_loud_sources_of_crowded_bands_are_found(crowded: list[Band]) -> None:
    hits, number = _share_found(crowded[:20], CROWDED, 20.0)
    assert number > 20
    assert hits >= 0.9 * number


def test_loud_sources_of_high_bands_are_found() -> None:
    high = [b for g in range(4) for b in simulate_group(HIGH, 2, range(64 * g, 64 * g + 2))]
    hits, number = _share_found(high, HIGH, 15.0)
    assert number > 5
    assert hits >= 0.9 * number


@pytest.mark.parametrize(
    ("threshold", "most", "least_level"),
    [(25.0, 4, 1.7), (CROWDED.components.threshold, 12, 1.3)],
)
def test_noise_alone_gives_few_components_and_nearly_its_level(
    threshold: float, most: int, least_level: float
) -> None:
    """Of the 32 that there is room for; the more of them, the more of the noise they take along."""
    rng = np.random.default_rng(0)
    settings = CROWDED.components.model_copy(update={"threshold": threshold})
    search = ComponentSearch(response_grid(ObservationSettings(), settings.slow_samples), settings)
    numbers, levels = [], []
    for _ in range(12):
        band = (rng.normal(size=(2, 112)) + 1j * rng.normal(size=(2, 112))).astype(np.complex64)
        found = search(band, 94_000, np.ones(2))
        numbers.append(len(found.components))
        levels.append(float(found.level.mean()))
    assert np.mean(numbers) < most
    assert least_level < np.mean(levels) < 2.3


def test_features_know_drift_by_its_range() -> None:
    """A component's fdot and its width, in units of the range, do not depend on frequency."""
    rng = np.random.default_rng(0)
    search = ComponentSearch(response_grid(ObservationSettings(), 128), ComponentSettings())
    band = (rng.normal(size=(2, 256)) + 1j * rng.normal(size=(2, 256))).astype(np.complex64)
    band[:, 120:130] += 9.0
    components = search(band, 47_000, np.ones(2)).components
    wide = components.copy()
    wide["fdot_t2"] *= 7.0
    wide["covariance"][:, 3] *= 7.0
    wide["covariance"][:, :, 3] *= 7.0
    np.testing.assert_allclose(
        token_features(wide, (32.0, 224.0), 256, 7.0),
        token_features(components, (32.0, 224.0), 256), rtol=1e-9,
    )  # fmt: skip


def test_a_year_is_read_above_3_millihertz_without_a_word_on_its_noise() -> None:
    """The level with all sources in it would be taken for wrong units."""
    shape = {"width": 16, "layers": 1, "heads": 2, "context": 16, "flow_layers": 2, "flow_bins": 4,
             "flow_hidden": 16, "psi_bins": 4, "psi_hidden": 16}  # fmt: skip
    preset = CROWDED.model_copy(update={"model": CROWDED.model.model_copy(update=shape)})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = SlotFlow(preset.model, preset.prior.bins).eval()
    model = Model(preset, network, response_grid(preset.observation, 128))
    low, high = 2.9995e-3, 3.0005e-3
    found = posterior(
        example_observation(), model, fmin=low, fmax=high, samples=20, min_probability=0.0
    )
    assert not [note for note in found.notes if "noise level" in note]
    assert found.q_k.shape[1] == preset.model.slots + 1
    assert all(0.1 < tile.level_a < 3.0 for tile in found.tiles)
    drift = np.concatenate([s.samples[:, FDOT] / fdot_widening(s.f0) for s in found.sources])
    assert ((drift * YEAR**2 >= -0.1 - 1e-3) & (drift * YEAR**2 <= 0.3 + 1e-3)).all()
    assert all(low <= s.f0 <= high for s in found.sources)
