"""Figures of a report: the prior's scores in closed form, rows, shares, the slots' looks."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotflow.config import PriorSettings
from slotflow.evaluation import matched_first
from slotflow.outcomes import outcomes
from slotflow.report.figures import share
from slotflow.report.outcome import NAMES, Bands, Sources
from slotflow.report.priors import draw_snr, prior_scores
from slotflow.report.slots import Looks, looks, slot_figures
from tests.report_example import example_report
from tests.report_fakes import Known, known_bands
from tests.synthetic import DURATION

PRIOR = PriorSettings(fdot_t2_min=0.0, fdot_t2_max=0.2)
LN_RANGE = math.log(100.0)


def _drawn_from_the_prior(n: int, prior: PriorSettings) -> tuple[Sources, Bands]:
    """True sources drawn from the prior, each in a band of its own, 47,000 bins up."""
    rng = np.random.default_rng(5)
    width = prior.window((47_000 + 128) / DURATION) / 256
    truths = rng.random((n, 8))
    truths[:, 0] = 0.5 + width * (truths[:, 0] - 0.5)
    truths[:, 1] = (0.0 + 0.2 * truths[:, 1] + 0.1) / 0.4
    snr = draw_snr(rng.random(n), prior)
    truths[:, 2] = 0.3 + np.log(snr) / LN_RANGE  # one and the same amplitude at SNR 1
    nothing, zero = np.zeros(n), np.zeros(n, np.int64)
    sources = Sources(
        np.arange(n), snr, (47_000 + 256 * truths[:, 0]) / DURATION, nothing, nothing, nothing,
        truths, np.zeros((n, 8)), nothing, nothing, np.zeros((n, 8), np.int64), zero,
    )  # fmt: skip
    first = np.full(n, 47_000)
    slots = np.zeros((n, 5))
    return sources, Bands(zero, first, zero + 1, slots, slots, slots > 0, slots > 0)


def test_the_prior_scores_what_it_must() -> None:
    """A uniform prior of width w has CRPS w / 6, an angle's 1 / 8; ln A is as uniform as ln SNR."""
    sources, bands = _drawn_from_the_prior(1000, PRIOR)
    crps, energy = prior_scores(sources, bands, PRIOR, DURATION, np.random.default_rng(0))
    window = PRIOR.window((47_000 + 128) / DURATION) / 256
    expected = {
        "f0": window / 6, "fdot": 0.5 / 6, "ln_amplitude": math.log(20.0) / LN_RANGE / 6,
        "ra": 1 / 8, "sin_dec": 1 / 6, "psi": 1 / 8, "cos_iota": 1 / 6, "phi0": 1 / 8,
    }  # fmt: skip
    for name, column in zip(NAMES, crps.T, strict=True):
        error = column.std() / math.sqrt(len(column)) + 0.001
        assert abs(column.mean() - expected[name]) < 4 * error, name
    assert 0.3 < energy.mean() < 0.6


def test_one_source_is_enough_for_a_prior() -> None:
    sources, bands = _drawn_from_the_prior(1, PRIOR)
    crps, energy = prior_scores(sources, bands, PRIOR, DURATION, np.random.default_rng(0))
    assert np.isfinite(crps).all()
    assert np.isfinite(energy).all()


@pytest.mark.parametrize("law", ["log_uniform", "uniform", "euclidean"])
def test_snr_by_its_law(law: str) -> None:
    """Cumulative probability at x: the integral of 1 / x, 1, or x^-4."""
    prior = PriorSettings(snr_min=5.0, snr_max=100.0, snr_law=law)  # type: ignore[arg-type]
    u = np.linspace(0.0, 1.0, 50)
    x = draw_snr(u, prior)
    integral = {
        "log_uniform": np.log, "uniform": lambda v: v, "euclidean": lambda v: -(v**-3.0)
    }[law]  # fmt: skip
    cumulative = (integral(x) - integral(5.0)) / (integral(100.0) - integral(5.0))
    assert np.allclose(cumulative, u, atol=1e-9)


@given(st.integers(0, 40), st.integers(0, 40))
def test_shares_hold_what_was_seen(hits: int, misses: int) -> None:
    found = share(np.repeat([True, False], [hits, misses]), 0.9)
    assert (found.hits, found.number) == (hits, hits + misses)
    if hits + misses:
        assert found.share is not None
        assert 0.0 <= found.lower <= found.share <= found.upper <= 1.0  # type: ignore[operator]
    else:
        assert found.share is None


def _looks(bands: int = 40) -> Looks:
    batch = next(iter(outcomes(Known(), known_bands(7, bands), 2, 0, bands)))  # type: ignore[arg-type]
    return looks(batch, matched_first(batch))


def test_slots_that_look_at_their_sources() -> None:
    """90% on the own component and 10% evenly over the band's: shares are known."""
    seen = _looks()
    found = slot_figures(seen, np.random.default_rng(0))
    assert found is not None
    assert found.attention is not None
    a, even = found.attention, found.attention.even
    assert a.own + a.near + a.elsewhere == pytest.approx(1.0)
    assert sum(even[:3]) == pytest.approx(1.0)
    assert a.own == pytest.approx(0.9 + 0.1 * even[0], abs=1e-6)
    assert a.near == pytest.approx(0.1 * even[1], abs=1e-6)
    assert a.others == pytest.approx(0.1 * even[3], abs=1e-6)
    assert found.peak_overlap == 0.0
    assert found.cosine_chance is not None
    assert found.cosine_overlap < found.cosine_chance
    assert found.evidence_sources == found.evidence_others == (1.0,) * 6
    assert found.bands == (seen.number >= 2).sum()


def test_peaks_that_are_shuffled_meet_by_chance() -> None:
    """The cosine's chance level, of sharp peaks, is that of peaks anywhere."""
    rng = np.random.default_rng(0)
    attention = np.zeros((4000, 5, 12), np.float32)
    attention[:, :, 0] = 1.0
    nothing = np.zeros(4000, np.int64)
    seen = Looks(
        nothing + 2, attention, np.arange(12) < np.full((4000, 1), 8), np.ones((4000, 2, 6)),
        np.ones((4000, 2), np.int64), np.zeros((4000, 2, 4)), nothing,
    )  # fmt: skip
    found = slot_figures(seen, rng)
    assert found is not None
    assert found.peak_chance == pytest.approx(1 / 8)
    assert found.cosine_chance == pytest.approx(1 / 8, abs=0.02)
    assert found.cosine_overlap == found.peak_overlap == 1.0
    assert found.attention is None


def test_no_band_of_two() -> None:
    seen = _looks()
    alone = Looks(*(column[seen.number < 2] for column in seen))
    assert slot_figures(alone, np.random.default_rng(0)) is None


def test_every_row_of_a_breakdown_is_of_all_sources() -> None:
    report = example_report()
    for part in report.models[0].breakdowns:
        assert sum(row.estimates[0].number for row in part.rows) == report.data.sources
        assert {len(row.estimates) for row in part.rows} == {len(part.columns)}
