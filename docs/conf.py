"""Settings of the documentation site; ``.ci/docs`` builds it with warnings as errors."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

import click

from slotflow import __version__
from slotflow.cli.main import group


def _show_defaults(command: click.Command) -> None:
    """Do what the command's own settings do, which sphinx-click does not look at."""
    for option in command.params:
        if isinstance(option, click.Option) and option.show_default is None:
            told = isinstance(option.default, int | float | str | Path)
            option.show_default = told and not option.is_flag
    for child in command.commands.values() if isinstance(command, click.Group) else ():
        _show_defaults(child)


_show_defaults(group)

project = "slotflow"
author = "The slotflow developers"
version = release = __version__
project_copyright = "The slotflow developers, MIT licence"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "docstrings",
    "licences",
    "mathsvg",
    "remaining",
    "settings_table",
]
exclude_patterns = ["_build"]
smartquotes = False  # -- is an option's beginning
myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3
myst_dmath_double_inline = True

html_theme = "furo"
html_title = f"slotflow {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "svg"  # no script, no font, no network
html_copy_source = False
html_show_sphinx = False

python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False  # other packages' refer to their own documentation
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_attr_annotations = False  # docstrings tell shapes and units

nitpicky = True
nitpick_ignore_regex = [
    # Other packages: their inventories would have to be downloaded.
    (r"py:.*", r"(numpy|np|torch|nn|h5py|matplotlib|xarray|xr|astropy|pydantic)\..*"),
    (r"py:.*", r"(pathlib|collections|contextlib|typing|annotationlib|markupsafe)\..*"),
    # Names without a module: annotations that are text in the code (imports for type checkers
    # alone), type variables, and what docstrings call by its short name.
    (r"py:.*", r"(parameters\.)?\w+(\[str)?"),
    # Names that are nobody else's business.
    (r"py:.*", r"slotflow\..*\._\w+"),
    # Constants whose comment is no docstring.
    (r"py:data", r".*"),
]
# Two classes are called Model, the user's (slotflow.api) and what a file holds; links from
# annotations find both.
suppress_warnings = ["ref.python"]
