"""The calibration tests of an outcome, on one source of each band."""

from typing import Final

import numpy as np

from slotflow.c2st import C2st, c2st
from slotflow.report.outcome import NAMES, PERIODS, Outcome
from slotflow.report.record import CalibrationTests, Numbers, PValue
from slotflow.sbc import ParameterTests, central_coverage, rank_histogram, rank_test
from slotflow.scores import one_per_cluster
from slotflow.tarp import tarp
from slotflow.uniformity import holm

GROUPS: Final = ("estimated SNR up to 10", "estimated SNR above 10")
_FEWEST: Final = 20  # sources for a discriminator
_LOUD: Final = 10.0


def calibration_tests(outcome: Outcome, numbers: Numbers, seed: int) -> CalibrationTests:
    """Return all tests, and their p-values adjusted for their number.

    Sources of one band are dependent: each band is represented by one, on which the tests are
    exact (:func:`slotflow.scores.one_per_cluster`).

    Args:
        outcome: of a model.
        numbers: the tests of the number of sources, whose p-values are among those adjusted.
        seed: of what is drawn.
    """
    sources, m = outcome.sources, outcome.draws
    chosen = one_per_cluster(sources.band, np.random.default_rng([seed, 10]))
    parameters = tuple(
        ParameterTests(
            name, m, rank_histogram(column, m), rank_test(column, m), central_coverage(column, m)
        )
        for name, column in zip(NAMES, sources.ranks[chosen].T, strict=True)
    )
    density = rank_test(sources.density_rank[chosen], m)
    joint = outcome.joint
    truths = sources.truths[joint.source]
    points = None
    if len(joint.source):
        points = tarp(joint.draws, truths, PERIODS, np.random.default_rng([seed, 11]))
    learned = _discriminator(outcome, np.random.default_rng([seed, 12]))
    found = [("sbc", t.name, t.histogram.p_value) for t in parameters]
    found += [("pit", t.name, t.pit.p_value) for t in parameters]
    found += [("coverage", t.name, t.coverage.p_value) for t in parameters]
    of_all = [
        ("density", density.p_value),
        ("tarp", None if points is None else points.p_value),
        ("c2st", None if learned is None else learned.p_value),
        ("k_reliability", numbers.q_k.reliability.p_value), ("k_pit", numbers.q_k.pit.p_value),
    ]  # fmt: skip
    every: list[tuple[str, str | None, float]] = [*found]
    every += [(name, None, value) for name, value in of_all if value is not None]
    adjusted = holm([value for _, _, value in every])
    p_values = tuple(PValue(*one, a) for one, a in zip(every, adjusted, strict=True))
    return CalibrationTests(len(chosen), parameters, density, points, learned, GROUPS, p_values)


def _discriminator(outcome: Outcome, generator: np.random.Generator) -> C2st | None:
    """Test with what is known of a source without its truth; None for too few sources."""
    joint, sources, bands = outcome.joint, outcome.sources, outcome.bands
    if len(joint.source) < _FEWEST:
        return None
    rho, band = sources.rho[joint.source], sources.band[joint.source]
    conditions = np.column_stack(
        (np.log(rho), bands.first_bin[band], bands.probability[band].sum(axis=1))
    )
    groups = (rho > _LOUD).astype(np.int64)
    return c2st(joint.draws, sources.truths[joint.source], PERIODS, generator, conditions, groups)
