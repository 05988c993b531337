"""Writing a simulated observation: the layout of LDC2 Sangria, with the truth beside it.

``obs/tdi``: compound ``t, X, Y, Z`` of shape (N, 1), NaN inside gaps; ``obs/gaps``: (G, 2) begin
and end of each, s since t0, where there are any; ``obs/config``: ``dt_tdi``, ``t_max``.
``sky/vgb/cat`` (given sources) and ``sky/dgb/cat`` (members of the Galaxy): LDC columns.
``truth``: ``names``, ``sources`` (S, 8), ``snr`` of both, in this project's own conventions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np
from numpy.typing import NDArray

from slotflow import __version__
from slotflow.atomic import written
from slotflow.config import ObservationSettings
from slotflow.conventions import ORBIT_PARAMETERS, to_ldc
from slotflow.gaps import gap_mask
from slotflow.parameters import NAMES
from slotflow.simulate.orbits import orbits

Float = NDArray[np.float64]

NAME_BYTES: Final = 40
CHUNK: Final = 32_768
MANTISSA: Final = 15  # bits kept of single precision's 23
_GZIP: Final[dict[str, Any]] = {"compression": "gzip", "compression_opts": 9, "shuffle": True}


@dataclass(frozen=True)
class ObservationContent:
    """What goes into the file.

    ``xyz`` is (3, N), whole, ``gaps`` (G, 2) in s since t0; ``noise``: whether instrument noise is
    in it; the sources are (S, 8), their SNRs (S,); ``attributes`` say how the sky was made. The
    settings are pinned.
    """

    settings: ObservationSettings
    seed: int
    xyz: Float
    gaps: Float
    noise: bool
    given: Float
    given_names: tuple[str, ...]
    given_snr: Float
    members: Float
    member_names: tuple[str, ...]
    member_snr: Float
    attributes: Mapping[str, float | int | str]

    @property
    def missing(self) -> NDArray[np.bool_]:
        """(N,): whether a sample lies in a gap, its ends included."""
        times: Float = self.settings.dt * np.arange(self.xyz.shape[1], dtype=np.float64)
        return np.asarray(gap_mask(times, self.gaps, 0.0) == 0.0)

    @property
    def observed(self) -> Float:
        """(3, N): X, Y, Z with NaN in the gaps."""
        return np.where(self.missing, np.nan, self.xyz)


def write_observation(path: Path, content: ObservationContent, *, compact: bool) -> None:
    """Write the file under a temporary name, then rename it.

    Args:
        path: the file.
        content: what to write.
        compact: X, Y, Z in single precision with a shortened mantissa (time stays double), gzip
            with shuffle.

    Raises:
        InputError: the file cannot be written.
    """
    with written(path) as partial, h5py.File(partial, "w") as file:
        _write_series(file, content, compact)
        write_truth(file, content, _GZIP if compact else {})


def _write_series(file: h5py.File, content: ObservationContent, compact: bool) -> None:
    settings = content.settings
    kind = "<f4" if compact else "<f8"
    samples = content.xyz.shape[1]
    rows = np.empty((samples, 1), dtype=[("t", "<f8"), ("X", kind), ("Y", kind), ("Z", kind)])
    rows["t"][:, 0] = settings.t0 + settings.dt * np.arange(samples)
    for name, series in zip("XYZ", content.observed, strict=True):
        rows[name][:, 0] = _shortened(series) if compact else series
    dataset = file.create_dataset(
        "obs/tdi",
        data=rows,
        chunks=(min(CHUNK, samples), 1),
        fletcher32=True,
        **(_GZIP if compact else {}),
    )
    dataset.attrs.update(
        {
            "tdi_generation": settings.tdi_generation,
            "units": "fractional frequency; t in s since 2035-01-01T00:00:00 TCB",
            "t0": settings.t0,
            "mantissa_bits": MANTISSA if compact else 52,
            **orbit_attributes(settings),
        }
    )
    if settings.gaps.any:
        write_gaps(file, "obs/gaps", content)
    file["obs/config/dt_tdi"] = settings.dt
    file["obs/config/t_max"] = settings.duration
    file.attrs.update(root_attributes(content))


def write_gaps(file: h5py.File, name: str, content: ObservationContent) -> None:
    """Write the gaps, (G, 2)."""
    file[name] = content.gaps
    file[name].attrs.update({"columns": "begin, end", "units": "s since t0"})


def root_attributes(content: ObservationContent) -> dict[str, Any]:
    """Return what all layouts say of a file as a whole."""
    return {
        "software": "slotflow",
        "version": __version__,
        "seed": content.seed,
        "settings": content.settings.model_dump_json(),
        **content.attributes,
    }


def orbit_attributes(settings: ObservationSettings) -> dict[str, Any]:
    """Return the attributes that name the orbit: its kind, and what that depends on.

    For an analytic orbit lisaorbits' parameters; for a file its name and hash, and the mean arm.
    """
    if settings.orbit == "file":
        return {
            "orbit": "file",
            "orbit_file": settings.orbit_file,
            "orbit_sha256": settings.orbit_sha256,
            "orbit_L": settings.arm_length,
        }
    orbit = orbits(settings)
    values = {f"orbit_{name}": float(getattr(orbit, name)) for name in ORBIT_PARAMETERS}
    return {"orbit": settings.orbit, **values}


def _shortened(series: Float) -> NDArray[np.float32]:
    """Round to single precision with MANTISSA bits.

    The rounding noise, against the instrument's, was seen to be 4e-10 of A and E, and 1e-3 of T
    at 0.1 mHz, 9e-6 of T at 1 mHz.
    """
    dropped = 23 - MANTISSA
    bits = series.astype("<f4").view("<u4")
    half, mask = np.uint32(1 << (dropped - 1)), np.uint32(2**32 - (1 << dropped))
    return np.asarray(((bits + half) & mask).view("<f4"))


def write_truth(file: h5py.File, content: ObservationContent, options: Mapping[str, Any]) -> None:
    """Write the sources: ``sky`` in LDC columns, and ``truth`` in our own conventions."""
    _write_ldc(file, "sky/vgb/cat", content.given, content.given_names, options)
    _write_ldc(file, "sky/dgb/cat", content.members, content.member_names, options)
    names = content.given_names + content.member_names
    if not names:
        return
    group = file.create_group("truth")
    sources = np.concatenate([content.given, content.members])
    snr = np.concatenate([content.given_snr, content.member_snr])
    for name, data in (("names", text(names)), ("sources", sources), ("snr", snr)):
        group.create_dataset(name, data=data, **options)
    group["sources"].attrs.update(
        {
            "columns": ", ".join(NAMES),
            "conventions": "Hz, Hz/s, strain, rad; ICRS; f0 and phi0 at t0;"
            " phase 2 pi f0 t + pi fdot t^2 - phi0",
        }
    )
    group["snr"].attrs["definition"] = (
        "A and E against the model of instrument and confusion; all given sources, and members of"
        " the Galaxy above galaxy_truth_snr (fainter ones are in the data but not listed)"
    )


def _write_ldc(
    file: h5py.File,
    name: str,
    sources: Float,
    names: tuple[str, ...],
    options: Mapping[str, Any],
) -> None:
    if not len(sources):
        return
    columns = to_ldc(sources)
    dtype = [("Name", f"S{NAME_BYTES}"), *((column, "<f8") for column in columns)]
    table = np.zeros((len(sources), 1), dtype=dtype)
    table["Name"][:, 0] = text(names)
    for column, values in columns.items():
        table[column][:, 0] = values
    dataset = file.create_dataset(name, data=table, **options)
    dataset.attrs["epoch"] = "Frequency and InitialPhase are those at t0 of the series"


def text(names: tuple[str, ...]) -> NDArray[np.bytes_]:
    """Return names as HDF5 holds them: UTF-8, cut at 40 bytes."""
    encoded = [name.encode("utf-8")[:NAME_BYTES] for name in names]
    return np.array(encoded, dtype=f"S{NAME_BYTES}")
