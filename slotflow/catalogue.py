"""Results on disk: an ArviZ DataTree in netCDF for the samples, a table in ECSV and CSV for people.

All carry what made them: versions, settings, seed, command, and the SHA-256 of the input and
of the model. All are written under a temporary name and renamed.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from astropy.io import ascii as astropy_ascii
from astropy.table import Table
from numpy.typing import NDArray

from slotflow import __version__
from slotflow.atomic import written
from slotflow.catalogue_refined import add_refinement, summaries
from slotflow.conventions import to_ldc
from slotflow.errors import InputError
from slotflow.hdf5 import open_checked, read_attribute
from slotflow.parameters import AMPLITUDE, DEC, F0, FDOT, IOTA, NAMES, PARAMETERS, RA
from slotflow.provenance import SCHEMA, Provenance, attributes, difference, read_outlying
from slotflow.results import Interval, Result, SourcePosterior, TileRecord, summarise, tile_columns
from slotflow.sink import check_room

if TYPE_CHECKING:
    import xarray as xr

__all__ = [
    "COLUMNS", "Provenance", "Written", "difference", "read_identity", "read_summary",
    "to_datatree", "to_table", "write_csv", "write_netcdf", "write_table",
]  # fmt: skip

Float = NDArray[np.float64]

#: The last columns of the CSV file: what made it, the same in every row.
CSV_PROVENANCE: Final = ("version", "seed", "t0", "input_sha256", "model_sha256", "command")
MAX_BYTES: Final = 256 << 20  # of a table that is read again
HEADER_BYTES: Final = 1 << 17  # more than a result's file has beside its numbers
_TURN: Final = 2.0 * np.pi
_ENDS: Final = ("", "_lower", "_upper")

#: Columns of the table that are summaries: (name, unit, what it is).
COLUMNS: Final = (
    ("f0", "Hz", "frequency at t0"),
    ("amplitude", "", "strain amplitude"),
    ("ra", "rad", "right ascension, ICRS"),
    ("dec", "rad", "declination, ICRS"),
    ("ecliptic_longitude", "rad", "barycentric mean ecliptic of J2000"),
    ("ecliptic_latitude", "rad", "barycentric mean ecliptic of J2000"),
    ("iota", "rad", "inclination"),
    ("fdot", "Hz / s", "frequency derivative"),
)

#: And those that are one number a source: (name, type, what it is).
_SCALARS: Final[tuple[tuple[str, type, str], ...]] = (
    ("probability", float, "that the source exists"),
    ("snr", float, "sqrt(2 F) of the slot's component, against the band's noise level"),
    ("first_bin", int, "first Fourier bin of the band"),
    ("slot", int, "slot of the network"),
)
#: Columns of the table but the first, which numbers the sources: type, unit, what it is.
TABLE_COLUMNS: Final[dict[str, tuple[type, str, str]]] = {
    **{name + end: (float, unit, text) for name, unit, text in COLUMNS for end in _ENDS},
    **{name: (kind, "", text) for name, kind, text in _SCALARS},
}


class Written(NamedTuple):
    """A result found on disk: its identity, its table and what came with it."""

    identity: str
    table: Table
    meta: Mapping[str, Any]


def to_datatree(result: Result, provenance: Provenance) -> "xr.DataTree":
    """Return the samples as ArviZ has them.

    Groups: ``posterior`` (the eight parameters over chain, draw, source), ``sample_stats``
    (``log_q`` per draw; ``probability``, ``snr``, ``first_bin`` and ``slot`` per source; ``q_k``
    per band, where the result has it) and ``observed_data`` (the bands: first bin, frequencies,
    noise levels; not the series). Of refined samples also ``amortised`` and ``refinement``
    (:mod:`slotflow.catalogue_refined`).
    """
    import xarray as xr  # seconds to import, and not needed to show a result again
    from arviz_base import from_dict

    sources, draws = result.sources, result.settings.samples
    bands = tile_columns(result.tiles)
    samples = np.stack([s.samples for s in sources], axis=1) if sources else _none(draws, 8)
    log_q = np.stack([s.log_q for s in sources], axis=1) if sources else _none(draws)
    tree = from_dict(
        {
            "posterior": {name: samples[None, ..., i] for i, name in enumerate(NAMES)},
            "sample_stats": {"log_q": log_q[None]},
            "observed_data": bands,
        },
        coords={"source": np.arange(len(sources)), "tile": np.arange(len(result.tiles))},
        dims={
            **{name: ["source"] for name in (*NAMES, "log_q")},
            **{name: ["tile"] for name in bands},
        },
    )  # fmt: skip
    for parameter in PARAMETERS:
        tree["posterior"][parameter.name].attrs["units"] = parameter.unit or "1"
    for name in ("low", "high"):
        tree["observed_data"][name].attrs["units"] = "Hz"
    stats = tree["sample_stats"]
    stats["log_q"].attrs["description"] = (
        "ln density per unit volume of the parameters' scaled ranges, over both images"
    )
    for name, kind in (("probability", float), ("snr", float), ("first_bin", int), ("slot", int)):
        values = np.array([getattr(source, name) for source in sources], dtype=kind)
        stats[name] = xr.DataArray(values, dims="source")
    if result.q_k.size:
        stats["q_k"] = xr.DataArray(result.q_k, dims=("tile", "count"))
        stats["q_k"].attrs["description"] = "probability that a band holds 0, 1, ... sources"
    if result.refine is not None:
        add_refinement(tree, result)
    tree.attrs.update(attributes(result, provenance))
    return tree


def _none(*shape: int) -> Float:
    """An array for no sources: the source axis is the second."""
    return np.empty((shape[0], 0, *shape[1:]))


def _columns(source: SourcePosterior) -> dict[str, Interval]:
    """Return each summary column's median and 90% interval."""
    s = source.summary
    chosen = {"f0": F0, "amplitude": AMPLITUDE, "ra": RA, "dec": DEC, "iota": IOTA, "fdot": FDOT}
    columns = {name: Interval(*(part[i] for part in s)) for name, i in chosen.items()}
    ecliptic = to_ldc(source.samples)
    columns["ecliptic_longitude"] = summarise(ecliptic["EclipticLongitude"], _TURN)
    columns["ecliptic_latitude"] = summarise(ecliptic["EclipticLatitude"])
    return columns


def to_table(result: Result, provenance: Provenance) -> Table:
    """Return one row a source: medians, 90% intervals, probability, SNR.

    ``x_lower`` and ``x_upper`` are the 5% and 95% quantiles; of ra and ecliptic longitude on
    the circle, where lower > upper says that the interval runs through zero.
    """
    rows = [table_row(source) for source in result.sources]
    table = table_of(np.array(rows).reshape(len(rows), len(TABLE_COLUMNS)))
    scores = [_tile_of(source, result.tiles) for source in result.sources]
    if any(tile.outlying is not None for tile in result.tiles):
        add_scores(table, [None if tile is None else tile.outlying for tile in scores])
    table.meta.update(attributes(result, provenance))
    if result.refine is not None:
        table.meta["refinement"] = json.dumps(summaries(result))
    return table


def _tile_of(source: SourcePosterior, tiles: Sequence[TileRecord]) -> TileRecord | None:
    """Return the band that a source is from: of several from one bin on, the nearest."""
    own = [tile for tile in tiles if tile.first_bin == source.first_bin]
    return min(own, key=lambda tile: abs(tile.low + tile.high - 2.0 * source.f0), default=None)


def add_scores(table: Table, scores: Sequence[float | None]) -> None:
    """Add the column ``outlying``: the score of each source's band, NaN where there is none."""
    table["outlying"] = np.array([np.nan if one is None else one for one in scores], np.float64)
    table[
        "outlying"
    ].info.description = (
        "of its band: above 1 outside the training distribution, its figures not calibrated"
    )


def table_row(source: SourcePosterior) -> list[float]:
    """Return one source's numbers, in the order of :data:`TABLE_COLUMNS`."""
    columns = _columns(source)
    summaries = [float(value) for name, _, _ in COLUMNS for value in columns[name]]
    return [*summaries, *(float(getattr(source, name)) for name, _, _ in _SCALARS)]


def table_of(rows: Float) -> Table:
    """Return a table, without its metadata, of rows that :func:`table_row` gave: (n, columns)."""
    table = Table()
    table["source"] = np.arange(len(rows))
    for column, (name, (kind, unit, text)) in zip(rows.T, TABLE_COLUMNS.items(), strict=True):
        table[name] = column.astype(kind)
        table[name].unit = unit or None
        table[name].info.description = text
    return table


def write_netcdf(tree: "xr.DataTree", path: Path) -> None:
    """Write a result's samples.

    Raises:
        InputError: the file cannot be written.
    """
    size = sum(variable.nbytes for node in tree.subtree for variable in node.variables.values())
    with written(path) as temporary:
        check_room(temporary, size + size // 16 + HEADER_BYTES)
        tree.to_netcdf(temporary, engine="h5netcdf")


def write_table(table: Table, path: Path) -> None:
    """Write a result's table as ECSV, with units, descriptions and what made it.

    Raises:
        InputError: the file cannot be written.
    """
    with written(path) as temporary:
        table.write(temporary, format="ascii.ecsv", overwrite=True)


def write_csv(table: Table, path: Path) -> None:
    """Write a result's table as CSV: the header row, then one row a source.

    The columns of the ECSV file, then :data:`CSV_PROVENANCE` in every row, since CSV has no
    other place for it that all readers pass over. Numbers have all their digits.

    Args:
        table: from :func:`to_table`.
        path: of the file.

    Raises:
        InputError: the file cannot be written.
    """
    plain = table.copy()
    plain["version"] = np.full(len(table), __version__)
    for name in CSV_PROVENANCE[1:]:
        value = table.meta[name]
        plain[name] = np.full(len(table), value if isinstance(value, int | float) else str(value))
    with written(path) as temporary:
        plain.write(temporary, format="ascii.csv", overwrite=True)


def read_summary(path: Path) -> Written:
    """Read a table that :func:`write_table` wrote.

    Raises:
        InputError: missing, too large, or not such a table.
    """
    try:
        size, text = path.stat().st_size, ""
        if size <= MAX_BYTES:
            text = path.read_text("utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    if not text.startswith("# %ECSV"):
        raise InputError(f"{path}: {size} bytes, no ECSV: not a catalogue of slotflow")
    try:
        table = astropy_ascii.read(text.splitlines(), format="ecsv")
    except Exception as error:  # astropy and YAML raise many kinds on text of another origin
        reason = " ".join(str(error).split())[:120]
        raise InputError(f"{path}: not a catalogue of slotflow ({reason})") from error
    meta, wanted = dict(table.meta), {"source", "probability", "snr"}
    wanted |= {name + s for name, _, _ in COLUMNS for s in ("", "_lower", "_upper")}
    if meta.get("schema") != SCHEMA or not isinstance(meta.get("identity"), str):
        raise InputError(f"{path}: schema {meta.get('schema')!r}: not a catalogue of slotflow")
    if missing := sorted(wanted - set(table.colnames)):
        raise InputError(f"{path}: column {missing[0]!r} is missing")
    _check_shown(path, table, meta, sorted(wanted))
    return Written(meta["identity"], table, meta)


def _check_shown(path: Path, table: Table, meta: Mapping[str, Any], columns: Sequence[str]) -> None:
    """Refuse a table whose rows and metadata cannot be shown: someone edited it.

    Raises:
        InputError: naming the column or the entry.
    """
    scored = ["outlying"] if "outlying" in table.colnames else []
    for name in [*columns, *scored]:
        if table[name].dtype.kind not in "fi" or np.ma.is_masked(table[name]):
            raise InputError(f"{path}: column {name!r}: numbers expected")
    for name, kind in (("settings", dict), ("notes", list)):
        try:
            content = json.loads(meta[name])
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise InputError(f"{path}: metadata {name!r}: missing or not JSON") from error
        if not isinstance(content, kind):
            raise InputError(f"{path}: metadata {name!r}: {content!r}; a {kind.__name__} expected")
    try:
        read_outlying(meta.get("outlying", '{"bands": 0, "outside": []}'))
    except (ValueError, TypeError) as error:
        raise InputError(f"{path}: metadata 'outlying': {error}") from error
    settings = json.loads(meta["settings"])
    for name in ("fmin", "fmax", "min_probability"):
        if not isinstance(settings.get(name), int | float):
            raise InputError(
                f"{path}: metadata 'settings': {name} {settings.get(name)!r}; a number expected"
            )


def read_identity(path: Path) -> str | None:
    """Return the identity that a netCDF result carries, None where it is no such file."""
    try:
        with open_checked(path) as file:
            value = read_attribute(file, "/", "identity")
    except InputError:
        return None
    return value if isinstance(value, str) else None
