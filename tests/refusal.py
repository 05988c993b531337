"""What every refusal of the command has in common."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from slotflow.cli.main import run


def snapshot(folder: Path) -> Mapping[str, bytes]:
    """Return the content of every file below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def refused(
    arguments: Sequence[str | Path], folder: Path, capsys: pytest.CaptureFixture[str], *named: str
) -> None:
    """Run the command: exit code 2, one line on stderr, nothing on stdout, no file changed."""
    before = snapshot(folder)
    capsys.readouterr()
    assert run([str(argument) for argument in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("slotflow: error: ")
    for text in named:
        assert text in lines[0]
    assert snapshot(folder) == before
