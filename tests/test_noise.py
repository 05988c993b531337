"""The noise model against published numbers, and the draws against their covariance."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotflow import noise
from slotflow.response import tdi2_factor

ARM = 2.5e9


def test_instrument_psd_has_the_reference_values() -> None:
    f = np.array([1e-3, 2e-3, 3e-3, 5e-3])
    # lisatools 1.2.8 (A1TDISens, scirdv1) and segwo + pytdi
    expected = [8.84e-43, 8.99e-43, 1.30e-42, 4.77e-42]
    psd = noise.instrument_psd(f)
    np.testing.assert_allclose(psd[0], expected, rtol=3e-3)
    np.testing.assert_array_equal(psd[0], psd[1])
    assert (psd[2, :2] < 0.01 * psd[0, :2]).all()  # T is a null channel at low frequency


def test_instrument_psd_from_link_noise() -> None:
    """S_A, S_T follow from the cross-spectral matrix of X, Y, Z: S_XX -/+ S_XY."""
    f = np.geomspace(1e-4, 2e-2, 50)
    c = 299792458.0
    x = 2 * np.pi * f * ARM / c
    oms = (15e-12 * 2 * np.pi * f / c) ** 2 * (1 + (2e-3 / f) ** 4)
    acc = (3e-15 / (2 * np.pi * f * c)) ** 2 * (1 + (0.4e-3 / f) ** 2) * (1 + (f / 8e-3) ** 4)
    s_xx = 16 * np.sin(x) ** 2 * (oms + (3 + np.cos(2 * x)) * acc)
    s_xy = -8 * np.sin(x) ** 2 * np.cos(x) * (oms + 4 * acc)
    psd = noise.instrument_psd(f, ARM)
    np.testing.assert_allclose(psd[0], s_xx - s_xy, rtol=1e-12)
    np.testing.assert_allclose(psd[2], s_xx + 2 * s_xy, rtol=1e-6)


def test_ten_picometres_lower_the_metrology_noise_alone() -> None:
    f = [1e-3, 1e-2]
    ratio = noise.instrument_psd(f, model="scirdv1_10pm")[0] / noise.instrument_psd(f)[0]
    assert 0.9 < ratio[0] < 1.0  # accelerations dominate
    assert 4 / 9 < ratio[1] < 0.5  # (10 / 15)^2 and a little of the accelerations


@given(st.floats(1e-4, 2e-2))
@settings(deadline=None)
def test_second_generation_is_the_squared_factor(f: float) -> None:
    factor = abs(tdi2_factor(np.array([f]), ARM)) ** 2
    for channels in (noise.instrument_psd, noise.confusion_psd, noise.total_psd):
        one = channels([f], ARM, tdi_generation="1.5")
        two = channels([f], ARM, tdi_generation="2.0")
        np.testing.assert_allclose(two, one * factor, rtol=1e-9)


def test_confusion_has_the_reference_ratios() -> None:
    f = np.array([1e-3, 1.5e-3, 2e-3, 2.5e-3, 3e-3, 4e-3])
    ratio = noise.confusion_psd(f) / noise.instrument_psd(f)[0]
    np.testing.assert_allclose(ratio, [10.1, 15.0, 15.6, 10.7, 3.6, 0.07], rtol=0.06)


def test_confusion_falls_as_sources_are_removed() -> None:
    f = np.linspace(1e-3, 4e-3, 20)
    levels = [noise.confusion_psd(f, duration=y * noise.YEAR) for y in (0.5, 1, 2, 4, 8)]
    assert all((a > b).all() for a, b in pairwise(levels))


def test_total_adds_the_confusion_to_a_and_e_alone() -> None:
    f = np.linspace(1e-3, 3e-3, 7)
    extra = noise.total_psd(f) - noise.instrument_psd(f)
    np.testing.assert_allclose(extra[0], noise.confusion_psd(f), rtol=1e-12)
    np.testing.assert_allclose(extra[1], noise.confusion_psd(f), rtol=1e-12)
    np.testing.assert_array_equal(extra[2], 0.0)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: noise.instrument_psd([0.0]), "positive"),
        (lambda: noise.confusion_psd([-1e-3]), "positive"),
        (lambda: noise.instrument_psd([np.nan]), "positive"),
        (lambda: noise.instrument_psd([1e-3], model="quiet"), "quiet"),
        (lambda: noise.instrument_psd([1e-3], tdi_generation="2"), "generation"),
        (lambda: noise.confusion_psd([1e-3], duration=1.0), "duration"),
    ],
)
def test_bad_arguments_are_named(call, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        call()


@given(st.floats(0.01, 1.0) | st.just(0.0))
@settings(deadline=None)
def test_window_power_is_the_mean_square(tukey: float) -> None:
    window = noise.window_samples(tukey, 4096)
    # a window of few tapered samples is coarse: its ends count as samples
    assert noise.window_power(tukey) == pytest.approx(np.mean(window**2), abs=1e-3)


def test_draws_have_the_covariance_of_a_windowed_series() -> None:
    """Bins of a long windowed white series: cov(lag) = sum w^2 exp(-2 pi i lag t) / sum w^2."""
    tukey, bins, draws = 0.4, 64, 4000
    rng = np.random.default_rng(1)
    x = np.stack([noise.draw_noise(rng, np.ones((1, bins)), tukey)[0] for _ in range(draws)])
    w2 = noise.window_samples(tukey, 1 << 16) ** 2
    exact = np.fft.fft(w2)[:6] / w2.sum()
    for lag in range(6):
        seen = np.mean(x[:, lag:] * x[:, : bins - lag].conj())
        assert abs(seen - exact[lag]) < 0.008
    assert abs(np.mean(x[:, 0] * x[:, -1].conj())) < 0.06  # the two ends do not touch
    assert abs(np.mean(x * x)) < 0.008  # circular


def test_draws_have_the_asked_power_and_independent_channels() -> None:
    ratio = np.stack([np.linspace(0.1, 2.0, 128), np.full(128, 3.0), np.ones(128)])
    rng = np.random.default_rng(2)
    x = np.stack([noise.draw_noise(rng, ratio, 0.05) for _ in range(3000)])
    np.testing.assert_allclose(np.mean(np.abs(x) ** 2, axis=0), ratio, rtol=0.12)
    assert abs(np.mean(x[:, 1] * x[:, 2].conj())) < 0.02
    assert x.dtype == np.complex64


def test_a_draw_repeats_from_its_generator() -> None:
    ratio = np.ones((3, 64))
    one = noise.draw_noise(np.random.default_rng([1, 2]), ratio, 0.05)
    two = noise.draw_noise(np.random.default_rng([1, 2]), ratio, 0.05)
    other = noise.draw_noise(np.random.default_rng([1, 3]), ratio, 0.05)
    np.testing.assert_array_equal(one, two)
    assert (one != other).all()
