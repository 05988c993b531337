"""report.json: the names that users rely on, and nothing that is no JSON."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from slotflow.errors import InputError
from slotflow.report.gate import flat
from slotflow.report.outcome import NAMES
from slotflow.report.written import all_figures, as_json, figure_names, plain, write_text
from tests.report_example import example_refined, example_report

EACH = ("crps", "crps_snr10", "compression", "coverage90", "sbc_pvalue")
SINGLE = (
    "nll", "k_exact", "k_within_one", "reliability_error", "recall_snr10", "duplicates", "overlap",
)  # fmt: skip


def test_the_promised_keys() -> None:
    content = json.loads(as_json(example_report()))
    for key in EACH:
        assert tuple(content[key]) == NAMES, key
        assert all(isinstance(value, float) for value in content[key].values()), key
    for key in SINGLE:
        assert isinstance(content[key], int | float), key
    assert content["model"]["sha256"] == "a" * 64
    assert content["data"]["bands"] == 90


def test_figures_are_those_of_the_records() -> None:
    report = example_report(models=2)
    content, model = json.loads(as_json(report)), report.models[0]
    assert content["crps"]["ra"] == model.scores.parameters[3].crps.mean
    assert content["compression"]["f0"] == model.scores.parameters[0].compression
    rows = [row for row in model.detection.rows if row.low >= 10.0]
    hits, number = (sum(getattr(row.recall, n) for row in rows) for n in ("hits", "number"))
    assert content["recall_snr10"] == hits / number
    assert content["compared"]["other-1"]["nll"] == report.models[1].scores.nll.mean  # type: ignore[union-attr]
    change = next(d for d in report.differences if d.score == "psi")
    assert content["compared"]["other-1"]["difference"]["psi"] == change.estimate.mean
    worst = min(p.adjusted for p in model.calibration.p_values)
    assert content["smallest_padjusted"] == worst
    assert content["details"]["models"][1]["model"]["name"] == "other-1"


@pytest.mark.parametrize("models", [1, 3])
def test_names_are_known_beforehand(models: int) -> None:
    report = example_report(models=models)
    names = figure_names(NAMES, [one.model.name for one in report.models[1:]])
    assert set(flat(all_figures(report))) == set(names)
    assert len(names) == len(set(names))
    # also where much of it could not be had
    model = report.models[0]
    bare = replace(
        model, loud=None, slots=None, scores=replace(model.scores, nll=None),
        numbers=replace(model.numbers, existence=None, roc=None, loud=None),
        calibration=replace(model.calibration, tarp=None, c2st=None),
    )  # fmt: skip
    poor = replace(report, models=(bare, *report.models[1:]), differences=())
    assert set(flat(all_figures(poor))) == set(names)


def test_refined_bands_have_names_of_their_own() -> None:
    """Beside the others, of the first model alone; also where no source could be scored."""
    report = example_report(models=2)
    without = as_json(report)
    assert "refined" not in json.loads(without)
    found = example_refined()
    first = replace(report.models[0], refined=found)
    full = replace(report, models=(first, report.models[1]))
    content = json.loads(as_json(full))
    assert content["refined"]["ratio"]["f0"] == found.parameters[0].ratio
    assert content["refined"]["crps"]["ra"] == found.parameters[3].crps_refined.mean
    assert content["refined"]["crps_network"]["ra"] == found.parameters[3].crps.mean
    assert content["refined"]["coverage90"]["psi"] == found.parameters[5].coverage_refined.mean
    assert content["refined"]["bands"] == 12
    assert {k: v for k, v in content.items() if k not in ("refined", "details")} == {
        k: v for k, v in json.loads(without).items() if k != "details"
    }
    names = set(figure_names(NAMES, ["other-1"], refined=True))
    assert set(flat(all_figures(full))) == names
    assert names - set(figure_names(NAMES, ["other-1"])) >= {"refined.ratio.f0", "refined.warned"}
    empty = replace(first, refined=replace(found, sources=0, parameters=()))
    assert set(flat(all_figures(replace(full, models=(empty, report.models[1]))))) == names


def test_what_is_not_finite_is_null() -> None:
    content = plain({"a": [1.0, math.nan, (math.inf, 2)], "b": {"c": -math.inf, "d": True}})
    assert content == {"a": [1.0, None, [None, 2]], "b": {"c": None, "d": True}}


def test_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_text(path, "ä\n")
    assert path.read_bytes() == "ä\n".encode()
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert path.read_bytes() == "ä\n".encode()
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]
    with pytest.raises(InputError, match=r"nowhere/report\.json"):
        write_text(tmp_path / "nowhere" / "report.json", "")
