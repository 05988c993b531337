"""Detection: all assignments of small cases, waveforms of the default year, tables by hand."""

import itertools
import json
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from slotflow.detection import Matches, Pairs, detection, match, near_pairs, overlaps
from slotflow.merging import Comparison
from slotflow.parameters import F0, other_image
from slotflow.response import ResponseGrid
from slotflow.results import SourcePosterior
from slotflow.waveform import response_ae

T = 524_288 * 60.0
F = 1.5e-3
TRUE = np.array([F, 1e-17, 1e-22, 1.0, 0.2, 0.5, 0.5, 2.0])


def _source(f0: float, ra: float = 1.0, iota: float = 0.5) -> np.ndarray:
    return np.array([f0, 1e-17, 1e-22, ra, 0.2, 0.5, iota, 2.0])


def _report(source: np.ndarray, draws: int = 80) -> SourcePosterior:
    samples = np.tile(source, (draws, 1))
    samples[::2] = other_image(samples[::2])
    samples[:, F0] += 0.02 / T * np.random.default_rng(1).standard_normal(draws)
    return SourcePosterior(samples, np.zeros(draws), 0.9, 0, 0, 20.0)


def test_near_pairs_are_all_within_a_bin() -> None:
    rng = np.random.default_rng(2)
    a, b = F + rng.uniform(0.0, 30.0, 40) / T, F + rng.uniform(0.0, 30.0, 60) / T
    distance = np.abs(a[:, None] - b) * T
    assert set(zip(*near_pairs(a, b, T), strict=True)) == set(
        zip(*np.nonzero(distance <= 1.0), strict=True)
    )
    bands = rng.integers(0, 3, 40), rng.integers(0, 3, 60)
    same = (distance <= 1.0) & (bands[0][:, None] == bands[1])
    assert set(zip(*near_pairs(a, b, T, bands=bands), strict=True)) == set(
        zip(*np.nonzero(same), strict=True)
    )
    assert near_pairs(a, b[:0], T)[0].size == 0


@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 4)), seed=st.integers(0, 10_000),
    density=st.floats(0.1, 1.0),
)  # fmt: skip
def test_matching_is_the_best_of_all(shape: tuple[int, int], seed: int, density: float) -> None:
    """As many pairs as any one-to-one way has, and of those ways the largest total overlap."""
    rng = np.random.default_rng(seed)
    reports, truths = shape
    overlap = rng.uniform(0.6, 1.0, shape)
    near = rng.random(shape) < density
    i, j = np.nonzero(near)
    found = match(Pairs(i, j, overlap[near]), reports)
    allowed = near & (overlap > 0.8)
    best = (0, 0.0)
    for way in itertools.permutations([*range(truths), *[-1] * reports], reports):
        pairs = [(r, t) for r, t in enumerate(way) if t >= 0]
        if all(allowed[pair] for pair in pairs):
            best = max(best, (len(pairs), sum(overlap[pair] for pair in pairs)))
    mine = [(r, t) for r, t in enumerate(found.truth.tolist()) if t >= 0]
    assert all(allowed[pair] for pair in mine)
    assert len({t for _, t in mine}) == len(mine)
    assert len(mine) == best[0]
    assert sum(overlap[pair] for pair in mine) == pytest.approx(best[1])
    np.testing.assert_array_equal(found.duplicate, allowed.any(axis=1) & (found.truth < 0))


def test_reports_of_a_year(slow_grid: ResponseGrid) -> None:
    """Found, found twice, elsewhere on the sky, and a bin and a half away."""
    truths = np.stack([_source(F), _source(F + 40.3 / T, ra=4.0), _source(F + 90.0 / T)])
    reports = [
        _report(_source(F)),
        _report(_source(F + 0.05 / T)),
        _report(_source(F + 40.3 / T, ra=1.0)),
        _report(_source(F + 91.5 / T)),
    ]
    pairs = overlaps(reports, truths, Comparison(slow_grid))
    assert list(zip(pairs.report, pairs.truth, strict=True)) == [(0, 0), (1, 0), (2, 1)]
    found = match(pairs, 4)
    assert found.truth.tolist() == [0, -1, -1, -1]
    assert found.duplicate.tolist() == [False, True, False, False]
    assert pairs.overlap[0] > 0.98
    assert pairs.overlap[2] < 0.8
    apart = overlaps(reports, truths, Comparison(slow_grid), (np.arange(4), np.array([0, 2, 3])))
    assert list(zip(apart.report, apart.truth, strict=True)) == [(0, 0), (2, 1)]
    assert match(overlaps([], truths, Comparison(slow_grid)), 0).truth.size == 0


def test_overlap_is_the_normalised_product_of_waveforms(slow_grid: ResponseGrid) -> None:
    one, other = _source(F), _source(F + 0.3 / T, ra=1.3, iota=1.0)
    exactly = SourcePosterior(other[None], np.zeros(1), 0.9, 0, 0, 20.0)
    pairs = overlaps([exactly], one[None], Comparison(slow_grid))
    (a, b), (start, first) = response_ae(np.stack([one, other]), slow_grid)
    assert start == first
    exact = np.vdot(b, a).real / np.linalg.norm(a) / np.linalg.norm(b)
    assert 0.05 < abs(exact) < 0.95
    assert pairs.overlap[0] == pytest.approx(exact, abs=2e-3)


def test_table_by_hand() -> None:
    """Five true sources, one below the threshold; six reports: three right, one of the weak one,
    a duplicate and a false alarm."""
    snr = [6.0, 8.0, 15.0, 30.0, 3.0]
    matches = Matches(
        np.array([0, 2, 3, 4, -1, -1]), np.array([False, False, False, False, True, False])
    )
    found = detection(matches, snr, [5.5, 14.0, 31.0, 5.1, 12.0, 7.0], (5.0, 10.0), bands=4)
    assert (found.truths, found.reports, found.weak) == (4, 6, 1)
    assert (found.recall.hits, found.recall.number) == (3, 4)
    assert (found.precision.hits, found.precision.number) == (3, 5)
    assert found.f1 == pytest.approx(2 * 3 / (2 * 3 + 1 + 2))
    assert (found.duplicates, found.false_alarms, found.false_alarms_per_band) == (1, 1, 0.25)
    quiet, loud = found.rows
    assert (quiet.low, quiet.high, loud.high) == (5.0, 10.0, None)
    assert (quiet.recall.share, quiet.precision.share) == (0.5, 0.5)
    assert (loud.recall.share, loud.precision.share) == (1.0, 2 / 3)
    assert loud.f1 == pytest.approx(0.8)
    json.dumps(asdict(found), allow_nan=False)


def test_bounds_of_false_alarms_hold_their_level() -> None:
    """At each bound the count is as extreme as the level says."""
    matches = Matches(np.full(7, -1), np.zeros(7, bool))
    found = detection(matches, [10.0], np.full(7, 10.0), (5.0,), bands=2)
    assert stats.poisson.sf(6, 2 * found.false_alarms_lower) == pytest.approx(0.05)
    assert stats.poisson.cdf(7, 2 * found.false_alarms_upper) == pytest.approx(0.05)
    assert (found.recall.share, found.precision.share, found.f1) == (0.0, 0.0, 0.0)
    none = detection(Matches(np.zeros(0, np.int64), np.zeros(0, bool)), [], [], (5.0,), bands=1)
    assert (none.recall.share, none.f1, none.false_alarms_lower) == (None, None, 0.0)
    json.dumps(asdict(none), allow_nan=False)


def test_what_does_not_fit_is_refused() -> None:
    matches = Matches(np.array([1]), np.array([False]))
    with pytest.raises(ValueError, match="SNR of 1 reports"):
        detection(matches, [10.0], [9.0], (5.0,), bands=1)
    for edges, bands in (((5.0, 4.0), 1), ((), 1), ((5.0,), 0)):
        with pytest.raises(ValueError, match="rising edges"):
            detection(matches, [1.0, 10.0], [9.0], edges, bands=bands)
