"""The documentation's pages: what of them can be checked without running anything.

``.ci/docs`` builds the site and runs the commands; here the runner itself is tested, and that
pages name commands and options that exist.
"""

import importlib.util
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if "_build" not in page.parts]


def load(name: str) -> ModuleType:
    """Import a script of the folder, by the name that the others import it by."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


page_blocks = load("page_blocks")
run_commands = load("run_commands")


def write(folder: Path, text: str) -> Path:
    page = folder / "page.md"
    page.write_text(text)
    return page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_blocks_are_marked_and_commands_exist(page: Path) -> None:
    page_blocks.check_text(page)
    for block in page_blocks.blocks(page):
        page_blocks.check(block)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_scripts_that_pages_name_are_there(page: Path) -> None:
    for name in re.findall(r"\b((?:benchmarks|tests|slotflow|data)/[\w/]+\.\w+)", page.read_text()):
        assert (DOCS.parent / name).is_file(), name


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("slotflow posterior --fmim 3", "fmim"),
        ("slotflow postrior x.h5", "postrior"),
        ("./run slotflow simulate --samples many", "samples"),
        ("srun slotflow train bands --gpus 8 \\\n  --node 2 --seat 3", "--seat"),
        ("- run: slotflow ablate lissa", "lissa"),
        ("slotflow report --fail-if 'crps.f0 > 1", "closing quotation"),
    ],
)
def test_commands_that_do_not_exist_are_errors(
    tmp_path: Path, command: str, complaint: str
) -> None:
    page = write(tmp_path, f'# x\n\n```sh not-run="why"\n{command}\n```\n')
    [block] = page_blocks.blocks(page)
    with pytest.raises(page_blocks.BlockError, match=complaint) as error:
        page_blocks.check(block)
    assert str(error.value).startswith(f"{page}:4: ")


def test_quoted_signs_are_no_redirections_and_the_commands_stay_as_they_are(tmp_path: Path) -> None:
    from slotflow.cli.main import group

    text = (
        '```sh not-run="why"\nslotflow report --fail-if "a > 1" -o x > out || true  # --no\n```\n'
    )
    [block] = page_blocks.blocks(write(tmp_path, text))
    page_blocks.check(block)
    assert list(page_blocks.words("report --fail-if 'a > 1' -o x > y | z")) == [
        "report", "--fail-if", "a > 1", "-o", "x",
    ]  # fmt: skip
    psd = next(p for p in group.commands["posterior"].params if p.name == "psd")
    assert psd.callback is not None


def test_options_in_text_are_checked(tmp_path: Path) -> None:
    page = write(tmp_path, "Use `slotflow posterior x.h5 --psd running --colour red`.\n")
    with pytest.raises(page_blocks.BlockError, match="--colour does not exist"):
        page_blocks.check_text(page)
    page_blocks.check_text(write(tmp_path, "`slotflow ablate lisa --kinds vanilla`, `slotflow`\n"))


def test_blocks_without_a_word_are_errors(tmp_path: Path) -> None:
    page = write(tmp_path, "```sh\nls\n```\n")
    with pytest.raises(page_blocks.BlockError, match=r"page\.md:1: neither run nor not-run"):
        list(page_blocks.blocks(page))
    page = write(tmp_path, "```text\na\n\n```sh run\nls\n```\n")
    with pytest.raises(page_blocks.BlockError, match=r"page\.md:1: not closed before"):
        list(page_blocks.blocks(page))
    with pytest.raises(page_blocks.BlockError, match="not closed"):
        list(page_blocks.blocks(write(tmp_path, "```yaml\na: 1\n")))


def test_a_page_is_run_in_order_and_in_one_folder(tmp_path: Path) -> None:
    page = write(
        tmp_path,
        """
<!-- run
echo 3 > given.txt
-->
```yaml file="names.yaml"
a: 1
```
```python run
from pathlib import Path
number = int(Path("given.txt").read_text())
```
```python run
print("number", number + 0.125, Path("names.yaml").read_text())
```
```text output
number 3.13 a: ...
```
""",
    )
    assert run_commands.run_page(page) == ""


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "```sh run\ntrue\nls \\\n  /nowhere\ntrue\n```\n",
            r"page\.md:4: exit code 2: ls /nowhere",
        ),
        ("```sh run\nfalse | cat\n```\n", r"page\.md:2: exit code 1"),
        ("```python run\nx = 1\nx / 0\n```\n", r"(?s)page\.md:1: .*line 3, in <module>.*Zero"),
        ("```sh run\necho 3.14\n```\n```text output\n3.1\n```\n", "^$"),
        ("```sh run\necho 3.14\n```\n```text output\n3.4\n```\n", r"page\.md:5: not printed: 3\.4"),
        ("```sh run\necho a; echo b\n```\n```text output\nb\na\n```\n", "not printed: a"),
        ("```sh run\nexit 3\n```\n", r"page\.md:2: exit code 3"),
    ],
)
def test_failures_name_page_line_and_command(tmp_path: Path, text: str, complaint: str) -> None:
    failure = run_commands.run_page(write(tmp_path, text))
    assert re.search(complaint, failure), failure


def test_numbers_may_differ_in_their_last_digits() -> None:
    near = page_blocks._near
    assert near("1.42", "1.44")
    assert not near("1.42", "1.50")
    assert near("3.2e-22", "3.25e-22")
    assert not near("3.2e-22", "3.2e-21")
    assert near("100", "101")
    assert not near("3", "4")


def test_what_a_page_starts_ends_with_it(tmp_path: Path) -> None:
    page = write(tmp_path, f"```sh run\nsleep 600.25 &\necho $! > {tmp_path}/pid\n```\n")
    assert run_commands.run_page(page) == ""
    stat = Path("/proc", (tmp_path / "pid").read_text().strip(), "stat")
    until = time.monotonic() + 10.0
    while stat.exists() and stat.read_text().split()[2] != "Z":
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_script_names_its_parts() -> None:
    script = DOCS.parent / ".ci" / "docs"
    done = subprocess.run([script, "nonsense"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "build commands" in done.stderr
