"""Files that ship with slotflow: the models, an example input, verification binaries."""

from importlib import resources
from pathlib import Path
from typing import Final

#: The index of the models (:mod:`slotflow.family`).
INDEX: Final = "models.json"


def shipped(name: str) -> Path:
    """Return the path of a file that ships."""
    return Path(str(resources.files(__name__) / name))
