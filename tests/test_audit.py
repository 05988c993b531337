"""The lock pins and hashes everything, and .ci/audit finds what is known of a pinned version."""

import importlib.machinery
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
ADVISORY = """
id: PYSEC-2000-1
aliases: [CVE-2000-1]
affected:
- package: {ecosystem: PyPI, name: Some.Package}
  ranges:
  - type: GIT
    events: [{introduced: "0"}]
  - type: ECOSYSTEM
    events: [{introduced: 1.0.1}, {fixed: 1.2.0}, {introduced: 2.0.0}, {last_affected: 2.1.0}]
  versions: [0.9rc1]
"""


def load() -> ModuleType:
    path = str(ROOT / ".ci" / "audit")
    spec = importlib.util.spec_from_loader(
        "audit", importlib.machinery.SourceFileLoader("audit", path)
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    return module


audit = load()


def blocks(lock: str) -> list[str]:
    text = (ROOT / lock).read_text("utf-8").replace("\\\n", " ")
    return [line for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-uv.lock"])
def test_every_row_of_a_lock_is_one_version_with_hashes(lock: str) -> None:
    rows = blocks(lock)
    assert rows
    for row in rows:
        assert re.fullmatch(r"[\w.-]+==[\w.+!]+( ; [^;]*?)?( +--hash=sha256:[0-9a-f]{64})+\s*", row)


def test_the_lock_holds_what_is_named() -> None:
    pinned = audit.pins(ROOT / "requirements.lock")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    groups = [project["project"]["dependencies"], project["dependency-groups"]["dev"]]
    for text in [row for group in groups for row in group]:
        wanted = Requirement(text)
        assert pinned[canonicalize_name(wanted.name)] in wanted.specifier, text
    # two versions of its sister package were malicious
    assert Version(pinned["lightning-fabric"]) >= Version("2.6.4")


@pytest.mark.parametrize(
    ("version", "held"),
    [("0.9rc1", True), ("1.0", False), ("1.0.1", True), ("1.1.9", True), ("1.2", False),
     ("1.9", False), ("2.0", True), ("2.1", True), ("2.1.1", False)],
)  # fmt: skip
def test_which_versions_an_advisory_holds_for(tmp_path: Path, version: str, held: bool) -> None:
    (tmp_path / "some-package").mkdir()
    path = tmp_path / "some-package" / "PYSEC-2000-1.yaml"
    path.write_text(ADVISORY)
    found = list(audit.advisories(tmp_path, "some-package", version))
    assert found == ([f"some-package {version}: PYSEC-2000-1 (CVE-2000-1)"] if held else [])
    path.write_text(ADVISORY + "withdrawn: 2001-01-01T00:00:00Z\n")
    assert list(audit.advisories(tmp_path, "some-package", version)) == []


def test_the_command(tmp_path: Path) -> None:
    def called(*arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, ROOT / ".ci" / "audit", *arguments], capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    assert called()[0] == 2
    assert called(str(tmp_path)) == (2, f"{tmp_path}: no advisories\n")
    folder = tmp_path / "vulns" / "some-package"
    folder.mkdir(parents=True)
    (folder / "PYSEC-2000-1.yaml").write_text(ADVISORY)
    lock = tmp_path / "lock"
    lock.write_text("some-package==1.1 \\\n    --hash=sha256:00\nother==2\n")
    code, said = called(str(tmp_path), str(lock))
    assert (code, said.splitlines()[0]) == (1, "some-package 1.1: PYSEC-2000-1 (CVE-2000-1)")
    assert said.splitlines()[1] == "2 versions, 1 of packages with advisories: 1 hold"
    lock.write_text("some-package==1.2\n")
    assert called(str(tmp_path), str(lock))[0] == 0
