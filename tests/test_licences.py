"""The licences of what the library runs on, from the installed packages' metadata."""

import importlib.util
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
#: Words of the licence files that wheels hold, for what the table says they bring.
EVIDENCE = {
    "astropy": r"WCSLIB_LICENSE.*?GNU LESSER GENERAL PUBLIC LICENSE\s+Version 3",
    "blosc2": r"LIBTCC.*?GNU LESSER GENERAL PUBLIC LICENSE\s+Version 2\.1",
    "numpy": r"GPL-3\.0-or-later WITH GCC-exception",
    "scipy": r"GPL-3\.0-or-later WITH GCC-exception",
    "soundfile": r"_soundfile_data.*?GNU LESSER GENERAL PUBLIC LICENSE\s+Version 2\.1",
}


def load() -> ModuleType:
    path = ROOT / "docs" / "extensions" / "licences.py"
    spec = importlib.util.spec_from_file_location("licences", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["licences"] = module
    spec.loader.exec_module(module)
    return module


licences = load()


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr("socket.socket.connect", refused)
    monkeypatch.setattr("socket.getaddrinfo", refused)


def test_all_licences_are_allowed() -> None:
    found = licences.licences()
    assert {row.name for row in found} >= {"numpy", "torch", "jaxgb", "certifi", "tables"}
    wrong = [row for row in found if not licences.allowed(row.licence, row.name)]
    assert wrong == []


def test_what_is_named_directly_has_its_use() -> None:
    direct = {row.name for row in licences.licences() if not row.use.startswith("needed by")}
    direct |= {"pandas"}  # whose use says by whom
    assert direct == set(licences.USES)


def test_the_closure_is_that_of_another_walk() -> None:
    """Breadth first from the installed project, without any extra; all but extras' is there."""

    def follow(text: str, extra: str = "") -> Iterator[str]:
        found = Requirement(text)
        if found.marker is None or found.marker.evaluate({"extra": extra}):
            yield canonicalize_name(found.name)

    known = {row.name for row in licences.licences()}
    level = {"slotflow-gw"}
    reached: set[str] = set()
    while level:
        reached |= level
        level = {
            name for one in level for text in metadata.requires(one) or [] for name in follow(text)
        } - reached
    assert reached - {"slotflow-gw"} <= known
    # the rest comes by extras alone: the project's, and those that requirements name
    assert {"distributed", "tables", "aiohttp", "nvidia-cufft"} & known <= known - reached


def test_versions_are_those_of_the_lock() -> None:
    if Path(sys.prefix) != ROOT / ".venv":
        pytest.skip("an environment that is not made of the lock")
    locked: dict[str, set[str]] = {}
    for name, version in re.findall(
        r"^([\w.-]+)==([\w.+!]+)", (ROOT / "requirements.lock").read_text(), flags=re.MULTILINE
    ):
        locked.setdefault(name, set()).add(version)
    other = {
        row.name: row.version
        for row in licences.licences()
        if row.version not in locked.get(row.name, set())
    }
    assert other == {}


@pytest.mark.parametrize("name", EVIDENCE)
def test_what_wheels_bring_is_in_their_licence_files(name: str) -> None:
    assert name in licences.BROUGHT
    text = ""
    for file in metadata.files(name) or []:
        if re.search(r"(LICEN[CS]E|COPYING|METADATA)[^/]*$", str(file)):
            text += f"\n{file}\n{file.read_text(encoding='utf-8')}"
    assert re.search(EVIDENCE[name], text, flags=re.DOTALL)


def test_all_that_is_brought_has_evidence() -> None:
    assert EVIDENCE.keys() == licences.BROUGHT.keys()


@pytest.mark.parametrize(
    ("expression", "name", "expected"),
    [
        ("MIT", "x", True),
        ("MIT AND Apache-2.0 WITH LLVM-exception", "x", True),
        ("MPL-2.0 AND MIT", "x", True),
        ("GPL-3.0-only OR MIT", "x", True),
        ("GPL-3.0-only", "x", False),
        ("MIT AND GPL-3.0-only", "x", False),
        ("AGPL-3.0-or-later", "x", False),
        ("LicenseRef-NVIDIA-Proprietary", "nvidia-cublas", True),
        ("LicenseRef-NVIDIA-Proprietary", "numpy", False),
        ("(MIT OR GPL-3.0-only) AND GPL-3.0-only", "x", False),
        ("", "x", False),
    ],
)
def test_which_are_allowed(expression: str, name: str, expected: bool) -> None:
    assert licences.allowed(expression, name) is expected


def package(folder: Path, rows: str) -> None:
    found = folder / "strange-1.0.dist-info"
    found.mkdir(exist_ok=True)
    (found / "METADATA").write_text(f"Metadata-Version: 2.4\nName: strange\nVersion: 1.0\n{rows}")


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ("License-Expression: mit and bsd-3-clause\n", "MIT AND BSD-3-Clause"),
        ("License: BSD 3-Clause\nClassifier: License :: OSI Approved :: MIT License\n",
         "BSD-3-Clause"),
        ("License: Copyright me. All rights\nClassifier: License :: OSI Approved :: MIT License\n",
         "MIT"),
        ("Classifier: License :: OSI Approved :: MIT License\n"
         "Classifier: License :: OSI Approved :: GNU General Public License v3 (GPLv3)\n", ""),
        ("License-Expression: GPL-3.0-only\n", "GPL-3.0-only"),
        ("License: do what you like\n", ""),
        ("", ""),
    ],
)  # fmt: skip
def test_what_metadata_declare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: str, expected: str
) -> None:
    package(tmp_path, rows)
    monkeypatch.syspath_prepend(tmp_path)
    assert licences.declared("strange") == expected


def test_a_package_that_comes_with_another_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dependency of tqdm's that is under the GPL: named, and not allowed."""
    package(tmp_path, "License-Expression: GPL-3.0-only\n")
    monkeypatch.syspath_prepend(tmp_path)
    real = metadata.requires

    def requires(name: str) -> list[str] | None:
        return ["strange>=1"] if name == "tqdm" else real(name)

    monkeypatch.setattr(licences.metadata, "requires", requires)
    licences.licences.cache_clear()
    try:
        [row] = [row for row in licences.licences() if row.name == "strange"]
    finally:
        licences.licences.cache_clear()
    assert (row.use, row.licence) == ("needed by tqdm", "GPL-3.0-only")
    assert not licences.allowed(row.licence, row.name)


def test_the_lowest_versions_are_those_that_are_named() -> None:
    """constraints-min.txt: no address, one version each, and no direct one above its lock's."""
    text = (ROOT / "constraints-min.txt").read_text(encoding="utf-8")
    assert "://" not in text
    rows = [line for line in text.splitlines() if not line.startswith("#")]
    low = dict(row.split("==") for row in rows)
    assert len(low) == len(rows)
    direct = {canonicalize_name(r.name): r for r in map(Requirement, named())}
    assert direct.keys() <= low.keys()
    for name, requirement in direct.items():
        assert low[name] in requirement.specifier, name
        assert Version(low[name]) <= Version(metadata.version(name)), name


def named() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    return [*project["dependencies"], *(row for group in extras for row in group)]
