"""slotflow.plain: JSON and YAML of others are a value or one clear error."""

import time
from pathlib import Path

import pytest

from slotflow import plain
from slotflow.config import load_preset
from slotflow.errors import InputError
from slotflow.plain import parse_json, parse_yaml, shortened


def test_plain_values() -> None:
    assert parse_json('{"a": [1, 2.5, null]}', "x") == {"a": [1, 2.5, None]}
    assert parse_json(b'"\xc3\xa9"', "x") == "é"
    assert parse_yaml("a: [1, 2.5, null, '1e-3']\nb: {c: true}", "x") == {
        "a": [1, 2.5, None, "1e-3"], "b": {"c": True}
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 50_000, "nested too deeply"),
        ("9" * 5000, "not JSON: Exceeds the limit"),
        ("{", "not JSON: Expecting"),
        ("", "not JSON: Expecting value"),
        (b"\xff\xfe\x00", "not JSON"),
    ],
)
def test_json_that_is_none(text: str | bytes, said: str) -> None:
    with pytest.raises(InputError, match=f"^file: .*{said}"):
        parse_json(text, "file")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 20_000, "nested too deeply"),
        ("- " * 5_000, "nested too deeply"),
        ("a: &x 1\nb: *x", "aliases are not supported"),
        ("a: " + "9" * 5000, "not valid YAML: Exceeds the limit"),
        ("a: 2001-13-45", "not valid YAML: month must be in 1..12"),
        ("a: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("a: !!int x", "not valid YAML"),
        ("a: !!int", "not valid YAML"),
        ("a: !!float", "not valid YAML"),
        ("a: !!timestamp x", "not valid YAML"),
        ("? [a]\n: 1", "unhashable"),
        ("a: \x01", "not valid YAML"),
        ("a: [", "not valid YAML"),
    ],
)
def test_yaml_that_is_none(text: str, said: str) -> None:
    with pytest.raises(InputError, match=f"^file: .*{said}"):
        parse_yaml(text, "file")


def test_a_short_text_without_end(tmp_path: Path) -> None:
    """Nine aliases in nine aliases, eleven times: 3e10 values if they were followed."""
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    text += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    started = time.process_time()
    with pytest.raises(InputError, match="aliases are not supported"):
        load_preset(str(path))
    assert time.process_time() - started < 2.0


def test_a_long_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "MAX_SETTINGS", 10)
    with pytest.raises(InputError, match="11 characters; at most 10 are read"):
        parse_yaml("a: 12345678", "file")


def test_shortened() -> None:
    assert shortened("a\n b") == "a b"
    assert len(shortened("x" * 1000, 50)) == 50
