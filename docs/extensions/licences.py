"""The directive ``licences``: what the library runs on, and under which licences it comes.

Everything is read from the installed packages' metadata, without a network. A licence that is
none of those below ends the build; tests/test_licences.py does the same check.
"""

import functools
import re
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple

from docutils import nodes
from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT: Final = Path(__file__).resolve().parents[2]
PROPRIETARY: Final = "LicenseRef-NVIDIA-Proprietary"
#: Permissive ones by their SPDX names; "BSD" is what metadata say that leave open which.
PERMISSIVE: Final = frozenset({
    "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD", "BSD-2-Clause", "BSD-3-Clause",
    "BSL-1.0", "CC0-1.0", "HPND", "ISC", "MIT", "MIT-0", "MIT-CMU", "PSF-2.0", "Python-2.0",
    "Unlicense", "Zlib",
})  # fmt: skip
#: Copyleft of the files or of the library alone: allowed, and said.
LIMITED: Final = frozenset({"MPL-2.0", "LGPL-2.1-or-later", "LGPL-3.0-or-later"})
#: What free text and classifiers call otherwise.
WORDS: Final = {
    "2-clause bsd": "BSD-2-Clause",
    "3-clause bsd license": "BSD-3-Clause",
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd": "BSD",
    "bsd 2-clause license": "BSD-2-Clause",
    "bsd 3-clause": "BSD-3-Clause",
    "bsd 3-clause license": "BSD-3-Clause",
    "bsd license": "BSD",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "nvidia proprietary software": PROPRIETARY,
    "other/proprietary license": PROPRIETARY,
    "psfl": "PSF-2.0",
    "python software foundation license": "PSF-2.0",
}
#: Of packages whose metadata say nothing.
SAID_BY_HAND: Final = {"cuda-toolkit": PROPRIETARY}  # holds no files: it names the other wheels
#: What wheels bring along under another licence than their package's, where it is copyleft.
BROUGHT: Final = {
    "astropy": "brings WCSLIB, LGPL-3.0-or-later",
    "blosc2": "brings TinyCC's library, LGPL-2.1-or-later",
    "numpy": "brings GCC's runtime library, GPL-3.0 with its runtime exception",
    "scipy": "brings GCC's runtime library, GPL-3.0 with its runtime exception",
    "soundfile": "brings libsndfile, LGPL-2.1-or-later, as a shared library",
}
USES: Final = {
    "arviz-base": "posteriors as ArviZ has them",
    "astropy": "tables, units, sky pictures",
    "click": "commands",
    "corner": "corner pictures",
    "dask-jobqueue": "starting workers on a cluster (extra cluster)",
    "distributed": "work shared by a cluster (extra cluster)",
    "h5netcdf": "NetCDF files",
    "h5py": "HDF5 files",
    "jax": "the simulation, refinement on GPUs",
    "jaxgb": "responses of the simulation",
    "jinja2": "pages of reports",
    "lightning-fabric": "training by several processes",
    "lisaorbits": "orbits",
    "matplotlib": "pictures",
    "mojito": "Mojito L1 files",
    "nflows": "the flow's transforms",
    "numba": "compiled loops",
    "numpy": "arrays",
    "pandas": "needed by jaxgb, which does not say so",
    "pydantic": "settings",
    "pyyaml": "presets",
    "safetensors": "models' weights",
    "scipy": "transforms, statistics",
    "soundfile": "recordings of an ablation",
    "tables": "GLASS's chains (extra exports)",
    "tensorboard": "the training's log",
    "torch": "the network",
    "tqdm": "progress bars",
    "xarray": "posteriors in memory",
}


class Licence(NamedTuple):
    """A package: its licence as an SPDX expression ('' where none is found), what it is for."""

    name: str
    version: str
    licence: str
    use: str
    note: str


def declared(name: str) -> str:
    """Return an installed package's licence, '' where its metadata do not say one that is known.

    The expression comes first, then the free text, then the classifiers (all of them hold).
    """
    told = metadata.metadata(name)
    classifiers = [
        row.rsplit(" :: ", 1)[1] for row in told.get_all("Classifier", []) if "License ::" in row
    ]
    stated = [told.get(name) for name in ("License-Expression", "License")]
    texts = (*stated, " AND ".join(map(known, classifiers)))
    found = (known(text) for text in texts if text)
    return next(filter(None, found), "") or SAID_BY_HAND.get(canonicalize_name(name), "")


def known(text: str) -> str:
    """Return the SPDX expression for a licence's text, '' where it is none that is known."""
    text = text.strip()
    if word := WORDS.get(text.lower()):
        return word
    if text in PERMISSIVE:  # "BSD" is no SPDX name
        return text
    try:
        return str(canonicalize_license_expression(text))
    except InvalidLicenseExpression:
        return ""


def allowed(expression: str, name: str) -> bool:
    """Whether a package may have that licence: all parts of AND, or one of OR.

    NVIDIA's own may be that of its CUDA wheels alone, which PyTorch needs on Linux.
    """
    if re.search(r"[()]", expression):
        return False  # none has needed it so far
    cuda = name.startswith(("nvidia-", "cuda-"))
    fine = PERMISSIVE | LIMITED | ({PROPRIETARY} if cuda else set())
    return any(
        all(part in fine for part in either.split(" AND ")) for either in expression.split(" OR ")
    )


def requirements(name: str, extras: frozenset[str]) -> Iterator[Requirement]:
    """Yield what an installed package needs here, with those extras."""
    for text in metadata.requires(name) or []:
        yield from _applying(Requirement(text), extras)


def _applying(found: Requirement, extras: frozenset[str]) -> Iterator[Requirement]:
    if found.marker is None or any(found.marker.evaluate({"extra": e}) for e in ("", *extras)):
        yield found


@functools.cache
def licences() -> tuple[Licence, ...]:
    """Return all packages that the library, with all its extras, needs to run here, by name.

    Raises:
        importlib.metadata.PackageNotFoundError: one is not installed.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    direct = [Requirement(r) for group in (project["dependencies"], *extras) for r in group]
    needed: dict[str, set[str]] = {canonicalize_name(r.name): set() for r in direct}
    names, waiting, seen = set(needed), direct, set[tuple[str, frozenset[str]]]()
    while waiting:
        found = waiting.pop()
        name, wanted = canonicalize_name(found.name), frozenset(found.extras)
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        for other in requirements(name, wanted):
            needed.setdefault(canonicalize_name(other.name), set()).add(name)
            waiting.append(other)
    return tuple(
        _licence(name, USES[name] if name in names else f"needed by {_few(sorted(needed[name]))}")
        for name in sorted(needed)
    )


def _licence(name: str, use: str) -> Licence:
    return Licence(name, metadata.version(name), declared(name), use, BROUGHT.get(name, ""))


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


class Licences(SphinxDirective):
    """A table: ``licences`` with ``others`` or ``nvidia``, whose own licence makes its part."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        wanted = self.arguments[0] == "nvidia"
        header = ("package", "version", "licence", "used for")
        group = nodes.tgroup(cols=len(header))
        group += [nodes.colspec(colwidth=1) for _ in header]
        group += nodes.thead("", _row(header))
        body = nodes.tbody()
        for found in licences():
            if not allowed(found.licence, found.name):
                raise self.error(f"{found.name}: licence {found.licence or 'unknown'}")
            if wanted == (PROPRIETARY in found.licence):
                words = found.use + (f"; {found.note}" if found.note else "")
                body += _row((found.name, found.version, found.licence, words))
        group += body
        self.env.note_reread()
        return [nodes.table("", group)]


def _row(cells: tuple[str, ...]) -> nodes.row:
    row = nodes.row()
    row += [nodes.entry("", nodes.paragraph("", text)) for text in cells]
    return row


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("licences", Licences)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
