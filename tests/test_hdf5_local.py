"""slotflow.hdf5_local: damaged files give one error, in the process that reads them."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from slotflow import hdf5_checks, hdf5_local
from slotflow.errors import InputError

DATA = np.arange(40_000, dtype=np.float64).reshape(-1, 4)


def _read(path: Path, name: str = "group/data") -> NDArray[Any]:
    with hdf5_local.opened(path) as file:
        return np.concatenate(list(hdf5_local.dataset_parts(file, name).parts))


@pytest.mark.parametrize("chunks", [None, (333, 4), (1000, 3)])
def test_parts_are_slabs_in_order(
    tmp_path: Path, chunks: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdf5_local, "SLAB_BYTES", 50_000)  # several slabs, not whole chunks
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("group/data", data=DATA, chunks=chunks)
    with hdf5_local.opened(tmp_path / "a.h5") as file:
        parts = list(hdf5_local.dataset_parts(file, "group/data").parts)
        columns = list(hdf5_local.column_parts(file, "group/data").parts)
    assert len(parts) == len(columns) > 5
    np.testing.assert_array_equal(np.concatenate(parts), DATA)
    np.testing.assert_array_equal(np.concatenate(columns, axis=1), DATA.T)
    assert all(part.flags.c_contiguous for part in columns)


@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(fraction=st.floats(0.0, 0.999))
def test_truncated_at_any_length(tmp_path: Path, fraction: float) -> None:
    whole, cut = tmp_path / "whole.h5", tmp_path / "cut.h5"
    if not whole.exists():
        with h5py.File(whole, "w") as file:
            file.create_dataset("group/data", data=DATA, chunks=(500, 4), compression="gzip")
    content = whole.read_bytes()
    cut.write_bytes(content[: int(fraction * len(content))])
    with pytest.raises(InputError, match=r"cut\.h5: (truncated|not an|damaged|group/data)"):
        _read(cut)


@settings(
    deadline=None,
    max_examples=150,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_corrupted_metadata_never_escapes(tmp_path: Path, data: st.DataObject) -> None:
    """Bytes of the header overwritten: the data or an InputError, nothing else."""
    whole, bad = tmp_path / "whole.h5", tmp_path / "bad.h5"
    if not whole.exists():
        with h5py.File(whole, "w") as file:
            file.create_dataset("group/data", data=DATA[:50], chunks=(10, 4), fletcher32=True)
    content = bytearray(whole.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        where = data.draw(st.integers(8, min(4000, len(content) - 1)))
        content[where] = data.draw(st.integers(0, 255))
    bad.write_bytes(content)
    try:
        result = _read(bad)
    except InputError:
        return
    assert result.size * result.itemsize <= hdf5_checks.MAX_BYTES
