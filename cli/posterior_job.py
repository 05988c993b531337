"""What ``slotflow posterior`` is to compute, and what stands there already."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotflow.cli.common import check_folder, held_folder
from slotflow.errors import InputError, OutputExistsError

if TYPE_CHECKING:
    from slotflow.catalogue import Written
    from slotflow.provenance import Provenance


@dataclass(frozen=True)
class Job:
    """One input, and what is wanted of it.

    Attributes:
        provenance: input, model and settings.
        folder: of the results.
        form: layout of the input, or ``"auto"``.
        way: who reads the bands, as :func:`slotflow.posterior.posterior` takes it.
        plots: folder of the pictures, None for none.
        exports: other programs' formats.
        force: results that are there are replaced.
        stored: the input is a training set or a shard of one.
    """

    provenance: "Provenance"
    folder: Path
    form: str
    way: Mapping[str, Any]
    plots: Path | None
    exports: tuple[str, ...]
    force: bool
    stored: bool = False

    @property
    def stem(self) -> str:
        """Of the files' names."""
        return stem(Path(self.provenance.input))

    @property
    def table(self) -> Path:
        """The table, ECSV."""
        return self.folder / f"{self.stem}.catalogue.ecsv"

    @property
    def csv(self) -> Path:
        """The table, CSV."""
        return self.folder / f"{self.stem}.catalogue.csv"

    @property
    def samples(self) -> Path:
        """The samples, netCDF."""
        return self.folder / f"{self.stem}.posterior.nc"

    @property
    def partial(self) -> Path:
        """Where batches that are done are kept until all are."""
        return self.folder / f".{self.stem}.partial"

    def options(self) -> dict[str, Any]:
        """Return what :func:`slotflow.posterior.posterior` is called with."""
        requested = dict(self.provenance.requested)
        for name in ("psd_sha256", "format"):
            requested.pop(name, None)
        return requested | {**self.way, "keep_bands": self.plots is not None}

    def held(self) -> AbstractContextManager[None]:
        """Hold the results of this input in the folder; raises as :func:`held_folder`."""
        return held_folder(
            self.folder, f".{self.stem}.lock", "the results",
            f"{self.folder}: another process is computing the results of {self.stem} there; let"
            " it end, or give another folder with --output",
        )  # fmt: skip


def stem(source: Path) -> str:
    """Return the name of an input without its ending, of a folder as it is."""
    return source.absolute().name if source.is_dir() else source.stem


def check_extras(job: Job, samples: int) -> None:
    """Refuse pictures and exports that could not be written, before any work."""
    if job.plots is not None:
        from slotflow.plots import check_plots

        check_folder(job.plots, "the pictures")
        check_plots(job.plots, samples, force=job.force)
    if job.exports:
        from slotflow.exports import check_exports

        check_exports(job.exports, job.folder, job.stem, force=job.force)


def provenance_of(
    source: Path, model: Path, requested: dict[str, Any], command: str
) -> "Provenance":
    """Return what makes this result, checksums included.

    Raises:
        InputError: the input or the model is not there.
    """
    for path, what in ((source, "file"), (model, "model file")):
        if not path.exists():
            raise InputError(f"{path}: no such {what}")
    from slotflow.manifest import MANIFEST, file_sha256, is_training_set
    from slotflow.provenance import Provenance, with_checksums

    content = source
    if is_training_set(source):  # which lists the checksums of its shards
        content = (source if source.is_dir() else source.parent) / MANIFEST
    for path in (content, model):
        if not path.is_file():
            raise InputError(f"{path}: not a file")
    return Provenance(
        str(source), file_sha256(content), str(model), file_sha256(model),
        with_checksums(requested), command,
    )  # fmt: skip


def standing(table: Path, samples: Path, provenance: "Provenance") -> "Written | None":
    """Return the result that stands there, None where it has to be computed.

    Raises:
        OutputExistsError: what stands there is another result.
    """
    if not table.exists() and not samples.exists():
        return None
    from slotflow.catalogue import read_identity, read_summary
    from slotflow.provenance import difference

    found = None
    if samples.exists():
        _refuse_other(samples, difference(read_identity(samples) or "", provenance.identity))
    if table.exists():
        try:
            found = read_summary(table)
        except InputError as error:
            _refuse_other(table, str(error).removeprefix(f"{table}: "))
        else:
            _refuse_other(table, difference(found.identity, provenance.identity))
    return found if samples.exists() else None


def _refuse_other(path: Path, reason: str) -> None:
    if reason:
        raise OutputExistsError(
            f"{path}: exists already ({reason}); give another folder with --output, or --force"
        )
