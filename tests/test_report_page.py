"""The page of a report: complete, self-contained, readable, and true to its record."""

import dataclasses
import itertools
import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from slotflow.report.page import render
from slotflow.report.record import Report
from tests.page_tree import Node, parse
from tests.report_example import example_refined, example_report
from tests.test_report_text import read

HOSTILE = "\"'><script>alert(1)</script><img src=http://x/ onerror=alert(1)>{{ 7*7 }}&lt;"


@pytest.fixture(scope="module")
def report() -> Report:
    return example_report()


@pytest.fixture(scope="module")
def three() -> Report:
    return example_report(models=3)


@pytest.fixture(scope="module")
def pages(report: Report, three: Report) -> dict[int, str]:
    return {1: render(report), 3: render(three)}


@pytest.fixture(scope="module", params=[1, 3])
def tree(request: pytest.FixtureRequest, pages: dict[int, str]) -> Node:
    return parse(pages[request.param])


def changed(value: Any, change: Any) -> Any:
    """The record with every value changed that is no record itself."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            f.name: changed(getattr(value, f.name), change) for f in dataclasses.fields(value)
        }
        return dataclasses.replace(value, **fields)
    if isinstance(value, Mapping):
        return {changed(k, change): changed(v, change) for k, v in value.items()}
    if isinstance(value, tuple):
        parts = [changed(v, change) for v in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return change(value)


def cells(tree: Node, ident: str) -> dict[str, list[Node]]:
    """The cells of a table by their row's header."""
    rows = tree.by_id(ident).all("tbody")[0].all("tr")
    return {row.all("th")[0].text(): row.all("td") for row in rows}


def value(cell: Node) -> float | None:
    found = cell.all("data")
    return float(found[0].attributes["value"]) if found else None


def test_identifiers_are_unique_and_every_link_has_its_target(tree: Node):
    idents = Counter(n.attributes["id"] for n in tree.walk() if "id" in n.attributes)
    assert not [ident for ident, n in idents.items() if n > 1 or not re.fullmatch(r"[\w-]+", ident)]
    links = [n.attributes["href"] for n in tree.all("a")]
    assert len(links) > 20
    assert {link.removeprefix("#") for link in links} <= set(idents)
    for node in tree.walk():
        for name in ("aria-labelledby", "aria-describedby"):
            assert set(node.attributes.get(name, "").split()) <= set(idents)


def test_the_contents_list_every_section_in_order(tree: Node):
    listed = [n.attributes["href"][1:] for n in tree.all("nav")[0].all("a")]
    main = tree.all("main")[0]
    there = [
        n.attributes["id"]
        for n in main.walk()
        if (n.tag == "section" and n.attributes["id"] != "verdict")
        or (n.tag == "h3" and "id" in n.attributes)
    ]
    assert listed == there
    assert {"tested", "scores", "breakdowns", "calibration", "numbers", "detection", "slots",
            "timings", "sbc", "pit", "coverage", "c2st"} <= set(listed)  # fmt: skip


def test_headings_do_not_skip_a_level_and_landmarks_are_there(tree: Node):
    levels = [int(n.tag[1]) for n in tree.walk() if re.fullmatch(r"h[1-6]", n.tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))
    for tag in ("header", "main", "nav", "footer"):
        assert len(tree.all(tag)) == 1
    assert tree.all("html")[0].attributes["lang"] == "en"
    assert tree.all("title")[0].text()


def test_every_picture_is_named_and_described_with_numbers(tree: Node):
    pictures = [n for n in tree.all("svg") if n.attributes.get("aria-hidden") != "true"]
    assert len(pictures) > 50
    for picture in pictures:
        assert picture.attributes["role"] == "img"
        title, description = (
            picture.by_id(picture.attributes[name])
            for name in ("aria-labelledby", "aria-describedby")
        )
        assert (title.tag, description.tag) == ("title", "desc")
        assert title.text()
        assert re.search(r"\d", description.text()), picture.attributes["id"]
    assert not tree.all("img")
    for hidden in (n for n in tree.all("svg") if n not in pictures):
        assert not hidden.all("text")  # what it stands for is beside it as text


def test_tables_have_captions_and_scoped_headers(tree: Node):
    tables = tree.all("table")
    assert len(tables) > 15
    for table in tables:
        assert table.all("caption")[0].text()
        head, body = table.all("thead")[0], table.all("tbody")[0]
        for header in head.all("th"):
            assert header.attributes["scope"] in ("col", "colgroup")
            assert header.text()
        width = sum(int(n.attributes.get("colspan", 1)) for n in head.all("tr")[0].all("th")
                    + head.all("tr")[0].all("td"))  # fmt: skip
        rows = body.all("tr")
        assert rows
        for row in rows:
            assert [h.attributes["scope"] for h in row.all("th")] == ["row"]
            assert len(row.all("td")) + 1 == width
            assert all(cell.text() for cell in row.all("td"))


def test_the_page_loads_nothing_and_runs_nothing(pages: dict[int, str], tree: Node):
    for node in tree.walk():
        assert node.tag not in ("script", "iframe", "object", "embed", "base", "form")
        for name, content in node.attributes.items():
            assert not name.startswith("on")
            if name in ("src", "href", "data", "poster", "srcset", "action", "xlink:href"):
                assert content.startswith("#") or content == "data:,"
    policy = [n.attributes["content"] for n in tree.all("meta") if "http-equiv" in n.attributes]
    assert "default-src 'none'" in policy[0]
    style = "".join(n.text() for n in tree.all("style"))
    assert "url(" not in style
    assert "@import" not in style
    assert not re.search(r"https?:|//", pages[3])


def test_every_number_that_is_read_is_the_number_in_the_record(tree: Node):
    seen = 0
    for node in tree.all("data"):
        shown = re.sub(r"^(at most|at least) ", "", node.text())
        number = float(node.attributes["value"])
        if re.fullmatch(r"\d+ of \d+", shown):
            assert number == int(shown.split()[0])
        elif shown[0] in "<>":
            bound, _ = read(shown[1:].strip("\u2009 "))
            assert number < bound if shown[0] == "<" else number > bound
        else:
            found, half = read(shown)
            assert abs(found - number) <= half * 1.01, shown
        seen += 1
    assert seen > 300


def test_score_tables_hold_the_record(report: Report, pages: dict[int, str]):
    tree = parse(pages[1])
    model, labels = report.models[0], {p.name: p.label for p in report.parameters}
    for ident, scores in (("scores-0", model.scores), ("scores-loud-0", model.loud)):
        rows = cells(tree, ident)
        assert list(rows) == [labels[s.name] for s in scores.parameters]
        for score, inside in zip(scores.parameters, scores.coverage90, strict=True):
            row = rows[labels[score.name]]
            assert value(row[0]) == score.crps.mean
            assert value(row[2]) == score.crps.median
            assert value(row[3]) == score.prior
            assert value(row[4]) == score.compression
            assert value(row[6]) == inside.mean
            ends = [read(x.strip(" []"))[0] for x in row[1].text().split(",")]
            assert ends == pytest.approx([score.crps.mean_lower, score.crps.mean_upper], rel=0.02)
    row = cells(tree, "joint-scores")["all sources"]
    assert value(row[0]) == model.scores.sources
    assert value(row[1]) == model.scores.energy.mean
    assert value(row[4]) == model.scores.nll.mean
    assert value(row[8]) == model.scores.missed.share
    row = cells(tree, "published-0")["CRPS of right ascension"]
    assert [value(c) for c in row[:3]] == [0.05, 0.0105, 0.0035]
    assert row[0].text() == "at most 0.05"


def test_breakdowns_hold_the_record(report: Report, pages: dict[int, str]):
    tree = parse(pages[1])
    for found in report.models[0].breakdowns:
        rows = list(cells(tree, f"by-{found.by}-0").values())
        assert len(rows) == len(found.rows)
        for row, wanted in zip(rows, found.rows, strict=True):
            assert value(row[0]) == wanted.estimates[0].number
            assert [value(c) for c in row[1:]] == [e.mean for e in wanted.estimates]
        assert (any(not r.known for r in found.rows)) == (
            "no other source in the band" in cells(tree, f"by-{found.by}-0")
        )


def test_tests_counts_and_detection_hold_the_record(report: Report, pages: dict[int, str]):
    tree, model = parse(pages[1]), report.models[0]
    labels = {p.name: p.label for p in report.parameters}
    rows = cells(tree, "p-0")
    for one in model.calibration.p_values:
        if one.parameter is not None:
            at = 2 * ("sbc", "pit", "coverage").index(one.test)
            row = rows[labels[one.parameter]]
            assert (value(row[at]), value(row[at + 1])) == (one.value, one.adjusted)
    joint = cells(tree, "p-joint-0")
    tarp = next(p for p in model.calibration.p_values if p.test == "tarp")
    assert [value(c) for c in joint["TARP"]] == [tarp.value, tarp.adjusted]
    counts = cells(tree, "k")
    assert value(counts["exact, reports counted"][0]) == model.numbers.confusion.exact
    assert value(counts["existence, area under ROC"][0]) == model.numbers.roc.auc
    assert value(counts["q(K), reliability, p"][0]) == model.numbers.q_k.reliability.p_value
    found = list(cells(tree, "detection-0").values())
    for row, wanted in zip(found, model.detection.rows, strict=False):
        assert value(row[0]) == wanted.recall.share
        assert row[2].text().split() == [str(wanted.recall.hits), "of", str(wanted.recall.number)]
        assert value(row[3]) == wanted.precision.share
        assert value(row[6]) == wanted.f1
    alarms = cells(tree, "alarms")["model"]
    assert value(alarms[5]) == model.detection.false_alarms
    slots = cells(tree, "overlap")["model"]
    assert value(slots[1]) == model.slots.peak_overlap
    shares = [value(c) for c in cells(tree, "attention")["spread evenly"][1:]]
    assert shares == list(model.slots.attention.even)


def test_settings_identity_and_notes_are_shown(report: Report, pages: dict[int, str]):
    tree = parse(pages[1])
    assert cells(tree, "models")["SHA-256"][0].text() == "a" * 64
    assert cells(tree, "data")["identity"][0].text() == "e" * 64
    assert cells(tree, "settings")["command"][0].text() == "slotflow report"
    card = [json.loads(n.text()) for n in tree.all("pre")]
    assert {"samples": 524288, "dt": 60.0} in card
    assert report.notes[0] in tree.by_id("tested").text()


def test_several_models_stand_side_by_side(three: Report, pages: dict[int, str]):
    tree = parse(pages[3])
    names = [m.model.name for m in three.models]
    heads = [n.text() for n in tree.by_id("summary").all("thead")[0].all("th")]
    assert heads == ["figure", *names]
    row = cells(tree, "crps-compared")["f0"]
    assert [value(c) for c in row[1::2]] == [m.scores.parameters[0].crps.mean for m in three.models]
    difference = next(d for d in three.differences if (d.model, d.score) == ("other-2", "nll"))
    assert value(cells(tree, "differences")["NLL"][3]) == difference.estimate.mean
    legend = [n.text() for n in tree.by_id("figure-sbc").all("li")]
    assert legend[:3] == names
    panel = tree.by_id("fig-pit-f0")
    drawn = {n.attributes.get("class") for n in panel.all("path")}
    assert {"line s0", "line s1", "line s2"} <= drawn
    for i in range(3):
        assert cells(tree, f"scores-{i}")
        assert tree.by_id(f"fig-count-{i}")


def test_what_users_write_is_text_and_nothing_else(report: Report):
    hostile = changed(report, lambda v: v + HOSTILE if isinstance(v, str) else v)
    page = render(hostile)
    tree, plain = parse(page), parse(render(report))
    for tag in ("script", "img"):
        assert not tree.all(tag)
    tags = {n.tag for n in tree.walk()}
    assert tags <= {n.tag for n in plain.walk()}
    for node in tree.walk():
        assert not [name for name in node.attributes if name.startswith("on")]
    assert "49" not in tree.by_id("models").all("thead")[0].text()
    one_line = " ".join(HOSTILE.split())
    said = tree.text()
    assert cells(tree, "models")["file"][0].text() == "data/model.safetensors" + one_line
    assert cells(tree, "settings")["command"][0].text() == "slotflow report" + one_line
    assert "invented numbers" + one_line in said
    assert "training" + json.dumps(HOSTILE)[1:-1] in tree.by_id("tested").text()
    assert tree.all("title")[0].text().endswith(one_line)


def test_what_is_missing_is_a_dash_and_no_section_fails(report: Report):
    bare = changed(report, lambda v: v)
    model = bare.models[0]
    nothing = dataclasses.replace(
        model,
        loud=None, slots=None, published=(), breakdowns=(), notes=(),
        scores=changed(
            dataclasses.replace(model.scores, nll=None), lambda v: v
        ),
        calibration=dataclasses.replace(
            model.calibration, parameters=(), density=None, tarp=None, c2st=None, p_values=()
        ),
        numbers=dataclasses.replace(model.numbers, loud=None, existence=None, roc=None),
        detection=dataclasses.replace(
            model.detection, f1=None,
            rows=tuple(
                dataclasses.replace(
                    row, f1=None,
                    recall=dataclasses.replace(row.recall, hits=0, number=0, share=None,
                                               lower=None, upper=None),
                )
                for row in model.detection.rows
            ),
        ),
    )  # fmt: skip
    tree = parse(render(dataclasses.replace(bare, models=(nothing,), notes=())))
    assert cells(tree, "joint-scores")["all sources"][4].text() == "–"
    assert cells(tree, "detection-0")["5 to 7"][0].text() == "–"
    assert cells(tree, "k")["existence, area under ROC"][0].text() == "–"
    assert "no test could be made" in tree.by_id("verdict").text()
    for word in ("None", "nan", "Undefined"):
        assert not re.search(rf"\b{word}\b", tree.text())
    links = {n.attributes["href"] for n in tree.all("a")}
    assert not links & {"#slots", "#breakdowns", "#sbc", "#c2st", "#published"}


def test_intervals_of_one_source_may_be_missing(report: Report):
    def without(value: Any) -> Any:
        return value

    model = report.models[0]
    bounds = {"mean_lower": None, "mean_upper": None, "median_lower": None, "median_upper": None}
    rows = tuple(
        dataclasses.replace(
            s, crps=dataclasses.replace(s.crps, **bounds), compression_lower=None,
            compression_upper=None,
        )
        for s in model.scores.parameters
    )  # fmt: skip
    scores = dataclasses.replace(changed(model.scores, without), parameters=rows)
    page = render(dataclasses.replace(report, models=(dataclasses.replace(model, scores=scores),)))
    row = cells(parse(page), "scores-0")["f0"]
    assert [row[1].text(), row[5].text()] == ["–", "–"]


def test_the_same_report_gives_the_same_page_small_and_complete(
    report: Report, three: Report, pages: dict[int, str]
):
    assert render(report) == pages[1] == render(example_report())
    assert render(three) == pages[3]
    assert len(pages[1].encode()) < 400_000
    assert len(pages[3].encode()) < 1_500_000


def test_refined_bands_stand_among_the_scores(report: Report, tree: Node):
    assert not any(n.attributes.get("id", "").startswith("refined") for n in tree.walk())
    found = example_refined()
    first = dataclasses.replace(report.models[0], refined=found)
    settings = dataclasses.replace(report.settings, refine=15)
    page = parse(render(dataclasses.replace(report, models=(first,), settings=settings)))
    part = page.by_id("scores")
    assert part.by_id("refined-0").text() == "Beside the exact posterior"
    assert "white noise" in part.text()
    assert "15 asked for" in part.text()
    for line in found.warnings:
        assert line in part.text()
    rows = cells(page, "refined-0-crps")
    assert len(rows) == len(found.parameters)
    for info, one in zip(report.parameters, found.parameters, strict=True):
        numbers = [value(cell) for cell in rows[info.label]]
        assert numbers[::2] == [
            one.ratio, one.crps.mean, one.crps_refined.mean, one.coverage.mean,
            one.coverage_refined.mean,
        ]  # fmt: skip
    none = dataclasses.replace(found, sources=0, parameters=())
    first = dataclasses.replace(first, refined=none)
    page = parse(render(dataclasses.replace(report, models=(first,), settings=settings)))
    idents = {n.attributes.get("id") for n in page.walk()}
    assert "refined-0-counts" in idents
    assert "refined-0-crps" not in idents
