"""Pictures say what the records say: what is drawn is measured in the SVG, by its own ticks."""

import dataclasses
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotflow.c2st import c2st
from slotflow.cardinality import confusion, reliability_test, roc
from slotflow.detection import Matches, detection
from slotflow.report import svg
from slotflow.report.charts import (
    Named,
    bins_outside,
    c2st_panel,
    curve_panel,
    excursion,
    histogram_panel,
)
from slotflow.report.charts_found import (
    ScoreRow,
    confusion_panel,
    detection_panel,
    evidence_panel,
    groups_panel,
    hits_at,
    reliability_panel,
    roc_panel,
    scores_panel,
)
from slotflow.sbc import central_coverage, rank_histogram, rank_test
from slotflow.scores import Estimate, ParameterScore

PIXEL = 0.06  # lengths have one decimal


class Drawn:
    """A picture, read back: its ticks give the scale of both axes."""

    def __init__(self, markup: str, log: str = "") -> None:
        self.root = ET.fromstring(markup)
        self.log = log
        ticks = [e for e in self.texts() if "tick" in e.attrib["class"].split()]
        across = [e for e in ticks if "end" not in e.attrib["class"].split()]
        up = [e for e in ticks if e.attrib["class"].split() == ["tick", "end"]]
        self.x = self._scale([(float(e.attrib["x"]), e.text) for e in across], "x" in log)
        self.y = self._scale([(float(e.attrib["y"]) - 4.0, e.text) for e in up], "y" in log)

    def texts(self) -> list[ET.Element]:
        return [e for e in self.root.iter("text")]

    @staticmethod
    def _scale(ticks: list[tuple[float, str | None]], log: bool) -> np.ndarray | None:
        """Slope and offset from two ticks; the others must be on the line."""
        pairs = []
        for place, text in ticks:
            shown = (text or "").replace("−", "-")
            if re.fullmatch(r"-?[\d.]+%?", shown):
                value = float(shown.rstrip("%")) / (100.0 if shown.endswith("%") else 1.0)
                pairs.append((place, np.log(value) if log else value))
        if len(pairs) < 2:
            return None
        places, values = np.array(pairs).T
        fit = np.polyfit(places, values, 1)
        assert np.abs(np.polyval(fit, places) - values).max() < np.abs(fit[0]) * 2 * PIXEL
        return fit

    def path(self, *classes: str) -> list[np.ndarray]:
        """The points of all lines of these classes, in the data's units."""
        found = []
        for e in self.root.iter("path"):
            if set(classes) <= set(e.attrib["class"].split()):
                for piece in e.attrib["d"].split("M")[1:]:
                    numbers = re.findall(r"-?[\d.]+", piece)
                    found.append(self.data(np.array(numbers, float).reshape(-1, 2)))
        return found

    def marks(self, kind: str) -> np.ndarray:
        """Places of the markers of a class, in the data's units."""
        places = [
            re.findall(r"-?[\d.]+", e.attrib["transform"])
            for e in self.root.iter("path")
            if e.attrib["class"].split() == ["mark", kind]
        ]
        return self.data(np.array(places, float).reshape(-1, 2))

    def data(self, places: np.ndarray) -> np.ndarray:
        out = places.copy()
        for column, fit, name in ((0, self.x, "x"), (1, self.y, "y")):
            if fit is not None:
                out[:, column] = np.polyval(fit, places[:, column])
                if name in self.log:
                    out[:, column] = np.exp(out[:, column])
        return out

    def said(self) -> str:
        return self.root.findtext("desc") or ""


def tolerance(fit: np.ndarray) -> float:
    return 3.0 * PIXEL * abs(float(fit[0]))


def ranks(width: float, n: int = 1000, draws: int = 199) -> np.ndarray:
    """Ranks of a Gaussian posterior whose width is off by a factor, in closed form of its CDF."""
    from scipy.special import ndtr

    z = np.random.default_rng(5).normal(size=n)
    return np.minimum((ndtr(z / width) * (draws + 1)).astype(np.int64), draws)


@given(
    st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.integers(3, 8)
)  # fmt: skip
def test_linear_ticks_are_round_equidistant_and_inside(low: float, width: float, count: int):
    axis = svg.linear(low, low + width, count)
    values = np.array([v for v, _ in axis.ticks])
    if low + width > low * (1 + 1e-9) and width > 1e-9 * abs(low):
        assert 1 <= len(values) <= 2 * count + 2
        assert (values >= axis.low - 1e-9 * width).all()
        assert (values <= axis.high + 1e-9 * width).all()
        if len(values) > 1:
            step = np.diff(values)
            assert np.allclose(step, step[0], rtol=1e-6, atol=1e-9 * abs(low))
            mantissa = step[0] / 10.0 ** np.floor(np.log10(step[0]) + 1e-9)
            assert min(abs(mantissa - m) for m in (1.0, 2.0, 5.0, 10.0)) < 1e-3


@given(st.floats(1e-8, 1e6), st.floats(1.0, 1e6))
def test_logarithmic_ticks_say_their_place(low: float, ratio: float):
    axis = svg.logarithmic(low, low * ratio)
    assert axis.low <= low * (1 + 1e-12)
    assert axis.high >= low * ratio * (1 - 1e-12)
    superscript = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
    for value, text in axis.ticks:
        assert axis.low * 0.99 <= value <= axis.high * 1.01
        plain = re.sub(r"10([⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+)", lambda m: "1e" + m[1].translate(superscript), text)
        first, _, second = plain.partition("×")
        shown = float(first) * (float(second) if second else 1.0)
        assert shown == pytest.approx(value, rel=0.06)
    assert axis.ticks


def test_a_point_outside_is_drawn_on_the_edge_and_the_ends_are_the_ends():
    frame = svg.Frame(svg.linear(0.0, 2.0), svg.linear(-1.0, 1.0))
    left, bottom = frame.at(0.0, -1.0)
    right, top = frame.at(2.0, 1.0)
    assert (left, bottom) == (frame.left, frame.height - frame.bottom)
    assert (right, top) == (frame.width - frame.right, frame.top)
    assert frame.at(5.0, -7.0) == (right, bottom)


def test_everything_written_into_a_picture_is_escaped():
    made = svg.picture('a"b', "<script>", "a & b > c", [svg.tag("text", "</svg>", class_='"><x')])
    root = ET.fromstring(made)
    assert [e.tag for e in root.iter()] == ["svg", "title", "desc", "text"]
    assert root.findtext("title") == "<script>"
    assert root.find("text").attrib["class"] == '"><x'


def test_histogram_bars_have_the_ratio_of_counts_to_expected():
    test = rank_histogram(ranks(0.6), 199)
    drawn = Drawn(histogram_panel("h", "ranks", [Named(0, "m", test)]))
    ratio = np.array(test.counts) / np.array(test.expected)
    (line,) = drawn.path("line", "s0")
    assert line[::2, 1] == pytest.approx(ratio, abs=tolerance(drawn.y))
    assert line[::2, 0] == pytest.approx(np.arange(20) / 20, abs=tolerance(drawn.x))
    band = np.array([test.lower, test.upper]) / np.array(test.expected)
    (area,) = drawn.path("area", "band")
    assert area[:40:2, 1] == pytest.approx(band[1], abs=tolerance(drawn.y))
    assert area[:39:-2, 1] == pytest.approx(band[0], abs=tolerance(drawn.y))
    out = np.flatnonzero((ratio < band[0]) | (ratio > band[1]))
    assert out.size
    assert bins_outside(test) == tuple(out)
    assert drawn.marks("out")[:, 0] == pytest.approx((out + 0.5) / 20, abs=tolerance(drawn.x))


def test_a_narrow_posterior_is_marked_and_said_and_a_right_one_is_not():
    narrow, right = (rank_histogram(ranks(w), 199) for w in (0.6, 1.0))
    assert narrow.p_value < 1e-6 < 0.05 < right.p_value
    said = Drawn(histogram_panel("h", "t", [Named(0, "m", narrow)])).said()
    ends = np.sum([narrow.counts[i] for i in (0, 1, -2, -1)]) / 200.0
    assert f"hold {ends:.2f} times" in said
    assert "are outside the band" in said
    said = Drawn(histogram_panel("h", "t", [Named(0, "m", right)])).said()
    assert "all are in the band" in said


@pytest.mark.parametrize("make", [rank_test, central_coverage])
def test_curves_are_drawn_as_differences_from_the_diagonal(make):
    test = make(ranks(0.8), 199)
    drawn = Drawn(curve_panel("c", "t", [Named(0, "m", test)], "quantile", "difference"))
    nominal, observed = np.array(test.nominal), np.array(test.observed)
    (line,) = drawn.path("line", "s0")
    assert line[1:-1, 0] == pytest.approx(nominal, abs=tolerance(drawn.x))
    assert line[1:-1, 1] == pytest.approx(observed - nominal, abs=tolerance(drawn.y))
    assert line[[0, -1], 1] == pytest.approx(0.0, abs=tolerance(drawn.y))
    (area,) = drawn.path("area", "band")
    n = nominal.size + 2
    assert area[1 : n - 1, 1] == pytest.approx(test.upper - nominal, abs=tolerance(drawn.y))
    assert area[n + 1 : -1, 1] == pytest.approx(
        (test.lower - nominal)[::-1], abs=tolerance(drawn.y)
    )
    at = np.argmax(np.abs(observed - nominal))
    assert excursion(test).largest == (observed - nominal)[at]
    assert f"{abs((observed - nominal)[at]):.3f} at {nominal[at]:.2f}" in drawn.said()
    outside = (observed < np.array(test.lower)) | (observed > np.array(test.upper))
    assert test.p_value < 0.05
    assert outside.any()
    assert "leaves the band" in drawn.said()
    crosses = drawn.marks("out")
    assert len(crosses) == -(-outside.sum() // 5)
    nearest = np.abs(crosses[:, :1] - nominal[outside]).min(axis=1)
    assert nearest == pytest.approx(0.0, abs=tolerance(drawn.x))


def test_a_right_curve_has_no_cross():
    test = rank_test(ranks(1.0), 199)
    drawn = Drawn(curve_panel("c", "t", [Named(0, "m", test)], "quantile", "difference"))
    assert test.p_value > 0.05
    assert not len(drawn.marks("out"))
    assert "stays in the band" in drawn.said()


def test_several_models_share_a_panel_with_lines_of_their_own():
    tests = [
        Named(i, f"model {i}", rank_test(ranks(w), 199)) for i, w in enumerate((1.0, 0.7, 1.3))
    ]
    drawn = Drawn(curve_panel("c", "t", tests, "quantile", "difference"))
    for i, named in enumerate(tests):
        (line,) = drawn.path("line", f"s{i}")
        difference = np.array(named.value.observed) - named.value.nominal
        assert line[1:-1, 1] == pytest.approx(difference, abs=tolerance(drawn.y))
        assert f"model {i}:" in drawn.said()
    assert len(drawn.path("area", "band")) == 1  # all saw the same number of sources


def _score(name: str, mean: float, prior: float = 1 / 6) -> ParameterScore:
    crps = Estimate(100, mean, 0.8 * mean, 1.3 * mean, 0.5 * mean, None, None)
    return ParameterScore(name, crps, prior, 1 - mean / prior, None, None)


def test_scores_stand_at_their_value_on_a_logarithmic_axis():
    values = [[0.002, 0.03, 0.11], [0.004, 0.02, 0.2]]
    rows = [
        ScoreRow(name, tuple(Named(m, f"m{m}", _score(name, values[m][i])) for m in (0, 1)), bound)
        for i, (name, bound) in enumerate((("f0", 0.015), ("ra", 0.05), ("psi", None)))
    ]
    drawn = Drawn(scores_panel("s", "t", rows), log="x")
    for m in (0, 1):
        assert drawn.marks(f"s{m}")[:, 0] == pytest.approx(values[m], rel=tolerance(drawn.x))
        ends = np.array([line[:, 0] for line in drawn.path("whisker", f"s{m}")])
        expected = np.outer(values[m], (0.8, 1.3))
        assert ends == pytest.approx(expected, rel=2 * tolerance(drawn.x))
    priors = np.array([line[:, 0] for line in drawn.path("prior")])
    assert priors == pytest.approx(1 / 6, rel=tolerance(drawn.x))
    published = np.array([line[0, 0] for line in drawn.path("published")])
    assert published == pytest.approx([0.015, 0.05], rel=tolerance(drawn.x))
    assert "psi m0: 0.110, m1: 0.200, prior 0.167" in drawn.said()


def test_groups_without_sources_break_the_line():
    curve = Named(0, "m", ((0.1, 0.05, 0.2), None, (0.3, None, None), (0.2, 0.1, 0.3)))
    markup = groups_panel("g", "t", ["<1", "1–2", "2–3", "≥3"], [curve], "SNR", "CRPS")
    drawn = Drawn(markup, log="y")
    assert drawn.marks("s0")[:, 1] == pytest.approx([0.1, 0.3, 0.2], rel=2 * tolerance(drawn.y))
    lines = [piece for piece in drawn.path("line", "s0") if len(piece) > 0]
    assert sorted(len(piece) for piece in lines) == [1, 2, 2, 2]  # two of them are whiskers
    assert "1–2" not in drawn.said()


def test_the_confusion_matrix_has_the_numbers_of_bands():
    true, guess = np.array([0, 0, 1, 1, 1, 2, 3]), np.array([0, 1, 1, 1, 2, 2, 1])
    drawn = Drawn(confusion_panel("k", "t", confusion(true, guess), "reported"))
    cells = {}
    for e in drawn.root.iter("text"):
        if e.attrib["class"] in ("cell-text", "same"):
            place = np.array([[float(e.attrib["x"]), float(e.attrib["y"]) - 4.0]])
            column, row = np.rint(drawn.data(place)[0])
            cells[int(row), int(column)] = (int(e.text or 0), e.attrib["class"] == "same")
    wanted: dict[tuple[int, int], int] = {}
    for pair in zip(true.tolist(), guess.tolist(), strict=True):
        wanted[pair] = wanted.get(pair, 0) + 1
    assert cells == {pair: (n, pair[0] == pair[1]) for pair, n in wanted.items()}
    assert "57.1% exact" in drawn.said()


def test_reliability_and_roc_are_drawn_at_their_rates():
    rng = np.random.default_rng(1)
    p = rng.random(4000)
    y = rng.random(4000) < p
    test, curve = reliability_test(p, y), roc(p, y)
    drawn = Drawn(reliability_panel("r", "t", [Named(0, "m", test)]))
    points = np.array([(r.predicted, r.observed) for r in test.rows])
    assert drawn.marks("s0") == pytest.approx(points, abs=tolerance(drawn.x) + tolerance(drawn.y))
    inside = [
        low[1] <= point[1] <= high[1]
        for (low, high), point in zip(drawn.path("consistent"), points, strict=True)
    ]
    assert sum(inside) >= 7  # of ten bars of 90%
    drawn = Drawn(roc_panel("r", "t", [Named(0, "m", curve)]))
    (line,) = drawn.path("line", "s0")
    assert line[:, 0] == pytest.approx(curve.false_alarm_rate, abs=tolerance(drawn.x))
    assert line[:, 1] == pytest.approx(curve.hit_rate, abs=tolerance(drawn.y))
    for rate in (0.01, 0.1, 0.5):
        wanted = np.interp(rate, curve.false_alarm_rate, curve.hit_rate)
        assert hits_at(curve, rate) == pytest.approx(wanted, abs=1e-12)
    assert f"area {curve.auc:.3f}" in drawn.said()


def test_hits_of_a_perfect_order_are_all_there_at_no_false_alarm():
    curve = roc(np.arange(20.0), np.arange(20) >= 12)
    assert hits_at(curve, 0.0) == 1.0
    assert hits_at(curve, 0.3) == 1.0


def test_detection_is_drawn_in_per_cent_with_wilsons_intervals():
    rng = np.random.default_rng(2)
    snr = rng.uniform(5.0, 60.0, 300)
    matches = Matches(np.where(rng.random(300) < 0.8, np.arange(300), -1), np.zeros(300, bool))
    found = detection(matches, snr, snr, (5.0, 10.0, 20.0), 100)
    drawn = Drawn(detection_panel("d", "t", [Named(0, "m", found)], "recall"))
    shares = [row.recall.share for row in found.rows]
    assert drawn.marks("s0")[:, 1] == pytest.approx(shares, abs=tolerance(drawn.y))
    whiskers = np.array([line[:, 1] for line in drawn.path("whisker")])
    wanted = np.array([(row.recall.lower, row.recall.upper) for row in found.rows])
    assert whiskers == pytest.approx(wanted, abs=tolerance(drawn.y))


def test_the_discriminators_null_ends_where_p_is_five_per_cent():
    rng = np.random.default_rng(3)
    draws, truths = rng.normal(size=(400, 60, 2)), rng.normal(size=(400, 2))
    test = c2st(draws, truths, (None, None), rng, groups=np.arange(400) % 2)
    drawn = Drawn(c2st_panel("c", "t", [Named(0, "m", test)], ("even", "odd")))
    assert drawn.marks("s0")[:, 0] == pytest.approx(
        [test.auc, *(g.auc for g in test.groups)], abs=tolerance(drawn.x)
    )
    upper = drawn.path("area", "band")[0][:, 0].max()
    deviation = np.sqrt((test.draws + 2) / (12 * test.draws * test.number))
    assert (upper - 0.5) / deviation == pytest.approx(1.645, abs=0.05)
    assert f"even {test.groups[0].auc:.3f}" in drawn.said()


def test_evidence_is_drawn_for_sources_and_for_the_rest():
    sources, others = (1.0, 0.5, 0.1), (1.0, 0.98, 0.9)
    drawn = Drawn(evidence_panel("e", "t", sources, others))
    assert drawn.marks("s0")[:, 1] == pytest.approx(sources, abs=tolerance(drawn.y))
    assert drawn.marks("s1")[:, 1] == pytest.approx(others, abs=tolerance(drawn.y))


def test_the_same_records_give_the_same_bytes():
    test = rank_test(ranks(0.8), 199)
    same = dataclasses.replace(test)
    first, second = (curve_panel("c", "t", [Named(0, "m", t)], "a", "b") for t in (test, same))
    assert first == second
