"""What a section of the page is made of: figures, tables, text that unfolds."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from markupsafe import Markup

from slotflow.report.tables import Table


class Figure(NamedTuple):
    """Panels under one caption; ``legend`` whether the models' lines are explained under it.

    ``key`` explains other lines: (swatch, text).
    """

    ident: str
    caption: str
    panels: tuple[tuple[str, Markup], ...]
    legend: bool
    key: tuple[tuple[Markup, str], ...] = ()
    single: bool = False
    kind: str = "figure"


class Folded(NamedTuple):
    """Settings, as they are, under a line that unfolds them."""

    summary: str
    settings: tuple[Mapping[str, Any], ...]
    kind: str = "folded"


class Said(NamedTuple):
    """A paragraph."""

    text: str
    kind: str = "said"


Block = Figure | Table | Folded | Said


class Part(NamedTuple):
    """A part of a section, with a heading of its own where ``title`` is not empty."""

    ident: str
    title: str
    how: str
    blocks: tuple[Block, ...]


class Section(NamedTuple):
    """A section: its anchor, heading, how it is read, and parts."""

    ident: str
    title: str
    how: str
    parts: tuple[Part, ...]
