"""The directive ``remaining-modules``: all modules that no other page of the API documents."""

import pkgutil
import re
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import slotflow

#: Commands have a page of their own; data and presets hold files.
LEFT_OUT = re.compile(r"slotflow\.(cli|data|presets)(\..*)?")


class RemainingModules(SphinxDirective):
    """To stand inside ``eval-rst``: a heading and an ``automodule`` for each module left."""

    def run(self) -> list[nodes.Node]:
        pages = Path(self.env.srcdir, "reference", "api").glob("*.md")
        told = {
            name for page in pages
            for name in re.findall(r"automodule:: (\S+)", page.read_text(encoding="utf-8"))
        }  # fmt: skip
        names = sorted(m.name for m in pkgutil.walk_packages(slotflow.__path__, "slotflow."))
        lines: list[str] = []
        for name in names:
            if name not in told and not LEFT_OUT.fullmatch(name):
                lines += [f".. rubric:: {name}", "", f".. automodule:: {name}", "   :members:", ""]
        container = nodes.container()
        self.state.nested_parse(StringList(lines, source=__file__), 0, container)
        self.env.note_reread()
        return container.children


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("remaining-modules", RemainingModules)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
