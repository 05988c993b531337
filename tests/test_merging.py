"""slotflow.merging: what two bands, or two slots, both report is one source."""

from dataclasses import replace

import numpy as np
import pytest

from slotflow.merging import (
    Candidate,
    Comparison,
    distinct_in_band,
    merge,
    posterior_overlap,
)
from slotflow.parameters import AMPLITUDE, DEC, F0, IOTA, PHI0, PSI, RA, other_image
from slotflow.response import ResponseGrid
from slotflow.results import SourcePosterior
from slotflow.waveform import response_ae

T = 524_288 * 60.0
F = 1.5e-3


@pytest.fixture(scope="module")
def comparison(slow_grid: ResponseGrid) -> Comparison:
    return Comparison(slow_grid)


def _source(
    f0: float = F, probability: float = 0.9, amplitude: float = 1e-22, ra: float = 1.0,
    seed: int = 1, slot: int = 0, iota: float = 0.5,
) -> SourcePosterior:  # fmt: skip
    rng = np.random.default_rng(seed)
    samples = np.tile([f0, 1e-17, amplitude, ra, 0.2, 0.5, iota, 2.0], (500, 1))
    samples[:, F0] += 0.05 / T * rng.standard_normal(500)
    samples[:, AMPLITUDE] *= np.exp(0.1 * rng.standard_normal(500))
    samples[:, RA] += 0.03 * rng.standard_normal(500)
    samples[:, DEC] += 0.03 * rng.standard_normal(500)
    return SourcePosterior(samples, np.zeros(500), probability, 0, slot, 20.0)


def _merged(
    comparison: Comparison, *candidates: tuple[SourcePosterior, int, bool]
) -> list[SourcePosterior]:
    return list(merge([Candidate(*one) for one in candidates], comparison))


def test_one_source_seen_twice_is_reported_once(comparison: Comparison) -> None:
    less, more = _source(probability=0.8), _source(F + 0.02 / T, 0.9, seed=2)
    assert _merged(comparison, (less, 3, True), (more, 4, True)) == [more]
    # the band that answers for it reports it
    assert _merged(comparison, (less, 3, True), (more, 4, False)) == [less]
    # each calls it the other's
    assert _merged(comparison, (less, 3, False), (more, 4, False)) == [more]
    # the neighbour, which answers for it, sees nothing
    assert _merged(comparison, (less, 3, False)) == []


def test_two_sources_are_not_merged(comparison: Comparison) -> None:
    one = _source()
    further = _source(F + 1.2 / T)
    elsewhere = _source(F + 0.02 / T, amplitude=5e-22, ra=4.0)
    for other in (further, elsewhere):
        assert posterior_overlap(one, other) == 0.0
        assert abs(comparison.overlap(one, other)) < 0.8
        assert len(_merged(comparison, (one, 3, True), (other, 4, True))) == 2
    far_bands = _merged(comparison, (one, 3, True), (_source(), 9, True))
    assert len(far_bands) == 2  # bands without a common edge cannot see the same source


def test_one_signal_with_disjoint_posteriors_is_one_source(comparison: Comparison) -> None:
    """Two bands' reports of a loud source: each too narrow to hold the other, the same signal."""
    one, other = (
        replace(s, samples=s.samples[:1] + 0.02 * (s.samples - s.samples[:1]))
        for s in (_source(), _source(F + 0.03 / T, seed=5))
    )
    assert posterior_overlap(one, other) < 0.5
    assert comparison.overlap(one, other) > 0.8
    assert len(_merged(comparison, (one, 3, True), (other, 4, True))) == 1


def test_the_overlap_is_that_of_the_responses(
    comparison: Comparison, slow_grid: ResponseGrid
) -> None:
    """For posteriors of one point each, against the plain formula on the full grid."""
    a, b = _source(), _source(F + 0.3 / T, ra=1.4)
    points = [replace(s, samples=np.tile(s.samples[:1], (20, 1))) for s in (a, b)]
    h, first = response_ae(np.stack([p.samples[0] for p in points]), slow_grid)
    common = np.zeros((2, 2, 400), dtype=complex)
    for i in (0, 1):
        at = int(first[i]) - int(first.min()) + 50
        common[i, :, at : at + h.shape[-1]] = h[i]
    expected = np.vdot(common[0], common[1]).real / np.prod(
        [np.linalg.norm(part) for part in common]
    )
    assert comparison.overlap(*points) == pytest.approx(expected, abs=0.01)
    assert comparison.overlap(a, a) == pytest.approx(1.0)


def test_a_face_on_source_is_compared_by_what_is_determined(comparison: Comparison) -> None:
    """Of psi and phi0 only phi0 - 2 psi matters face-on: medians of each would mean another signal.

    Both images are among the draws, as they always are.
    """
    rng = np.random.default_rng(3)
    turned = []
    for seed in (1, 2):
        source = _source(iota=1e-3, seed=seed)
        samples = source.samples.copy()
        psi = rng.uniform(0.0, np.pi, 500)
        samples[:, PSI], samples[:, PHI0] = psi, np.mod(2.0 * psi + 1.0, 2.0 * np.pi)
        half = rng.random(500) < 0.5
        samples[half] = other_image(samples[half])
        turned.append(replace(source, samples=samples))
    assert comparison.overlap(*turned) > 0.98
    opposite = replace(turned[1], samples=turned[1].samples.copy())
    opposite.samples[:, PHI0] += np.pi
    assert comparison.overlap(turned[0], opposite) < -0.98


def test_posteriors_agree_on_the_sphere_also_through_zero() -> None:
    one, other = _source(ra=0.001), _source(ra=0.001, seed=4)
    wrapped = replace(other, samples=other.samples.copy())
    wrapped.samples[:, RA] = np.mod(wrapped.samples[:, RA], 2 * np.pi)
    assert posterior_overlap(one, wrapped) > 0.9
    assert posterior_overlap(one, _source(ra=0.5)) < 0.05
    # a narrow posterior inside a wide one agrees with it
    wide = _source(seed=6)
    wide.samples[:, IOTA] = 0.5
    wide.samples[:, [RA, DEC]] += 0.3 * np.random.default_rng(0).standard_normal((500, 2))
    assert posterior_overlap(_source(), wide) > 0.9


def test_two_slots_of_one_band_on_the_same_signal(comparison: Comparison) -> None:
    one, again = _source(slot=0, probability=0.7), _source(F + 0.02 / T, slot=1, seed=2)
    other = _source(F + 1.5 / T, slot=2)
    kept = distinct_in_band([one, again, other], comparison)
    assert [source.slot for source in kept] == [1, 2]
    assert distinct_in_band([], comparison) == ()


def test_three_bands_and_order(comparison: Comparison) -> None:
    """Sources come by frequency, and each pair of bands is compared by itself."""
    a, b = _source(F), _source(F + 40 / T)
    a2, b2 = _source(F + 0.01 / T, 0.95, seed=2), _source(F + 40.01 / T, 0.8, seed=3)
    found = _merged(comparison, (b, 4, True), (a2, 2, True), (a, 3, True), (b2, 5, True))
    assert found == [a2, b]
