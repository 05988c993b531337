"""Docstrings and signatures as Sphinx reads them best."""

import importlib
import inspect
import itertools
import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.napoleon import GoogleDocstring

#: What NumPy's aliases expand to; the group is the kind of number.
ARRAY = re.compile(r"~?(?:numpy\.)?ndarray\[[^\[\]]*\[[^\[\]]*\], [^\[\]]*dtype\[([^\[\]]*)\]\]")
VALUES = ("attribute", "data", "property")


def shorten_arrays(
    app: Sphinx, what: str, name: str, thing: object, options: Any, signature: str | None,
    returns: str | None,
) -> tuple[str | None, str | None]:  # fmt: skip
    """Write NDArray[float64] for the type that it stands for."""

    def short(text: str | None) -> str | None:
        return text and ARRAY.sub(lambda m: f"NDArray[{m[1].rpartition('.')[2]}]", text)

    return short(signature), short(returns)


class Docstrings:
    """What is done to docstrings before and after napoleon reads them."""

    def __init__(self) -> None:
        self.kept: list[str] = []

    def before(
        self, app: Sphinx, what: str, name: str, thing: object, options: Any, lines: list[str]
    ) -> None:
        """Escape bars, which are moduli here; keep what is said of values.

        Napoleon would read "Columns: those of the table" of an attribute as a type and a text.
        """
        lines[:] = [_escaped(line) for line in lines]
        if what == "module":
            lines[:] = list(_with_formulas(lines))
        if what in VALUES:
            self.kept = GoogleDocstring(lines, app.config, app, "function", name, thing).lines()

    def after(
        self, app: Sphinx, what: str, name: str, thing: object, options: Any, lines: list[str]
    ) -> None:
        if what in VALUES:
            lines[:] = self.kept


def _with_formulas(lines: list[str]) -> Iterator[str]:
    """Yield the lines, indented blocks as literal ones: they are formulas as text, or code."""
    paragraph = ""
    for before, line in itertools.pairwise(["", *lines]):
        indented = line.startswith("    ")
        if indented and not before and not paragraph.startswith((" ", "-")):
            yield from () if paragraph.endswith("::") or ">>>" in line else ("::", "")
        yield line
        if line:
            paragraph = line


def _escaped(line: str) -> str:
    if ">>>" in line or "..." in line.split()[:1]:
        return line
    parts = line.split("``")
    return "``".join(p if i % 2 else p.replace("|", r"\|") for i, p in enumerate(parts))


def skip_members(
    app: Sphinx, what: str, name: str, thing: object, skip: bool, options: Any
) -> bool | None:
    """Leave out what is imported, and fields of named tuples: the class's docstring has these."""
    if (getattr(thing, "__doc__", None) or "").startswith("Alias for field"):
        return True
    defined = inspect.isroutine(thing) or inspect.isclass(thing)
    ours = str(getattr(thing, "__module__", "slotflow")).startswith("slotflow")
    return True if defined and not ours else None


def find_imported(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, shown: nodes.Node
) -> nodes.Node | None:
    """Find what a module has from another one, by the name that it has where it is defined."""
    module, _, name = str(node.get("reftarget", "")).rpartition(".")
    if node.get("refdomain") != "py" or not module.startswith("slotflow."):
        return None
    try:
        thing = getattr(importlib.import_module(module), name)
        target = f"{thing.__module__}.{thing.__qualname__}"
    except (ImportError, AttributeError):
        return None
    if target == node["reftarget"]:
        return None
    domain = env.get_domain("py")
    found = domain.resolve_any_xref(env, node["refdoc"], app.builder, target, node, shown)
    return found[0][1] if found else None


def setup(app: Sphinx) -> dict[str, bool]:
    docstrings = Docstrings()
    app.connect("autodoc-process-docstring", docstrings.before, priority=400)
    app.connect("autodoc-process-docstring", docstrings.after, priority=600)
    app.connect("autodoc-process-signature", shorten_arrays)
    app.connect("autodoc-skip-member", skip_members)
    app.connect("missing-reference", find_imported)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
