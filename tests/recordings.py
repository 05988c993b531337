"""For the tests with real sounds: where this machine has recordings."""

import os
from pathlib import Path

import pytest

VARIABLE = "SLOTFLOW_RECORDINGS"
SYSTEM = Path("/usr/share/sounds")


def recordings_folder() -> Path:
    """The folder that the variable names, else the system's; skips where neither has sounds.

    A folder that the variable names must have them: then the test fails, not skips.
    """
    from slotflow.ablate.recordings import Recordings
    from slotflow.errors import InputError

    named = os.environ.get(VARIABLE)
    if named:
        return Recordings(Path(named)).folder
    try:
        found = Recordings(SYSTEM)
    except InputError:
        pytest.skip(f"no recordings in {SYSTEM}; {VARIABLE} can name another folder")
    if len(found.paths) < 8:
        pytest.skip(f"{SYSTEM}: {len(found.paths)} recordings only; {VARIABLE} can name a folder")
    return SYSTEM
