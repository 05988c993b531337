"""Conditions: what is understood, what is refused, what fails."""

import operator
import xml.etree.ElementTree as ET
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotflow.errors import InputError
from slotflow.report.gate import Condition, Verdict, check_names, flat, judge, junit, parse

COMPARISONS = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
FIGURES = {"crps": {"f0": 0.02, "ra": None}, "nll": -24.5, "duplicates": 3, "model": {"name": "x"}}
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="<>=!"), min_size=1).filter(
    lambda name: name == name.strip() and len(name.splitlines()) == 1
)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
SPACES = st.text(" \t", max_size=3)


@given(NAMES, st.sampled_from(sorted(COMPARISONS)), NUMBERS, SPACES, SPACES)
def test_what_is_written_is_read(
    name: str, comparison: str, bound: float, before: str, after: str
) -> None:
    condition = Condition(name, comparison, bound)
    assert parse(str(condition)) == condition
    assert parse(f"{before}{name}{after}{comparison}{before}{bound!r}{after}") == condition


@given(NUMBERS, st.sampled_from(sorted(COMPARISONS)), NUMBERS)
def test_a_condition_is_its_comparison(value: float, comparison: str, bound: float) -> None:
    (verdict,) = judge([Condition("a.b", comparison, bound)], {"a": {"b": value}})
    assert verdict.failed == COMPARISONS[comparison](value, bound)


@given(st.text(max_size=40))
def test_any_text_is_a_condition_or_an_input_error(text: str) -> None:
    with suppress(InputError):
        assert parse(text).comparison in text


@pytest.mark.parametrize(
    "text",
    ["", "crps.f0", "> 1", "crps.f0 >", "crps.f0 > x", "crps.f0 > 1 2", "crps.f0 => 1", "a > 1 > 2",
     "crps.f0 > nan", "crps.f0 > inf", "crps.f0 > 1e999", "crps.f0 > 1_000", "crps.f0 > ٣",
     "crps.f0 > __import__('os').getpid()", "a > 0x10", "a = 1", "a <> 1"],
)  # fmt: skip
def test_what_is_no_condition(text: str) -> None:
    with pytest.raises(InputError, match="expected a figure"):
        parse(text)


def test_names_that_do_not_exist() -> None:
    with pytest.raises(InputError) as caught:
        check_names([parse("crps.f1 > 0")], flat(FIGURES))
    message = str(caught.value)
    assert "'crps.f1'" in message
    assert "duplicates, nll; crps, each with .f0, .ra" in message
    with pytest.raises(InputError, match=r"no figure 'model\.name'"):
        check_names([parse("model.name > 0")], flat(FIGURES))
    check_names([parse("crps.ra<=-1e-3")], flat(FIGURES))


def test_a_figure_that_could_not_be_had_fails() -> None:
    # known to be null, and promised before the work but not there after it
    for text in ("crps.ra > 1", "outlying.share > 0.1"):
        (verdict,) = judge([parse(text)], FIGURES)
        assert verdict.failed
        assert "could not be had" in str(verdict)


def test_nothing_is_lost_or_made_up() -> None:
    assert flat(FIGURES) == {"crps.f0": 0.02, "crps.ra": None, "nll": -24.5, "duplicates": 3.0}


def test_junit_is_xml_and_counts() -> None:
    verdicts = [
        Verdict(Condition("a<b&\"'.c", ">", 1.0), 2.0), Verdict(Condition("nll", ">", 0.0), -1.0),
    ]  # fmt: skip
    suite = ET.fromstring(junit(verdicts, 1.25).split("\n", 1)[1])[0]
    assert suite.attrib["tests"] == "2"
    assert suite.attrib["failures"] == "1"
    failed, passed = suite.findall("testcase")
    assert failed.attrib["name"] == "not a<b&\"'.c > 1.0"
    assert failed[0].attrib["message"].endswith("is 2)")
    assert len(passed) == 0
