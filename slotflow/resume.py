"""Bands that are done, kept in a folder until all are: what an interrupted run goes on from.

One NumPy archive a batch of bands, without pickles, written under a temporary name and renamed.
A batch that is missing or damaged is computed again.
"""

import glob
import hashlib
import json
import shutil
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from slotflow import __version__
from slotflow.atomic import written
from slotflow.components import SEARCH_VERSION
from slotflow.errors import InputError
from slotflow.refined import packed_refinement, unpacked_refinement
from slotflow.results import BandOutcome, BandView, SourcePosterior, TileRecord

SCHEMA: Final = 3
IDENTITY: Final = "identity.json"
_DAMAGED: Final = (
    OSError, ValueError, KeyError, IndexError, TypeError, EOFError, ArithmeticError, RuntimeError,
    AttributeError, MemoryError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


class Partial:
    """The folder of a run's finished batches.

    Args:
        folder: made when the first batch is written; nothing else may be in it.
        identity: input, model and settings, as text: what another run left is removed.
    """

    def __init__(self, folder: Path, identity: str) -> None:
        self.folder = folder
        self._bands: dict[int, int] = {}
        made_by = {"schema": SCHEMA, "version": __version__, "search": SEARCH_VERSION}
        self._run = {**made_by, "run": identity}
        self.identity = ""

    @property
    def bands(self) -> int:
        """How many bands are in it."""
        return sum(self._bands.values())

    def open(self, plan: str) -> None:
        """Begin: remove what was made for anything else.

        Args:
            plan: what else the batches depend on, which bands are in which say.

        Raises:
            InputError: what stands there is no such folder, or the system refuses.
        """
        self.identity = json.dumps({**self._run, "plan": plan}, indent=1)
        self._bands = {}
        if not self.folder.exists():
            return
        try:
            found = (self.folder / IDENTITY).read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            found = ""
        if found != self.identity:
            self.remove()

    def load(self, batch: int, first_bins: Sequence[int]) -> list[BandOutcome] | None:
        """Return a finished batch, None where it has to be computed.

        Args:
            batch: its number.
            first_bins: of its bands.
        """
        path = self._path(batch)
        if not path.is_file():
            return None
        try:
            # opened here: NumPy leaves the file open where it is not an archive
            with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
            outcomes = _unpacked(arrays)
        except _DAMAGED:
            return None
        whole = [outcome.record.first_bin for outcome in outcomes] == list(first_bins)
        if not whole:
            return None
        self._bands[batch] = len(outcomes)
        return outcomes

    def save(self, batch: int, outcomes: Sequence[BandOutcome]) -> None:
        """Write a batch.

        Raises:
            InputError: the system refuses to write.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not (self.folder / IDENTITY).exists():
                with written(self.folder / IDENTITY) as temporary:
                    temporary.write_text(self.identity, "utf-8")
        except OSError as error:
            raise InputError(f"{self.folder}: cannot be made ({error.strerror})") from error
        with written(self._path(batch)) as temporary, temporary.open("wb") as file:
            np.savez(file, **_packed(outcomes))  # type: ignore[arg-type]
        self._bands[batch] = len(outcomes)

    def remove(self) -> None:
        """Remove the folder, if it holds nothing but such batches.

        Raises:
            InputError: there is something else in it, or the system refuses.
        """
        if not self.folder.exists():
            return
        ours = (IDENTITY, "batch-*.npz", ".*.tmp")
        strangers = [
            path.name
            for path in (self.folder.iterdir() if self.folder.is_dir() else [self.folder])
            if not (path.is_file() and any(path.match(pattern) for pattern in ours))
            or not self.folder.is_dir()
        ]
        if strangers:
            raise InputError(
                f"{self.folder}: {strangers[0]!r} is none of slotflow's: move it elsewhere"
            )
        try:
            shutil.rmtree(self.folder)
        except OSError as error:
            raise InputError(f"{self.folder}: cannot be removed ({error.strerror})") from error

    def _path(self, batch: int) -> Path:
        # The name says whose it is: another run may use the folder at the same time
        name = hashlib.sha256(self.identity.encode()).hexdigest()[:12]
        return self.folder / f"batch-{name}-{batch:05d}.npz"


class Partials:
    """The finished batches of several models that make one result, a folder for each.

    Called with a model's name, it gives that model's :class:`Partial`.

    Args:
        folder: the models' folders are beside it, each with the model's name added to its name.
        identity: as for :class:`Partial`.
    """

    def __init__(self, folder: Path, identity: str) -> None:
        self.folder = folder
        self._identity = identity
        self._parts: dict[str, Partial] = {}

    def __call__(self, name: str) -> Partial:
        folder = self.folder.with_name(f"{self.folder.name}-{name}")
        return self._parts.setdefault(name, Partial(folder, self._identity))

    @property
    def bands(self) -> int:
        """How many bands are in them."""
        return sum(part.bands for part in self._parts.values())

    def remove(self) -> None:
        """Remove the folders, an earlier run's of other models, too; raises as Partial's."""
        for folder in self.folder.parent.glob(f"{glob.escape(self.folder.name)}-*"):
            if (folder / IDENTITY).is_file():  # else not one of ours
                Partial(folder, self._identity).remove()


def _packed(outcomes: Sequence[BandOutcome]) -> dict[str, NDArray[Any]]:
    """One array a column; sources of all bands after each other."""
    sources = [source for outcome in outcomes for source in outcome.sources]
    arrays: dict[str, NDArray[Any]] = {
        "records": np.array([tuple(one.record)[:-_SCORES] for one in outcomes], dtype=np.float64),
        "outlying": np.array([_scores(one.record) for one in outcomes], dtype=np.float64),
        "measured": np.stack([outcome.measured for outcome in outcomes]),
        "q_k": np.stack([outcome.q_k for outcome in outcomes]),
        "counts": np.array([len(outcome.sources) for outcome in outcomes], dtype=np.int64),
        "samples": np.array([s.samples for s in sources], dtype=np.float64),
        "log_q": np.array([s.log_q for s in sources], dtype=np.float64),
        "scalars": np.array(
            [(s.probability, s.first_bin, s.slot, s.snr) for s in sources], dtype=np.float64
        ).reshape(-1, 4),
    }
    for number, outcome in enumerate(outcomes):
        if (view := outcome.view) is not None:
            for name in _VIEW:
                arrays[f"view_{number}_{name}"] = getattr(view, name)
            arrays[f"view_{number}_gaps"] = np.array([view.gap_fraction, view.gain])
        if (refinement := outcome.refinement) is not None:
            for name, value in packed_refinement(refinement).items():
                arrays[f"refinement_{number}_{name}"] = value
    return arrays


def _scores(record: TileRecord) -> tuple[float, ...]:
    """Return a band's score and its p value, which is -1 where it has none."""
    if record.outlying is None or record.outlying_p is None:
        return (0.0, -1.0)
    return (record.outlying, record.outlying_p)


_SCORES: Final = 2  # of a band's record
_VIEW: Final = ("data", "psd", "attention", "evidence", "places", "existence")


def _unpacked(arrays: Mapping[str, NDArray[Any]]) -> list[BandOutcome]:
    """Invert :func:`_packed`; raises one of ``_DAMAGED`` where something is not as it was."""
    _check_arrays(arrays)
    outcomes, start = [], 0
    for number, row in enumerate(arrays["records"].tolist()):
        count = int(arrays["counts"][number])
        sources = tuple(_source(arrays, index) for index in range(start, start + count))
        start += count
        first_bin, low, high, level_a, level_e, components, expected = row
        record = TileRecord(int(first_bin), low, high, level_a, level_e, int(components), expected)
        score, p_value = arrays["outlying"][number].tolist()
        if p_value >= 0.0:
            record = record._replace(outlying=score, outlying_p=p_value)
        view = None
        if f"view_{number}_data" in arrays:
            parts = {name: arrays[f"view_{number}_{name}"] for name in _VIEW}
            missing, gain = arrays[f"view_{number}_gaps"].tolist()
            view = BandView(
                first_bin=record.first_bin, sources=(), gap_fraction=missing, gain=gain, **parts
            )
        measured, q_k = arrays["measured"][number], arrays["q_k"][number]
        refinement = unpacked_refinement(arrays, f"refinement_{number}_")
        outcomes.append(BandOutcome(record, measured, q_k, sources, view, refinement))
    return outcomes


def _check_arrays(arrays: Mapping[str, NDArray[Any]]) -> None:
    """Raise ValueError for shapes that do not fit together, or values that are not finite."""
    bands, sources = len(arrays["records"]), len(arrays["samples"])
    draws, counts = arrays["samples"].shape[1:2], arrays["q_k"].shape[1:]
    shapes: dict[str, tuple[int, ...]] = {
        "records": (bands, len(TileRecord._fields) - _SCORES), "outlying": (bands, _SCORES),
        "measured": (bands, 2), "counts": (bands,),
        "q_k": (bands, *counts), "scalars": (sources, 4),
    }  # fmt: skip
    if sources:  # without any, the number of draws is not known
        shapes |= {"samples": (sources, *draws, 8), "log_q": (sources, *draws)}
    for number in range(bands):
        if f"view_{number}_data" in arrays:
            view = {name: arrays[f"view_{number}_{name}"] for name in _VIEW}
            slots, tokens = len(view["existence"]), len(view["places"])
            expected = (view["data"].shape, view["data"].shape, (slots, tokens),
                        (slots + 1, tokens), (tokens,), (slots,))  # fmt: skip
            shapes |= {f"view_{number}_{n}": s for n, s in zip(_VIEW, expected, strict=True)}
            shapes[f"view_{number}_gaps"] = (2,)
    for name, shape in shapes.items():
        if arrays[name].shape != shape or not np.isfinite(arrays[name]).all():
            raise ValueError(f"{name}: expected finite numbers of shape {shape}")
    if (arrays["counts"] < 0).any() or arrays["counts"].sum() != sources:
        raise ValueError(f"counts: expected those of {sources} sources")


def _source(arrays: Mapping[str, NDArray[Any]], index: int) -> SourcePosterior:
    probability, first_bin, slot, snr = arrays["scalars"][index].tolist()
    samples, log_q = arrays["samples"][index], arrays["log_q"][index]
    return SourcePosterior(samples, log_q, probability, int(first_bin), int(slot), snr)
