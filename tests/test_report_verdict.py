"""The verdict says what the numbers say: counted again from the record."""

import dataclasses

import pytest

from slotflow.report.page import parameter_labels
from slotflow.report.record import ModelReport, PValue, Report
from slotflow.report.summary import summary_table
from slotflow.report.verdict import (
    calibration,
    compared,
    found,
    loud_recall,
    numbers,
    prior,
    published,
    verdict,
)
from tests.report_example import example_report


@pytest.fixture(scope="module")
def report() -> Report:
    return example_report(models=2)


@pytest.fixture(scope="module")
def model(report: Report) -> ModelReport:
    return report.models[0]


def with_p_values(model: ModelReport, *adjusted: float) -> ModelReport:
    tests = tuple(
        PValue("sbc", name, 0.5 * p, p)
        for name, p in zip(("f0", "fdot", "ra"), adjusted, strict=False)
    )
    return dataclasses.replace(
        model, calibration=dataclasses.replace(model.calibration, p_values=tests)
    )


def test_tests_fail_by_their_adjusted_p_value(report: Report, model: ModelReport):
    labels = parameter_labels(report)
    line = calibration(with_p_values(model, 0.2, 0.049, 0.001), labels)
    assert line.status == "fail"
    assert "2 of 3 tests fail" in line.text
    assert line.text.index("right ascension (adjusted p = 0.0010)") < line.text.index(
        "fdot (adjusted p = 0.049)"
    )
    assert "of f0" not in line.text
    line = calibration(with_p_values(model, 0.2, 0.05, 0.9), labels)
    assert line.status == "pass"
    assert "none of 3" in line.text
    assert "The smallest p is 0.025, rank histogram of fdot; adjusted 0.050." in line.text
    line = calibration(with_p_values(model, 0.0, 0.5), labels)
    assert "1 of 2 tests fails" in line.text
    assert "(adjusted p <\u200910⁻¹²)" in line.text


def test_without_tests_nothing_is_claimed(report: Report, model: ModelReport):
    line = calibration(with_p_values(model), parameter_labels(report))
    assert line.status == "note"
    assert "no test" in line.text


def test_a_parameter_whose_compression_may_be_nothing_is_named(
    report: Report, model: ModelReport
):  # fmt: skip
    labels, scores = parameter_labels(report), model.scores
    (line,) = prior(scores, labels)
    assert line.status == "pass"
    best = max(s.compression for s in scores.parameters)
    assert f"{100 * best:.1f}%" in line.text
    useless = dataclasses.replace(scores.parameters[5], compression=0.01, compression_lower=-0.02)
    rows = (*scores.parameters[:5], useless, *scores.parameters[6:])
    (line,) = prior(dataclasses.replace(scores, parameters=rows), labels)
    assert line.status == "fail"
    assert "1 of 8 parameters is not clearly below the prior's: polarisation" in line.text
    unknown = dataclasses.replace(useless, compression_lower=None)
    rows = (*scores.parameters[:5], unknown, *scores.parameters[6:])
    (line,) = prior(dataclasses.replace(scores, parameters=rows), labels)
    assert line.status == "pass"  # of one source there is no interval


def test_published_values_are_reached_or_named(report: Report, model: ModelReport):
    labels = parameter_labels(report)
    (line,) = published(model, labels)
    assert (line.status, "3 of 3" in line.text) == ("pass", True)
    first, second, third = model.published
    worse = (
        dataclasses.replace(first, ours=0.0151), dataclasses.replace(second, ours=0.905),
        dataclasses.replace(third, ours=None),
    )  # fmt: skip
    (line,) = published(dataclasses.replace(model, published=worse), labels)
    assert line.status == "fail"
    assert "0 of 2 are reached" in line.text
    assert "CRPS of f0 is 0.0151, published 0.015" in line.text
    assert "compression of f0 is 90.5%, published 91%" in line.text
    assert published(dataclasses.replace(model, published=()), labels) == []


def test_loud_sources_are_counted_from_their_rows(report: Report, model: ModelReport):
    rows = [row.recall for row in model.detection.rows if row.low in (10.0, 20.0, 50.0)]
    hits, sources = sum(r.hits for r in rows), sum(r.number for r in rows)
    assert loud_recall(model, 10.0) == (hits, sources)
    (line,) = found(model, 10.0)
    assert f"{100 * hits / sources:.1f}% of the {sources} true sources" in line.text
    (line,) = found(model, 1e3)
    assert "false alarms" in line.text
    assert "true sources" not in line.text


def test_numbers_of_sources_are_the_confusion_matrix(model: ModelReport):
    matrix = model.numbers.confusion.matrix
    right = sum(row[i] for i, row in enumerate(matrix))
    total = sum(map(sum, matrix))
    assert f"{100 * right / total:.1f}% of {total}" in numbers(model).text


def test_models_are_told_apart_by_intervals_without_zero(report: Report):
    labels, changed = parameter_labels(report), []
    for difference in report.differences:
        sign = {"f0": -1.0, "ra": 1.0}.get(difference.score, 0.0)
        low, high = (0.1, 0.3) if sign > 0 else (-0.3, -0.1) if sign else (-0.1, 0.1)
        estimate = dataclasses.replace(difference.estimate, mean_lower=low, mean_upper=high)
        changed.append(dataclasses.replace(difference, estimate=estimate))
    (line,) = compared(dataclasses.replace(report, differences=tuple(changed)), labels)
    assert line.text == (
        "other-1 against model: better in f0; worse in right ascension"
        " (90% intervals, each score for itself)."
    )
    none = tuple(
        dataclasses.replace(
            d, estimate=dataclasses.replace(d.estimate, mean_lower=None, mean_upper=None)
        )
        for d in report.differences
    )
    (line,) = compared(dataclasses.replace(report, differences=none), labels)
    assert "cannot tell" in line.text
    assert compared(dataclasses.replace(report, differences=()), labels) == ()


def test_the_verdict_starts_with_the_tests(report: Report, model: ModelReport):
    lines = verdict(model, report, parameter_labels(report))
    heads = [line.text.split(":")[0] for line in lines]
    assert heads == [
        "Calibration", "Prior", "Published values", "Number of sources", "Detection",
    ]  # fmt: skip


def test_the_summary_has_a_column_a_model(report: Report):
    table = summary_table("summary", report)
    assert table.columns == ("model", "other-1")
    rows = dict(table.rows)
    for i, model in enumerate(report.models):
        failed = sum(p.adjusted < 0.05 for p in model.calibration.p_values)
        assert rows["tests that fail"][i].value == failed
        assert rows["NLL"][i].value == model.scores.nll.mean
        hits, sources = loud_recall(model, 10.0)
        assert rows["recall from SNR 10 on"][i].value == hits / sources
        assert rows["precision"][i].value == model.detection.precision.share
