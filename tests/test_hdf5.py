"""slotflow.hdf5: what a hostile or damaged file can try, and plain files as they are."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from slotflow import hdf5
from slotflow.errors import InputError

DATA = np.arange(40_000, dtype=np.float64).reshape(-1, 4)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "input.h5"


def _read(path: Path, name: str = "group/data", **kwargs: object) -> np.ndarray:
    with hdf5.open_checked(path) as file:
        return hdf5.read_dataset(file, name, **kwargs)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chunks": (333, 4)},
        {"chunks": (1000, 4), "compression": "gzip", "shuffle": True, "fletcher32": True},
        {"chunks": (1000, 3), "compression": "lzf"},
    ],
)
def test_reads_what_was_written(path: Path, options: dict[str, object]) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("group/data", data=DATA, **options)
    np.testing.assert_array_equal(_read(path), DATA)


def test_one_field_of_a_compound(path: Path) -> None:
    rows = np.zeros((100, 1), dtype=[("t", "<f8"), ("X", "<f4"), ("name", "S8")])
    rows["X"][:, 0] = np.arange(100)
    with h5py.File(path, "w") as file:
        file["group/data"] = rows
    np.testing.assert_array_equal(_read(path, field="X")[:, 0], np.arange(100))
    with pytest.raises(
        InputError, match=r"input.h5: group/data: no field 'Q' \(fields: t, X, name"
    ):
        _read(path, field="Q")


def test_missing_empty_directory_and_other_files(tmp_path: Path, path: Path) -> None:
    with pytest.raises(InputError, match=r"input\.h5: no such file"):
        _read(path)
    with pytest.raises(InputError, match="not a file"):
        _read(tmp_path)
    path.write_bytes(b"")
    with pytest.raises(InputError, match=r"not an HDF5 file.*empty"):
        _read(path)
    path.write_text("t,X,Y,Z\n" * 1000)
    with pytest.raises(InputError, match="not an HDF5 file"):
        _read(path)


def test_user_block_is_fine(path: Path) -> None:
    with h5py.File(path, "w", userblock_size=1024) as file:
        file["group/data"] = DATA
    np.testing.assert_array_equal(_read(path), DATA)


def test_a_flipped_byte_is_noticed(path: Path) -> None:
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("group/data", data=DATA, chunks=(2500, 4), fletcher32=True)
        offset = dataset.id.get_chunk_info(1).byte_offset
    content = bytearray(path.read_bytes())
    content[offset + 100] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="group/data: cannot be read"):
        _read(path)


def test_links_out_of_the_file_are_refused(path: Path, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["data"] = DATA
    with h5py.File(path, "w") as file:
        file["real"] = DATA
        file["external"] = h5py.ExternalLink("other.h5", "/data")
        file["soft"] = h5py.SoftLink("/real")
        file["loop"] = h5py.SoftLink("/loop")
        file["out"] = h5py.ExternalLink("other.h5", "/")
    for name, kind in (
        ("external", "an external"),
        ("soft", "a soft"),
        ("loop", "a soft"),
        ("loop/data", "a soft"),
        ("out/data", "an external"),
    ):
        with pytest.raises(InputError, match=f"{kind} link"):
            _read(path, name)


def test_external_storage_is_refused(path: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"12345678" * 4)
    with h5py.File(path, "w") as file:
        file.create_dataset("group/data", (4,), dtype="<f8", external=[(str(secret), 0, 32)])
    with pytest.raises(InputError, match="external storage"):
        _read(path)


def test_virtual_data_sets_are_refused(path: Path) -> None:
    layout = h5py.VirtualLayout(shape=(10,), dtype="<f8")
    layout[:] = h5py.VirtualSource("missing.h5", "data", shape=(10,))
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("group/data", layout)
    with pytest.raises(InputError, match="virtual data set"):
        _read(path)


def test_declared_but_not_stored(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("huge", (1 << 50,), dtype="<f8", chunks=(1 << 16,))
        file.create_dataset("hollow", (1000, 1000), dtype="<f8")
        part = file.create_dataset("part", (1000,), dtype="<f8", chunks=(100,))
        part[:300] = 1.0
        file.create_dataset("none", (0, 4), dtype="<f8")
        file["null"] = h5py.Empty("<f8")
    with pytest.raises(InputError, match="huge: declares 9007199254740992 bytes"):
        _read(path, "huge")
    with pytest.raises(InputError, match="hollow: declares 8000000 bytes but stores 0"):
        _read(path, "hollow")
    with pytest.raises(InputError, match="part: 7 of 10 chunks never written"):
        _read(path, "part")
    for name in ("none", "null"):
        with pytest.raises(InputError, match="holds no data"):
            _read(path, name)


def test_a_chunk_that_unpacks_into_too_much(path: Path) -> None:
    with h5py.File(path, "w") as file:
        many = 1 << 26
        file.create_dataset("group/data", (many,), "f8", chunks=(many,), compression="gzip")
    with pytest.raises(InputError, match="a chunk of 536870912 bytes"):
        _read(path)


def test_filters_off_the_list(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("group/data", data=np.arange(1000), chunks=(100,), scaleoffset=10)
    with pytest.raises(InputError, match=r"filter 6 is not supported \(only gzip, shuffle"):
        _read(path)


def test_types_that_are_not_numbers(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["text"] = np.array(["a", "b"], dtype=h5py.string_dtype())
        file["complex"] = np.ones(5, complex)
        file["reference"] = np.array([file.ref], dtype=h5py.ref_dtype)
        file["nested"] = np.zeros(5, dtype=[("t", "<f8"), ("XYZ", "<f8", (3,))])
        file["committed"] = np.dtype("<f8")
        file.create_group("only")
        file["wide"] = np.zeros(5, "S2000")
    for name in ("text", "complex", "reference", "nested"):
        with pytest.raises(InputError, match=f"{name}.*not supported"):
            _read(path, name)
    with pytest.raises(InputError, match="neither a group nor a data set"):
        _read(path, "committed")
    with pytest.raises(InputError, match="a group where a data set is expected"):
        _read(path, "only")
    with pytest.raises(InputError, match="parent is not a group"):
        _read(path, "text/data")
    with pytest.raises(InputError, match="no such data set"):
        _read(path, "absent/data")
    with pytest.raises(InputError, match="2000 bytes of text"):
        _read(path, "wide")


def test_attributes(path: Path) -> None:
    with h5py.File(path, "w") as file:
        group = file.create_group("obs")
        group.attrs["text"] = "1.5"
        group.attrs["bytes"] = np.bytes_(b"2.0")
        group.attrs["number"] = np.int32(2)
        group.attrs["array"] = np.zeros(3)
        group.attrs["one"] = np.array([4.5])
        group.attrs["reference"] = file.ref
    with hdf5.open_checked(path) as file:
        assert hdf5.read_attribute(file, "obs", "text") == "1.5"
        assert hdf5.read_attribute(file, "obs", "bytes") == "2.0"
        assert hdf5.read_attribute(file, "obs", "number") == 2.0
        assert hdf5.read_attribute(file, "obs", "one") == 4.5
        assert hdf5.read_attribute(file, "obs", "absent") is None
        assert hdf5.read_attribute(file, "absent", "text") is None
        for name in ("array", "reference"):
            with pytest.raises(InputError, match=f"obs, attribute '{name}'"):
                hdf5.read_attribute(file, "obs", name)
