"""Spoilt input of every kind, a little of each: taken or refused, never anything else.

What came to light with many more (benchmarks/fuzz.py) stands as a case of its own in the tests of
its module.
"""

import tempfile
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from slotflow.errors import InputError
from slotflow.resume import Partial
from tests.fuzzing import TARGETS, Bytes, spoilt
from tests.test_resume import FIRSTS, _assert_equal, _outcomes


class Drawn:
    """Choices of Hypothesis, which makes those that fail simpler."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def integer(self, low: int, high: int) -> int:
        return self._data.draw(st.integers(low, high))


#: Damaged bytes can end the process inside HDF5 itself: these are for benchmarks/fuzz.py.
HERE = [name for name in TARGETS if not name.endswith("-bytes")]


@pytest.mark.parametrize("name", HERE)
@settings(max_examples=8, derandomize=True)
@given(data=st.data())
def test_spoilt_input(name: str, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        TARGETS[name](Drawn(data), Path(folder))


def test_choices_are_within_bounds() -> None:
    choices = Bytes(bytes(range(256)))
    drawn = [choices.integer(-3, 300) for _ in range(200)]
    assert min(drawn) >= -3
    assert max(drawn) <= 300
    assert len(set(drawn)) > 50


class KeptBatches(RuleBasedStateMachine):
    """Batches that are kept, spoilt, removed and asked for, by runs that take turns."""

    def __init__(self) -> None:
        super().__init__()
        self._place = tempfile.TemporaryDirectory()
        self.folder = Path(self._place.name) / "partial"
        self.kept: dict[int, bool] = {}  # by number, whether untouched
        self.run = 0
        self.partial = self._opened()

    def _opened(self) -> Partial:
        partial = Partial(self.folder, f"run {self.run}")
        partial.open("plan")
        return partial

    @rule(number=st.integers(0, 2))
    def save(self, number: int) -> None:
        self.partial.save(number, _outcomes(view=number == 1))
        self.kept[number] = True

    @rule()
    def again(self) -> None:
        self.partial = self._opened()

    @rule()
    def another(self) -> None:
        self.run += 1
        self.partial = self._opened()
        self.kept = {}

    @rule(number=st.integers(0, 2), data=st.data())
    def spoil(self, number: int, data: st.DataObject) -> None:
        path = self.partial._path(number)
        if path.is_file():
            before = path.read_bytes()
            path.write_bytes(spoilt(Drawn(data), before, head=len(before)))
            self.kept[number] = path.read_bytes() == before

    @rule(number=st.integers(0, 2))
    def lose(self, number: int) -> None:
        self.partial._path(number).unlink(missing_ok=True)
        self.kept.pop(number, None)

    @rule()
    def remove(self) -> None:
        self.partial.remove()
        self.kept = {}
        assert not self.folder.exists()

    @invariant()
    def what_is_whole_comes_back(self) -> None:
        for number in range(3):
            found = self.partial.load(number, FIRSTS)
            if self.kept.get(number):
                assert found is not None
                _assert_equal(found, _outcomes(view=number == 1))
            if number not in self.kept:
                assert found is None

    def teardown(self) -> None:
        self._place.cleanup()


TestKeptBatches = KeptBatches.TestCase
TestKeptBatches.settings = settings(max_examples=15, stateful_step_count=12, derandomize=True)


def test_a_strangers_file_is_not_removed(tmp_path: Path) -> None:
    partial = Partial(tmp_path / "p", "run")
    partial.open("plan")
    partial.save(0, _outcomes())
    (tmp_path / "p" / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match=r"'mine\.txt' is none of slotflow's"):
        Partial(tmp_path / "p", "other").open("plan")
