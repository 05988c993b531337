"""Gaps: their law, the mask, and a masked band against the masked series."""

import numpy as np
import pytest
import scipy.fft
from hypothesis import given, settings
from hypothesis import strategies as st

from slotflow.config import GapSettings, ObservationSettings, Preset
from slotflow.gaps import MASK_SAMPLES, band_mask, cut, draw_gaps, gap_mask
from slotflow.noise import draw_noise, window_samples

YEAR = ObservationSettings().duration
PLANNED = GapSettings(planned_interval=14.0, planned_hours=7.0)


def test_planned_gaps_are_where_they_should_be() -> None:
    spans = draw_gaps(np.random.default_rng(1), PLANNED, YEAR)
    day = 86400.0
    np.testing.assert_allclose(spans[:, 0] / day, 14.0 * (np.arange(len(spans)) + 0.5))
    assert len(spans) == 26  # 364 days
    np.testing.assert_allclose(spans[:, 1] - spans[:, 0], 7 * 3600.0)


def test_random_gaps_follow_their_law() -> None:
    gaps = GapSettings(random_rate=6.0, random_hours=30.0)
    rng = np.random.default_rng(2)
    drawn = [draw_gaps(rng, gaps, YEAR) for _ in range(400)]
    lost = np.array([(s[:, 1] - s[:, 0]).sum() for s in drawn])
    assert np.mean([len(s) for s in drawn]) == pytest.approx(6.0 * YEAR / (365.25 * 86400), rel=0.1)
    assert lost.mean() == pytest.approx(6.0 * 30.0 * 3600.0, rel=0.1)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 1000), st.floats(0.0, 40.0), st.floats(0.1, 100.0), st.floats(0.0, 24.0))
def test_spans_are_in_order_and_the_mask_is_zero_in_them(
    seed: int, rate: float, hours: float, taper: float
) -> None:
    gaps = GapSettings(
        planned_interval=10.0, planned_jitter=1.0, random_rate=rate, random_hours=hours
    )
    spans = draw_gaps(np.random.default_rng(seed), gaps, YEAR)
    edges = spans.ravel()
    assert (np.diff(edges) > 0).all()
    assert edges[0] >= 0
    assert edges[-1] <= YEAR
    times = np.linspace(0, YEAR, 3001)
    mask = gap_mask(times, spans, 3600.0 * taper)
    assert ((mask >= 0) & (mask <= 1)).all()
    inside = ((times[:, None] > spans[:, 0]) & (times[:, None] < spans[:, 1])).any(axis=1)
    assert (mask[inside] == 0).all()
    distance = np.abs(times[:, None] - edges).min(axis=1)
    assert (mask[~inside & (distance > 3600.0 * taper + 1.0)] == 1).all()


def test_no_gaps_no_mask() -> None:
    assert band_mask(ObservationSettings(), 1, 2) is None
    np.testing.assert_array_equal(gap_mask(np.arange(5.0), np.empty((0, 2)), 3.0), 1.0)
    gapped = ObservationSettings(gaps=GapSettings(random_rate=10.0))
    one, two = band_mask(gapped, 1, 2), band_mask(gapped, 1, 3)
    assert one is not None
    assert two is not None
    assert one.shape == (MASK_SAMPLES,)
    assert (one != two).any()
    np.testing.assert_array_equal(one, band_mask(gapped, 1, 2))


def test_a_masked_band_is_the_band_of_the_masked_series() -> None:
    """A line in the full series, gaps cut at full resolution, against the bins' way."""
    observation = ObservationSettings(gaps=GapSettings(planned_interval=14.0, random_rate=5.0))
    seed, index, n = 3, 7, 2**17
    rng = np.random.default_rng([seed, index, 5])
    spans = draw_gaps(rng, observation.gaps, observation.duration)
    times = np.arange(n) * observation.duration / n
    window = window_samples(observation.tukey, n)
    k0, bins = 20_000, 512
    phase = 2 * np.pi * (k0 + 256.3) * np.arange(n) / n
    series = window * np.cos(phase + 0.4)
    whole = scipy.fft.rfft(series)[k0 : k0 + bins]
    expected = scipy.fft.rfft(series * gap_mask(times, spans, 6 * 3600.0))[k0 : k0 + bins]
    mask = band_mask(observation, seed, index)
    assert mask is not None
    seen = cut(whole[None], mask)[0]
    central = slice(128, 384)
    error = np.linalg.norm((seen - expected)[central]) / np.linalg.norm(expected[central])
    assert np.linalg.norm((whole - expected)[central]) > 0.01 * np.linalg.norm(expected)
    assert error < 2e-4


def test_masked_noise_keeps_its_power_and_is_correlated() -> None:
    observation = ObservationSettings(gaps=GapSettings(random_rate=30.0, random_hours=60.0))
    mask = band_mask(observation, 1, 1)
    assert mask is not None
    rng = np.random.default_rng(4)
    drawn = np.stack([draw_noise(rng, np.full((3, 256), 2.0), 0.05, mask) for _ in range(300)])
    assert np.mean(np.abs(drawn) ** 2) == pytest.approx(2.0, rel=0.02)
    # the correlation of bins is the Fourier transform of the squared window and mask
    w = (window_samples(0.05, mask.size) * mask) ** 2
    for lag in (1, 2, 5):
        seen = np.mean(drawn[..., lag:] * drawn[..., :-lag].conj()) / 2.0
        expected = np.fft.fft(w)[lag] / w.sum()
        assert abs(seen - expected) < 0.01


def test_a_band_with_gaps_is_the_masked_sum_of_its_sources() -> None:
    """From the labels alone: jaxgb's responses, whitened, masked on the wider range."""
    from slotflow.noise import total_psd, window_power
    from slotflow.simulate.sample import simulate_band
    from slotflow.simulate.waveforms import accumulate, jaxgb_response

    gaps = GapSettings(planned_interval=14.0, random_rate=8.0)
    preset = Preset(observation=ObservationSettings(gaps=gaps))
    band = simulate_band(preset, 9, 4)
    sources = np.concatenate([band.sources[: band.count], band.outside[: band.outside_count]])
    h, first = jaxgb_response(sources, preset.observation, 512)
    start, width = band.first_bin - 600, 256 + 1200
    f = (start + np.arange(width)) / YEAR
    whole = accumulate(h, first, start, width)
    whole /= np.sqrt(total_psd(f, duration=YEAR) * YEAR / 2 * window_power(0.05))
    mask = band_mask(preset.observation, 9, 4)
    assert mask is not None
    window = window_samples(0.05, mask.size)
    share = np.mean((window * mask) ** 2) / np.mean(window**2)
    expected = cut(whole, mask)[:2, 600:856] / np.sqrt(share)
    error = np.linalg.norm(band.signal[:2] - expected) / np.linalg.norm(expected)
    assert error < 2e-3
