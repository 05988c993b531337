"""Runs the commands of the documentation's pages: ``python docs/run_commands.py [-v] [PAGE ...]``.

:mod:`page_blocks` says how blocks are marked. Each page has a folder of its own; it fails at its
first block that fails. With -v, what the blocks print is shown.
"""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import click
from page_blocks import Block, BlockError, blocks, check, check_text, compare

DOCS = Path(__file__).resolve().parent
TIMEOUT = 400.0  # s, for a block
SETTINGS = {"MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
#: Of a page's blocks of Python: one process, so that names are kept from block to block.
SESSION = """
import json, sys, traceback
replies, sys.stdout = sys.stdout, sys.stderr
names = {"__name__": "__main__"}
for line in sys.stdin:
    path, start, text = json.loads(line)
    try:
        exec(compile("\\n" * start + text, path, "exec"), names)
        code = 0
    except BaseException:
        traceback.print_exc()
        code = 1
    print(code, file=replies, flush=True)
"""


class Page:
    """A page's folder and the processes that its blocks start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / ".printed"
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        self.environment = os.environ | {"PATH": path, "DOCS": str(DOCS)} | SETTINGS
        self.started: list[subprocess.Popen[str]] = []
        self.python: subprocess.Popen[str] | None = None

    def run(self, block: Block) -> str:
        """Run a block and return what it printed.

        Raises:
            BlockError: it failed, or took too long.
        """
        place = self.log.stat().st_size if self.log.exists() else 0
        line, command, code = self._shell(block) if block.language == "sh" else self._exec(block)
        with self.log.open(errors="replace") as log:
            log.seek(place)
            printed = log.read()
        if code != 0:
            tail = "\n".join(printed.splitlines()[-15:])
            raise block.error(f"exit code {code}: {command}\n{tail}", line)
        return printed

    def _shell(self, block: Block) -> tuple[int, str, int]:
        failed = self.folder / ".failed"
        trap = f"trap 'echo \"$LINENO $BASH_COMMAND\" >>{failed}' ERR; "
        command = ["bash", "-eEuo", "pipefail", "-c", trap + block.text]
        with self.log.open("a") as log:
            process = self._start(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            code = process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            return 0, f"not done after {TIMEOUT:g} s", 124
        line, _, text = failed.read_text().partition(" ") if failed.exists() else ("1", "", "")
        return int(line), text.strip().partition("\n")[0], code

    def _exec(self, block: Block) -> tuple[int, str, int]:
        if self.python is None:
            with self.log.open("a") as log:
                self.python = self._start(
                    [sys.executable, "-c", SESSION], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                    stderr=log,
                )  # fmt: skip
        assert self.python.stdin is not None
        assert self.python.stdout is not None
        job = [str(block.page), block.line, block.text]
        self.python.stdin.write(json.dumps(job) + "\n")
        self.python.stdin.flush()
        if not select.select([self.python.stdout], [], [], TIMEOUT)[0]:
            return 0, f"not done after {TIMEOUT:g} s", 124
        return 0, "python", int(self.python.stdout.readline() or "1")

    def _start(self, command: list[str], **files: object) -> "subprocess.Popen[str]":
        process: subprocess.Popen[str] = subprocess.Popen(
            command, cwd=self.folder, env=self.environment, text=True, start_new_session=True,
            **files,  # type: ignore[call-overload]
        )  # fmt: skip
        self.started.append(process)
        return process

    def close(self) -> None:
        """End what is left of what was started, and what that started."""
        for process in self.started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def run_page(path: Path, show: bool = False) -> str:
    """Run a page's blocks in order; return what is wrong, '' where nothing is."""
    begun, printed, number = time.monotonic(), "", 0
    with tempfile.TemporaryDirectory(prefix="slotflow-docs-") as name:
        page = Page(Path(name))
        try:
            check_text(path)
            for block in blocks(path):
                check(block)
                if block.mark == "run":
                    printed, number = page.run(block), number + 1
                    if show:
                        click.echo(f"{path}:{block.line}:\n{printed}")
                elif block.mark == "file":
                    (page.folder / block.value).write_text(block.text)
                elif block.mark == "output":
                    compare(block, printed)
        except BlockError as error:
            click.echo(str(error), err=True)
            return str(error)
        finally:
            page.close()
    if number:
        click.echo(f"{path}: {number} blocks in {time.monotonic() - begun:.0f} s")
    return ""


def main() -> int:
    show = "-v" in sys.argv
    given = [Path(argument) for argument in sys.argv[1:] if argument != "-v"]
    pages = given or [p for p in sorted(DOCS.rglob("*.md")) if "_build" not in p.parts]
    with ThreadPoolExecutor(2) as pool:
        failures = [failure for failure in pool.map(partial(run_page, show=show), pages) if failure]
    click.echo(f"{len(pages)} pages, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
