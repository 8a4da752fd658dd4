"""JSON that is too large, too deep, of no text or of no numbers is refused before anybody computes with it."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trellis import json_files
from trellis.errors import TrellisError
from trellis.json_files import DEEPEST, parse_json, read_object, write_json

NUMBERS = st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False)  # which our products do without
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | NUMBERS
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
)  # fmt: skip


@given(plain)
def test_what_is_json_is_read_as_python_reads_it(value):
    assert parse_json(json.dumps(value)) == value
    assert parse_json(json.dumps(value, ensure_ascii=False).encode()) == value


@pytest.mark.parametrize(
    "text",
    ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", '{"a": [NaN]}', "1" * 301, "-" + "9" * 5000, "[" + "1" * 10**6],
    ids=lambda text: text[:12],
)
def test_numbers_that_are_none_are_refused(text):
    with pytest.raises(ValueError, match=r"is no number|digits"):
        parse_json(text)


def test_infinities_are_read_where_they_are_asked_for():
    assert parse_json("[Infinity, -Infinity, 1e999]", infinite=True) == [float("inf"), -float("inf"), float("inf")]
    with pytest.raises(ValueError, match="digits"):
        parse_json("1" * 301, infinite=True)


@pytest.mark.parametrize("opened", ["[", '{"a":'])
@pytest.mark.parametrize("depth", [DEEPEST + 1, 900, 100_000])
def test_depth_is_bounded(opened, depth):
    closed = "]" if opened == "[" else "}"
    with pytest.raises(ValueError, match="nested more than 64 deep"):
        parse_json(opened * depth + "1" + closed * depth)
    parse_json(opened * DEEPEST + "1" + closed * DEEPEST)


@pytest.mark.parametrize("content", [b"\xff\xfe", b'{"a": "\xff"}', '{"a": 1}'.encode("utf-16"), b"\xef\xbb\xbf{}"])
def test_only_utf_8_is_text(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(TrellisError, match=r"a\.json is cut short or damaged .*: do something\."):
        read_object(tmp_path / "a.json", "do something")


def test_what_is_written_is_read(tmp_path):
    write_json(tmp_path / "a.json", {"ä": [1, 2.5, None]})
    assert read_object(tmp_path / "a.json") == {"ä": [1, 2.5, None]}
    assert (tmp_path / "a.json").read_text().endswith("}\n")


def test_what_is_no_object_or_too_large_is_refused(tmp_path, monkeypatch):
    write_json(tmp_path / "a.json", [1])
    with pytest.raises(TrellisError, match="does not hold a JSON object"):
        read_object(tmp_path / "a.json")
    monkeypatch.setattr(json_files, "LARGEST", 2)
    with pytest.raises(TrellisError, match="more than 2 bytes"):
        read_object(tmp_path / "a.json")


def test_what_is_no_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    for name in ("pipe.json", ".", "nothing"):
        with pytest.raises(TrellisError, match="is no file"):
            read_object(tmp_path / name)
