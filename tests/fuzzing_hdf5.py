"""Spoilt HDF5 files of every layout: of their bytes, and of the objects in them."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from slotflow import hdf5_process
from slotflow.errors import SlotflowError
from slotflow.hdf5_server import Files
from tests.fuzzing import SAMPLES, Choices, one_of, spoilt
from tests.layouts import white, write_mojito, write_radler, write_sangria, xyz2

#: Names that a layout's reader looks at, present or not.
NAMES: Mapping[str, Sequence[str]] = {
    "sangria": ("obs/tdi", "obs", "obs/gaps", "clean/tdi", "truth", "truth/names", "truth/sources",
                "truth/snr", "/"),
    "radler": ("H5LISA/PreProcess/TDIdata", "H5LISA", "H5LISA/PreProcess", "H5LISA/GWSources",
               "H5LISA/GWSources/GalBinaries", "H5LISA/GWSources/GalBinaries/Cadence",
               "H5LISA/Cadence", "/"),
    "mojito": ("tdis/X2", "tdis/Y2", "tdis", "tdis/sampling", "tdis/tdi_flags", "tdis/A2", "tdis/X",
               "orbits/sampling", "orbits/sc_position_1", "orbits", "/"),
    "shard": ("signal", "foreground", "sources", "snr", "count", "first_bin", "outside",
              "rate_scale", "oms_scale", "/"),
}  # fmt: skip
ATTRIBUTES = (
    "tdi_generation", "t0", "orbit", "orbit_L", "orbit_lambda1", "dt", "size", "laser_frequency",
    "schema_version", "seed", "start", "x",
)  # fmt: skip


@lru_cache(maxsize=8)
def whole(layout: str) -> bytes:
    """A small file that is read without complaint."""
    with tempfile.TemporaryDirectory() as folder:
        path, xyz = Path(folder) / "input.h5", white(SAMPLES)
        if layout == "sangria":
            write_sangria(path, xyz, 60.0, tdi_generation="1.5", orbit="equal_arm", t0=0.0)
            with h5py.File(path, "a") as file:
                file["truth/names"] = np.array([b"a", b"b"])
                file["truth/sources"], file["truth/snr"] = np.ones((2, 8)), np.ones(2)
        elif layout == "radler":
            write_radler(path, xyz, 60.0, tdi_generation="1.5")
        elif layout == "mojito":
            from lisaorbits import EqualArmlengthOrbits

            flags = (np.arange(SAMPLES) // 50 == 3).astype(int)
            write_mojito(path, xyz2(xyz), 60.0, flags=flags, orbit=EqualArmlengthOrbits())
        else:
            from tests.stored_set import write_stored_set

            write_stored_set(Path(folder) / "set")
            path = Path(folder) / "set" / "shard-00001.h5"
        return path.read_bytes()


def make(choices: Choices, folder: Path, layout: str, kind: str) -> Path:
    """Write a spoilt file of a layout."""
    path = folder / ("shard-00001.h5" if layout == "shard" else "input.h5")
    content = whole(layout)
    if kind == "bytes":
        path.write_bytes(spoilt(choices, content))
        return path
    path.write_bytes(content)
    with h5py.File(path, "a") as file:
        for _ in range(choices.integer(1, 3)):
            try:
                spoil(choices, file, layout)
            except (OSError, RuntimeError, LookupError, TypeError, ValueError, AttributeError,
                    ArithmeticError, MemoryError):  # fmt: skip
                continue  # HDF5 itself refuses: another change made it impossible
    return path


def spoil(choices: Choices, file: h5py.File, layout: str) -> None:
    """Change one object or attribute of a file."""
    name = one_of(choices, NAMES[layout])
    if name == "/" or choices.integer(0, 2) == 0:
        target = file.get(name, file)
        attribute = one_of(choices, ATTRIBUTES)
        value = one_of(choices, ATTRIBUTE_VALUES)
        if attribute in target.attrs:
            del target.attrs[attribute]
        if value is not None:
            target.attrs[attribute] = value(file) if callable(value) else value
        return
    there = file.get(name)
    small = isinstance(there, h5py.Dataset) and there.size and there.size < 10**6
    old = there[()] if small else np.ones(SAMPLES)
    if name in file:
        del file[name]
    one_of(choices, tuple(REPLACEMENTS.values()))(choices, file, name, old)


ATTRIBUTE_VALUES: Sequence[Any] = (
    None, "", "1.5", "2.0", "2", "3", b"1.5", "\x00", "é" * 100, 1.5, 2, 2**63 - 1, -1, True,
    np.nan, np.inf,
    np.zeros(3), np.zeros(0), np.zeros((2, 2)), np.array(["a", "b"], dtype=object), 1 + 2j,
    np.float16(2), np.longdouble(2), np.array(1.5, ">f8"), np.bytes_(b"\xff\xfe"), h5py.Empty("f8"),
    h5py.Empty("S10"), np.void(b"ab"), np.array((1, 2.0), dtype=[("a", "i4"), ("b", "f8")]),
    lambda file: file.ref, np.array("x" * 60_000, dtype=h5py.string_dtype()), "x" * 64_000,
)  # fmt: skip


def _typed(dtype: str) -> Callable[..., None]:
    def change(choices: Choices, file: h5py.File, name: str, old: Any) -> None:
        plain = old if old.dtype.names is None else old[old.dtype.names[0]]
        with np.errstate(all="ignore"):
            file[name] = np.real(plain).astype(dtype)

    return change


def _fields(choices: Choices, file: h5py.File, name: str, old: Any) -> None:
    kinds = ("<f8", ">f8", "f2", "f4", "i8", "S3", "c16", "?", "f16")
    fields = one_of(choices, ("tXYZ", "tXY", "XYZ", "tXYZQ", "ZYXt"))
    made = [(field, one_of(choices, kinds)) for field in fields]
    file[name] = np.zeros((SAMPLES, 1), dtype=made)


def _shaped(choices: Choices, file: h5py.File, name: str, old: Any) -> None:
    ways: Sequence[Callable[[], Any]] = (
        lambda: old[:3], lambda: old[:0], lambda: old[None], lambda: old[..., None],
        lambda: old.reshape(-1)[0], lambda: old.T, lambda: np.stack([old, old], axis=-1),
        lambda: old.reshape(1, 1, 1, 1, -1), lambda: np.tile(old, 2),
    )  # fmt: skip
    file[name] = one_of(choices, ways)()


def _values(choices: Choices, file: h5py.File, name: str, old: Any) -> None:
    new = old.copy()
    columns = [new] if new.dtype.names is None else [new[one_of(choices, new.dtype.names)]]
    flat = columns[0].reshape(-1) if columns[0].flags.c_contiguous else columns[0][..., 0]
    at = choices.integer(0, max(len(flat) - 1, 0))
    value = one_of(choices, (np.nan, np.inf, -1.0, 0.0, 1e300, 1e-320, 2.0**40))
    with np.errstate(all="ignore"):
        flat[at : at + one_of(choices, (1, 2, 50, 600, len(flat)))] = value
    file[name] = new


def _declared(choices: Choices, file: h5py.File, name: str, old: Any) -> None:
    size = one_of(choices, (10**15, 2**40, 2**28, 2**62))
    shape = one_of(choices, ((size,), (size, 1), (1, size), (size, 4), (SAMPLES, 2**20)))
    chunks = one_of(choices, (None, (4096, *shape[1:])[: len(shape)], True))
    made = file.create_dataset(name, shape, dtype=old.dtype, chunks=chunks, fillvalue=None)
    if chunks is not None and choices.integer(0, 1):
        made[:1] = np.zeros((), dtype=old.dtype)


def _packed(choices: Choices, file: h5py.File, name: str, old: Any) -> None:
    options = one_of(
        choices,
        ({"compression": "gzip"}, {"compression": "lzf"}, {"scaleoffset": 2}, {"fletcher32": True},
         {"shuffle": True}, {"chunks": True}, {"maxshape": (None,) * old.ndim}),
    )  # fmt: skip
    if choices.integer(0, 3) == 0:  # zeros, which pack into next to nothing
        row = old.dtype.itemsize * int(np.prod(old.shape[1:]))
        old = np.zeros(((1 << 26) // max(row, 1), *old.shape[1:]), dtype=old.dtype)
    file.create_dataset(name, data=old, **options)


def _external(choices: Choices, file: h5py.File, name: str, old: Any) -> None:
    other = Path(file.filename).with_suffix(".bin")
    other.write_bytes(old.tobytes())
    file.create_dataset(name, old.shape, old.dtype, external=[(str(other), 0, h5py.h5f.UNLIMITED)])


def _virtual(choices: Choices, file: h5py.File, name: str, old: Any) -> None:
    layout = h5py.VirtualLayout(shape=old.shape, dtype=old.dtype)
    source = one_of(choices, (".", "absent.h5", "/etc/passwd"))
    layout[...] = h5py.VirtualSource(source, "other", shape=old.shape)
    file.create_virtual_dataset(name, layout)


def _linked(choices: Choices, file: h5py.File, name: str, old: Any) -> None:
    links = (h5py.SoftLink("/"), h5py.SoftLink(f"/{name}"), h5py.SoftLink("/absent"),
             h5py.ExternalLink("other.h5", "/"), h5py.ExternalLink(file.filename, "/obs"),
             h5py.ExternalLink("/etc/passwd", "/x"))  # fmt: skip
    file[name] = one_of(choices, links)


def _hard(choices: Choices, file: h5py.File, name: str, old: Any) -> None:
    file[name] = file[one_of(choices, ("/", *list(file)))]  # a circle, or one object twice


def _group(choices: Choices, file: h5py.File, name: str, old: Any) -> None:
    group = file.create_group(name)
    for i in range(one_of(choices, (0, 1, 300))):
        group.create_group(f"{i}")


def _odd(choices: Choices, file: h5py.File, name: str, old: Any) -> None:
    values: Sequence[Any] = (
        np.array(["a"] * 5, dtype=object), np.dtype("<f8"), h5py.Empty("f8"), np.void(b"abc"),
        np.array([file.ref], dtype=h5py.ref_dtype), np.zeros(5, "S5000"),
        np.zeros(5, h5py.enum_dtype({"A": 1})), np.zeros(5, [("a", "f8", (3,))]),
        np.zeros(5, [("a", [("b", "f8")])]), np.zeros(3, dtype="V12"),
    )  # fmt: skip
    file[name] = one_of(choices, values)


REPLACEMENTS: Mapping[str, Callable[[Choices, h5py.File, str, Any], None]] = {
    "gone": lambda choices, file, name, old: None,
    **{f"as {kind}": _typed(kind) for kind in (">f8", "f4", "f2", "f16", "i8", "u1")},
    **{f"as {kind}": _typed(kind) for kind in ("c16", "S8", "?")},
    "fields": _fields, "shaped": _shaped, "values": _values, "values again": _values,
    "declared": _declared, "packed": _packed, "external": _external, "virtual": _virtual,
    "linked": _linked, "hard": _hard, "group": _group, "odd": _odd,
}  # fmt: skip


class Here:
    """Stands for the process that reads files, within this one: as fast, and crashes with it."""

    def __init__(self) -> None:
        self._files, self.files = Files(), 0
        self._frames: Iterator[tuple[bytes, Any]] = iter(())
        self._content = memoryview(b"")

    def send(self, request: Mapping[str, Any]) -> None:
        self._frames = self._files.answer(request)

    def frame(self) -> tuple[bytes, int]:
        kind, content = next(self._frames)
        self._content = memoryview(content)
        return kind, self._content.nbytes

    def fill(self, view: memoryview) -> None:
        view[:] = self._content[: len(view)]
        self._content = self._content[len(view) :]

    def end(self) -> None:
        self._frames = iter(())


@contextlib.contextmanager
def here() -> Iterator[None]:
    """Read files in this process meanwhile."""

    def started(request: Mapping[str, Any]) -> Any:
        stand_in = Here()
        stand_in.send(request)
        return stand_in, stand_in.frame()

    plain = hdf5_process.started, hdf5_process.keep
    hdf5_process.started, hdf5_process.keep = started, lambda process: process.end()
    try:
        yield
    finally:
        hdf5_process.started, hdf5_process.keep = plain


def _read_observation(path: Path) -> None:
    from slotflow.readers import read_observation, read_truth

    observation, problem = None, None
    try:
        observation = read_observation(path)
    except SlotflowError as error:
        problem = error
    try:
        read_truth(path)
    except SlotflowError as error:
        problem = error
    if observation is not None:
        assert observation.tdi.dtype == np.float64
        assert np.isfinite(observation.tdi).all()
        assert observation.dt > 0.0
        assert np.isfinite([observation.t0, observation.start]).all()
    if problem is not None:
        raise problem


read_sangria = read_radler = read_mojito = _read_observation


@lru_cache(maxsize=1)
def _set_folder() -> Path:
    from tests.stored_set import write_stored_set

    base = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(dir=base)) / "set"
    write_stored_set(folder)
    return folder


def read_shard(path: Path) -> None:
    """As part of a training set whose manifest says nothing of its checksum."""
    from slotflow.setcheck import check_shards, checked_manifest
    from slotflow.store import TrainingSet

    folder = _set_folder()
    shutil.copy(path, folder / path.name)
    list(check_shards(folder, checked_manifest(folder)))
    data = TrainingSet(folder)
    try:
        bands = data.bands(0, len(data))
        assert np.isfinite(bands).all()
        list(data.targets(0, len(data)))
        data.first_bins(0, len(data))
    finally:
        data.close()
