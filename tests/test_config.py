"""Settings: presets load, and bad keys and values are named."""

from pathlib import Path

import pytest

from slotflow.config import Preset, first_difference, load_preset, parse_preset, preset_names
from slotflow.errors import InputError


def test_presets_load() -> None:
    assert preset_names() == ["crowded", "high", "paper", "shipped", "small", "tiny"]
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
        ("model: {heads: 5}", "model: .*heads 5 must divide the width 96"),
        ("prior: {wide_window: 1}", "prior.wide_window: .*got 1"),
        ("prior: {narrow_window: 0}", "prior.narrow_window: .*got 0"),
        ("prior: {split_frequency: 0}", "prior.split_frequency: .*got 0"),
        ("prior: {snr_max: .inf}", "prior.snr_max: .*finite.*got inf"),
        ("observation: {t0: .nan}", "observation.t0: .*finite.*got nan"),
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


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"model: {width: \xff\xfe}")
    with pytest.raises(InputError, match=r"mine\.yaml: not text in UTF-8"):
        load_preset(str(path))


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("model: {width: 96}")

    def refuse(*_: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(InputError, match=r"mine\.yaml: cannot be read \(Permission denied\)"):
        load_preset(str(path))


def test_settings_of_version_one_mean_what_they_meant() -> None:
    """A manifest or model that lacks a later setting has its default: these must not move."""
    assert Preset() == parse_preset({
        "observation": {
            "samples": 524_288, "dt": 60.0, "t0": 0.0, "tukey": 0.05, "tdi_generation": "1.5",
            "orbit": "equal_arm", "noise": "scirdv1",
        },
        "prior": {
            "bins": 256, "margin": 32, "fmin": 1e-3, "fmax": 2.1e-3, "max_sources": 4,
            "empty_fraction": 0.1, "wide_window": 192, "narrow_window": 96,
            "split_frequency": 1.7e-3, "snr_min": 5.0, "snr_max": 100.0, "fdot_t2_min": -0.1,
            "fdot_t2_max": 0.3, "rate_scale_min": 0.5, "rate_scale_max": 2.0,
            "foreground_snr_max": 5.0,
        },
    }, "version 1")  # fmt: skip


def test_the_first_difference() -> None:
    old = {"seed": 1, "prior": {"fmin": 1e-3, "bins": 256}, "train": {"batch": 4}}
    assert first_difference(old, {**old}) is None
    assert first_difference(old, {**old, "seed": 2}) == ("seed", 1, 2)
    other = {**old, "prior": {"fmin": 1e-3, "bins": 64}}
    assert first_difference(old, other) == ("prior.bins", 256, 64)
    assert first_difference(old, {**old, "new": 3}) == ("new", None, 3)
    assert first_difference({**old, "prior": {"bins": 256}}, old) == ("prior.fmin", None, 1e-3)
    assert first_difference({**old, "train": None}, old) == ("train", None, {"batch": 4})
