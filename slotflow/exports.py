"""Results in the formats of other programs, by their names."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from slotflow.errors import InputError
from slotflow.export_bilby import export_bilby
from slotflow.export_glass import export_glass
from slotflow.export_l3c import export_l3c
from slotflow.provenance import Provenance, refuse_existing
from slotflow.results import Result

__all__ = [
    "EXPORTS", "Export", "check_exports", "export", "export_bilby", "export_glass", "export_l3c",
]  # fmt: skip


class Export(Protocol):
    """Writes a result into a folder that exists, and returns the files written."""

    def __call__(
        self, result: Result, provenance: Provenance, folder: Path, stem: str, *,
        force: bool = False,
    ) -> list[Path]: ...  # fmt: skip


#: What there is: the format's name, and what writes it.
EXPORTS: Final[dict[str, Export]] = {
    "glass": export_glass,
    "l3c": export_l3c,
    "bilby": export_bilby,
}


#: What each writes: the end of its file's or, where it is many, its folder's name.
_ENDS: Final = {"glass": "glass.h5", "l3c": "l3c.h5", "bilby": "bilby"}


def check_exports(names: Sequence[str], folder: Path, stem: str, *, force: bool = False) -> None:
    """Refuse, before anything is computed or written, what :func:`export` would refuse.

    Args:
        names: of the formats.
        folder: where to.
        stem: of the files' names.
        force: files that are there may be replaced.

    Raises:
        InputError: an unknown format.
        OutputExistsError: a file is there, and not ``force``.
    """
    for name in names:
        if name not in EXPORTS:
            raise InputError(f"export: {name!r}: expected one of {', '.join(EXPORTS)}")
    for name in names:
        path = folder / f"{stem}.{_ENDS[name]}"
        if not path.is_dir() or any(path.glob("*_result.json")):
            refuse_existing(path, force)


def export(
    names: Sequence[str], result: Result, provenance: Provenance, folder: Path, stem: str, *,
    force: bool = False,
) -> list[Path]:  # fmt: skip
    """Write a result in some of the formats of :data:`EXPORTS`, in that order.

    Args:
        names: of the formats.
        result: what to write.
        provenance: what made it.
        folder: where to; it is made if missing.
        stem: of the files' names.
        force: replace files that are there.

    Returns:
        The files written.

    Raises:
        InputError: an unknown format, or one that cannot be written.
        OutputExistsError: a file is there, and not ``force``.
    """
    check_exports(names, folder, stem, force=force)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror}") from error
    paths: list[Path] = []
    for name in names:
        paths += EXPORTS[name](result, provenance, folder, stem, force=force)
    return paths
