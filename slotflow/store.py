"""Training sets on disk: HDF5 shards of bands, and the manifest that lists them.

A directory holds ``manifest.json`` and ``shard-00000.h5`` and so on. A band is stored
without noise: the bright sources' part and the foreground, whitened, in A, E and T (T
carries no signal, so it is zero) or X, Y and Z; the instrument's noise is drawn when the band
is read, and so is the mask of its gaps.

Each shard holds, for its rows, ``first_bin``, ``signal`` and ``foreground`` (rows, 3, K),
``sources`` (rows, K_max, 8) padded with NaN, ``snr`` (rows, K_max), ``count``, ``outside``
(rows, n, 8), ``outside_count``, ``rate_scale``, ``members``, ``removed``, ``oms_scale``,
``acceleration_scale`` and ``noise_scale``.
"""

import hashlib
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np
from numpy.typing import NDArray

from slotflow.atomic import written
from slotflow.channels import from_standard, is_standard, to_standard
from slotflow.config import ObservationSettings, PriorSettings
from slotflow.errors import InputError, NonFiniteError
from slotflow.gaps import band_mask
from slotflow.hdf5 import trial
from slotflow.hdf5_checks import MAX_BYTES, check_size, check_storage, reason
from slotflow.hdf5_local import DAMAGED, find, read_attribute
from slotflow.manifest import (
    MANIFEST,
    SCHEMA_VERSION,
    ShardEntry,
    file_sha256,
    read_manifest,
    shard_name,
)
from slotflow.noise import NoiseScales, draw_noise, model_psd

NOISE_STREAM: Final = 1000
_CHUNK: Final = 16  # rows
_OPEN_FILES: Final = 64  # at a time
_HIGHEST_BIN: Final = 1 << 40

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Complex64 = NDArray[np.complex64]


@dataclass(frozen=True)
class Band:
    """One simulated band without noise; spectra are whitened by the model density.

    Attributes:
        first_bin: Fourier bin of index 0.
        signal: (3, K) complex64: targets and bright sources outside the window.
        foreground: (3, K) complex64: the confusion foreground.
        sources: (K_max, 8) targets in order of frequency, padded with NaN.
        snr: (K_max,) their SNR, padded with NaN.
        count: number of targets.
        outside: (max_outside, 8) bright sources outside the window, padded with NaN.
        outside_count: number of these (all are in ``signal``, also beyond max_outside).
        rate_scale: factor on the mean number of foreground members.
        members: binaries in the foreground.
        removed: binaries left out of it for their SNR.
        oms_scale: factor on the amplitude of the optical metrology noise.
        acceleration_scale: on that of the acceleration noise.
        noise_scale: on that of all instrument noise.
    """

    first_bin: int
    signal: Complex64
    foreground: Complex64
    sources: Float
    snr: Float
    count: int
    outside: Float
    outside_count: int
    rate_scale: float
    members: int
    removed: int
    oms_scale: float = 1.0
    acceleration_scale: float = 1.0
    noise_scale: float = 1.0


@dataclass(frozen=True)
class Arrays:
    """The labels of a whole training set, N rows each (see :class:`Band`)."""

    first_bin: Int
    sources: Float
    snr: Float
    count: Int
    outside: Float
    outside_count: Int
    rate_scale: Float
    members: Int
    removed: Int
    oms_scale: Float
    acceleration_scale: Float
    noise_scale: Float


def _names(record: type[Band] | type[Arrays]) -> list[str]:
    return [field.name for field in fields(record)]


def write_shard(path: Path, bands: Sequence[Band], attributes: Mapping[str, Any]) -> ShardEntry:
    """Write a shard: checksummed chunks, a temporary name, then a rename.

    Args:
        path: where the shard goes.
        bands: its rows.
        attributes: stored on the file beside ``schema_version``.

    Raises:
        NonFiniteError: a spectrum that is not finite.
        InputError: the system refuses to write.
        ValueError: no bands.
    """
    if not bands:
        raise ValueError("expected at least one band")
    # In memory first: the bytes then depend neither on the file system nor on when handles are
    # let go of, and a full disk is an error of the system's, not one within HDF5
    # (BytesIO fills gaps with zeros; HDF5's own memory driver, with whatever was there)
    buffer = io.BytesIO()
    with h5py.File(buffer, "w", track_order=False) as file:
        file.attrs["schema_version"] = SCHEMA_VERSION
        for key, value in attributes.items():
            file.attrs[key] = value
        for name in _names(Band):
            values = np.stack([np.asarray(getattr(band, name)) for band in bands])
            if name in ("signal", "foreground"):
                _check_finite(values, path, 0, name)
            chunks = (min(_CHUNK, len(bands)), *values.shape[1:])
            file.create_dataset(name, data=values, chunks=chunks, fletcher32=True)
            file.flush()
    image = buffer.getvalue()
    with written(path) as temporary:
        temporary.write_bytes(image)
    return ShardEntry(path.name, len(bands), hashlib.sha256(image).hexdigest())


def _check_finite(values: NDArray[Any], path: Path, first_row: int, name: str) -> None:
    """Raise NonFiniteError that names the first row with a bad value."""
    bad = ~np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
    if bad.any():
        row = first_row + int(np.flatnonzero(bad)[0])
        raise NonFiniteError(f"{path}: sample {row} of the shard: {name} is not finite")


def check_layout(file: Any, path: Path, rows: int, prior: PriorSettings) -> None:
    """Check an open shard's schema, data sets, shapes and types.

    Args:
        file: the open HDF5 file.
        path: its name, for messages.
        rows: samples that it must hold.
        prior: of the training set.

    Raises:
        InputError: naming the file and what is not as it must be.
    """
    version = read_attribute(file, "/", "schema_version")
    if version != SCHEMA_VERSION:
        raise InputError(f"{path}: schema_version: expected {SCHEMA_VERSION}; got {version!r}")
    bins, most = prior.bins, prior.max_sources
    shapes: dict[str, tuple[int, ...]] = {
        "signal": (3, bins),
        "foreground": (3, bins),
        "sources": (most, 8),
    }
    shapes |= {"snr": (most,), "outside": (prior.max_outside, 8)}
    for name in _names(Band):
        dataset = find(file, name)
        if not isinstance(dataset, h5py.Dataset):
            raise InputError(f"{path}: data set {name!r} is missing")
        label = f"{path}: {name}"
        check_storage(dataset, label)
        expected = (rows, *shapes.get(name, ()))
        if dataset.shape != expected:
            raise InputError(f"{path}: {name}: expected shape {expected}; got {dataset.shape}")
        kinds = "c" if name in ("signal", "foreground") else "fi"
        if dataset.dtype.kind not in kinds:
            raise InputError(f"{path}: {name}: unexpected type {dataset.dtype}")
        check_size(dataset, label, MAX_BYTES)


def try_shard(path: Path) -> None:
    """Read a shard once in another process, so that what crashes HDF5 does not do so here.

    Raises:
        InputError: it did, or the file is none of HDF5's.
    """
    trial(path, _names(Band), ("schema_version", "seed", "start"))


@lru_cache(maxsize=1024)
def _noise_ratio(
    settings: ObservationSettings, first_bin: int, bins: int, scales: NoiseScales
) -> Float:
    """Return instrument over model density at a band's bins, in A, E, T: (3, bins).

    The bands are whitened by the density with all scales 1, whatever a band's own are.
    """
    frequency = (first_bin + np.arange(bins)) / settings.duration
    noise = model_psd(frequency, settings, scales).instrument
    return np.asarray(noise / model_psd(frequency, settings).total)


class TrainingSet:
    """A training set on disk, read shard by shard as it is needed.

    One process may pass it to another: files are opened again there.
    """

    def __init__(self, directory: str | Path, *, verify: bool = False) -> None:
        """Open a training set.

        Args:
            directory: what ``simulate_dataset`` wrote.
            verify: compare each shard's SHA-256 with the manifest (reads everything).

        Raises:
            InputError: no or bad manifest; a shard missing, unreadable, or not as listed.
        """
        self.directory = Path(directory)
        self.manifest = read_manifest(self.directory)
        self.seed = self.manifest.seed
        try:
            self.observation = ObservationSettings(**self.manifest.settings["observation"])
            self.prior = PriorSettings(**self.manifest.settings["prior"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{self.directory / MANIFEST}: settings: {error}") from error
        rows = [shard.rows for shard in self.manifest.shards]
        self._ends = np.cumsum(rows, dtype=np.int64)
        names = [shard.name for shard in self.manifest.shards]
        if sum(rows) != self.manifest.samples or names != [shard_name(n) for n in range(len(rows))]:
            raise InputError(
                f"{self.directory / MANIFEST}: samples: {self.manifest.samples} announced, "
                f"{sum(rows)} in the shards: the simulation did not finish; run it again"
            )
        self._files: dict[int, Any] = {}
        self._pid = os.getpid()
        for shard in self.manifest.shards:
            path = self.directory / shard.name
            if not path.is_file():
                raise InputError(f"{path}: shard listed in {MANIFEST} is missing")
            if verify and file_sha256(path) != shard.sha256:
                raise InputError(f"{path}: SHA-256 differs from {MANIFEST}: damaged or replaced")

    def __len__(self) -> int:
        return self.manifest.samples

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_files": {}, "_pid": -1}

    @property
    def settings(self) -> dict[str, Any]:
        """The sections ``observation`` and ``prior`` of the preset it was made with."""
        return self.manifest.settings

    def close(self) -> None:
        """Close the shards that are open."""
        for file in self._files.values():
            file.close()
        self._files = {}

    def _shard(self, number: int) -> Any:
        """Return the open shard, checked against the manifest."""
        if self._pid != os.getpid():  # HDF5 handles do not survive a fork
            self._files, self._pid = {}, os.getpid()
        if number not in self._files:
            if len(self._files) >= _OPEN_FILES:
                self._files.pop(next(iter(self._files))).close()
            entry = self.manifest.shards[number]
            path = self.directory / entry.name
            try_shard(path)
            try:
                file = h5py.File(path, "r")
            except DAMAGED as error:
                raise InputError(f"{path}: not a readable HDF5 file: {reason(error)}") from error
            try:
                check_layout(file, path, entry.rows, self.prior)
            except (InputError, *DAMAGED) as error:
                file.close()
                if isinstance(error, InputError):
                    raise
                raise InputError(f"{path}: damaged: {reason(error)}") from error
            self._files[number] = file
        return self._files[number]

    def _read(self, number: int, name: str, rows: slice) -> NDArray[Any]:
        """Read rows of a shard.

        Raises:
            InputError: the chunk is damaged.
            NonFiniteError: a spectrum that is not finite.
        """
        path = self.directory / self.manifest.shards[number].name
        try:
            values = np.asarray(self._shard(number)[name][rows])
        except DAMAGED as error:
            raise InputError(f"{path}: {name}: damaged: {reason(error)}") from error
        if name in ("signal", "foreground"):
            _check_finite(values, path, rows.start, name)
        return values

    def _refuse(self, number: int, name: str, bad: NDArray[np.bool_]) -> None:
        if bad.any():
            path = self.directory / self.manifest.shards[number].name
            raise InputError(f"{path}: {name}: a value that cannot be")

    def _locate(self, index: int) -> tuple[int, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"expected a sample of 0..{len(self) - 1}; got {index}")
        number = int(np.searchsorted(self._ends, index, side="right"))
        return number, index - int(self._ends[number]) + self.manifest.shards[number].rows

    def sources(self, index: int) -> Float:
        """Return a band's targets: (count, 8)."""
        number, row = self._locate(index)
        sources = self._read(number, "sources", slice(row, row + 1))[0]
        count = int(self._read(number, "count", slice(row, row + 1))[0])
        return np.asarray(sources[:count])

    def targets(self, start: int, stop: int) -> Iterator[tuple[Float, Float]]:
        """Yield sources (count, 8) and SNR (count,) of the samples ``start..stop-1``."""
        for number, (low, high) in enumerate(self.shard_ranges()):
            rows = slice(max(start - low, 0), min(stop, high) - low)
            if rows.start < rows.stop:
                columns = (self._read(number, name, rows) for name in ("sources", "snr", "count"))
                for sources, snr, count in zip(*columns, strict=True):
                    self._refuse(number, "count", np.array(not 0 <= count <= len(snr)))
                    yield sources[: int(count)], snr[: int(count)]

    def band(self, index: int, draw: int = 0) -> Complex64:
        """Return a band's whitened data with the noise of that draw: (3, K) complex64.

        The noise depends only on the set's seed, the sample and ``draw``.

        Raises:
            IndexError: no such sample.
            InputError: the shard is damaged.
            NonFiniteError: naming the shard and the sample.
        """
        number, row = self._locate(index)
        return np.asarray(self._rows(number, slice(row, row + 1), index, draw)[0])

    def bands(self, start: int, stop: int, draw: int = 0) -> Complex64:
        """Return ``band(start..stop-1, draw)`` stacked, read in bulk: (stop - start, 3, K)."""
        parts = []
        while start < stop:
            number, row = self._locate(start)
            rows = min(self.manifest.shards[number].rows - row, stop - start)
            parts.append(self._rows(number, slice(row, row + rows), start, draw))
            start += rows
        empty = np.empty((0, 3, self.prior.bins), dtype=np.complex64)
        return np.concatenate(parts) if parts else empty

    def standard_bands(self, start: int, stop: int, draw: int = 0) -> Complex64:
        """Return :meth:`bands` as whitened A, E, T of TDI 1.5, whatever the set holds."""
        data = self.bands(start, stop, draw)
        if is_standard(self.observation):
            return data
        for band, first in zip(data, self.first_bins(start, stop), strict=True):
            band[:] = to_standard(band.astype(np.complex128), int(first), self.observation)
        return data

    def _rows(self, number: int, rows: slice, index: int, draw: int) -> Complex64:
        first_bin = self._read(number, "first_bin", rows)
        self._refuse(number, "first_bin", (first_bin < 1) | (first_bin > _HIGHEST_BIN))
        scales = [
            self._read(number, name, rows)
            for name in ("oms_scale", "acceleration_scale", "noise_scale")
        ]
        for column in scales:
            self._refuse(number, "a scale of the noise", ~((column > 0.0) & (column < 1e6)))
        data = np.empty((len(first_bin), 3, self.prior.bins), dtype=np.complex64)
        for i, k in enumerate(first_bin):
            own = NoiseScales(*(float(column[i]) for column in scales))
            data[i] = self._noise(index + i, int(k), own, draw)
        data += self._read(number, "signal", rows)
        data += self._read(number, "foreground", rows)
        return data

    def _noise(self, index: int, first_bin: int, scales: NoiseScales, draw: int) -> Complex64:
        """Draw the instrument's noise of a band, in the set's own channels: (3, K)."""
        settings = self.observation
        rng = np.random.default_rng([self.seed, index, NOISE_STREAM + draw])
        ratio = _noise_ratio(settings, first_bin, self.prior.bins, scales)
        noise = draw_noise(rng, ratio, settings.tukey, band_mask(settings, self.seed, index))
        if is_standard(settings):
            return noise
        own = from_standard(noise.astype(np.complex128), first_bin, settings)
        return own.astype(np.complex64)

    def column(self, shard: int, name: str) -> NDArray[Any]:
        """Return a label (:class:`Arrays`) of all samples of a shard.

        Raises:
            InputError: the chunk is damaged.
        """
        return self._read(shard, name, slice(0, self.manifest.shards[shard].rows))

    def shard_ranges(self) -> list[tuple[int, int]]:
        """Return the first sample of each shard and the one after its last."""
        ends = [int(end) for end in self._ends]
        return list(zip([0, *ends[:-1]], ends, strict=True))

    def first_bins(self, start: int, stop: int) -> Int:
        """Return the first Fourier bins of samples ``start..stop-1``."""
        parts = [
            self._read(number, "first_bin", slice(max(start - low, 0), min(stop, high) - low))
            for number, (low, high) in enumerate(self.shard_ranges())
            if low < stop and start < high
        ]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def arrays(self) -> Arrays:
        """Return the labels of all samples."""
        columns = (
            np.concatenate([self.column(n, name) for n in range(len(self.manifest.shards))])
            for name in _names(Arrays)
        )
        return Arrays(*columns)
