"""Numbers as they are read: read back, they are the number to half a unit of the last digit."""

import math
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slotflow.report import text

SUPERSCRIPT = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")


def read(shown: str) -> tuple[float, float]:
    """A number as a person reads it, and half a unit of its last digit."""
    plain = re.sub(r"\s", "", shown).replace("−", "-")
    plain = re.sub("^10(?=[⁻⁰-⁹¹²³])", "1×10", plain)
    scale = 0.01 if plain.endswith("%") else 1.0
    number, _, power = plain.rstrip("%").partition("×10")
    scale *= 10.0 ** int(power.translate(SUPERSCRIPT)) if power else 1.0
    assert re.fullmatch(r"-?\d+(\.\d+)?", number), shown
    digits = len(number.partition(".")[2])
    return float(number) * scale, 0.5000001 * 10.0**-digits * scale


numbers = st.floats(-1e12, 1e12).filter(lambda x: x == 0 or abs(x) > 1e-12)


@example(1000.0, 2)
@given(numbers, st.integers(2, 6))
def test_numbers_are_rounded_and_nothing_else(value: float, digits: int):
    shown = text.number(value, digits)
    found, half = read(shown)
    assert abs(found - value) <= half + 1e-15 * abs(value)
    significant = re.sub(r"\D", "", shown.partition("×")[0]).lstrip("0")
    if value and abs(value) < 0.9 * 10.0**digits:
        assert len(significant) in (digits, digits + 1)
    elif abs(value) < 1e5:  # written out
        assert "." not in shown
    assert "e" not in shown
    assert "-" not in shown


@given(st.floats(0.0, 1.0), st.integers(0, 2))
def test_per_cent_are_whole_only_where_the_share_is(value: float, decimals: int):
    shown = text.percent(value, decimals)
    if shown[0] in "<>":
        bound, _ = read(shown[1:].strip("\u2009"))
        assert value < bound if shown[0] == "<" else value > bound
        return
    found, half = read(shown)
    assert abs(found - value) <= half
    assert (found == 1.0) == (value == 1.0)
    assert (found == 0.0) == (value == 0.0)


@given(st.floats(-10, 10), st.floats(1e-5, 10))
def test_intervals_have_two_digits_of_their_half_width(low: float, width: float):
    high = low + width
    shown = text.interval(low, high)
    first, second = (read(part.strip()) for part in shown.strip("[]").split(","))
    assert abs(first[0] - low) <= first[1]
    assert abs(second[0] - high) <= second[1]
    if width > 2e-5:
        assert first[1] <= 0.0501 * 0.5 * (high - low) or first[1] < 1e-6


@pytest.mark.parametrize("show", [text.number, text.percent, text.p_value, text.seconds])
@pytest.mark.parametrize("value", [None, math.nan])
def test_what_is_missing_is_a_dash(show, value):
    assert show(value) == "–"


def test_intervals_and_counts_may_be_missing():
    assert text.interval(None, 1.0) == text.interval(0.0, math.nan) == text.count(None) == "–"
    assert text.fixed(None, 2) == text.estimate(None, 0.0, 1.0) == "–"


@pytest.mark.parametrize(
    ("shown", "wanted"),
    [
        (text.number(0.0), "0"), (text.number(-0.01234), "−0.0123"), (text.number(9.996), "10.0"),
        (text.number(1234567.0), "1.23\u2009×\u200910⁶"), (text.number(845239, 6), "845\u2009239"),
        (text.number(1.5e-7), "1.50\u2009×\u200910⁻⁷"), (text.number(math.inf), "∞"),
        (text.number(-math.inf), "−∞"), (text.fixed(-0.0001, 2), "0.00"),
        (text.count(-1234), "−1\u2009234"),
        (text.p_value(0.0), "<\u200910⁻¹²"), (text.p_value(0.999), "1.0"),
        (text.p_value(0.0123), "0.012"), (text.percent(0.99999), ">\u200999.9%"),
        (text.percent(0.00001), "<\u20090.1%"), (text.percent(-0.25), "−25.0%"),
        (text.estimate(0.123456, 0.11, 0.14), "0.123"), (text.estimate(0.5, None, None), "0.500"),
        (text.interval(0.1, 0.1), "[0.100, 0.100]"),
        (text.seconds(0.05), "50 ms"), (text.seconds(40.0), "40.0 s"),
        (text.seconds(300.0), "5.0 min"), (text.seconds(1e4), "2.8 h"),
        (text.between(None, 7.0), "below 7"), (text.between(7.0, 10.0), "7 to 10"),
        (text.between(1.3, None), "from 1.3"), (text.between(None, None), "all"),
        (text.between(2.0, 3.0, whole=True), "2"), (text.between(2.0, 5.0, whole=True), "2 to 4"),
        (text.between(None, 2.0, whole=True), "up to 1"), (text.briefly(20.0, 50.0), "20–50"),
        (text.briefly(2.0, 3.0, whole=True), "2"), (text.briefly(None, 2.0, whole=True), "≤1"),
        (text.briefly(50.0, None), "≥50"), (text.briefly(None, 7.0), "<7"),
        (text.briefly(2.0, 5.0, whole=True), "2–4"), (text.briefly(None, None), "all"),
    ],
)  # fmt: skip
def test_as_written(shown: str, wanted: str):
    assert shown == wanted
