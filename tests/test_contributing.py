"""CONTRIBUTING.md: its picture, and what it says how to add, done in a copy of the repository."""

import ast
import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from slotflow.config import ModelSettings
from slotflow.losses import Parts, Terms
from slotflow.mixers import MIXERS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "CONTRIBUTING.md"
SECTIONS = ("A setting", "A parameter of the source", "A mixer", "A reader", "A loss")
APART = "A parameter of the source"  # whose ninth parameter would break the others
COPIED = ("slotflow", "cli", "simulate")


def load(name: str) -> ModuleType:
    """Import a script of docs by the name that the others import it by."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


page_blocks = load("page_blocks")
run_commands = load("run_commands")
layout_picture = load("layout_picture")


class StaleError(Exception):
    """A change of the page that does not fit the code any more."""


def apply(folder: Path, text: str) -> set[str]:
    """Apply the page's changes to the files under a folder; return which were changed.

    A hunk after ``@@`` is found by its own lines, which must stand in the file once.
    """
    changed: set[str] = set()
    for part in re.split(r"^--- ", text, flags=re.MULTILINE)[1:]:
        name, *hunks = re.split(r"\n@@\n", part.rstrip("\n"))
        content = (folder / name).read_text(encoding="utf-8")
        for hunk in hunks:
            rows = [row or " " for row in hunk.split("\n")]
            old = "".join(f"{row[1:]}\n" for row in rows if row[0] in " -")
            new = "".join(f"{row[1:]}\n" for row in rows if row[0] in " +")
            if (count := f"\n{content}".count(f"\n{old}")) != 1:
                raise StaleError(f"{name}: {count} places for\n{hunk}")
            content = f"\n{content}".replace(f"\n{old}", f"\n{new}")[1:]
        (folder / name).write_text(content, encoding="utf-8")
        changed.add(name)
    return changed


def sections() -> dict[str, list[Any]]:
    """Return the blocks under each heading of the third level."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    starts = {n: row[4:] for n, row in enumerate(lines, start=1) if row.startswith("### ")}
    found: dict[str, list[Any]] = {title: [] for title in starts.values()}
    for block in page_blocks.blocks(PAGE):
        above = [line for line in starts if line < block.line]
        if above:
            found[starts[above[-1]]].append(block)
    return found


class Done(NamedTuple):
    """What came of the page: complaints by section, and what ruff and lint-imports said."""

    complaints: dict[str, str]
    linted: str


def unfinished(folder: str, names: list[str]) -> list[str]:
    """Return which files of a cache are still being written by others."""
    ends = (".pyc", ".nbi", ".nbc")
    return [n for n in names if folder.endswith("__pycache__") and not n.endswith(ends)]


def copied(folder: Path) -> Path:
    """Copy what of the repository the page changes, with links to what it does not.

    Compiled code goes with it, which Numba knows by its source's time.
    """
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=unfinished)
    shutil.copy(ROOT / "pyproject.toml", folder)
    for name in ("data", "tests"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def follow(folder: Path, titles: list[str], blocks: dict[str, list[Any]]) -> Done:
    """Do what the sections say, in one copy and one process."""
    copy, work = copied(folder / "copy"), folder / "work"
    work.mkdir()
    page = run_commands.Page(work)
    page.environment |= {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    page.environment.pop("NUMBA_CACHE_DIR", None)
    where = f"import slotflow\nassert slotflow.__file__.startswith({str(copy)!r})\n"
    first = page_blocks.Block(PAGE, 0, "python", "run", "", where)
    complaints, changed = dict.fromkeys(titles, ""), set[str]()
    try:
        for title in titles:
            for block in blocks[title]:
                if block.mark == "file":
                    (copy / block.value).write_text(block.text, encoding="utf-8")
                    changed.add(block.value)
                elif block.language == "diff":
                    changed |= apply(copy, block.text)
        page.run(first)
        for title in titles:
            printed = ""
            try:
                for block in blocks[title]:
                    page_blocks.check(block)
                    if block.mark == "run":
                        printed = page.run(block)
                    elif block.mark == "output":
                        page_blocks.compare(block, printed)
            except page_blocks.BlockError as error:
                complaints[title] = str(error)
    finally:
        page.close()
    return Done(complaints, lint(copy, sorted(n for n in changed if n.endswith(".py"))))


def lint(copy: Path, changed: list[str]) -> str:
    """Return what ruff says of files that the page changed, '' where nothing."""
    ruff = Path(sys.executable).with_name("ruff")
    said = ""
    for command in (["check", "--quiet"], ["format", "--check", "--quiet", "--diff"]):
        done = subprocess.run(
            [ruff, *command, "--no-cache", *changed], cwd=copy, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        said += done.stdout + done.stderr
    return said


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    blocks = sections()
    together = [title for title in SECTIONS if title != APART]
    two = [
        follow(tmp_path_factory.mktemp("page"), titles, blocks) for titles in (together, [APART])
    ]
    complaints = two[0].complaints | two[1].complaints
    return Done(complaints, two[0].linted + two[1].linted)


def test_the_sections_are_these() -> None:
    assert tuple(sections()) == SECTIONS
    for blocks in sections().values():
        assert {"run"} <= {block.mark for block in blocks}
        assert "diff" in {block.language for block in blocks}


@pytest.mark.parametrize("title", SECTIONS)
def test_what_the_page_says_can_be_done(done: Done, title: str) -> None:
    assert done.complaints[title] == ""


def test_what_the_page_writes_passes_ruff(done: Done) -> None:
    assert done.linted == ""


def test_the_repository_itself_is_left_alone(done: Done) -> None:
    assert "pooling" not in MIXERS
    for name in ("slotflow/mixers/pooling.py", "slotflow/read_plain.py"):
        assert not (ROOT / name).exists()
    assert not hasattr(ModelSettings(), "feature_limit")


def test_files_and_commands_that_the_page_names_are_there() -> None:
    page_blocks.check_text(PAGE)
    blocks = list(page_blocks.blocks(PAGE))
    for block in blocks:
        page_blocks.check(block)
    written = {block.value for block in blocks if block.mark == "file"}
    text = PAGE.read_text(encoding="utf-8")
    named = set(
        re.findall(r"\b((?:benchmarks|cli|docs|simulate|slotflow|tests)/[\w/]+\.\w+)", text)
    )
    assert len(named) > 20
    assert {name for name in named - written if not (ROOT / name).is_file()} == set()
    modules = re.search(r"What does not, and is to be done by hand:(.*?)\n\n", text, re.DOTALL)
    assert modules is not None
    known = {module for layer in layout_picture.read_layers().layers for module in layer}
    code = set(re.findall(r"`([a-z_0-9]+)`", modules[1])) - {"to_scored"}
    assert len(code) > 8
    assert code <= known


def test_changes_that_do_not_fit_are_errors(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one = 1\ntwo = 2\none = 1\n")
    assert apply(tmp_path, "--- a.py\n@@\n two = 2\n+three = 3\n") == {"a.py"}
    assert (tmp_path / "a.py").read_text() == "one = 1\ntwo = 2\nthree = 3\none = 1\n"
    with pytest.raises(StaleError, match=r"a\.py: 2 places"):
        apply(tmp_path, "--- a.py\n@@\n-one = 1\n")
    with pytest.raises(StaleError, match=r"a\.py: 0 places"):
        apply(tmp_path, "--- a.py\n@@\n-wo = 2\n+four = 4\n")


def test_a_section_without_its_changes_fails() -> None:
    [block] = [block for block in sections()[APART] if block.mark == "run"]
    with pytest.raises(KeyError, match="fddot"):
        exec(compile(block.text, str(PAGE), "exec"), {})


def test_the_picture_is_that_of_the_contracts() -> None:
    """Else: ./run python docs/layout_picture.py."""
    drawn = layout_picture.picture(layout_picture.read_layers())
    assert layout_picture.PICTURE.read_text(encoding="utf-8") == drawn


def test_every_module_is_in_the_picture() -> None:
    known = {module for layer in layout_picture.read_layers().layers for module in layer}
    found = {path.stem for path in (ROOT / "slotflow").glob("*.py")}
    found |= {path.parent.name for path in (ROOT / "slotflow").glob("*/__init__.py")}
    assert found - {"__init__", "data", "presets", "simulate"} == known
    text = layout_picture.PICTURE.read_text(encoding="utf-8")
    words = re.findall(r"[a-z0-9_]+", re.sub(r"<[^>]*>", " ", text))
    assert known <= set(words)


def test_a_row_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(ValueError, match="do not fit the layers"):
        layout_picture.rows((("cli",), ("report", "api")))


def imported(path: Path) -> Iterator[str]:
    """Yield the modules of slotflow that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "slotflow":
                yield from (alias.name for alias in node.names)
            elif node.module.startswith("slotflow."):
                yield node.module.split(".")[1]


def test_the_simulation_knows_only_what_is_blue() -> None:
    known = {name for path in (ROOT / "simulate").glob("*.py") for name in imported(path)}
    assert known - {"simulate", "__version__"} <= layout_picture.read_layers().shared
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    [forbidden] = [
        c["forbidden_modules"] for c in contracts["contracts"]
        if c["name"] == "Of the library, the simulation knows only the shared leaves"
    ]  # fmt: skip
    names = {name.removeprefix("slotflow.") for name in forbidden}
    assert not names & layout_picture.read_layers().shared


def test_lists_that_must_agree_do() -> None:
    """Those that the page says to change together."""
    names = ModelSettings.model_fields["mixer"].annotation.__args__  # type: ignore[union-attr]
    assert set(names) == set(MIXERS)
    assert Parts._fields == Terms._fields
