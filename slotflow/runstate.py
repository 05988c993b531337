"""The state of a training run on disk: the last, and the one before it."""

import io
from pathlib import Path
from typing import Any, Final

import torch

from slotflow.atomic import written
from slotflow.errors import InputError

STATE_FILE: Final = "state.pt"
BEFORE_FILE: Final = "state.before.pt"


def save_state(folder: Path, state: dict[str, Any]) -> None:
    """Write a state; the one that stood there is kept as the one before.

    Raises:
        InputError: the system refuses to write; what stood there stands.
    """
    path, whole = folder / STATE_FILE, io.BytesIO()
    torch.save(state, whole)  # its own writer makes a RuntimeError in C++ words of a full disk
    with written(path) as temporary:
        temporary.write_bytes(whole.getvalue())
        if path.exists():
            path.replace(folder / BEFORE_FILE)


def load_state(folder: Path, identity: str) -> tuple[dict[str, Any] | None, str]:
    """Return the last state that can be read, and a note where that is not the last.

    Args:
        folder: of the run.
        identity: of the run's settings and data; that of the state must be the same.

    Returns:
        The state, None where there is none, and the note, empty where all is well.

    Raises:
        InputError: a run of other settings or data, or no state that can be read.
    """
    paths = [path for name in (STATE_FILE, BEFORE_FILE) if (path := folder / name).exists()]
    problems: list[str] = []
    for path in paths:
        try:
            state = torch.load(path, weights_only=True, map_location="cpu")
            found = state["identity"]
        except Exception as error:  # PyTorch raises a dozen kinds on damaged files
            problems.append(f"{path}: not the state of a run: {' '.join(str(error).split())[:200]}")
            continue
        if found != identity:
            raise InputError(
                f"{path}: a run with other settings or data stands here;"
                " give another folder, or --force to replace it"
            )
        note = f"{problems[0]}; going on from {path.name}" if problems else ""
        return dict(state), note
    if problems:
        raise InputError(problems[0])
    return None, ""
