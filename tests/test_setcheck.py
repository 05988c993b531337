"""The check of a training set: each damage is named, and what it says of a rerun is true."""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from slotflow import atomic, manifest, setcheck, store
from slotflow.cli.main import run
from slotflow.config import Preset
from slotflow.errors import InputError, NonFiniteError
from slotflow.simulate import dataset
from tests.test_store import edit_manifest, make_band, settings

SEED, SIZE, ROWS = 11, 5, (5, 5, 2)


def write_set(
    directory: Path, change: Callable[[list[store.Band]], None] | None = None, **attributes: int
) -> Path:
    """Write three shards; ``change`` alters the bands before they are written."""
    directory.mkdir(parents=True, exist_ok=True)
    bands = [make_band(i) for i in range(sum(ROWS))]
    if change is not None:
        change(bands)
    entries = []
    for number, rows in enumerate(ROWS):
        start = number * SIZE
        path = directory / manifest.shard_name(number)
        stored = {"seed": SEED, "start": start} | attributes
        entries.append(store.write_shard(path, bands[start : start + rows], stored))
    listed = manifest.Manifest(
        manifest.SCHEMA_VERSION, sum(ROWS), SEED, SIZE, settings(), tuple(entries)
    )
    manifest.write_manifest(directory, listed)
    return directory


def reports(directory: Path) -> list[setcheck.ShardReport]:
    """Check a set; return what is wrong."""
    found = setcheck.check_shards(directory, setcheck.checked_manifest(directory))
    return [report for report in found if report.problem]


def list_again(directory: Path) -> None:
    """Give the manifest the checksums of the shards that stand."""
    found = manifest.read_manifest(directory)
    shards = tuple(
        s._replace(sha256=manifest.file_sha256(directory / s.name)) for s in found.shards
    )
    manifest.write_manifest(directory, found._replace(shards=shards))


def set_value(name: str, row: int, value: float) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            place = (row,) + (0,) * (file[name].ndim - 1)
            file[name][place] = value

    return damage


def delete(path: Path) -> None:
    path.unlink()


def flip(path: Path) -> None:
    with h5py.File(path) as file:
        offset = file["signal"].id.get_chunk_info(0).byte_offset
    content = bytearray(path.read_bytes())
    content[offset + 100] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def version(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file.attrs["schema_version"] = 7


def shape(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        values = file["snr"][:, :2]
        del file["snr"]
        file["snr"] = values


def start(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file.attrs["start"] = 0


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def test_a_whole_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_set(tmp_path)
    assert reports(tmp_path) == []
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    assert run(["simulate", "--check", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert out == f"{tmp_path}: 3 of 3 shards whole, 12 of 12 bands, seed 11\n"
    assert err == ""
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (delete, ["missing"]),
        (flip, ["SHA-256 differs", "signal: damaged"]),
        (truncate, ["SHA-256 differs", "truncated"]),
        (empty, ["SHA-256 differs", "empty"]),
        (set_value("foreground", 3, np.nan), ["SHA-256 differs", "foreground not finite in 1 of"]),
    ],
)
def test_a_damaged_shard_is_named(
    tmp_path: Path, damage: Callable[[Path], None], words: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    write_set(tmp_path)
    damage(tmp_path / "shard-00001.h5")
    [found] = reports(tmp_path)
    assert (found.name, found.rows, found.kept) == ("shard-00001.h5", 5, False)
    assert all(word in found.problem for word in words), found.problem
    assert run(["simulate", "--check", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    line, summary = out.splitlines()
    assert line == f"{tmp_path / 'shard-00001.h5'}: {found.problem}"
    assert summary == f"{tmp_path}: 2 of 3 shards whole, 7 of 12 bands, seed 11"
    assert len(err.splitlines()) == 1
    assert "1 of 3 shards must be made again" in err
    assert "delete" not in err


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (set_value("signal", 3, np.nan), r"^signal not finite in 1 of 5 samples \(first: sample 3"),
        (set_value("foreground", 0, np.inf), r"foreground not finite .*first: sample 0"),
        (set_value("sources", 2, np.nan), r"sources not finite .*sample 2"),  # count 3
        (set_value("snr", 1, np.nan), r"snr not finite"),
        (set_value("snr", 1, -1.0), r"snr not positive"),
        (set_value("snr", 3, 6.0), r"snr beyond count .*sample 3"),  # count 0
        (set_value("count", 3, 1), r"sources not finite .*sample 3.*; snr not finite"),
        (set_value("count", 2, 2), r"sources beyond count .*; snr beyond count"),
        (set_value("count", 2, 4), r"count beyond 3 .*sample 2"),
        (set_value("outside_count", 4, 1), r"outside not finite .*sample 4"),
        (set_value("outside", 4, 1e-3), r"outside beyond outside_count"),
        (set_value("rate_scale", 4, np.nan), r"rate_scale not finite and positive"),
        (set_value("first_bin", 4, -3), r"first_bin negative"),
        (set_value("count", 4, -1), r"count negative"),
        (version, rf"schema_version: expected {manifest.SCHEMA_VERSION}; got .*7"),
        (shape, r"snr: expected shape \(5, 3\); got \(5, 2\)"),
        (start, r"start: expected 5; got 0"),
    ],
)
def test_a_shard_that_was_written_so_is_named(
    tmp_path: Path, damage: Callable[[Path], None], words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Its checksum is the manifest's: a rerun would keep it."""
    write_set(tmp_path)
    damage(tmp_path / "shard-00001.h5")
    list_again(tmp_path)
    [found] = reports(tmp_path)
    assert found.kept
    assert "SHA" not in found.problem
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(found.problem)
    assert run(["simulate", "--check", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert "a rerun keeps it: delete it first" in out
    assert "delete shard-00001.h5 first" in err


@pytest.mark.parametrize("name", ["signal", "foreground"])
def test_one_nan_is_found_by_the_check_and_refused_by_the_reader(tmp_path: Path, name: str) -> None:
    """In a set that is otherwise whole, checksums and all."""
    write_set(tmp_path)
    set_value(name, 3, np.nan)(tmp_path / "shard-00001.h5")
    list_again(tmp_path)
    [found] = reports(tmp_path)
    assert found.name == "shard-00001.h5"
    assert f"{name} not finite in 1 of 5 samples (first: sample 3 of" in found.problem
    data = store.TrainingSet(tmp_path, verify=True)
    assert np.isfinite(data.bands(0, 8)).all()  # the others can be read
    assert np.isfinite(data.bands(9, 12)).all()
    with pytest.raises(NonFiniteError, match=rf"shard-00001\.h5: sample 3 .*{name}"):
        data.bands(0, 12)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (field.name, value)
        for field in dataclasses.fields(store.Band)
        for value in {float: (np.nan, np.inf, 0.0), int: (-1,)}.get(field.type, ())
    ],
)
def test_every_number_of_a_band_is_looked_at(tmp_path: Path, name: str, value: float) -> None:
    write_set(tmp_path)
    set_value(name, 3, value)(tmp_path / "shard-00001.h5")
    list_again(tmp_path)
    [found] = reports(tmp_path)
    assert found.problem.startswith(f"{name} ")
    assert "in 1 of 5 samples (first: sample 3 of the shard)" in found.problem


def test_settings_of_an_older_manifest(tmp_path: Path) -> None:
    """What it lacks counts as its default; what it has must be valid."""
    write_set(tmp_path)
    old = settings()
    del old["prior"]["snr_law"], old["observation"]["gaps"]
    edit_manifest(tmp_path, settings=old)
    found = setcheck.checked_manifest(tmp_path)
    complete = manifest.complete_settings(tmp_path, found)
    assert {name: complete[name] for name in old} == settings()
    assert complete["population"] == Preset().population.model_dump(mode="json")
    assert reports(tmp_path) == []


def test_numbers_are_counted_over_the_slabs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setcheck, "SLAB_BYTES", 48 * 64 * 2)  # two samples at a time

    def change(bands: list[store.Band]) -> None:
        for i in (3, 4):
            bands[i] = dataclasses.replace(bands[i], rate_scale=-1.0)

    [found] = reports(write_set(tmp_path, change))
    expected = "rate_scale not finite and positive in 2 of 5 samples (first: sample 3 of the shard)"
    assert found == ("shard-00000.h5", 5, expected, True)


def test_rows_that_differ_and_several_shards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_set(tmp_path)
    found = manifest.read_manifest(tmp_path)
    one, two, _ = found.shards
    manifest.write_manifest(tmp_path, found._replace(shards=(one._replace(rows=4), two)))
    directory(tmp_path / "shard-00001.h5")
    wrong = reports(tmp_path)
    assert [(r.name, r.kept) for r in wrong] == [
        ("shard-00000.h5", False), ("shard-00001.h5", True), ("shard-00002.h5", False)
    ]  # fmt: skip
    assert "lists 4 where 5 belong" in wrong[0].problem
    assert wrong[1].problem == "not a file"
    assert "not listed in manifest.json" in wrong[2].problem
    assert run(["simulate", "--check", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 4
    assert "3 of 3 shards must be made again: delete shard-00001.h5 first" in err


@pytest.mark.parametrize("at", range(0, 1600, 41))
def test_no_flipped_byte_escapes(tmp_path: Path, at: int) -> None:
    """In HDF5's own structures too, where reading may fail in any way."""
    write_set(tmp_path)
    path = tmp_path / "shard-00000.h5"
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)
    [found] = reports(tmp_path)
    assert found.problem.startswith("SHA-256 differs")
    assert "\n" not in found.problem
    assert not found.kept


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"samples": 4}, "beyond the 4 samples"),
        ({"shard_size": 0}, "shard_size"),
        ({"schema_version": 9}, "schema_version"),
        ({"settings": {"observation": {}, "prior": {"binz": 3}}}, "binz"),
    ],
)
def test_a_bad_manifest_is_refused(tmp_path: Path, changes: dict, words: str) -> None:
    write_set(tmp_path)
    edit_manifest(tmp_path, **changes)
    with pytest.raises(InputError, match=rf"{words}.*make the whole set again: .* --force"):
        setcheck.checked_manifest(tmp_path)


def test_no_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_set(tmp_path / "set")
    (tmp_path / "set" / manifest.MANIFEST).unlink()
    (tmp_path / "other").mkdir()
    (tmp_path / "file").write_text("mine")
    for name, words in (
        ("set", f"no manifest.json; make the whole set again: `slotflow simulate -o {tmp_path}"),
        ("other", "not a training set: no manifest.json"),
        ("absent", "no such folder"),
        ("file", "not a folder"),
    ):
        assert run(["simulate", "--check", str(tmp_path / name)]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert len(err.splitlines()) == 1
        assert words in err
        assert ("--force" in err) == (name == "set")


@pytest.mark.parametrize(
    "other", [["-o", "x"], ["--samples", "3"], ["--seed", "1"], ["--force"], ["--preset", "tiny"],
              ["--observation", "x.h5"], ["--workers", "1"], ["--no-galaxy"]],
)  # fmt: skip
def test_check_goes_alone(
    tmp_path: Path, other: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    write_set(tmp_path)
    assert run(["simulate", "--check", str(tmp_path), *other]) == 2
    assert "does not go with --check (see slotflow simulate --help)" in capsys.readouterr().err


# ---- against the simulation itself

SIMULATED = (10, 5)  # samples, seed


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    dataset.simulate_dataset(Preset(), folder, *SIMULATED, shard_size=4)
    return folder


def simulate_again(folder: Path) -> None:
    dataset.simulate_dataset(Preset(), folder, *SIMULATED, shard_size=4)


def contents(folder: Path) -> dict[str, bytes]:
    """The set's files: the manifest and the shards."""
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix in (".json", ".h5")}


def inodes(folder: Path) -> dict[str, int]:
    return {p.name: p.stat().st_ino for p in folder.glob("shard-*")}


@pytest.mark.parametrize("damage", [delete, flip, truncate, set_value("foreground", 1, np.nan)])
def test_a_rerun_remakes_what_is_damaged(
    undisturbed: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    folder = Path(shutil.copytree(undisturbed, tmp_path / "set"))
    assert reports(folder) == []
    damage(folder / "shard-00001.h5")
    [found] = reports(folder)
    assert not found.kept
    simulate_again(folder)
    assert reports(folder) == []
    assert contents(folder) == contents(undisturbed)


@pytest.mark.parametrize("damage", [set_value("signal", 1, np.nan), version, directory])
def test_a_rerun_remakes_what_was_written_so_once_it_is_deleted(
    undisturbed: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    folder = Path(shutil.copytree(undisturbed, tmp_path / "set"))
    bad = folder / "shard-00001.h5"
    damage(bad)
    if bad.is_file():
        list_again(folder)
        simulate_again(folder)  # kept, as the report says
    [found] = reports(folder)
    assert found.kept
    if bad.is_dir():
        bad.rmdir()
    else:
        bad.unlink()
    simulate_again(folder)
    assert reports(folder) == []
    assert contents(folder) == contents(undisturbed)


def test_the_command_that_is_named_remakes_the_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Word for word as the error says it; and --force where the manifest is gone."""
    folder = tmp_path / "my data"
    base = ["simulate", "-o", str(folder), "--workers", "1"]
    assert run([*base, "--samples", "3", "--seed", "5"]) == 0
    whole = contents(folder)
    truncate(folder / "shard-00000.h5")
    capsys.readouterr()
    assert run(["simulate", "--check", str(folder)]) == 2
    command = f"`slotflow simulate -o '{folder}' --samples 3 --seed 5`"
    assert f"{command} with the same preset remakes it" in capsys.readouterr().err
    assert run([*base, "--samples", "3", "--seed", "5"]) == 0
    assert contents(folder) == whole
    (folder / manifest.MANIFEST).unlink()
    assert run(["simulate", "--check", str(folder)]) == 2
    assert "--force" in capsys.readouterr().err
    assert run([*base, "--samples", "3", "--seed", "5"]) == 2
    assert run([*base, "--samples", "3", "--seed", "5", "--force"]) == 0
    assert contents(folder) == whole


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it, nothing is cleaned up."""


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("seconds", "renamings"), [(0.0, 8), (60.0, 5)])
def test_a_run_that_ends_at_any_renaming(
    undisturbed: Path, tmp_path: Path, after: bool, seconds: float, renamings: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Before and after each of them: the check says just what the rerun makes again.

    Three shards; the manifest at the start, at the end and, in the first case, after each.
    """
    renaming = manifest.replace
    monkeypatch.setattr(dataset, "MANIFEST_SECONDS", seconds)
    for step in range(renamings):
        folder, calls = tmp_path / str(step), iter(range(100))

        def kill(path: Path, temporary: Path, step: int = step, calls=calls) -> None:
            call = next(calls)
            if call < step or (call == step and after):
                renaming(path, temporary)
            if call >= step:  # and nothing is renamed any more
                raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(manifest, "replace", kill)
            patch.setattr(atomic, "replace", kill)
            with pytest.raises(Killed):
                simulate_again(folder)
        standing = inodes(folder)
        if (folder / manifest.MANIFEST).exists():
            wrong = {report.name for report in reports(folder)}
        else:
            wrong = {f"shard-0000{n}.h5" for n in range(3)}
        simulate_again(folder)
        assert not list(folder.glob(".*.tmp"))
        remade = {name for name, inode in inodes(folder).items() if standing.get(name) != inode}
        assert remade == wrong
        assert contents(folder) == contents(undisturbed)
