"""The model beside the exact posterior: ratios by hand, who is counted, one true refinement."""

from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scoringrules

from slotflow.checkpoint import Model, load_model
from slotflow.config import load_preset
from slotflow.parameters import AMPLITUDE, F0, LN_AMPLITUDE_RANGE
from slotflow.refine import Refined
from slotflow.refine_input import RefineBand
from slotflow.refined import Evidence
from slotflow.report.make import report_settings
from slotflow.report.outcome import NAMES, Outcome, collect
from slotflow.report.record import RefinedScores, ReportSettings
from slotflow.report.refined import Bands, Pairs, compared, refined_scores, to_refine
from slotflow.simulate.dataset import simulate_dataset
from slotflow.store import TrainingSet
from slotflow.tokencache import cache_path, ensure_searched, open_tokens
from slotflow.tokenstore import TokenStore
from tests.report_fakes import settings

LN_A = NAMES.index("ln_amplitude")
WANTED = replace(report_settings(0, 200, refine=2), resamples=50)
Change = Callable[[np.ndarray], np.ndarray]


def _pairs(bands: int = 20, each: int = 2, draws: int = 60, shift: float = 0.0) -> Pairs:
    """Draws about 0.4, all of them below the truths; refined ones ``shift`` further down."""
    rng = np.random.default_rng(1)
    n = bands * each
    network = 0.4 + 0.03 * rng.random((n, draws, 8))
    truths = np.full((n, 8), 0.5) + 0.05 * rng.random((n, 8))
    return Pairs(np.repeat(np.arange(bands), each), truths, network, network - shift, 0, 0)


def _rows(pairs: Pairs, index: np.ndarray) -> Pairs:
    return Pairs(
        pairs.band[index], pairs.truths[index], pairs.network[index], pairs.refined[index], 0, 0
    )


def test_a_shift_moves_the_ratio_by_itself() -> None:
    """Where all draws are on one side of the truth, a shift away from it adds to the CRPS."""
    shift = 0.07
    pairs = _pairs(shift=shift)
    for j, one in enumerate(compared(pairs, settings())):
        theirs = scoringrules.crps_ensemble(
            pairs.truths[:, j], pairs.network[..., j], estimator="fair"
        ).mean()
        assert one.crps.mean == pytest.approx(theirs, rel=1e-9)
        assert one.crps_refined.mean == pytest.approx(theirs + shift, rel=1e-9)
        assert one.ratio == pytest.approx(theirs / (theirs + shift), rel=1e-9)
        assert one.ratio is not None
        assert one.ratio_lower is not None
        assert one.ratio_upper is not None
        assert one.ratio_lower < one.ratio < one.ratio_upper < 1.0
        assert one.coverage.mean == one.coverage_refined.mean == 0.0


def test_intervals_are_over_bands() -> None:
    """Sources that say the same thing twice do not make intervals narrower."""
    once, twice = _pairs(each=1, shift=0.02), _pairs(each=1, shift=0.02)
    twice = _rows(twice, np.repeat(np.arange(20), 2))
    for a, b in zip(compared(once, settings()), compared(twice, settings()), strict=True):
        assert (a.ratio_lower, a.ratio_upper) == pytest.approx((b.ratio_lower, b.ratio_upper))
    alone = compared(_pairs(bands=1, shift=0.02), settings())
    assert all(one.ratio is not None and one.ratio_lower is None for one in alone)


def test_coverage_is_counted() -> None:
    """Draws 0.005, 0.015, ...: truths inside the central 90% of them, and outside."""
    draws = np.tile((np.arange(100.0) + 0.5)[:, None] / 100.0, (4, 1, 8)).reshape(4, 100, 8)
    wide = 0.5 + 0.1 * (draws - 0.5)
    truths = np.tile(np.array([0.5, 0.5, 0.8, 0.02])[:, None], 8)
    found = compared(Pairs(np.arange(4), truths, draws, wide, 0, 0), settings())
    for one in found:
        if one.name not in ("ra", "psi", "phi0"):
            assert one.coverage.mean == 0.75
            assert one.coverage_refined.mean == 0.5


def test_no_ratio_to_what_is_not_above_zero() -> None:
    """Draws that are all at the truth: 0.5, which leaves no rounding."""
    pairs = _pairs()
    none = pairs._replace(truths=np.full((40, 8), 0.5), refined=np.full((40, 60, 8), 0.5))
    assert all(one.ratio is None for one in compared(none, settings()))
    assert compared(_rows(pairs, np.arange(0)), settings()) == ()


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(Path(str(resources.files("slotflow.data") / "model.safetensors")))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, model: Model) -> TrainingSet:
    folder = tmp_path_factory.mktemp("bands") / "held-out"
    simulate_dataset(load_preset("shipped"), folder, 8, 31, 1)
    data = TrainingSet(folder)
    ensure_searched(data, model.grid, model.preset.components, 1)
    return data


@pytest.fixture(scope="module")
def tokens(data: TrainingSet, model: Model) -> TokenStore:
    return open_tokens(data, model.preset.components, 1)


@pytest.fixture(scope="module")
def outcome(model: Model, data: TrainingSet, tokens: TokenStore) -> Outcome:
    return collect(model, data, tokens, WANTED)


def _fake(change: Change, warnings: tuple[str, ...] = (), value: float = 1.0) -> Any:
    """A refinement that changes the network's draws (S, n, 8), and says so or not."""

    def refine(band: RefineBand, rng: np.random.Generator) -> Refined:
        samples = np.stack([slot.samples for slot in band.slots])
        record = SimpleNamespace(
            slots=tuple(slot.number for slot in band.slots), warnings=warnings,
            ln_z=Evidence(value, 0.0),
        )  # fmt: skip
        return Refined(change(samples), np.zeros(samples.shape[:2]), record)  # type: ignore[arg-type]

    return refine


@pytest.fixture(scope="module")
def scores(
    model: Model, data: TrainingSet, tokens: TokenStore, outcome: Outcome
) -> Callable[..., RefinedScores]:
    def run(refine: Any = None, wanted: ReportSettings = WANTED) -> RefinedScores:
        return refined_scores(model, data, tokens, outcome, wanted, refine)

    return run


def test_louder_draws_move_one_ratio(scores: Callable[..., RefinedScores]) -> None:
    """Draws 100 times as loud: all above the truth, two decades, one unit of ln A; all else 1."""

    def louder(samples: np.ndarray) -> np.ndarray:
        samples = samples.copy()
        samples[..., AMPLITUDE] *= np.exp(LN_AMPLITUDE_RANGE)
        return samples

    same, found = scores(_fake(lambda x: x)), scores(_fake(louder, ("loud",)))
    assert {one.ratio for one in same.parameters} == {1.0}
    assert (same.warned, same.warnings) == (0, ())
    assert found.warned == 2
    assert all(line.endswith(": loud") for line in found.warnings)
    for one, before in zip(found.parameters, same.parameters, strict=True):
        assert one.crps == before.crps
        if one.name != "ln_amplitude":
            assert one.ratio == 1.0
    moved = found.parameters[LN_A]
    assert moved.ratio is not None
    assert moved.coverage_refined.mean == 0.0
    # mean |x + 1 - y| is 1 + mean (x - y), and that is between minus and plus mean |x - y|
    assert moved.crps_refined.mean == pytest.approx(1.0, abs=0.2)
    assert moved.ratio == pytest.approx(moved.crps.mean / moved.crps_refined.mean)


def test_every_source_is_counted_once(
    scores: Callable[..., RefinedScores], outcome: Outcome
) -> None:
    chosen = to_refine(outcome, WANTED)
    number = outcome.bands.number[np.isin(outcome.bands.sample, chosen)].sum()
    found = scores(_fake(lambda x: x))
    assert found.bands == 2
    assert found.not_refined == 0
    assert found.sources + found.not_found == number
    # a refinement that gave up leaves the network's draws: these are not scored as exact
    failed = scores(_fake(lambda x: x, ("not refined",), float("nan")))
    assert (failed.sources, failed.parameters) == (0, ())
    assert failed.not_refined == found.sources
    assert failed.not_found == found.not_found


def test_which_bands(outcome: Outcome) -> None:
    """The first ones with one to three reports."""
    reports = (outcome.bands.probability >= 0.5).sum(axis=1)
    wanted = [s for s, n in zip(outcome.bands.sample, reports, strict=True) if 1 <= n <= 3]
    assert len(wanted) > 3
    assert to_refine(outcome, WANTED).tolist() == wanted[:2]
    assert to_refine(outcome, replace(WANTED, refine=100)).tolist() == wanted
    most = np.full_like(outcome.bands.probability, 0.9)
    none = replace(outcome, bands=outcome.bands._replace(probability=most))
    assert to_refine(none, WANTED).size == 0


def test_the_band_is_the_sets_own(
    model: Model, data: TrainingSet, tokens: TokenStore, outcome: Outcome, tmp_path: Path
) -> None:
    """Data of the set, the search's components and level, also where these are not kept."""
    sample = int(to_refine(outcome, WANTED)[0])
    read = Bands(model, data, tokens, WANTED).read(sample)
    band = read.band
    assert np.array_equal(band.data, data.standard_bands(sample, sample + 1)[0][:2])
    assert band.first_bin == data.first_bins(sample, sample + 1)[0]
    kept = cache_path(data, 0, model.preset.components, 0)
    moved = kept.rename(tmp_path / kept.name)
    try:
        again = Bands(model, data, tokens, WANTED).read(sample).band
    finally:
        moved.rename(kept)
    assert np.array_equal(again.components, band.components)
    assert np.array_equal(again.level, band.level)
    reported = {slot.number for slot in band.slots}
    own = outcome.bands.probability[outcome.bands.sample == sample][0] >= 0.5
    assert reported == set(np.flatnonzero(own).tolist())
    for slot in band.slots:
        assert slot.samples.shape == (WANTED.draws, 8)
        place = np.median(slot.samples[:, F0]) * data.observation.duration - band.first_bin
        assert place == pytest.approx(band.components[slot.component]["bin"], abs=1.0)


def test_a_true_refinement(scores: Callable[..., RefinedScores]) -> None:
    """One band, by tempered SMC: the draws change, and are no worse than the model's by far."""
    found = scores(None, replace(WANTED, refine=1))
    assert found.bands == 1
    assert found.sources >= 1
    again = scores(None, replace(WANTED, refine=1))
    assert again.parameters == found.parameters  # the seed and the band alone
    for one in found.parameters:
        assert one.crps_refined.mean != one.crps.mean
        assert one.crps_refined.mean < max(3.0 * one.crps.mean, 0.2)
