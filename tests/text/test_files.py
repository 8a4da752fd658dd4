import gzip
import io
import json
import os
import random
import sys
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from trellis.errors import TrellisError
from trellis.text import files

TEXT = "one two\n\nthree é\n"


def documents(path: Path) -> list[str]:
    return list(files.read_documents([path]))


def write(path: Path, data: bytes) -> Path:
    pack = {".gz": gzip.compress, ".zst": zstandard.compress}.get(path.suffix, bytes)
    path.write_bytes(pack(data))
    return path


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.txt.zst", "a", "a.tokens", "A.TXT.GZ"])
def test_a_line_is_a_document_and_blank_ones_are_kept(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(TEXT.encode()) if name == "A.TXT.GZ" else b"")
    if name != "A.TXT.GZ":
        write(path, TEXT.encode())
    assert documents(path) == ["one two", "", "three é"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.jsonl.gz", "a.jsonl.zst"])
def test_json_lines_give_their_text_and_skip_blank_lines(tmp_path, name):
    lines = [json.dumps({"text": "one\ntwo", "meta": {}}), "", json.dumps({"text": ""})]
    assert documents(write(tmp_path / name, "\n".join(lines).encode())) == ["one\ntwo", ""]


@given(texts=st.lists(st.text(st.characters(exclude_characters="\r\n", codec="utf-8")), min_size=1))
def test_any_text_comes_back_whatever_the_block_size(texts, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "any.txt.zst"
    write(path, ("\n".join(texts) + "\n").encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_BLOCK", 3)
        found = documents(path)
    assert found == [texts[0].removeprefix("\ufeff"), *texts[1:]]


def test_windows_line_ends_and_byte_order_mark_are_not_text(tmp_path):
    path = write(tmp_path / "a.txt", b"\xef\xbb\xbfone\r\ntwo\r\n")
    assert documents(path) == ["one", "two"]


def test_a_last_line_without_line_end_counts(tmp_path):
    assert documents(write(tmp_path / "a.txt", b"one\ntwo")) == ["one", "two"]


def test_several_frames_in_one_file_are_read_to_the_end(tmp_path):
    path = tmp_path / "a.txt.zst"
    path.write_bytes(zstandard.compress(b"one\n") + zstandard.compress(b"two\n"))
    assert documents(path) == ["one", "two"]
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"one\n") + gzip.compress(b"two\n"))
    assert documents(path) == ["one", "two"]


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.txt.zst"])
def test_progress_counts_the_bytes_on_disk(tmp_path, name):
    path = write(tmp_path / name, b"some words\n" * 50_000)
    seen: list[int] = []
    list(files.read_documents([path, path], seen.append))
    assert sum(seen) == 2 * path.stat().st_size


def test_a_file_is_never_held_in_memory(tmp_path):
    path = write(tmp_path / "a.txt.zst", random.Random(0).randbytes(10_000_000).hex("\n", 10).encode())
    tracemalloc.start()
    count = sum(1 for _ in files.read_documents([path]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 1_000_000
    assert peak < 4e6  # of 21 MB of text, 10 MB compressed


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.txt", b"good\nb\xe9d\n", r"not UTF-8 at line 2, byte 6"),
        ("a.txt", b"\xff\xfeh\x00i\x00", r"not UTF-8 at line 1, byte 0"),
        ("a.txt.gz", b"good\nb\xe9d\n", r"not UTF-8 at line 2, byte 6"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', r"line 2 is not JSON"),
        ("a.jsonl", b'{"txt": "a"}\n', r'line 1 has no "text"'),
        ("a.jsonl", b'["text"]\n', r'line 1 has no "text"'),
        ("a.jsonl", b'{"text": 3}\n', r'line 1 has no "text"'),
        ("a.jsonl", b'{"text": "\\ud800"}\n', r"line 1 has half a surrogate pair"),
        ("a.jsonl", b"[" * 100_000, r"line 1 is not JSON"),
        ("a.jsonl", b"\n\n", r"holds no records"),
        ("a.txt.gz", b"", r"is empty"),
    ],
)
def test_bad_contents_are_named_with_their_place(tmp_path, name, data, message):
    path = write(tmp_path / name, data)
    with pytest.raises(TrellisError, match=message) as caught:
        documents(path)
    assert name in str(caught.value)


@pytest.mark.parametrize("name", ["a.txt.gz", "a.txt.zst"])
def test_a_compressed_file_cut_short_is_an_error(tmp_path, name):
    path = write(tmp_path / name, bytes(range(32, 127)) * 3000)
    whole = path.read_bytes()
    for kept in (3, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:kept])
        with pytest.raises(TrellisError, match="cut short"):
            documents(path)


@pytest.mark.parametrize("name", ["a.txt.gz", "a.txt.zst"])
def test_text_that_only_claims_to_be_compressed_is_an_error(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"plain text, sorry\n")
    with pytest.raises(TrellisError, match=r"not a sound \.(gz|zst) file"):
        documents(path)


def test_missing_empty_and_unreadable_files_are_named(tmp_path):
    with pytest.raises(TrellisError, match="at least one"):
        files.check_files([])
    with pytest.raises(TrellisError, match=r"no file .*nowhere\.txt"):
        files.check_files([tmp_path / "nowhere.txt"])
    with pytest.raises(TrellisError, match="is a folder"):
        files.check_files([tmp_path])
    (tmp_path / "empty.txt").touch()
    with pytest.raises(TrellisError, match=r"empty\.txt is empty"):
        files.check_files([tmp_path / "empty.txt"])


def test_the_hash_follows_content_and_order_not_names(tmp_path):
    a, same = write(tmp_path / "a.txt", b"one\n"), write(tmp_path / "same.txt", b"one\n")
    b, as_json = write(tmp_path / "b.txt", b"two\n"), write(tmp_path / "a.jsonl", b"one\n")
    assert files.hash_files([a]) == files.hash_files([same])
    assert len({files.hash_files(paths) for paths in ([a], [b], [a, b], [b, a], [as_json])}) == 5


class _Stdin:
    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)


def test_standard_input_can_be_read_twice(monkeypatch):
    files.spool_stdin.cache_clear()
    monkeypatch.setattr(sys, "stdin", _Stdin(b"one\ntwo\n"))
    [path] = files.check_files(["-"])
    assert documents(path) == documents(files.check_files(["-"])[0]) == ["one", "two"]
    files.spool_stdin.cache_clear()
    path.unlink()


def test_empty_standard_input_is_an_error(monkeypatch):
    files.spool_stdin.cache_clear()
    monkeypatch.setattr(sys, "stdin", _Stdin(b""))
    with pytest.raises(TrellisError, match="Standard input is empty"):
        files.check_files(["-"])


@pytest.mark.parametrize(
    ("array", "documents"),
    [
        (np.array([3, 0, 12]), ["3 0 12"]),
        (np.array([[3], [0], [12]], dtype=np.uint8), ["3 0 12"]),
        (np.array([[3, 0], [12, 1]]), ["3 0", "12 1"]),
    ],
)
def test_numpy_files_are_sequences_of_whole_numbers(array, documents, tmp_path):
    np.save(tmp_path / "x.npy", array)
    heard = []
    assert list(files.read_documents([tmp_path / "x.npy"], heard.append)) == documents
    assert sum(heard) == array.nbytes
    (tmp_path / "x.txt").write_bytes((tmp_path / "x.npy").read_bytes())
    assert files.hash_files([tmp_path / "x.npy"]) != files.hash_files([tmp_path / "x.txt"])


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.array([0.5, 1.0]), "holds 2 float64; save whole numbers"),
        (np.zeros((2, 2, 2), dtype=int), "holds 2 × 2 × 2 int64"),
        (np.array(3), "holds a single int64"),
        (np.array([], dtype=int), "holds no numbers"),
        (np.array([1, -2]), "holds -2; number the symbols from 0"),
        (np.array(["a"], dtype=object), "no sound NumPy file"),
    ],
)
def test_numpy_files_of_anything_else_are_refused(array, said, tmp_path):
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(TrellisError, match=said):
        list(files.read_documents([tmp_path / "x.npy"]))


def fed(path, *contents):
    """A pipe, and a thread that writes to it: each content for one reader, and nothing for those who come after."""

    def write():
        for content in contents:
            path.write_bytes(content)

    os.mkfifo(path)
    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [("text", b"one\ntwo\n"), ("text.jsonl", b'{"text": "one"}\n{"text": "two"}\n'),
     ("text.txt.gz", gzip.compress(b"one\ntwo\n", mtime=0))],
)  # fmt: skip
def test_a_pipe_is_read_once_and_may_be_asked_for_again(tmp_path, name, content):
    pipe = fed(tmp_path / name, content)
    for _ in range(2):
        paths = files.check_files([pipe])
        assert list(files.read_documents(paths)) == ["one", "two"]
    assert files.hash_files(paths) == files.hash_files(files.check_files([pipe]))


def test_an_empty_pipe_and_a_device_are_refused(tmp_path):
    with pytest.raises(TrellisError, match="is empty; give a file with text in it"):
        files.check_files([fed(tmp_path / "pipe", b"")])
    with pytest.raises(TrellisError, match="/dev/zero is a device and no file"):
        files.check_files(["/dev/zero"])


@pytest.mark.parametrize("number", ["9" * 5000, "1e999", "[" * 5000])
def test_numbers_and_depths_beside_the_text_do_not_end_in_a_traceback(tmp_path, number):
    (tmp_path / "a.jsonl").write_text(f'{{"text": "fine", "n": {number}}}\n')
    if number == "1e999":
        assert list(files.read_documents([tmp_path / "a.jsonl"])) == ["fine"]
        return
    with pytest.raises(TrellisError, match=r"a\.jsonl line 1 is not JSON .*; mend it or take it out"):
        list(files.read_documents([tmp_path / "a.jsonl"]))
