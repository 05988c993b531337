"""Results on disk: an ArviZ DataTree in netCDF for the samples, an ECSV table for people.

Both carry what made them: versions, settings, seed, command, and the SHA-256 of the input and
of the model. Both are written under a temporary name and renamed.
"""

import importlib.metadata
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import h5py
import numpy as np
from astropy.io import ascii as astropy_ascii
from astropy.table import Table
from numpy.typing import NDArray

from slotflow import __version__
from slotflow.conventions import to_ldc
from slotflow.errors import InputError
from slotflow.manifest import replace
from slotflow.parameters import AMPLITUDE, DEC, F0, FDOT, IOTA, NAMES, PARAMETERS, RA
from slotflow.results import Interval, Result, SourcePosterior, TileRecord, summarise

if TYPE_CHECKING:
    import xarray as xr

Float = NDArray[np.float64]

SCHEMA: Final = 1
PACKAGES: Final = ("arviz-base", "astropy", "numpy", "torch", "xarray")
MAX_BYTES: Final = 64 << 20  # of a table that is read again
_TURN: Final = 2.0 * np.pi

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


class Provenance(NamedTuple):
    """What made a result.

    ``requested`` are the settings as the user gave them (None: the default); together with
    the two checksums they say whether a result can stand for another run.
    """

    input: str
    input_sha256: str
    model: str
    model_sha256: str
    requested: Mapping[str, Any]
    command: str

    @property
    def identity(self) -> str:
        """Input, model and settings as one line of JSON."""
        content = {
            "input_sha256": self.input_sha256,
            "model_sha256": self.model_sha256,
            "settings": dict(self.requested),
        }
        return json.dumps(content, sort_keys=True)


class Written(NamedTuple):
    """A result found on disk: its identity, its table and what came with it."""

    identity: str
    table: Table
    meta: Mapping[str, Any]


def _attributes(result: Result, provenance: Provenance) -> dict[str, Any]:
    """What both files say about themselves, plain types only."""
    versions = {"slotflow": __version__}
    versions |= {name: importlib.metadata.version(name) for name in PACKAGES}
    return {
        "schema": SCHEMA,
        "software": "slotflow",
        "versions": json.dumps(versions),
        "identity": provenance.identity,
        "input": provenance.input,
        "input_sha256": provenance.input_sha256,
        "model": provenance.model,
        "model_sha256": provenance.model_sha256,
        "command": provenance.command,
        "seed": result.settings.seed,
        "settings": json.dumps(asdict(result.settings)),
        "observation": result.observation.model_dump_json(),
        "t0": result.t0,
        "seconds": json.dumps({name: round(value, 3) for name, value in result.seconds.items()}),
        "notes": json.dumps(result.notes),
        "conventions": "ICRS; f0 and phi0 at t0 (s since 2035-01-01T00:00:00 TCB);"
        " phase 2 pi f0 t + pi fdot t^2 - phi0; psi over [0, pi), both images of"
        " (psi + pi/2, phi0 + pi)",
    }


def to_datatree(result: Result, provenance: Provenance) -> "xr.DataTree":
    """Return the samples as ArviZ has them.

    Groups: ``posterior`` (the eight parameters over chain, draw, source), ``sample_stats``
    (``log_q`` per draw; ``probability``, ``snr``, ``first_bin`` and ``slot`` per source) and
    ``observed_data`` (the bands: first bin, frequencies, noise levels; not the series).
    """
    import xarray as xr  # seconds to import, and not needed to show a result again
    from arviz_base import from_dict

    sources, draws = result.sources, result.settings.samples
    samples = np.stack([s.samples for s in sources], axis=1) if sources else _none(draws, 8)
    log_q = np.stack([s.log_q for s in sources], axis=1) if sources else _none(draws)
    tree = from_dict(
        {
            "posterior": {name: samples[None, ..., i] for i, name in enumerate(NAMES)},
            "sample_stats": {"log_q": log_q[None]},
            "observed_data": {
                name: np.array([getattr(tile, name) for tile in result.tiles])
                for name in TileRecord._fields
            },
        },
        coords={"source": np.arange(len(sources)), "tile": np.arange(len(result.tiles))},
        dims={
            **{name: ["source"] for name in (*NAMES, "log_q")},
            **{name: ["tile"] for name in TileRecord._fields},
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
    tree.attrs.update(_attributes(result, provenance))
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
    rows = [_columns(source) for source in result.sources]
    table = Table()
    table["source"] = np.arange(len(rows))
    for name, unit, description in COLUMNS:
        for i, suffix in enumerate(("", "_lower", "_upper")):
            table[name + suffix] = np.array([float(row[name][i]) for row in rows], dtype=float)
            table[name + suffix].unit = unit or None
            table[name + suffix].info.description = description
    for name, kind, description in (
        ("probability", float, "that the source exists"),
        ("snr", float, "sqrt(2 F) of the slot's component, against the band's noise level"),
        ("first_bin", int, "first Fourier bin of the band"),
        ("slot", int, "slot of the network"),
    ):
        values = [getattr(source, name) for source in result.sources]
        table[name] = np.array(values, dtype=kind)
        table[name].info.description = description
    table.meta.update(_attributes(result, provenance))
    return table


def write_netcdf(tree: "xr.DataTree", path: Path) -> None:
    """Write a result's samples.

    Raises:
        InputError: the file cannot be written.
    """
    temporary = _temporary(path)
    try:
        tree.to_netcdf(temporary, engine="h5netcdf")
        replace(path, temporary)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_table(table: Table, path: Path) -> None:
    """Write a result's table.

    Raises:
        InputError: the file cannot be written.
    """
    temporary = _temporary(path)
    try:
        table.write(temporary, format="ascii.ecsv", overwrite=True)
        replace(path, temporary)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from error
    finally:
        temporary.unlink(missing_ok=True)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


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
    for name in columns:
        if table[name].dtype.kind not in "fi" or np.ma.is_masked(table[name]):
            raise InputError(f"{path}: column {name!r}: numbers expected")
    for name, kind in (("settings", dict), ("notes", list)):
        try:
            content = json.loads(meta[name])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path}: metadata {name!r}: missing or not JSON") from error
        if not isinstance(content, kind):
            raise InputError(f"{path}: metadata {name!r}: {content!r}; a {kind.__name__} expected")
    settings = json.loads(meta["settings"])
    for name in ("fmin", "fmax", "min_probability"):
        if not isinstance(settings.get(name), int | float):
            raise InputError(
                f"{path}: metadata 'settings': {name} {settings.get(name)!r}; a number expected"
            )


def read_identity(path: Path) -> str | None:
    """Return the identity that a netCDF result carries, None where it is no such file."""
    try:
        with h5py.File(path, "r", locking=False) as file:
            value = file.attrs.get("identity")
    except (OSError, RuntimeError, ValueError):
        return None
    return value if isinstance(value, str) else None


def difference(found: str, wanted: str) -> str:
    """Say in a few words in what two identities differ, '' where they are equal."""
    try:
        a, b = json.loads(found), json.loads(wanted)
        flat = [
            {k: v for k, v in one.items() if k != "settings"} | dict(one["settings"])
            for one in (a, b)
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        return "unknown settings"
    for name in sorted(flat[0].keys() | flat[1].keys()):
        old, new = flat[0].get(name), flat[1].get(name)
        if old != new:
            if name.endswith("sha256"):
                return f"another {name.removesuffix('_sha256')} (SHA-256 {str(old)[:12]})"
            return f"{name} {_text(old)}, now {_text(new)}"
    return ""


def _text(value: Any) -> str:
    if value is None:
        return "by default"
    return f"{value:g}" if isinstance(value, float) and math.isfinite(value) else str(value)
