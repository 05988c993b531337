"""The foreground pool against sources summed one by one, and against the Galaxy's numbers."""

import numpy as np
import pytest

from slotflow.config import ObservationSettings, PopulationSettings
from slotflow.response import response
from slotflow.simulate.foreground import ForegroundPool
from slotflow.simulate.noise import band_psd
from slotflow.simulate.orbits import response_grid
from slotflow.simulate.population import amplitude, chirp, expected_number
from slotflow.simulate.waveforms import accumulate, jaxgb_response

YEAR = ObservationSettings()
T = YEAR.duration
BINS, MARGIN, REACH = 256, 32, 224


@pytest.mark.parametrize("off", [0, 64, -64])
@pytest.mark.parametrize("mhz", [0.5, 1.0, 2.0, 3.0, 5.0, 8.0])
def test_pool_is_the_direct_sum_to_two_percent(mhz: float, off: int) -> None:
    """A thousand members by jaxgb, one by one at their own frequencies."""
    block = round(mhz * 1e-3 * T)
    first = block + off - BINS // 2
    pool = ForegroundPool.build(np.random.default_rng(3), block, YEAR, REACH, entries=512)
    start, width = first - MARGIN, BINS + 2 * MARGIN
    rate = 1000 / expected_number((start - 0.5) / T, (start + width - 0.5) / T)
    members = pool.draw_members(np.random.default_rng(4), start, width, rate)
    h, firsts = jaxgb_response(pool.explicit(members), YEAR, 256)
    expected = accumulate(h, firsts, first, BINS)[:2]
    seen = pool.response(members, first, BINS)
    error = np.linalg.norm(seen[:2] - expected) / np.linalg.norm(expected)
    assert 900 < len(members.k) < 1100
    assert error < 0.02
    np.testing.assert_array_equal(seen[2], 0.0)


def test_explicit_members_follow_the_population() -> None:
    """Chirp by general relativity alone: its mass must be one that the population has."""
    pool = ForegroundPool.build(np.random.default_rng(5), 62_000, YEAR, REACH)
    members = pool.draw_members(np.random.default_rng(6), 61_800, 400, 20.0)
    sources = pool.explicit(members)
    np.testing.assert_array_equal(np.rint(sources[:, 0] * T), members.k)
    mass = (sources[:, 1] / chirp(sources[:, 0], 1.0)) ** 0.6
    standard = PopulationSettings()
    assert mass.min() > standard.chirp_mass_min * (1 - 1e-9)
    assert mass.max() < standard.chirp_mass_max * (1 + 1e-9)
    distance = amplitude(sources[:, 0], mass, 1.0) / sources[:, 2]  # kpc
    assert 6.5 < np.median(distance) < 9.5  # the Sun is at 8.1 kpc
    assert np.mean(np.cos(sources[:, 6])) == pytest.approx(0.0, abs=0.05)


def test_members_are_left_out_by_their_snr() -> None:
    block = 62_000
    first = block - BINS // 2
    pool = ForegroundPool.build(np.random.default_rng(5), block, YEAR, REACH)
    psd = band_psd(first - MARGIN, BINS + 2 * MARGIN, YEAR).total[0]
    members = pool.draw_members(np.random.default_rng(6), first - MARGIN, psd.size, 1.0)
    sources = pool.explicit(members)
    h, firsts = response(sources, response_grid(YEAR, 256))
    power = (np.abs(h[:, :2]) ** 2).sum(axis=(1, 2))
    snr = np.sqrt(4 * power / (T * psd[members.k - first + MARGIN] * (1 - 0.625 * 0.05)))
    # Cut in the widest gap, so that the pool's 1% do not decide on which side a member is
    near = np.sort(snr[(snr > 1.5) & (snr < 6.0)])
    widest = int(np.argmax(near[1:] / near[:-1]))
    cut = float(np.sqrt(near[widest] * near[widest + 1]))
    assert near[widest + 1] / near[widest] > 1.05
    quiet = snr <= cut
    seen = pool.draw(np.random.default_rng(6), first, BINS, 1.0, psd, cut)
    assert (seen.members, seen.removed) == (quiet.sum(), (~quiet).sum())
    assert seen.removed > 5
    expected = accumulate(h[quiet], firsts[quiet], first, BINS)[:2]
    error = np.linalg.norm(seen.response[:2] - expected) / np.linalg.norm(expected)
    assert error < 0.03


@pytest.mark.parametrize(("mhz", "level"), [(1.0, 6.6), (1.5, 10.5), (2.0, 12.5)])
def test_the_unresolved_galaxy_has_the_calibrated_level(mhz: float, level: float) -> None:
    """S_total / S_instrument by running median, sources above SNR 7 removed."""
    first = int(mhz * 1e-3 * T)
    psd = band_psd(first - MARGIN, BINS + 2 * MARGIN, YEAR)
    rng = np.random.default_rng(7)
    spectra = []
    for _ in range(4):
        pool = ForegroundPool.build(rng, first + BINS // 2, YEAR, REACH, entries=1024)
        spectra += [
            pool.draw(rng, first, BINS, 1.0, psd.total[0], 7.0).response[:2] for _ in range(20)
        ]
    instrument = psd.instrument[:2, MARGIN:-MARGIN] * T / 2 * (1 - 0.625 * 0.05)
    power = np.abs(np.array(spectra)) ** 2 / instrument
    median = np.median(power) / np.log(2)
    assert 1 + median == pytest.approx(level, rel=0.2)


@pytest.mark.parametrize("mhz", [1.0, 1.5, 2.0, 2.25])
def test_the_unresolved_galaxy_is_near_the_confusion_fit(mhz: float) -> None:
    """By running median, members above SNR 5 left out: 0.5-1.0 of the fit in this range."""
    first = int(mhz * 1e-3 * T)
    psd = band_psd(first - MARGIN, BINS + 2 * MARGIN, YEAR)
    rng = np.random.default_rng(17)
    spectra = []
    for _ in range(4):
        pool = ForegroundPool.build(rng, first + BINS // 2, YEAR, REACH)
        spectra += [
            pool.draw(rng, first, BINS, 1.0, psd.total[0], 5.0).response[:2] for _ in range(20)
        ]
    fit = (psd.total - psd.instrument)[:2, MARGIN:-MARGIN] * T / 2 * (1 - 0.625 * 0.05)
    ratio = np.median(np.abs(np.array(spectra)) ** 2 / fit) / np.log(2)
    assert 0.5 < ratio < 1.0


def test_the_unresolved_galaxy_is_not_stationary() -> None:
    """Two bins apart the spectrum is correlated: the sky turns in the antenna pattern."""
    first = int(1.5e-3 * T)
    psd = band_psd(first - MARGIN, BINS + 2 * MARGIN, YEAR).total[0]
    rng = np.random.default_rng(8)
    spectra = []
    for _ in range(6):
        pool = ForegroundPool.build(rng, first + BINS // 2, YEAR, REACH, entries=1024)
        spectra += [pool.draw(rng, first, BINS, 1.0, psd, 5.0).response[:2] for _ in range(20)]
    x = np.array(spectra)
    power = np.mean(np.abs(x) ** 2)
    lag1 = abs(np.mean(x[..., 1:] * x[..., :-1].conj())) / power
    lag2 = abs(np.mean(x[..., 2:] * x[..., :-2].conj())) / power
    assert 0.24 < lag2 < 0.37  # .27-.34 in independent years
    assert lag1 < 0.12
    parts = np.stack([x.real, x.imag])
    kurtosis = np.mean(parts**4) / np.mean(parts**2) ** 2 - 3
    assert 0.15 < kurtosis < 1.0


def test_rate_scale_and_repeatability() -> None:
    first = int(1.8e-3 * T)
    psd = band_psd(first - MARGIN, BINS + 2 * MARGIN, YEAR).total[0]
    pool = ForegroundPool.build(np.random.default_rng(9), first + 128, YEAR, REACH, entries=200)
    one, two = (pool.draw(np.random.default_rng(1), first, BINS, 1.0, psd, 5.0) for _ in range(2))
    np.testing.assert_array_equal(one.response, two.response)
    none = pool.draw(np.random.default_rng(1), first, BINS, 0.0, psd, 5.0)
    assert none.members == 0
    np.testing.assert_array_equal(none.response, 0.0)
    rng = np.random.default_rng(2)
    counts = [
        np.mean([pool.draw(rng, first, BINS, r, psd, np.inf).members for _ in range(30)])
        for r in (0.5, 2.0)
    ]
    assert counts[1] / counts[0] == pytest.approx(4.0, rel=0.1)
