"""Pictures as inline SVG: axes, lines, bands, markers, with a title and a description each.

Colours and lines are classes of the page's style sheet, so that one picture serves light and dark
screens and paper. Text stays text. One panel is as wide as a phone, several stand beside each
other where there is room. The same numbers give the same bytes.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

from markupsafe import Markup, escape

STYLES: Final = 6  # of lines and markers that can be told apart
WIDTH: Final = 280.0  # of a panel, in CSS pixels: text is 11 pixels there
HEIGHT: Final = 190.0

_MARKERS: Final = (
    "M-3.4 0a3.4 3.4 0 1 0 6.8 0a3.4 3.4 0 1 0 -6.8 0z",  # disc
    "M-3.1 -3.1h6.2v6.2h-6.2z",  # square
    "M0 -4.2L3.9 2.8H-3.9z",  # triangle
    "M0 -4.6L4.1 0L0 4.6L-4.1 0z",  # diamond
    "M0 4.2L3.9 -2.8H-3.9z",  # triangle, down
    "M-3.8 0h7.6M0 -3.8v7.6",  # cross
)
_MINUS: Final = "−"
_SUPERSCRIPT: Final = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")

Scale = Literal["linear", "log"]


class Axis(NamedTuple):
    """A range with ticks and their labels; ``scale`` "log" takes positive values only."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    scale: Scale = "linear"

    def share(self, value: float) -> float:
        """Return where a value stands, 0 at the low end and 1 at the high one, clipped."""
        low, high, x = self.low, self.high, value
        if self.scale == "log":
            low, high, x = math.log(low), math.log(high), math.log(max(value, 1e-300))
        return min(max((x - low) / (high - low), 0.0), 1.0)


class Frame(NamedTuple):
    """The area of a panel that data are drawn in, inside margins for the labels."""

    x: Axis
    y: Axis
    width: float = WIDTH
    height: float = HEIGHT
    left: float = 48.0
    right: float = 17.0
    top: float = 8.0
    bottom: float = 36.0

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the place of a point in the panel's own units."""
        across = self.width - self.left - self.right
        down = self.height - self.top - self.bottom
        return self.left + self.x.share(x) * across, self.height - self.bottom - (
            self.y.share(y) * down
        )


def margin(up: Axis) -> float:
    """Return the left margin that an upright axis' labels and name need."""
    return max(26.0 + 6.0 * max((len(text) for _, text in up.ticks), default=0), 48.0)


def tag(name: str, content: str | Markup = "", **attributes: object) -> Markup:
    """Return an element; all values are escaped, ``class_`` is class, ``a_b`` is a-b."""
    parts = [f"<{name}"]
    for key, value in attributes.items():
        shown = coordinate(value) if isinstance(value, float) else value
        parts.append(f' {key.rstrip("_").replace("_", "-")}="{escape(shown)}"')
    text = escape(content)
    parts.append(f">{text}</{name}>" if text else "/>")
    return Markup("".join(parts))


def joined(parts: Iterable[Markup]) -> Markup:
    """Return the parts one after the other."""
    return Markup("").join(parts)


def coordinate(value: float) -> str:
    """Return a length with at most one decimal."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def linear(low: float, high: float, count: int = 5, percent: bool = False) -> Axis:
    """Return an axis from low to high with about ``count`` ticks at round values."""
    if not high > low:
        low, high = low - 0.5, low + 0.5
    step = _step((high - low) / count)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    values = [i * step for i in range(first, last + 1)]
    return Axis(low, high, tuple((v, tick(v, step, percent)) for v in values))


def padded(values: Iterable[float], least: float = 0.0, **options: int | bool) -> Axis:
    """Return an axis that holds all values with room to spare, at least ``least`` wide."""
    found = [v for v in values if math.isfinite(v)] or [0.0]
    low, high = min(found), max(found)
    room = max(0.06 * (high - low), 0.5 * (least - (high - low)), 1e-12)
    return linear(low - room, high + room, **options)  # type: ignore[arg-type]


def logarithmic(low: float, high: float) -> Axis:
    """Return a logarithmic axis; ticks at powers of ten, at 2 and 5 too where these are few.

    Ranges below a factor of five have the ticks of a linear axis.
    """
    if not high > low * 1.2:
        low, high = low / 1.2, high * 1.2
    if high < 5.0 * low:
        return linear(low, high, 4)._replace(scale="log")
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    few = math.log10(high / low) < 2.2
    found = [(d, m) for d in decades for m in ((1, 2, 5) if few else (1,))]
    inside = [(m * 10.0**d, d, m) for d, m in found]
    ticks = [(v, power(d, m)) for v, d, m in inside if low * 0.999 <= v <= high * 1.001]
    return Axis(low, high, tuple(ticks), "log")


def power(exponent: int, times: int = 1) -> str:
    """Return times * 10^exponent as a tick label, in full where that is short."""
    if -3 <= exponent <= 3:
        return f"{times * 10.0**exponent:.{max(-exponent, 0)}f}"
    ten = "10" + str(exponent).translate(_SUPERSCRIPT)
    return ten if times == 1 else f"{times}×{ten}"


def tick(value: float, step: float, percent: bool = False) -> str:
    """Return a tick label with the digits that its step needs."""
    scale = 100.0 if percent else 1.0
    digits = max(0, -math.floor(math.log10(step * scale) + 1e-9))
    text = f"{value * scale:.{digits}f}"
    if float(text) == 0.0:
        text = text.lstrip("-")
    return text.replace("-", _MINUS) + ("%" if percent else "")


def _step(rough: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    base = 10.0 ** math.floor(math.log10(rough))
    return next(m * base for m in (1.0, 2.0, 5.0, 10.0) if m * base >= rough * (1.0 - 1e-9))


def style(number: int) -> str:
    """Return the class of the number-th line, marker or area."""
    return f"s{number % STYLES}"


def line(frame: Frame, xs: Sequence[float], ys: Sequence[float], kind: str) -> Markup:
    """Return a line through points; it breaks where a value is not finite."""
    parts, pen = [], "M"
    for x, y in zip(xs, ys, strict=True):
        if not (math.isfinite(x) and math.isfinite(y)):
            pen = "M"
            continue
        a, b = frame.at(x, y)
        parts.append(f"{pen}{coordinate(a)} {coordinate(b)}")
        pen = "L"
    return tag("path", d="".join(parts), class_=f"line {kind}")


def area(
    frame: Frame, xs: Sequence[float], lows: Sequence[float], highs: Sequence[float], kind: str
) -> Markup:
    """Return the area between two curves."""
    points = [frame.at(x, y) for x, y in zip(xs, highs, strict=True)]
    points += [frame.at(x, y) for x, y in zip(reversed(xs), reversed(lows), strict=True)]
    text = "L".join(f"{coordinate(a)} {coordinate(b)}" for a, b in points)
    return tag("path", d=f"M{text}z", class_=f"area {kind}")


def steps(frame: Frame, edges: Sequence[float], values: Sequence[float], kind: str) -> Markup:
    """Return the outline of a histogram, edges (n + 1), values (n)."""
    xs = [edge for pair in itertools.pairwise(edges) for edge in pair]
    return line(frame, xs, [v for v in values for _ in (0, 1)], kind)


def bars(frame: Frame, edges: Sequence[float], values: Sequence[float], kind: str) -> Markup:
    """Return the filled area of a histogram, from the axis' low end."""
    made = []
    for (low, high), value in zip(itertools.pairwise(edges), values, strict=True):
        (x0, y0), (x1, y1) = frame.at(low, frame.y.low), frame.at(high, value)
        made.append(f"M{coordinate(x0)} {coordinate(y0)}V{coordinate(y1)}")
        made.append(f"H{coordinate(x1)}V{coordinate(y0)}z")
    return tag("path", d="".join(made), class_=f"bar {kind}")


def marker(frame: Frame, x: float, y: float, number: int, kind: str = "") -> Markup:
    """Return the number-th style's marker at a point; ``kind`` stands for its style where given."""
    a, b = frame.at(x, y)
    return tag(
        "path", d=_MARKERS[number % len(_MARKERS)], class_=f"mark {kind or style(number)}",
        transform=f"translate({coordinate(a)} {coordinate(b)})",
    )  # fmt: skip


def label(frame: Frame, x: float, y: float, text: str, kind: str = "", dx: float = 0.0) -> Markup:
    """Return text at a point, ``dx`` to the right, centred unless ``kind`` holds "end"."""
    a, b = frame.at(x, y)
    return tag("text", text, x=a + dx, y=b + 4.0, class_=kind or "cell-text")


def crowded(frame: Frame) -> bool:
    """Whether labels across would run into each other: every other one is then lower."""
    places = [(frame.at(value, 0.0)[0], 3.0 * len(text)) for value, text in frame.x.ticks]
    return any(b - a < left + right + 4.0 for (a, left), (b, right) in itertools.pairwise(places))


def axes(frame: Frame, across: str, up: str, grid: bool = True) -> Markup:
    """Return grid lines, tick labels and the names of both axes."""
    left, right = frame.left, frame.width - frame.right
    top, bottom = frame.top, frame.height - frame.bottom
    lines, parts = [], []
    lower = 11.0 * crowded(frame)
    for i, (value, text) in enumerate(frame.x.ticks):
        a, _ = frame.at(value, frame.y.low)
        lines.append(f"M{coordinate(a)} {coordinate(bottom)}V{coordinate(top)}")
        parts.append(tag("text", text, x=a, y=bottom + 15.0 + lower * (i % 2), class_="tick"))
    for value, text in frame.y.ticks:
        _, b = frame.at(frame.x.low, value)
        lines.append(f"M{coordinate(left)} {coordinate(b)}H{coordinate(right)}")
        parts.append(tag("text", text, x=left - 5.0, y=b + 4.0, class_="tick end"))
    edge = f"M{coordinate(left)} {coordinate(top)}V{coordinate(bottom)}H{coordinate(right)}"
    middle = 0.5 * (left + right)
    parts.append(tag("text", across, x=middle, y=frame.height - 5.0, class_="name"))
    if up:
        turn = f"translate(11 {coordinate(0.5 * (top + bottom))}) rotate(-90)"
        parts.append(tag("text", up, transform=turn, class_="name"))
    drawn = [tag("path", d="".join(lines), class_="grid")] if grid and lines else []
    return joined([*drawn, tag("path", d=edge, class_="edge"), *parts])


def picture(
    ident: str, title: str, description: str, body: Iterable[Markup],
    width: float = WIDTH, height: float = HEIGHT,
) -> Markup:  # fmt: skip
    """Return a whole picture.

    Args:
        ident: unique in the page: the anchor, and the stem of the identifiers of both texts.
        title: what it shows, in a few words; read out, and shown over it.
        description: what there is to see in it, with the numbers that matter.
        body: what is drawn, from back to front.
        width, height: in the units of what is drawn.
    """
    inside = [tag("title", title, id=f"{ident}-t"), tag("desc", description, id=f"{ident}-d")]
    return tag(
        "svg", joined([*inside, *body]), id=ident, role="img",
        aria_labelledby=f"{ident}-t", aria_describedby=f"{ident}-d",
        viewBox=f"0 0 {coordinate(width)} {coordinate(height)}",
    )  # fmt: skip


def swatch(number: int) -> Markup:
    """Return a line with a marker for a legend; the name stands beside it as text."""
    shape = tag("path", d=_MARKERS[number % STYLES], transform="translate(16 6)",
                class_=f"mark {style(number)}")  # fmt: skip
    stroke = tag("path", d="M0 6H32", class_=f"line {style(number)}")
    return tag("svg", stroke + shape, class_="swatch", viewBox="0 0 32 12", aria_hidden="true",
               focusable="false")  # fmt: skip


def key(kind: str) -> Markup:
    """Return what a legend shows of a band, a line of what is expected, a cross, or a bound."""
    if kind == "band":
        drawn = tag("path", d="M0 1H32V11H0z", class_="area band")
    elif kind == "out":
        drawn = tag("path", d=_MARKERS[5], transform="translate(16 6)", class_="mark out")
    elif kind in ("prior", "published", "consistent"):
        drawn = tag("path", d="M16 0V12", class_=f"line {kind}")
    else:
        drawn = tag("path", d="M0 6H32", class_=f"line {kind}")
    return tag("svg", drawn, class_="swatch", viewBox="0 0 32 12", aria_hidden="true",
               focusable="false")  # fmt: skip
