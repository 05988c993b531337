"""Formulas as pictures inside the page (SVG), drawn by matplotlib when the site is built.

Sphinx's own renderers need a script from the network (MathJax) or LaTeX (images); MathML needs a
mathematical font, which many machines do not have. The source of a formula is its description
for who cannot see it.
"""

import html
import re
from typing import Any, NoReturn

from docutils import nodes
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from sphinx.application import Sphinx
from sphinx.util import logging

LOG = logging.getLogger(__name__)
FONT = FontProperties(size=text_to_path.FONT_SCALE, math_fontfamily="stix")
EM = text_to_path.FONT_SCALE / 1.1  # the font is small beside those of browsers
PAD = 4.0  # room around, in hundredths of an em
#: What matplotlib calls otherwise.
WORDS = (
    (re.compile(r"\\[bB]ig+l"), r"\\left"),
    (re.compile(r"\\[bB]ig+r"), r"\\right"),
    (re.compile(r"\\([lr])Vert"), r"\\|"),
    (re.compile(r"\\tfrac"), r"\\frac"),
    (re.compile(r"\\mid\b"), r"\\,|\\,"),
    (re.compile(r"\\text\{"), r"\\mathrm{"),
    (re.compile(r"\s+"), " "),
)
#: Path commands of matplotlib's codes.
LETTERS = {1: "M", 2: "L", 3: "Q", 4: "C", 79: "Z"}
POINTS = {1: 1, 2: 1, 3: 2, 4: 3, 79: 1}


def svg(source: str, block: bool, defined: set[str]) -> str:
    """Return a formula as an SVG element.

    Args:
        source: in TeX, as far as matplotlib knows it.
        block: on a line of its own.
        defined: glyphs that the page has already, to which those of this formula are added.

    Raises:
        ValueError: matplotlib cannot read it.
    """
    text = source
    for pattern, word in WORDS:
        text = pattern.sub(word, text)
    if block:
        text = text.replace(r"\frac", r"\dfrac")
    text = f"${text.strip()}$"
    width, total, depth, *_ = text_to_path.mathtext_parser.parse(text, text_to_path.DPI, FONT)
    placed, shapes, bars = text_to_path.get_glyphs_mathtext(FONT, text)
    parts = []
    for name, (points, codes) in shapes.items():
        if (key := _key(name)) not in defined and len(points):
            defined.add(key)
            parts.append(f'<defs><path id="{key}" d="{_path(points, codes)}"/></defs>')
    for name, x, y, scale in placed:
        if _key(name) in defined:
            size = f" scale({scale:.3g})" if scale != 1.0 else ""
            place = f"translate({x:.0f},{y:.0f}){size}"
            parts.append(f'<use href="#{_key(name)}" transform="{place}"/>')
    parts += [f'<path d="{_path(points, codes)}"/>' for points, codes in bars]
    box = (-PAD, depth - total - PAD, width + 2 * PAD, total + 2 * PAD)
    style = (
        f"width:{box[2] / EM:.3f}em;height:{box[3] / EM:.3f}em;"
        f"vertical-align:{-(depth + PAD) / EM:.3f}em"
    )
    label = html.escape(" ".join(source.split()))
    return (
        f'<svg class="formula" role="img" aria-label="{label}" style="{style}"'
        f' viewBox="{" ".join(f"{value:.0f}" for value in box)}">'
        f'<g transform="scale(1,-1)">{"".join(parts)}</g></svg>'
    )


def _key(name: Any) -> str:
    return "g-" + re.sub(r"\W", "-", str(name))


def _path(points: Any, codes: Any) -> str:
    """Return matplotlib's path as SVG's, in hundredths of an em."""
    out, place = [], 0
    while place < len(codes):
        code = int(codes[place])
        number = POINTS[code]
        ends = points[place : place + number]
        out.append(LETTERS[code] + " ".join(f"{x:.4g} {y:.4g}" for x, y in ends if code != 79))
        place += number
    return "".join(out)


def _drawn(self: Any, node: nodes.Element, block: bool) -> str:
    """Return the formula; what cannot be drawn is a warning, and stays as it is."""
    if not hasattr(self, "formula_glyphs"):
        self.formula_glyphs = set()
    try:
        return svg(node.astext(), block, self.formula_glyphs)
    except ValueError as error:
        LOG.warning("formula %r: %s", node.astext(), error, location=node)
        return f"<code>{html.escape(node.astext())}</code>"


def visit_inline(self: Any, node: nodes.math) -> NoReturn:
    self.body.append(_drawn(self, node, block=False))
    raise nodes.SkipNode


def visit_block(self: Any, node: nodes.math_block) -> NoReturn:
    label = f' id="{node["ids"][0]}"' if node["ids"] else ""
    number = f'<span class="eqno">({node["number"]})</span>' if node["number"] else ""
    rows = node.astext().split("\n\n")
    formula = "".join(_drawn(self, nodes.math_block(row, row), True) for row in rows)
    self.body.append(f'<div class="equation"{label}>{formula}{number}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("svg", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
