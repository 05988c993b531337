"""Differences of models, source by source."""

from dataclasses import replace

import numpy as np
import pytest

from slotflow.errors import InputError
from slotflow.report.compare import differences
from slotflow.report.outcome import NAMES, Outcome, Sources
from slotflow.scores import estimates
from tests.report_fakes import settings

N = 400


def _outcome(crps: np.ndarray, nll: np.ndarray) -> Outcome:
    rng = np.random.default_rng(1)
    truths, nothing = rng.random((N, 8)), np.zeros(N)
    sources = Sources(
        np.arange(N) // 2, nothing, nothing, nothing, nothing, nothing, truths, crps,
        crps.sum(axis=1), nll, np.zeros((N, 8), np.int64), np.zeros(N, np.int64),
    )  # fmt: skip
    return Outcome(99, sources, None, None, None, None)  # type: ignore[arg-type]


@pytest.fixture(name="pair")
def _pair() -> tuple[Outcome, Outcome]:
    """Scores that vary by 1 from source to source, and by 0.01 from model to model."""
    rng = np.random.default_rng(2)
    crps, nll = rng.random((N, 8)), rng.normal(0.0, 1.0, N)
    better = crps - 0.01 + 0.01 * rng.normal(size=(N, 8))
    other = nll + 0.5
    other[:3], nll = np.inf, np.where(np.arange(N) == 5, np.inf, nll)
    return _outcome(crps, nll), _outcome(better, other)


def test_differences_are_those_of_the_scores(pair: tuple[Outcome, Outcome]) -> None:
    found = {d.score: d for d in differences(pair, ["a", "b"], settings())}
    assert set(found) == {*NAMES, "energy", "nll"}
    a, b = (one.sources for one in pair)
    for j, name in enumerate(NAMES):
        assert found[name].model == "b"
        assert found[name].estimate.mean == pytest.approx((b.crps[:, j] - a.crps[:, j]).mean())
    assert found["nll"].estimate.mean == pytest.approx(0.5)
    assert found["nll"].estimate.number == N - 4


def test_what_is_hard_for_both_cancels(pair: tuple[Outcome, Outcome]) -> None:
    """The paired interval tells the models apart, which those of the scores do not."""
    paired = differences(pair, ["a", "b"], settings())[0].estimate
    assert paired.mean_upper is not None
    assert paired.mean_lower is not None
    assert paired.mean_upper < 0.0
    own = estimates(pair[0].sources.crps, np.random.default_rng(0), pair[0].sources.band)[0]
    assert own.mean_upper is not None
    assert own.mean_lower is not None
    assert paired.mean_upper - paired.mean_lower < 0.2 * (own.mean_upper - own.mean_lower)


def test_a_model_and_itself_are_equal(pair: tuple[Outcome, Outcome]) -> None:
    one = pair[0]
    for d in differences((one, one), ["a", "a (2)"], settings()):
        assert d.estimate.mean == d.estimate.mean_lower == d.estimate.mean_upper == 0.0


def test_one_model_has_no_difference(pair: tuple[Outcome, Outcome]) -> None:
    assert differences(pair[:1], ["a"], settings()) == ()


def test_other_sources_are_refused(pair: tuple[Outcome, Outcome]) -> None:
    moved = pair[1].sources._replace(truths=pair[1].sources.truths + 0.1)
    with pytest.raises(InputError, match="b: read other sources than a"):
        differences((pair[0], replace(pair[1], sources=moved)), ["a", "b"], settings())
