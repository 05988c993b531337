"""Which bands and models go together, and whose bands are refused."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slotflow.config import load_preset
from slotflow.errors import InputError
from slotflow.report.identity import (
    check_fit,
    check_unseen,
    held_out_seed,
    names_of,
    training_seeds,
)

PRESET = load_preset("shipped")
MODEL = Path("own/model.safetensors")


def _model(card: dict[str, Any]) -> Any:
    return SimpleNamespace(card=card, preset=PRESET)


def _data(seed: int = 7, prior: Any = PRESET.prior, observation: Any = PRESET.observation) -> Any:
    return SimpleNamespace(directory=Path("bands"), seed=seed, prior=prior, observation=observation)


@pytest.mark.parametrize(
    ("card", "seeds"),
    [({"seeds": {"training": 3, "held_out": 4}}, (3,)), ({"seeds": {"training": [3, 5]}}, (3, 5)),
     ({}, ()), ({"seeds": 3}, ()), ({"seeds": {"training": None}}, ())],
)  # fmt: skip
def test_seeds_of_a_card(card: dict[str, Any], seeds: tuple[int, ...]) -> None:
    assert training_seeds(_model(card)) == seeds


def test_training_data_are_refused_by_name() -> None:
    model = _model({"seeds": {"training": 7}})
    with pytest.raises(InputError, match=r"bands: seed 7 .* own/model.safetensors .*--allow"):
        check_unseen(_data(7), model, MODEL)
    assert check_unseen(_data(8), model, MODEL) == ()


def test_a_card_that_does_not_say() -> None:
    (note,) = check_unseen(_data(), _model({}), MODEL)
    assert "does not say" in note


def test_a_held_out_seed_is_nobodys() -> None:
    models = [_model({"seeds": {"training": 9}}), _model({"seeds": {"training": [10, 12]}})]
    assert held_out_seed(9, models) == 11
    assert held_out_seed(8, models) == 8


def test_what_a_model_cannot_read() -> None:
    model = _model({})
    assert check_fit(_data(), model, MODEL) == ()
    other = PRESET.observation.model_copy(update={"dt": 30.0})
    with pytest.raises(InputError, match=r"observation\.dt: made with 30\.0, .* has 60\.0"):
        check_fit(_data(observation=other), model, MODEL)
    for name, value, said in (("bins", 512, "512"), ("max_sources", 9, "slots")):
        prior = PRESET.prior.model_copy(update={name: value})
        with pytest.raises(InputError, match=rf"prior\.{name}: .*{said}"):
            check_fit(_data(prior=prior), model, MODEL)


def test_another_prior_is_noted() -> None:
    prior = PRESET.prior.model_copy(update={"snr_max": 50.0})
    (note,) = check_fit(_data(prior=prior), _model({}), MODEL)
    assert "snr_max is 50.0, was 100.0" in note


def test_names_tell_models_apart() -> None:
    paths = [Path(name) for name in ("a/model.st", "b/model.st", "b/model.st")]
    assert names_of(paths[:1]) == ["model"]
    assert names_of(paths[:2]) == ["a/model", "b/model"]
    assert names_of(paths) == ["a/model", "b/model", "b/model (2)"]
    assert names_of([Path("x.st"), Path("y.st")]) == ["x", "y"]
