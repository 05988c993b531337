"""What a report keeps: exact posteriors pass, others are caught, order does not matter."""

import json
from dataclasses import asdict, replace
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import scoringrules

from slotflow.checkpoint import load_model
from slotflow.evaluation import scored
from slotflow.outcomes import outcomes
from slotflow.report import outcome as module
from slotflow.report.checks import calibration_tests
from slotflow.report.figures import (
    PriorScores,
    detection_figures,
    model_report,
    number_figures,
)
from slotflow.report.outcome import NAMES, Outcome, collect
from slotflow.report.priors import prior_scores
from slotflow.report.written import as_json
from slotflow.response import ResponseGrid
from slotflow.tokendata import TokenArrays, TokenData, TokenSubset
from tests.report_example import example_report
from tests.report_fakes import Set, known_bands, known_model, settings
from tests.synthetic import BINS, DURATION

BANDS = 500
NONE = 2.0  # a probability that nothing reaches: no report is compared


def _read(
    data: TokenData, grid: ResponseGrid, scale: float = 1.0, least: float = NONE,
    order: np.ndarray | None = None, **options: float,
) -> Outcome:  # fmt: skip
    tokens = TokenArrays(data) if order is None else TokenSubset(TokenArrays(data), order)
    model = known_model(grid, scale, **options)
    wanted = settings(min_probability=least)
    return collect(model, Set(len(data.number)), tokens, wanted)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def grid() -> ResponseGrid:
    return load_model(Path(str(resources.files("slotflow.data") / "model.safetensors"))).grid


@pytest.fixture(scope="module")
def bands() -> TokenData:
    return known_bands(11, BANDS)


@pytest.fixture(scope="module")
def exact(bands: TokenData, grid: ResponseGrid) -> Outcome:
    return _read(bands, grid)


def _tests(outcome: Outcome) -> dict[tuple[str, str | None], float]:
    tests = calibration_tests(outcome, number_figures(outcome, settings()), 0)
    return {(p.test, p.parameter): p.value for p in tests.p_values}


def test_the_exact_posterior_passes(exact: Outcome) -> None:
    found = _tests(exact)
    assert len(found) == 3 * 8 + 5
    of_draws = {key: value for key, value in found.items() if not key[0].startswith("k_")}
    assert min(of_draws.values()) > 1e-3, min(of_draws.items(), key=lambda item: item[1])
    assert len(exact.joint.source) == np.count_nonzero(exact.bands.number)
    assert len(np.unique(exact.sources.band[exact.joint.source])) == len(exact.joint.source)


def test_sources_of_one_band_count_once(exact: Outcome) -> None:
    """Sources that say the same thing three times in each band leave every test as it is."""
    first = np.unique(exact.sources.band, return_index=True)[1]
    alone = exact.sources._replace(**{k: v[first] for k, v in exact.sources._asdict().items()})
    thrice = alone._replace(**{k: np.repeat(v, 3, axis=0) for k, v in alone._asdict().items()})
    joint = exact.joint._replace(source=np.arange(len(first)))
    once = _tests(replace(exact, sources=alone, joint=joint))
    again = _tests(replace(exact, sources=thrice, joint=joint._replace(source=joint.source * 3)))
    assert once == again


def test_narrow_posteriors_are_caught_where_they_are_narrow(
    bands: TokenData, grid: ResponseGrid
) -> None:
    found = _tests(_read(bands, grid, scale=0.6))
    for name in ("f0", "ln_amplitude", "ra"):
        assert found["coverage", name] < 1e-6, name
        assert found["sbc", name] < 1e-4, name
    for name in ("fdot", "sin_dec", "psi", "cos_iota", "phi0"):  # drawn as before
        assert found["coverage", name] > 1e-4, name
    for test in ("density", "tarp", "c2st"):
        assert found[test, None] < 1e-3, test


def test_the_order_of_bands_changes_nothing(bands: TokenData, grid: ResponseGrid) -> None:
    """Nor do the batches that they fall into; ties of rounding apart, all is equal."""
    few = bands.rows(np.arange(60))
    order = np.random.default_rng(0).permutation(60)
    one, other = _read(few, grid, least=0.5), _read(few, grid, least=0.5, order=order)
    for part in ("sources", "bands", "joint", "looks"):
        for name, a in getattr(one, part)._asdict().items():
            assert np.array_equal(a, getattr(getattr(other, part), name)), (part, name)
    assert _tests(one) == _tests(other)
    data, wanted = _Data(), settings()
    assert number_figures(one, wanted) == number_figures(other, wanted)
    a, b = (detection_figures(x, data, wanted) for x in (one, other))  # type: ignore[arg-type]
    assert asdict(a) == asdict(b)


class _Data:
    prior = {"snr_min": 5.0}  # noqa: RUF012


def test_crps_is_the_library_of_others(bands: TokenData, exact: Outcome) -> None:
    """scoringrules' fair estimator, of the parameters that are no angles; and of the energy."""
    batch = next(iter(outcomes(known_model(None).network, bands.rows(np.arange(100)), 99, 0, 100)))
    draws, truths = scored(batch, BINS, DURATION)
    first = len(truths)
    for j, name in enumerate(NAMES):
        if name in ("f0", "fdot", "ln_amplitude", "sin_dec", "cos_iota"):
            theirs = scoringrules.crps_ensemble(truths[:, j], draws[..., j], estimator="fair")
            assert np.allclose(exact.sources.crps[:first, j], theirs, atol=1e-9), name
    assert np.allclose(exact.sources.truths[:first], truths)
    # psi is an angle: its score is the mean over all ways to cut the circle, not over one
    psi = NAMES.index("psi")
    assert exact.sources.crps[:, psi].mean() == pytest.approx(1 / 8, abs=0.01)


def test_what_is_reported_is_found(bands: TokenData, grid: ResponseGrid) -> None:
    """Slots that hold sources are likely, others are not; narrow draws overlap with the truth."""
    few = bands.rows(np.arange(20))
    outcome = _read(few, grid, scale=1e-3, least=0.5)
    numbers = number_figures(outcome, settings())
    assert numbers.confusion.exact == 1.0
    assert numbers.roc is not None
    assert numbers.roc.auc == 1.0
    assert np.array_equal(outcome.bands.holds, outcome.bands.probability > 0.5)
    # the waveforms' angles are uniform, so that draws differ from truths: most are of nothing
    wide = detection_figures(outcome, _Data(), settings())  # type: ignore[arg-type]
    assert wide.reports == few.number.sum() == wide.truths + (outcome.sources.snr < 5.0).sum()
    assert wide.false_alarms > 0.5 * wide.reports


def test_truths_outside_are_counted(bands: TokenData, grid: ResponseGrid) -> None:
    few = bands.rows(np.arange(40))
    outcome = _read(few, grid, nothing_above=128.0)
    outside = np.isinf(outcome.sources.nll)
    assert outside.sum() == (few.sources[..., 0][few.component >= 0] > 128.0).sum()
    assert (outcome.sources.density_rank[outside] == 99).all()  # every draw is denser
    assert np.isfinite(outcome.sources.crps).all()
    _tests(outcome)


def test_one_source_is_enough(grid: ResponseGrid) -> None:
    """What cannot be had of it is left out."""
    data, wanted = known_bands(3, 2), settings()
    outcome = _read(data, grid, least=0.5)
    prior = Set(2).prior
    rng = np.random.default_rng(0)
    scores = PriorScores(*prior_scores(outcome.sources, outcome.bands, prior, DURATION, rng))
    report = example_report()
    identity = report.models[0].model
    bands = replace(report.data, prior=prior.model_dump(mode="json"))
    found = model_report(identity, outcome, scores, bands, wanted, {"search": 1.0})
    assert found.scores.sources == 1
    assert found.scores.parameters[0].crps.mean_lower is None
    assert found.calibration.c2st is None
    assert found.slots is None
    content = json.loads(as_json(replace(report, models=(found,))))
    assert content["c2st_pvalue"] is None
    assert content["overlap"] is None
    assert content["crps"]["f0"] == pytest.approx(found.scores.parameters[0].crps.mean)


def test_many_bands_are_thinned(
    bands: TokenData, grid: ResponseGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "JOINT_BANDS", 100)
    kept = len(_read(bands, grid).joint.source)
    with_source = np.count_nonzero(bands.number)
    mean = 100 / BANDS * with_source
    assert abs(kept - mean) < 5 * np.sqrt(mean)
