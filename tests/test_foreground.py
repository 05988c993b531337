"""The foreground pool against sources summed one by one, and against the Galaxy's numbers."""

import numpy as np
import pytest

from slotflow.config import ObservationSettings
from slotflow.response import response
from slotflow.simulate.foreground import ForegroundPool
from slotflow.simulate.noise import band_psd
from slotflow.simulate.orbits import response_grid
from slotflow.simulate.population import (
    amplitude,
    chirp,
    draw_frequencies,
    draw_members,
    expected_number,
)
from slotflow.simulate.waveforms import accumulate

YEAR = ObservationSettings()
T = YEAR.duration
BINS, MARGIN = 256, 32


def same_sources(
    seed: int, block_bin: int, entries: int, draw_seed: int, first_bin: int, rate: float
) -> np.ndarray:
    """Repeat the random draws of a pool, as a catalogue."""
    rng = np.random.default_rng(seed)
    members = draw_members(rng, entries)
    offset = rng.uniform(-0.5, 0.5, entries)
    rng = np.random.default_rng(draw_seed)
    start, width = first_bin - MARGIN, BINS + 2 * MARGIN
    edges = (start - 0.5) / T, (start + width - 0.5) / T
    number = rng.poisson(rate * expected_number(*edges))
    k = np.rint(draw_frequencies(rng, *edges, number) * T)
    entry = rng.integers(0, entries, number)
    cos_iota = rng.uniform(-1, 1, number)
    right, left = rng.uniform(0, 2 * np.pi, (2, number))  # 2 psi - phi0 and -2 psi - phi0
    f0 = (k + offset[entry]) / T
    mass = members.chirp_mass[entry]
    return np.stack(
        [
            f0,
            chirp(f0, mass),
            amplitude(k / T, mass, members.distance[entry]),
            members.ra[entry],
            members.dec[entry],
            0.25 * (right - left),
            np.arccos(cos_iota),
            -0.5 * (right + left),
        ],
        axis=-1,
    )


@pytest.mark.parametrize(("off", "limit"), [(0, 0.02), (64, 0.025), (-150, 0.04)])
def test_pool_equals_the_sum_over_its_sources(off: int, limit: float) -> None:
    block = 55_000
    first = block + off - BINS // 2
    pool = ForegroundPool.build(np.random.default_rng(3), block, YEAR, 300)
    psd = band_psd(first - MARGIN, BINS + 2 * MARGIN, YEAR).total[0]
    seen = pool.draw(np.random.default_rng(4), first, BINS, 0.5, psd, np.inf)
    sources = same_sources(3, block, 300, 4, first, 0.5)
    h, firsts = response(sources, response_grid(YEAR, 256))
    expected = accumulate(h, firsts, first, BINS)[:2]
    error = np.linalg.norm(seen.response[:2] - expected) / np.linalg.norm(expected)
    assert error < limit
    assert seen.members == len(sources)
    assert seen.removed == 0
    np.testing.assert_array_equal(seen.response[2], 0.0)


def test_members_are_left_out_by_their_snr() -> None:
    block = 62_000
    first = block - BINS // 2
    pool = ForegroundPool.build(np.random.default_rng(5), block, YEAR, 300)
    psd = band_psd(first - MARGIN, BINS + 2 * MARGIN, YEAR).total[0]
    sources = same_sources(5, block, 300, 6, first, 1.0)
    h, firsts = response(sources, response_grid(YEAR, 256))
    power = (np.abs(h[:, :2]) ** 2).sum(axis=(1, 2))
    k = np.rint(sources[:, 0] * T).astype(int) - (first - MARGIN)
    snr = np.sqrt(4 * power / (T * psd[np.clip(k, 0, psd.size - 1)] * (1 - 0.625 * 0.05)))
    # Cut in the widest gap, so that the pool's 2% do not decide on which side a member is
    near = np.sort(snr[(snr > 2.0) & (snr < 5.0)])
    widest = int(np.argmax(near[1:] / near[:-1]))
    cut = float(np.sqrt(near[widest] * near[widest + 1]))
    assert near[widest + 1] / near[widest] > 1.08
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
        pool = ForegroundPool.build(rng, first + BINS // 2, YEAR, 1024)
        spectra += [
            pool.draw(rng, first, BINS, 1.0, psd.total[0], 7.0).response[:2] for _ in range(20)
        ]
    instrument = psd.instrument[:2, MARGIN:-MARGIN] * T / 2 * (1 - 0.625 * 0.05)
    power = np.abs(np.array(spectra)) ** 2 / instrument
    median = np.median(power) / np.log(2)
    assert 1 + median == pytest.approx(level, rel=0.2)


def test_the_unresolved_galaxy_is_not_stationary() -> None:
    """Two bins apart the spectrum is correlated: the sky turns in the antenna pattern."""
    first = int(1.5e-3 * T)
    psd = band_psd(first - MARGIN, BINS + 2 * MARGIN, YEAR).total[0]
    rng = np.random.default_rng(8)
    spectra = []
    for _ in range(6):
        pool = ForegroundPool.build(rng, first + BINS // 2, YEAR, 1024)
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
    pool = ForegroundPool.build(np.random.default_rng(9), first + 128, YEAR, 200)
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
