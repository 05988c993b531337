"""slotflow.runstate: a run's state that is damaged, or of which one of two files is left."""

import io
from pathlib import Path

import pytest
import torch

from slotflow.cli.train import _check_folder
from slotflow.config import load_preset
from slotflow.errors import InputError, OutputExistsError
from slotflow.runstate import BEFORE_FILE, STATE_FILE, load_state, save_state
from tests.fuzzing import Random, spoilt


def saved(step: int) -> bytes:
    buffer = io.BytesIO()
    torch.save({"identity": "run", "step": step, "weights": {"a": torch.ones(7)}}, buffer)
    return buffer.getvalue()


def test_damaged_at_any_place(tmp_path: Path) -> None:
    """PyTorch raises IndexError, struct.error and others on such: one error comes out."""
    whole, refused = saved(3), 0
    for number in range(150):
        (tmp_path / STATE_FILE).write_bytes(spoilt(Random(5, number), whole))
        try:
            state, note = load_state(tmp_path, "run")
        except InputError as error:
            assert STATE_FILE in str(error)  # noqa: PT017
            refused += 1
        else:
            assert state is not None
            assert note == ""
    assert refused > 50


def test_the_one_before_takes_over(tmp_path: Path) -> None:
    save_state(tmp_path, {"identity": "run", "step": 1})
    save_state(tmp_path, {"identity": "run", "step": 2})
    assert load_state(tmp_path, "run")[0] == {"identity": "run", "step": 2}
    (tmp_path / STATE_FILE).write_bytes(b"\x80\x02.")
    state, note = load_state(tmp_path, "run")
    assert state is not None
    assert state["step"] == 1
    assert f"going on from {BEFORE_FILE}" in note
    (tmp_path / STATE_FILE).unlink()
    state, note = load_state(tmp_path, "run")
    assert state is not None
    assert (state["step"], note) == (1, "")


def test_killed_while_the_last_takes_its_place(tmp_path: Path) -> None:
    """The one before and a model are left: a run that goes on, not somebody else's model."""
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(OutputExistsError, match="exists already"):
        _check_folder(tmp_path, load_preset("tiny"), False)
    (tmp_path / BEFORE_FILE).write_bytes(saved(1))
    _check_folder(tmp_path, load_preset("tiny"), False)
