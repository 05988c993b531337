"""slotflow.sink: HDF5 files that are written through it, with and without room for them."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from slotflow.sink import Sink
from tests.test_full_disk import files_up_to

DATA = np.arange(50_000, dtype=np.float64)


def write(sink: Sink) -> None:
    with h5py.File(sink, "w") as file:
        made = file.create_dataset("a", (0,), maxshape=(None,), dtype="f8", chunks=(1000,))
        for begin in range(0, DATA.size, 5000):
            made.resize((begin + 5000,))
            made[begin : begin + 5000] = DATA[begin : begin + 5000]
        file.attrs["b"] = "c"


def test_it_is_a_file_like_any_other(tmp_path: Path) -> None:
    sink = Sink(tmp_path / "a.h5")
    write(sink)
    sink.close()
    sink.check()
    with h5py.File(tmp_path / "a.h5") as file:
        np.testing.assert_array_equal(file["a"], DATA)
        assert file.attrs["b"] == "c"


@pytest.mark.parametrize("size", [0, 700, 5_000, 100_000, 390_000])
def test_no_room_is_an_error_when_asked(tmp_path: Path, size: int) -> None:
    with files_up_to(size):
        sink = Sink(tmp_path / "a.h5")
        write(sink)
        sink.close()
    with pytest.raises(OSError, match="File too large"):
        sink.check()
    assert (tmp_path / "a.h5").stat().st_size <= size


def test_a_file_that_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Sink(tmp_path / "absent" / "a.h5")
