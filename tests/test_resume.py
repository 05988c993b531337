"""slotflow.resume: finished batches on disk."""

from pathlib import Path

import numpy as np
import pytest

from slotflow.errors import InputError
from slotflow.results import BandOutcome, BandView, SourcePosterior, TileRecord
from slotflow.resume import Partial, Partials

FIRSTS = [100, 292, 484]


def _outcomes(view: bool = False) -> list[BandOutcome]:
    """Bands with 0, 1 and 2 sources."""
    rng = np.random.default_rng(1)
    outcomes = []
    for count, first in enumerate(FIRSTS):
        sources = tuple(
            SourcePosterior(
                rng.standard_normal((7, 8)), rng.standard_normal(7), rng.random(), first, slot, 9.5
            )
            for slot in range(count)
        )
        record = TileRecord(first, rng.random(), rng.random(), 1.1, 0.9, count + 1, 0.7)
        kept = BandView(
            first, rng.standard_normal((3, 6)).astype(np.complex64), rng.random((3, 6)),
            rng.random((2, count + 1)), rng.random((3, count + 1)), rng.random(count + 1),
            rng.random(2), (),
        )  # fmt: skip
        measured, q_k = rng.random(2), rng.random(3)
        outcomes.append(BandOutcome(record, measured, q_k, sources, kept if view else None))
    return outcomes


def _assert_equal(one: list[BandOutcome], other: list[BandOutcome]) -> None:
    for a, b in zip(one, other, strict=True):
        assert a.record == b.record
        assert isinstance(b.record.first_bin, int)
        assert isinstance(b.record.components, int)
        np.testing.assert_array_equal(a.measured, b.measured)
        np.testing.assert_array_equal(a.q_k, b.q_k)
        for s, t in zip(a.sources, b.sources, strict=True):
            np.testing.assert_array_equal(s.samples, t.samples)
            np.testing.assert_array_equal(s.log_q, t.log_q)
            assert (s.probability, s.first_bin, s.slot, s.snr) == (
                t.probability, t.first_bin, t.slot, t.snr,
            )  # fmt: skip
        assert (a.view is None) == (b.view is None)
        if a.view is not None and b.view is not None:
            for name in ("data", "psd", "attention", "evidence", "places", "existence"):
                x, y = getattr(a.view, name), getattr(b.view, name)
                assert x.dtype == y.dtype
                np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("view", [False, True])
def test_batches_come_back_to_the_bit(tmp_path: Path, view: bool) -> None:
    partial = Partial(tmp_path / ".x.partial", "run")
    partial.open("plan")
    assert partial.load(0, FIRSTS) is None
    partial.save(0, _outcomes(view))
    again = Partial(tmp_path / ".x.partial", "run")
    again.open("plan")
    found = again.load(0, FIRSTS)
    assert found is not None
    _assert_equal(_outcomes(view), found)
    assert again.load(1, FIRSTS) is None
    assert again.load(0, FIRSTS[:2]) is None  # a batch of other bands
    again.open("plan")  # the same object again
    assert again.load(0, FIRSTS) is not None
    assert again.bands == 3
    again.remove()
    assert not (tmp_path / ".x.partial").exists()
    again.remove()


def test_batches_without_any_source(tmp_path: Path) -> None:
    partial = Partial(tmp_path / "p", "run")
    partial.open("")
    partial.save(0, _outcomes()[:1])
    found = partial.load(0, FIRSTS[:1])
    assert found is not None
    assert found[0].sources == ()


@pytest.mark.parametrize(("identity", "plan"), [("other", "plan"), ("run", "other")])
def test_another_run_removes_what_is_there(tmp_path: Path, identity: str, plan: str) -> None:
    partial = Partial(tmp_path / "p", "run")
    partial.open("plan")
    partial.save(0, _outcomes())
    other = Partial(tmp_path / "p", identity)
    other.open(plan)
    assert not (tmp_path / "p").exists()
    assert other.load(0, FIRSTS) is None


def test_models_that_were_not_asked_this_time(tmp_path: Path) -> None:
    """A run over all frequencies was broken off; one over fewer leaves nothing of it."""
    before = Partials(tmp_path / ".x.partial", "all")
    for name in ("low", "high"):
        before(name).open("plan")
        before(name).save(0, _outcomes())
    (tmp_path / ".x.partialled").mkdir()
    (tmp_path / ".x.partial-notes").write_text("the user's")
    after = Partials(tmp_path / ".x.partial", "few")
    after("low").open("plan")
    after("low").save(0, _outcomes())
    after.remove()
    assert {path.name for path in tmp_path.iterdir()} == {".x.partialled", ".x.partial-notes"}


def test_two_runs_at_once_do_not_take_each_others_batches(tmp_path: Path) -> None:
    """The second begins while the first is at work, and removes what the first has kept."""
    one, other = Partial(tmp_path / "p", "one"), Partial(tmp_path / "p", "other")
    one.open("plan")
    one.save(0, _outcomes())
    other.open("plan")
    one.save(1, _outcomes())
    other.save(0, _outcomes())
    again = Partial(tmp_path / "p", "one")
    again.open("plan")
    assert again.load(0, FIRSTS) is None
    assert again.load(1, FIRSTS) is not None


def test_damaged_batches_are_made_again(tmp_path: Path) -> None:
    partial = Partial(tmp_path / "p", "run")
    partial.open("plan")
    partial.save(0, _outcomes())
    path = next((tmp_path / "p").glob("*.npz"))
    whole = path.read_bytes()
    for content in (b"", whole[: len(whole) // 2], b"x" * len(whole), whole[:-30]):
        path.write_bytes(content)
        assert partial.load(0, FIRSTS) is None
    with path.open("wb") as file:
        np.savez(file, records=np.zeros((1, 7)))
    assert partial.load(0, FIRSTS) is None
    with path.open("wb") as file:  # what a pickle would be read from
        np.savez(file, records=np.array([{}], dtype=object))
    assert partial.load(0, FIRSTS) is None


def test_nothing_of_the_users_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    folder.mkdir()
    (folder / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match=r"thesis\.tex"):
        Partial(folder, "run").open("plan")
    assert (folder / "thesis.tex").exists()
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(InputError, match="file"):
        Partial(file, "run").open("plan")
    assert file.exists()


def test_scores_of_bands_come_back_and_none_stays_none(tmp_path: Path) -> None:
    scored = [
        one._replace(record=one.record._replace(outlying=score, outlying_p=p))
        for one, score, p in zip(_outcomes(), (1.25, -0.5, None), (0.004, 0.5, None), strict=True)
    ]
    partial = Partial(tmp_path / "p", "run")
    partial.open("")
    partial.save(0, scored)
    found = partial.load(0, FIRSTS)
    assert found is not None
    assert [one.record for one in found] == [one.record for one in scored]
    assert [one.record.outside for one in found] == [True, False, False]
