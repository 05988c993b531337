"""A command that is killed and run again leaves what an undisturbed run leaves.

Twenty moments of each command are benchmarks/kills.py's; of the simulation, see test_folder.py.
"""

from pathlib import Path

import pytest

from tests.killing import kill


@pytest.mark.slow
@pytest.mark.parametrize("command", ["posterior"])
def test_killed_and_run_again(tmp_path: Path, command: str) -> None:
    found = kill(command, tmp_path, moments=3, folders=2, seed=4)
    assert found.kills == 3
    assert found.different == []
    assert found.left == []
