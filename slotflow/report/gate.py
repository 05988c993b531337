"""Conditions on a report's figures, for the exit code of a check: ``crps.f0 > 0.02``.

A condition is a figure's dotted name, a comparison and a number; nothing is evaluated.
"""

import math
import operator
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from slotflow.errors import InputError

_COMPARISONS: Final[dict[str, Callable[[float, float], bool]]] = {
    "<=": operator.le, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
    "<": operator.lt, ">": operator.gt,
}  # fmt: skip
_FORM: Final = re.compile(r"\s*([^<>=!]*[^<>=!\s])\s*(<=|>=|==|!=|<|>)\s*(\S+)\s*")
_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", flags=re.ASCII)


@dataclass(frozen=True)
class Condition:
    """A figure, a comparison, a number; where it holds, the check fails."""

    figure: str
    comparison: str
    bound: float

    def __str__(self) -> str:
        return f"{self.figure} {self.comparison} {self.bound!r}"


@dataclass(frozen=True)
class Verdict:
    """A condition and the figure that it was compared with, None where there was none.

    ``failed`` where the condition holds, and where the figure could not be had.
    """

    condition: Condition
    value: float | None

    @property
    def failed(self) -> bool:
        """Whether the check fails."""
        if self.value is None or math.isnan(self.value):
            return True
        return _COMPARISONS[self.condition.comparison](self.value, self.condition.bound)

    def __str__(self) -> str:
        if self.value is None or math.isnan(self.value):
            return f"{self.condition} (the figure could not be had)"
        return f"{self.condition} ({self.condition.figure} is {self.value:.6g})"


def parse(text: str) -> Condition:
    """Read a condition.

    Raises:
        InputError: it is not of the form NAME COMPARISON NUMBER.
    """
    match = _FORM.fullmatch(text)
    if match is None or _NUMBER.fullmatch(match[3]) is None or not math.isfinite(float(match[3])):
        raise InputError(
            f"--fail-if {text!r}: expected a figure, one of {', '.join(_COMPARISONS)} and a number,"
            " as in 'crps.f0 > 0.02'"
        )
    return Condition(match[1], match[2], float(match[3]))


def flat(figures: Mapping[str, Any], prefix: str = "") -> dict[str, float | None]:
    """Return nested figures by dotted names; what is neither a number nor None is left out."""
    found: dict[str, float | None] = {}
    for key, value in figures.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= flat(value, f"{name}.")
        elif value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            found[name] = None if value is None else float(value)
    return found


def judge(conditions: Sequence[Condition], figures: Mapping[str, Any]) -> tuple[Verdict, ...]:
    """Compare every condition with its figure; one that could not be made counts as null."""
    known = flat(figures)
    return tuple(Verdict(one, known.get(one.figure)) for one in conditions)


def check_names(conditions: Sequence[Condition], known: Mapping[str, Any]) -> None:
    """Refuse conditions on figures that do not exist.

    Raises:
        InputError: with the names that exist.
    """
    for one in conditions:
        if one.figure not in known:
            raise InputError(
                f"--fail-if '{one}': no figure {one.figure!r}; there are {_in_words(known)}"
            )


def _in_words(names: Iterable[str]) -> str:
    """Return dotted names in short: those that have the same parameters behind them together."""
    leaves: dict[str, list[str]] = {}
    for name in sorted(names):
        stem, dot, leaf = name.rpartition(".")
        leaves.setdefault(stem if dot else name, []).extend([leaf] if dot else [])
    groups: dict[tuple[str, ...], list[str]] = {}
    for stem, found in leaves.items():
        groups.setdefault(tuple(found), []).append(stem)
    plain = groups.pop((), [])
    said = [", ".join(plain)] if plain else []
    said += [
        f"{', '.join(stems)}, each with {', '.join(f'.{leaf}' for leaf in found)}"
        for found, stems in groups.items()
    ]
    return "; ".join(said)


def junit(verdicts: Sequence[Verdict], seconds: float) -> str:
    """Return the verdicts as JUnit's XML, a test case each."""
    failures = sum(one.failed for one in verdicts)
    suite = ET.Element(
        "testsuite", name="slotflow report", tests=str(len(verdicts)), failures=str(failures),
        errors="0", skipped="0", time=f"{seconds:.3f}",
    )  # fmt: skip
    for one in verdicts:
        case = ET.SubElement(
            suite, "testcase", classname="slotflow.report", name=f"not {one.condition}"
        )
        if one.failed:
            ET.SubElement(case, "failure", message=str(one), type="figure")
    whole = ET.Element("testsuites")
    whole.append(suite)
    ET.indent(whole)
    return ET.tostring(whole, encoding="unicode", xml_declaration=True) + "\n"
