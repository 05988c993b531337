"""A report of invented numbers, for tests of what is made of reports."""

import numpy as np

from slotflow.c2st import c2st
from slotflow.cardinality import confusion, count_tests, reliability_test, roc
from slotflow.detection import Detection, Matches, Share, detection
from slotflow.report.record import (
    Attention,
    Breakdown,
    CalibrationTests,
    DataIdentity,
    Difference,
    ModelIdentity,
    ModelReport,
    Numbers,
    ParameterInfo,
    Published,
    PValue,
    RefinedParameter,
    RefinedScores,
    Report,
    ReportSettings,
    Scores,
    SlotFigures,
)
from slotflow.sbc import density_coverage, parameter_tests
from slotflow.scores import (
    breakdown,
    crps_columns,
    energy_score,
    estimates,
    parameter_scores,
    prior_crps,
)
from slotflow.tarp import tarp
from slotflow.uniformity import holm

PARAMETERS = (
    ParameterInfo("f0", "f0", "the band, 256 bins", None),
    ParameterInfo("fdot", "fdot", "the range of fdot T^2", None),
    ParameterInfo("ln_amplitude", "ln A", "ln 100, two decades", None),
    ParameterInfo("ra", "right ascension", "the circle, 2 pi", 1.0),
    ParameterInfo("sin_dec", "sin declination", "its range", None),
    ParameterInfo("psi", "polarisation", "its circle, pi/2", 1.0),
    ParameterInfo("cos_iota", "cos inclination", "its range", None),
    ParameterInfo("phi0", "initial phase", "the circle, 2 pi", 1.0),
)
NAMES = tuple(p.name for p in PARAMETERS)
PERIODS = tuple(p.period for p in PARAMETERS)


def example_report(sources: int = 120, draws: int = 60, models: int = 1) -> Report:
    """Posteriors that are right, of as many models as asked for; half a second."""
    names = ["model", *(f"other-{i}" for i in range(1, models))]
    reports = tuple(_model(name, sources, draws, i) for i, name in enumerate(names))
    differences = tuple(
        Difference(name, score, estimates(np.random.default_rng(i).normal(0, 1e-3, sources),
                                          np.random.default_rng(i), None)[0])
        for i, name in enumerate(names[1:])
        for score in (*NAMES, "nll", "energy")
    )  # fmt: skip
    return Report(
        version="0.1.0", created="2026-11-30T12:00:00Z", command="slotflow report",
        data=DataIdentity(
            "simulated", None, 1_000_003, "e" * 64, 90, 9, sources, sources // 2, 1.0e-3, 2.1e-3,
            {"samples": 524288, "dt": 60.0}, {"bins": 256, "max_sources": 4},
        ),
        settings=ReportSettings(0, draws, 60, 0.9, 1000, 0.95, 10.0, 0.5, 1.0, 0.8),
        parameters=PARAMETERS, models=reports, differences=differences,
        seconds={"simulation": 20.1, "search": 30.4}, notes=("invented numbers",),
    )  # fmt: skip


def example_refined() -> RefinedScores:
    """Twelve refined bands with 20 sources, of which two had warnings."""
    rng = np.random.default_rng(5)
    crps, exact = rng.uniform(0.01, 0.02, (20, 8)), rng.uniform(0.01, 0.02, (20, 8))
    inside = rng.random((2, 20, 8)) < 0.9
    band = np.arange(20) // 2
    columns = [estimates(values, rng, band) for values in (crps, exact, *inside)]
    parameters = tuple(
        RefinedParameter(name, a, b, a.mean / b.mean, 0.8, 1.3, c, d)
        for name, a, b, c, d in zip(NAMES, *columns, strict=True)
    )
    warnings = ("band 4: independent runs differ", "band 4: at the edge", "band 9: at the edge")
    return RefinedScores(12, 20, 2, 1, 2, warnings, parameters, 43.1)


def _model(name: str, n: int, m: int, seed: int) -> ModelReport:
    rng = np.random.default_rng(seed)
    width = rng.uniform(0.01, 0.1, (n, 1, 8))
    everything = 0.5 + width * rng.normal(size=(n, m + 1, 8))
    draws, truths = everything[:, 1:], everything[:, 0]
    log_q = -0.5 * ((everything - 0.5) ** 2 / width**2).sum(-1)
    band, snr = np.arange(n) * 3 // 4, np.exp(rng.uniform(np.log(5), np.log(100), n))
    crps, prior = crps_columns(draws, truths, PERIODS), prior_crps(
        rng.random((500, 8)), truths, PERIODS
    )  # fmt: skip
    energy, nll = energy_score(draws, truths, PERIODS), -log_q[:, 0]
    columns = np.column_stack((crps, nll, energy))

    def scores(chosen: np.ndarray) -> Scores:
        rows = estimates(columns[chosen], rng, band[chosen])
        inside = rng.random((int(chosen.sum()), 8)) < 0.9
        return Scores(
            int(chosen.sum()), parameter_scores(crps[chosen], prior[chosen], NAMES, rng),
            estimates(inside, rng, band[chosen]), rows[8], rows[9], 0.4, 1,
            Share(3, int(chosen.sum()), 3 / n, 0.01, 0.06),
        )  # fmt: skip

    quantities = (
        ("snr", "SNR", snr, (7.0, 10.0, 20.0, 50.0)),
        ("sources", "sources in the band", rng.integers(1, 5, n), (2.0, 3.0, 4.0)),
        ("f0", "frequency, mHz", rng.uniform(1.0, 2.1, n), (1.3, 1.7)),
        ("separation", "bins to the nearest source",
         np.where(rng.random(n) < 0.2, np.nan, rng.uniform(0, 90, n)), (1.0, 4.0, 16.0)),
    )  # fmt: skip
    rows = tuple(
        Breakdown(by, label, (*NAMES, "nll", "energy"),
                  breakdown(columns, values, edges, rng, band))
        for by, label, values, edges in quantities
    )  # fmt: skip
    return ModelReport(
        ModelIdentity(name, f"data/{name}.safetensors", "a" * 64, 845_239,
                      {"slope": 0.97, "offset": -0.1}, (1,), {"prior": {}}, {"training": {}}),
        scores(snr > 0), scores(snr > 10), rows, _calibration(draws, truths, log_q, rng),
        _numbers(rng), _detection(rng), _slots(),
        (Published("crps", "f0", 0.015, False, 0.0027, 0.0002, "arXiv:2605.02323"),
         Published("compression", "f0", 0.91, False, 0.98, 0.99, "arXiv:2605.02323"),
         Published("crps", "ra", 0.05, True, 0.0105, 0.0035, "arXiv:2605.02323")),
        {"reading": 3.2, "posteriors": 40.0, "detection": 9.1, "figures": 6.0},
        ("1 truth outside the flow's support: not in the NLL",),
    )  # fmt: skip


def _calibration(
    draws: np.ndarray, truths: np.ndarray, log_q: np.ndarray, rng: np.random.Generator
) -> CalibrationTests:
    tests = parameter_tests(draws, truths, PERIODS, NAMES)
    density = density_coverage(log_q[:, 1:], log_q[:, 0])
    points = tarp(draws, truths, PERIODS, rng)
    groups = rng.integers(0, 2, len(draws))
    learned = c2st(draws, truths, PERIODS, rng, groups=groups)
    found = [("sbc", t.name, t.histogram.p_value) for t in tests]
    found += [("pit", t.name, t.pit.p_value) for t in tests]
    found += [("coverage", t.name, t.coverage.p_value) for t in tests]
    found += [("density", None, density.p_value), ("tarp", None, points.p_value)]
    found += [("c2st", None, learned.p_value), ("k_pit", None, 0.3)]
    adjusted = holm([value for _, _, value in found])
    p_values = tuple(PValue(*one, a) for one, a in zip(found, adjusted, strict=True))
    return CalibrationTests(
        len(draws), tests, density, points, learned, ("estimated SNR up to 10", "above"), p_values
    )


def _numbers(rng: np.random.Generator) -> Numbers:
    true = rng.integers(0, 5, 90)
    guess = np.clip(true + rng.integers(-1, 2, 90) * (rng.random(90) < 0.2), 0, 5)
    q = rng.dirichlet(np.ones(6), 90)
    p = rng.random(400)
    exists = rng.random(400) < p
    return Numbers(
        confusion(true, guess), confusion(true[:40], guess[:40]), confusion(true, guess),
        count_tests(q, true, rng), reliability_test(p, exists), roc(p, exists),
    )  # fmt: skip


def _detection(rng: np.random.Generator) -> Detection:
    snr = np.exp(rng.uniform(np.log(5), np.log(100), 100))
    truth = np.where(rng.random(100) < 0.9, np.arange(100), -1)
    matches = Matches(truth, (truth < 0) & (rng.random(100) < 0.2))
    return detection(matches, snr, snr, (5.0, 7.0, 10.0, 20.0, 50.0), 90)


def _slots() -> SlotFigures:
    return SlotFigures(
        60, 0.004, 0.12, 0.03, 0.18, (1.0, 0.6, 0.3, 0.1, 0.05, 0.02),
        (1.0, 0.99, 0.98, 0.97, 0.96, 0.9),
        Attention(150, 4.0, 0.92, 0.04, 0.04, 0.02, (0.1, 0.05, 0.85, 0.2)),
    )  # fmt: skip
