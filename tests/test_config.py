"""Settings: presets load, and bad keys and values are named."""

from pathlib import Path

import pytest

from slotflow.config import Preset, load_preset, parse_preset, preset_names
from slotflow.errors import InputError


def test_presets_load() -> None:
    assert preset_names() == ["paper", "shipped", "small", "tiny"]
    for name in preset_names():
        assert load_preset(name).prior.max_sources + 1 == load_preset(name).model.slots


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("model: {widht: 3}", "model.widht"),
        ("model: {width: 3}", "model.width: .*got 3"),
        ("prior: {fmin: 2.0e-3, fmax: 1.0e-3}", "fmin must not exceed fmax"),
        ("surprise: 1", "surprise"),
        ("train: {batch: many}", "train.batch: .*got 'many'"),
        ("a: [", "not valid YAML"),
    ],
)
def test_bad_settings_are_named(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=named) as error:
        load_preset(str(path))
    assert str(path) in str(error.value)


def test_missing_file_names_the_presets() -> None:
    with pytest.raises(InputError, match="nowhere: no such file, nor a preset"):
        load_preset("nowhere")


def test_exponents_without_a_point_are_numbers() -> None:
    """PyYAML reads 1e-3 as a string."""
    import yaml

    assert parse_preset(yaml.safe_load("prior: {fmin: 1e-3}"), "x").prior.fmin == 1e-3


def test_settings_survive_json() -> None:
    preset = load_preset("tiny")
    assert Preset.model_validate_json(preset.model_dump_json()) == preset
