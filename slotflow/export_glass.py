"""Export for lisacattools: the catalogue of GLASS, a pandas HDF5 file.

Keys: ``metadata`` (one row: the catalogue), ``detections`` (one row a source) and
``<name>_chain`` (one row a sample). Column names are GLASS's; angles are the LDC's: sky and
polarisation in the barycentric mean ecliptic of J2000, phase 2 pi f t + pi fdot t^2 - phi0.
"""

import importlib.util
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import h5py
import numpy as np
from numpy.typing import NDArray

from slotflow.atomic import written
from slotflow.conventions import to_ldc
from slotflow.errors import InputError
from slotflow.parameters import F0
from slotflow.provenance import Provenance, attributes, label, refuse_existing
from slotflow.results import Result, SourcePosterior

if TYPE_CHECKING:
    import pandas as pd

Float = NDArray[np.float64]

#: Columns of a chain.
CHAIN: Final = (
    "Frequency", "Frequency Derivative", "Amplitude", "Ecliptic Longitude", "coslat", "cosinc",
    "Polarization", "Initial Phase", "SNR", "Ecliptic Latitude", "Inclination",
)  # fmt: skip
#: pandas 3 leaves this attribute out; without it pandas 2 takes a frame for one of 2012.
PANDAS_LAYOUT: Final = "0.15.2"
CONVENTIONS: Final = (
    "barycentric mean ecliptic of J2000, Polarization from its north; coslat is the cosine of"
    " the colatitude; Frequency and Initial Phase at t0 (s since 2035-01-01T00:00:00 TCB); phase"
    " 2 pi f t + pi fdot t^2 - Initial Phase (GLASS commit 0f78bdc, LDC)"
)


def chain(source: SourcePosterior) -> dict[str, Float]:
    """Return a source's samples by GLASS's columns, :data:`CHAIN`: {column: (n,)}.

    SNR is the source's own, the same in every row.
    """
    ldc = to_ldc(source.samples)
    return {
        "Frequency": ldc["Frequency"],
        "Frequency Derivative": ldc["FrequencyDerivative"],
        "Amplitude": ldc["Amplitude"],
        "Ecliptic Longitude": ldc["EclipticLongitude"],
        "coslat": np.sin(ldc["EclipticLatitude"]),
        "cosinc": np.cos(ldc["Inclination"]),
        "Polarization": ldc["Polarization"],
        "Initial Phase": ldc["InitialPhase"],
        "SNR": np.full(len(source.samples), source.snr),
        "Ecliptic Latitude": ldc["EclipticLatitude"],
        "Inclination": ldc["Inclination"],
    }


def export_glass(
    result: Result, provenance: Provenance, folder: Path, stem: str, *, force: bool = False
) -> list[Path]:
    """Write ``<stem>.glass.h5``.

    ``detections`` holds for each source the sample whose frequency is the median, as GLASS
    does, and ``evidence``, there the share of samples that hold the source, is its probability.
    What made the file is in its attributes.

    Args:
        result: what to write.
        provenance: what made it.
        folder: of the file; it exists.
        stem: of the file's name, and the catalogue's name in ``metadata``.
        force: replace a file that is there.

    Returns:
        The file's path.

    Raises:
        InputError: PyTables is not installed, or the file cannot be written.
        OutputExistsError: the file is there, and not ``force``.
    """
    if importlib.util.find_spec("tables") is None:
        raise InputError("export glass: PyTables is not installed (pip install tables)")
    import pandas as pd

    path = folder / f"{stem}.glass.h5"
    refuse_existing(path, force)
    names = [f"SF{label(i, source.f0)}" for i, source in enumerate(result.sources)]
    chains = {name: chain(source) for name, source in zip(names, result.sources, strict=True)}
    metadata = pd.DataFrame(
        {
            "Observation Time": [result.observation.duration],
            "parent": [""],
            "Build Time": [f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}"],
        },
        index=[stem],
    )
    with written(path) as temporary:
        try:
            with pd.HDFStore(temporary, mode="w") as store:
                _put(store, "metadata", metadata)
                _put(store, "detections", _detections(result, chains, path.name))
                for name, columns in chains.items():
                    store.put(f"{name}_chain", pd.DataFrame(columns), track_times=False)
                for group in store.groups():
                    group._v_attrs.pandas_version = PANDAS_LAYOUT
        except RuntimeError as error:  # PyTables' own, of a full disk among others
            reason = str(error).strip().splitlines()[-1]
            raise InputError(f"{path}: cannot be written: {reason}") from error
        with h5py.File(temporary, "r+") as file:  # PyTables' own are 64 KiB at most
            file.attrs.update(attributes(result, provenance, CONVENTIONS))
    return [path]


def _detections(
    result: Result, chains: dict[str, dict[str, Float]], file_name: str
) -> "pd.DataFrame":
    """Return the frame of all sources; without sources it has all columns, and no rows."""
    import pandas as pd

    places, index = [_median_draw(source) for source in result.sources], list(chains)
    columns: dict[str, Any] = {
        "SNR": [source.snr for source in result.sources],
        "evidence": [source.probability for source in result.sources],
        "segment": np.array([source.first_bin for source in result.sources], dtype=np.int64),
        "chain file": pd.Series([file_name] * len(index), index, dtype="str"),
        "parent": pd.Series([""] * len(index), index, dtype="str"),
    }
    for name in CHAIN:
        if name != "SNR":
            values = [one[name][k] for one, k in zip(chains.values(), places, strict=True)]
            columns[name] = np.array(values, dtype=np.float64)
    return pd.DataFrame(columns, index=index)


def _median_draw(source: SourcePosterior) -> int:
    """Index of the sample with the median frequency, the upper one of two."""
    return int(np.argsort(source.samples[:, F0], kind="stable")[len(source.samples) // 2])


def _put(store: "pd.HDFStore", key: str, frame: "pd.DataFrame") -> None:
    """Write a frame that holds text, in the layout where text is not pickled.

    pandas does not write a frame without rows in it: one with a blank row, taken out again, is.
    """
    if not frame.empty:
        store.put(key, frame, format="table", index=False, track_times=False)
        return
    blank = {name: [0.0 if frame[name].dtype.kind in "fi" else ""] for name in frame}
    row = frame.reindex([""]).assign(**blank).astype(frame.dtypes)
    store.put(key, row, format="table", index=False, track_times=False)
    store.get_storer(key).table.remove_rows(0, 1)
