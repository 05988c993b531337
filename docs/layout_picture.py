"""Draws ``pictures/layout.svg``, the library's layers, from the import contracts of pyproject.toml.

``python docs/layout_picture.py`` renews it; tests/test_contributing.py compares.
"""

import html
import textwrap
import tomllib
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

ROOT: Final = Path(__file__).resolve().parents[1]
PICTURE: Final = ROOT / "docs" / "pictures" / "layout.svg"
#: The picture's rows: a name, and the first module of the layer that each begins with.
ROWS: Final = {
    "commands": "cli",
    "studies, reports": "ablate",
    "from Python": "api",
    "pictures, exports": "plots",
    "results on disk": "stored_output",
    "training, inference": "train",
    "refinement": "refine",
    "bands of a file": "whitening",
    "likelihood, prior": "likelihood_jax",
    "results": "assumptions",
    "network, scores": "objective",
    "tokens": "tokenstore",
    "component search": "components",
    "files": "readers",
    "physics, settings": "channels",
}
WIDTH, NAMES_AT, SIDE_AT, MARGIN = 940, 176, 790, 12
LINE, PAD, GAP, CHARACTERS = 17, 9, 6, 84
INK, PALE, RULE, SHARED = "#1d2733", "#5b6776", "#c9d1da", "#0b62a8"
STYLE: Final = (
    f"text{{font:13px system-ui,sans-serif;fill:{INK}}}"
    f"text.names{{font:11.5px ui-monospace,monospace}}"
    f"text.small{{font-size:11.5px;fill:{PALE}}}"
    f".shared{{fill:{SHARED}}}"
)


class Layers(NamedTuple):
    """The contracts: modules layer by layer from above, and those that the simulation knows."""

    layers: tuple[tuple[str, ...], ...]
    shared: frozenset[str]


def read_layers(path: Path = ROOT / "pyproject.toml") -> Layers:
    """Return the layers of the import contracts."""
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    contracts = {c["name"]: c for c in content["tool"]["importlinter"]["contracts"]}
    library = _modules(contracts["Imports in the library go one way"])
    simulation = _modules(contracts["Imports in the simulation go one way"])
    return Layers(library, frozenset(simulation[-1]))


def _modules(contract: dict[str, Any]) -> tuple[tuple[str, ...], ...]:
    return tuple(
        tuple(name.strip(" ()") for name in layer.split(":")) for layer in contract["layers"]
    )


def rows(layers: tuple[tuple[str, ...], ...]) -> dict[str, list[str]]:
    """Return the modules of each of the picture's rows.

    Raises:
        ValueError: the layer that a row should begin with is not there, or not in this order.
    """
    starts = {first: name for name, first in ROWS.items()}
    found: dict[str, list[str]] = {}
    name = ""
    for layer in layers:
        name = next((starts[module] for module in layer if module in starts), name)
        found.setdefault(name, []).extend(layer)
    if list(found) != list(ROWS):
        raise ValueError(f"ROWS of docs/layout_picture.py do not fit the layers: {list(found)}")
    return found


def picture(known: Layers) -> str:
    """Return the picture as SVG."""
    parts: list[str] = []
    top, side_from = MARGIN + 24, 0
    for name, modules in rows(known.layers).items():
        lines = _wrapped(modules)
        height = LINE * len(lines) + 2 * PAD
        right = WIDTH - MARGIN if name == "commands" else SIDE_AT - 10
        parts.append(_box(MARGIN, top, right - MARGIN, height))
        parts.append(_text(MARGIN + 10, top + PAD + 13, html.escape(name)))
        for number, line in enumerate(lines):
            marked = ", ".join(
                f'<tspan class="shared">{m}</tspan>' if m in known.shared else m for m in line
            )
            parts.append(_text(NAMES_AT, top + PAD + 13 + LINE * number, marked, "names"))
        top += height + GAP
        side_from = side_from or top
    parts += _side(side_from, top - GAP)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + MARGIN - GAP}"'
        f' width="{WIDTH}" role="img" aria-label="The modules of slotflow, layer by layer">\n'
        f"<style>{STYLE}</style>\n"
        f'<rect width="100%" height="100%" fill="#fff"/>\n'
        + _text(MARGIN, MARGIN + 11, "Each row imports from itself and from rows below it", "small")
        + "\n".join(["", *parts, "</svg>", ""])
    )


def _wrapped(modules: list[str]) -> list[list[str]]:
    lines = textwrap.wrap(", ".join(modules), CHARACTERS, break_on_hyphens=False)
    return [[word for word in line.rstrip(",").split(", ") if word] for line in lines]


def _side(top: int, bottom: int) -> list[str]:
    """Return the simulation's box, beside all rows but that of the commands."""
    words = ("called by the", "commands alone;", "of the library", "it knows only")
    parts = [_box(SIDE_AT, top, WIDTH - MARGIN - SIDE_AT, bottom - top)]
    parts.append(_text(SIDE_AT + 12, top + PAD + 13, "simulate", "names"))
    for number, line in enumerate(words, start=1):
        parts.append(_text(SIDE_AT + 12, top + PAD + 13 + LINE * number, line, "small"))
    blue = '<tspan class="shared">what is blue</tspan>'
    parts.append(_text(SIDE_AT + 12, top + PAD + 13 + LINE * (len(words) + 1), blue, "small"))
    return parts


def _box(x: int, y: int, width: int, height: int) -> str:
    place = f'x="{x}" y="{y}" width="{width}" height="{height}"'
    return f'<rect {place} rx="4" fill="none" stroke="{RULE}"/>'


def _text(x: int, y: int, content: str, kind: str = "") -> str:
    name = f' class="{kind}"' if kind else ""
    return f'<text{name} x="{x}" y="{y}">{content}</text>'


if __name__ == "__main__":
    PICTURE.write_text(picture(read_layers()), encoding="utf-8")
    click.echo(PICTURE)
