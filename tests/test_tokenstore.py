"""Tokens on disk: read as they were written, in any order, without holding them in memory."""

import json
import multiprocessing
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotflow.batches import token_moments
from slotflow.errors import InputError
from slotflow.tokendata import TokenArrays, TokenData, TokenSubset
from slotflow.tokenstore import TokenStore, is_whole, record_dtype, write_tokens
from tests.synthetic import token_data

DTYPE = record_dtype(10, 4)
ROWS = (7, 1, 12)  # of three files, under two noise draws
DATA = token_data(0, 40)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return write(tmp_path_factory.mktemp("tokens"))


def write(folder: Path) -> TokenStore:
    paths, start = [], 0
    for number, rows in enumerate(2 * ROWS):
        paths.append(folder / f"tokens-{number}.bin")
        write_tokens(paths[-1], DATA.rows(np.arange(start, start + rows)))
        start += rows
    return TokenStore(paths, 2 * ROWS, sum(ROWS), DTYPE)


def same(a: TokenData, b: TokenData) -> bool:
    pairs = ((getattr(a, name), getattr(b, name)) for name in TokenData._fields)
    return all(x.dtype == y.dtype and np.array_equal(x, y, equal_nan=True) for x, y in pairs)


def expected(index: np.ndarray) -> TokenData:
    return DATA.rows(index)._replace(sample=index % sum(ROWS))


@given(st.lists(st.integers(0, 39), max_size=60))
def test_rows_are_those_written(store: TokenStore, chosen: list[int]) -> None:
    """In any order, with repetitions, over the borders of files and draws."""
    index = np.array(chosen, dtype=np.int64)
    assert same(store.rows(index), expected(index))


def test_length_samples_and_borders(store: TokenStore) -> None:
    assert len(store) == 40
    assert np.array_equal(store.sample, np.tile(np.arange(20), 2))
    subset = TokenSubset(store, np.array([39, 0, 21]))
    assert subset.sample.tolist() == [19, 0, 1]
    assert same(subset.rows(np.array([2, 0])), expected(np.array([21, 39])))
    for outside in (-1, 40):
        with pytest.raises(IndexError, match=r"expected bands of 0\.\.39"):
            store.rows(np.array([3, outside]))


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_few_files_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotflow.tokenstore._OPEN_FILES", 2)
    before = open_files()
    with write(tmp_path) as store:
        for _ in range(3):
            assert same(store.rows(np.arange(40)), expected(np.arange(40)))
        assert open_files() <= before + 2
    assert open_files() == before


def test_read_after_fork_and_pickle(store: TokenStore) -> None:
    """A child may read at the same time: the position in a file is not shared."""
    index = np.arange(40)
    store.rows(index)
    child = os.fork()
    if not child:
        os._exit(0 if all(same(store.rows(index), expected(index)) for _ in range(50)) else 1)
    assert all(same(store.rows(index), expected(index)) for _ in range(50))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert same(pickle.loads(pickle.dumps(store)).rows(index), expected(index))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert same(pool.apply(store.rows, (index,)), expected(index))


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    write_tokens(path, DATA.rows(np.arange(2)))
    whole = path.read_bytes()
    assert is_whole(path, 2, DTYPE)
    assert not is_whole(path, 3, DTYPE)
    assert not is_whole(path, 2, record_dtype(10, 3))
    rng = np.random.default_rng(1)
    for place in [0, 31, 32, len(whole) - 1, *rng.integers(0, len(whole), 50).tolist()]:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        assert not is_whole(path, 2, DTYPE), place


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokens.bin"
    write_tokens(path, DATA.rows(np.arange(2)))
    whole = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("slotflow.manifest.os.fsync", full)
    with pytest.raises(InputError, match=r"tokens\.bin: cannot be written: No space left"):
        write_tokens(path, DATA)
    assert [p.name for p in tmp_path.iterdir()] == ["tokens.bin"]
    assert path.read_bytes() == whole


def test_moments_are_those_of_all_tokens(store: TokenStore) -> None:
    every = DATA.features[DATA.valid].astype(np.float64)
    for source, chunk in ((store, 7), (store, 1), (TokenArrays(DATA), 100)):
        moments = token_moments(source, chunk)
        assert moments is not None
        assert np.allclose(moments[0].numpy(), every.mean(axis=0), rtol=1e-12, atol=1e-13)
        assert np.allclose(moments[1].numpy(), every.std(axis=0, ddof=1), rtol=1e-12, atol=1e-13)
    assert token_moments(TokenSubset(store, np.arange(0))) is None


READER = """
import json, sys
from pathlib import Path
import numpy as np, torch
from slotflow.batches import token_moments
from slotflow.tokenstore import TokenStore, is_whole, record_dtype

def peak():
    text = Path("/proc/self/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) * 1024

rows, paths = int(sys.argv[1]), [Path(name) for name in sys.argv[2:]]
dtype = record_dtype(10, 4)
store = TokenStore(paths, [rows] * len(paths), rows * len(paths), dtype)
store.rows(np.arange(256))
before = peak()
assert all(is_whole(path, rows, dtype) for path in paths)
token_moments(store)
for batch in np.split(np.random.default_rng(0).permutation(len(store)), 100):
    store.rows(batch)
print(json.dumps([before, peak(), len(store) * dtype.itemsize]))
"""


def test_reading_a_large_set_takes_little_memory(tmp_path: Path) -> None:
    """160 MB of tokens are checked, standardised and drawn in batches within 60 MB."""
    part = DATA.rows(np.arange(5000) % 40)
    paths = [tmp_path / f"tokens-{number}.bin" for number in range(10)]
    for path in paths:
        write_tokens(path, part)
    command = [sys.executable, "-c", READER, "5000", *map(str, paths)]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=100)
    before, after, size = json.loads(out.stdout)
    assert size > 150e6
    assert after - before < 60e6
