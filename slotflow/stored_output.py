"""Posteriors of a training set's bands on disk, written band by band.

The same layout as that of an observation's (:mod:`slotflow.catalogue`), with the band of each
source and the truth beside: a netCDF file that opens as a DataTree, to which sources are
appended, and rows of the table. What is held in memory is a band and the table's rows.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import h5netcdf
import numpy as np
from astropy.table import Table
from numpy.typing import NDArray

from slotflow.catalogue import TABLE_COLUMNS, add_scores, table_of, table_row
from slotflow.parameters import NAMES, PARAMETERS
from slotflow.results import SCORE_FIELDS, TileRecord
from slotflow.sink import Sink
from slotflow.stored import BandPosterior

Float = NDArray[np.float64]

#: Columns of the table beside the usual ones: the parameters of the true source, and its SNR.
TRUE_COLUMNS: Final = (*(f"true_{name}" for name in NAMES), "true_snr")
_CHUNK_BYTES: Final = 1 << 18
_GROUPS: Final[dict[str, dict[str, str]]] = {
    "posterior": {name: "draw" for name in NAMES},
    "sample_stats": {"log_q": "draw", "probability": "source", "snr": "source",
                     "first_bin": "source", "slot": "source", "band": "source",
                     "true_source": "source"},
    "observed_data": {name: "tile" for name in (*TileRecord._fields, "band")},  # scores: if any
    "truth": {name: "true_source" for name in (*NAMES, "snr", "band", "source")},
}  # fmt: skip
_INTEGERS: Final = ("first_bin", "slot", "band", "source", "true_source", "components")
_TEXT: Final = {
    "log_q": "ln density per unit volume of the parameters' scaled ranges, over both images",
    "q_k": "probability that a band holds 0, 1, ... sources",
    "band": "number of the band in the training set",
    "source": "row of the posterior that is taken for it, -1 for none",
    "true_source": "row of the truth that it is taken for, -1 for none",
}


class StoredOutput:
    """The files of a run: add the bands, then close.

    Args:
        path: of the netCDF file; it must not be there (write under a temporary name).
        draws: of each source.
        counts: length of ``q_k``, one more than the model's slots.
        scored: whether bands have a score against the training distribution.

    Attributes:
        tiles: what was seen in each band.
    """

    def __init__(self, path: Path, draws: int, counts: int, scored: bool = False) -> None:
        self.scored, self.tiles = scored, list[TileRecord]()
        self._sink = Sink(path)
        self._file = h5netcdf.File(self._sink, "w")
        self._sources = self._tiles = self._truths = 0
        self._rows: list[Float] = []
        self._scores: list[float | None] = []
        for group, variables in _GROUPS.items():
            left_out = () if scored else SCORE_FIELDS
            kept = {name: dim for name, dim in variables.items() if name not in left_out}
            self._create(group, kept, draws, counts)

    def _create(self, name: str, variables: dict[str, str], draws: int, counts: int) -> None:
        group = self._file.create_group(name)
        fixed = {"chain": 1, "draw": draws} if "draw" in variables.values() else {}
        growing = dict.fromkeys("source" if d == "draw" else d for d in variables.values())
        counted = {"count": counts} if name == "observed_data" else {}
        group.dimensions = {**fixed, **growing, **counted}  # None: it grows
        for dim, size in fixed.items():
            group.create_variable(dim, (dim,), data=np.arange(size))
        for dim in growing:
            group.create_variable(dim, (dim,), dtype="i8", chunks=(1024,))
        rows = max(1, _CHUNK_BYTES // (8 * draws))
        for variable, dim in variables.items():
            shape = ("chain", "draw", "source") if dim == "draw" else (dim,)
            chunks = (1, draws, rows) if dim == "draw" else (1024,)
            kind = "i8" if variable in _INTEGERS else "f8"
            made = group.create_variable(variable, shape, dtype=kind, chunks=chunks)
            if variable in _TEXT:
                made.attrs["description"] = _TEXT[variable]
            _units(made, variable)
        if name == "observed_data":
            made = group.create_variable("q_k", ("tile", "count"), dtype="f8", chunks=(256, counts))
            made.attrs["description"] = _TEXT["q_k"]

    def add(self, band: BandPosterior) -> None:
        """Append a band.

        Raises:
            OSError: the system refuses to write.
        """
        sources, outcome = band.outcome.sources, band.outcome
        truth = np.where(band.match >= 0, band.match + self._truths, -1)
        own = {"band": np.full(len(sources), band.number), "true_source": truth}
        own |= {
            name: np.array([getattr(source, name) for source in sources])
            for name in ("probability", "snr", "first_bin", "slot")
        }
        if sources:
            samples = np.stack([source.samples for source in sources], axis=1)
            log_q = np.stack([source.log_q for source in sources], axis=1)[None]
            columns = {name: samples[None, ..., i] for i, name in enumerate(NAMES)}
            self._append("posterior", "source", self._sources, len(sources), columns)
            stats = own | {"log_q": log_q}
            self._append("sample_stats", "source", self._sources, len(sources), stats)
        tile = {
            name: np.array([np.nan if v is None else v])
            for name, v in outcome.record._asdict().items()
            if self.scored or name not in SCORE_FIELDS
        }
        tile |= {"band": np.array([band.number]), "q_k": outcome.q_k[None]}
        self._append("observed_data", "tile", self._tiles, 1, tile)
        self._add_truth(band)
        self._keep_rows(band)
        self._sink.check()
        self.tiles.append(outcome.record)
        self._scores += [outcome.record.outlying] * len(sources)
        self._sources += len(sources)
        self._tiles += 1
        self._truths += len(band.truth)

    def _add_truth(self, band: BandPosterior) -> None:
        if not len(band.truth):
            return
        source = np.full(len(band.truth), -1)
        taken = np.flatnonzero(band.match >= 0)
        source[band.match[taken]] = taken + self._sources
        columns = dict(zip(NAMES, band.truth.T, strict=True)) | {"snr": band.snr, "source": source}
        columns |= {"band": np.full(len(source), band.number)}
        self._append("truth", "true_source", self._truths, len(source), columns)

    def _append(
        self, name: str, dim: str, at: int, more: int, columns: dict[str, NDArray[Any]]
    ) -> None:
        group = self._file[name]
        group.resize_dimension(dim, at + more)
        if dim not in columns:
            group[dim][at : at + more] = np.arange(at, at + more)
        for variable, values in columns.items():
            along = group[variable].dimensions.index(dim)
            place = (*(slice(None),) * along, slice(at, at + more))
            group[variable][place] = values

    def _keep_rows(self, band: BandPosterior) -> None:
        if not band.outcome.sources:
            return
        rows = [
            [band.number, *table_row(source), *_true(band, int(row))]
            for source, row in zip(band.outcome.sources, band.match, strict=True)
        ]
        self._rows.append(np.array(rows))

    def table(self) -> Table:
        """Return the table of all bands, without metadata."""
        width = 1 + len(TABLE_COLUMNS) + len(TRUE_COLUMNS)
        rows = np.concatenate(self._rows) if self._rows else np.empty((0, width))
        end = 1 + len(TABLE_COLUMNS)
        table = table_of(rows[:, 1:end])
        table.add_column(rows[:, 0].astype(np.int64), index=1, name="band")
        table["band"].info.description = _TEXT["band"]
        units = {f"true_{parameter.name}": parameter.unit for parameter in PARAMETERS}
        for name, column in zip(TRUE_COLUMNS, rows[:, end:].T, strict=True):
            table[name] = column
            table[name].unit = units.get(name) or None
            table[name].info.description = "of the true source, NaN where none is within a bin"
        if self.scored:
            add_scores(table, self._scores)
        return table

    def close(self, attributes: dict[str, Any] | None = None) -> None:
        """Close the file; with what it says about itself, where the run came to its end.

        Raises:
            OSError: the system refuses to write.
        """
        if attributes is not None:
            self._file.attrs.update(attributes)
        self._file.close()
        self._sink.close()
        if attributes is not None:
            self._sink.check()

    def found(self) -> tuple[int, int, int]:
        """Return the numbers of sources, of true ones, and of true ones that were found."""
        rows: Sequence[Float] = self._rows
        return self._sources, self._truths, sum(int(np.isfinite(r[:, -1]).sum()) for r in rows)


def _units(variable: Any, name: str) -> None:
    for parameter in PARAMETERS:
        if parameter.name == name:
            variable.attrs["units"] = parameter.unit or "1"
    if name in ("low", "high"):
        variable.attrs["units"] = "Hz"


def _true(band: BandPosterior, row: int) -> list[float]:
    if row < 0:
        return [float("nan")] * len(TRUE_COLUMNS)
    return [*band.truth[row].tolist(), float(band.snr[row])]
