"""slotflow.provenance: what a file says about itself, and what tells two results apart."""

import json
from pathlib import Path

import numpy as np
import pytest

from slotflow import __version__
from slotflow.errors import OutputExistsError
from slotflow.provenance import attributes, difference, label, refuse_existing, with_checksums
from tests.test_catalogue import DRAWS, PROVENANCE, make_result


def test_identities() -> None:
    other = PROVENANCE._replace(requested={"fmin": 1e-3, "samples": DRAWS})
    assert difference(PROVENANCE.identity, PROVENANCE.identity) == ""
    assert difference(PROVENANCE.identity, other.identity) == "fmin by default, now 0.001"
    elsewhere = PROVENANCE._replace(input="/other/input.h5", command="slotflow posterior")
    assert difference(PROVENANCE.identity, elsewhere.identity) == ""
    changed = PROVENANCE._replace(input_sha256="c" * 64)
    assert "another input" in difference(changed.identity, PROVENANCE.identity)
    one = json.loads(PROVENANCE.identity)
    for version, said in (("0.0.1", "0.0.1"), (None, "of an unknown version")):
        before = json.dumps(one | {"slotflow": version})
        words = f"made by slotflow {said}, this is {__version__}"
        assert difference(before, PROVENANCE.identity) == words
    assert difference("", PROVENANCE.identity)
    assert difference("[]", PROVENANCE.identity)


def test_attributes_are_plain() -> None:
    content = attributes(make_result(2), PROVENANCE)
    for name, value in content.items():
        assert type(value) in (str, int, float), name
    versions = json.loads(content["versions"])
    assert versions["slotflow"] == __version__
    assert versions["numpy"] == np.__version__
    assert json.loads(content["settings"])["samples"] == DRAWS
    assert json.loads(content["observation"])["orbit"] == "equal_arm"
    assert json.loads(content["notes"]) == ["a note"]
    assert attributes(make_result(0), PROVENANCE, "others")["conventions"] == "others"


def test_files_in_settings_have_a_checksum(tmp_path: Path) -> None:
    table = tmp_path / "psd.txt"
    table.write_bytes(b"abc")
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180
    assert with_checksums({"psd": str(table)}) == {"psd": str(table), "psd_sha256": digest}
    for plain in ({"psd": "data"}, {"psd": "absent"}, {"seed": 1}):
        assert with_checksums(plain) == plain


def test_labels_sort_by_number() -> None:
    assert label(12, 1.9409e-3) == "00012_1940"
    names = [label(k, 2e-3) for k in (0, 9, 10, 12345)]
    assert sorted(names) == names


def test_what_is_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    refuse_existing(path, force=False)
    path.write_text("")
    with pytest.raises(OutputExistsError, match="exists already"):
        refuse_existing(path, force=False)
    refuse_existing(path, force=True)
