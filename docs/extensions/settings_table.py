"""The directives ``settings``, the keys of a section from its pydantic model, and ``presets``."""

import types
import typing
from importlib import resources
from typing import Any, Literal

from docutils import nodes
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from slotflow import config

HEADER = ("key", "default", "allowed", "meaning")
SIGNS = {"gt": "> {}", "ge": "≥ {}", "lt": "< {}", "le": "≤ {}", "multiple_of": "a multiple of {}"}


def allowed(info: FieldInfo) -> str:
    """Return a field's type and bounds in words."""
    bounds = [
        text.format(format(value, "g"))
        for item in info.metadata
        for name, text in SIGNS.items()
        if (value := getattr(item, name, None)) is not None
    ]
    return ", ".join([_kind(info.annotation), *bounds])


def _kind(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return ", ".join(str(value) for value in arguments)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_kind(a) for a in arguments if a is not type(None))
    if origin is tuple:
        return f"list ({_kind(arguments[0])})"
    names = {float: "number", int: "whole number", bool: "true, false", str: "text"}
    return names.get(annotation, "see below")


def default(info: FieldInfo) -> str:
    """Return a field's default as YAML has it."""
    value = info.default
    if value is PydanticUndefined:
        return ""
    if isinstance(value, BaseModel):
        return "see below"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[" + ", ".join(map(str, value)) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)


class SettingsTable(SphinxDirective):
    """A table of a section's keys: ``settings`` with the name of the class in slotflow.config."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        model: type[BaseModel] = getattr(config, self.arguments[0])
        group = nodes.tgroup(cols=len(HEADER))
        group += [nodes.colspec(colwidth=1) for _ in HEADER]
        group += nodes.thead("", self._row(HEADER, code=0))
        body = nodes.tbody()
        for name, info in model.model_fields.items():
            cells = (name, default(info), allowed(info), info.description or "")
            body += self._row(cells, code=2)
        group += body
        return [nodes.table("", group, classes=["settings"])]

    def _row(self, cells: tuple[str, ...], code: int) -> nodes.row:
        """Return a row; the first ``code`` cells are set as code."""
        row = nodes.row()
        for place, text in enumerate(cells):
            shown = nodes.literal(text, text) if place < code and text else nodes.Text(text)
            row += nodes.entry("", nodes.paragraph("", "", shown))
        return row


class Presets(SphinxDirective):
    """All presets that ship, as they stand in their files."""

    def run(self) -> list[nodes.Node]:
        shown: list[nodes.Node] = []
        for name in config.preset_names():
            file = resources.files("slotflow.presets") / f"{name}.yaml"
            text = file.read_text("utf-8").rstrip()
            shown += [nodes.rubric(name, name), nodes.literal_block(text, text, language="yaml")]
        return shown


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("settings", SettingsTable)
    app.add_directive("presets", Presets)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
