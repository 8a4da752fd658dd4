import errno
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trellis.errors import InputError, TrellisError
from trellis.folders import default_cache
from trellis.manifests import MANIFEST
from trellis.text import (
    IdFile,
    IntegerTokenizer,
    MemoryCorpus,
    SubwordTokenizer,
    WordTokenizer,
    ids,
    open_corpus,
    prepare,
)
from trellis.text.files import ignore

WORDS = WordTokenizer(["<unk>", "<eos>", "a", "b", "é"])
CORPUS = MemoryCorpus("small", ("a b", "", "é zebra  a"))


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_every_document_ends_with_eos(tmp_path):
    file = prepare(CORPUS, WORDS, tmp_path)
    assert file.ids.tolist() == [2, 3, 1, 1, 4, 0, 2, 1]
    assert file.documents.tolist() == [3, 4, 8]
    assert isinstance(file.ids, np.memmap)
    assert file.ids.dtype == np.dtype("<u2")
    assert len(file) == 8


def test_meta_counts_what_reports_need(tmp_path):
    meta = prepare(CORPUS, WORDS, tmp_path).meta
    assert (meta.tokens, meta.documents, meta.unknown) == (8, 3, 1)
    assert meta.bytes == len("a b\n\né zebra  a\n".encode())
    assert meta.words == 5 + 3
    assert (meta.corpus, meta.vocab_size, meta.eos_id) == ("small", 5, 1)
    assert (meta.content_hash, meta.fingerprint) == (CORPUS.content_hash(), WORDS.fingerprint())


@given(texts=st.lists(st.lists(st.sampled_from(["a", "b", "zebra"])), min_size=1))
def test_the_file_is_the_encoded_documents_however_they_are_batched(texts, tmp_path_factory):
    corpus = MemoryCorpus("any", tuple(" ".join(text) for text in texts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ids, "_BATCH_CHARACTERS", 7)
        file = prepare(corpus, WORDS, tmp_path_factory.getbasetemp() / "any")
    assert file.ids.tolist() == [number for text in corpus for number in [*WORDS.encode(text), 1]]
    assert file.documents.tolist() == np.cumsum([len(text) + 1 for text in texts]).tolist()


def test_published_counts(data_dir, tmp_path):
    corpus = open_corpus("ptb", "train", data_dir)
    file = prepare(corpus, WordTokenizer.train(corpus), tmp_path)
    assert len(file) == 887_521 + 42_068
    assert int(file.ids.max()) == 9_999
    assert file.meta.bytes == corpus.size


def test_a_large_vocabulary_takes_four_bytes(tmp_path):
    tokenizer = WordTokenizer(["<unk>", "<eos>", *(f"w{number}" for number in range(70_000))])
    file = prepare(MemoryCorpus("x", ("w69999",)), tokenizer, tmp_path)
    assert file.ids.dtype == np.dtype("<u4")
    assert file.ids.tolist() == [70_001, 1]


def test_a_tokenizer_without_document_end_adds_none(tmp_path):
    bpe = SubwordTokenizer.train_bpe(["ab ab"], 258)
    bare = SubwordTokenizer(bpe._tokenizer)
    file = prepare(MemoryCorpus("x", ("ab", "")), bare, tmp_path)
    assert file.ids.tolist() == bare.encode("ab")
    assert file.documents.tolist() == [len(file)] * 2


class Watched(MemoryCorpus):
    """Says when it is read, and can be told to fail on the way."""

    readings = 0
    failure: BaseException | None = None

    def read(self, advance=ignore):
        type(self).readings += 1
        yield from super().read(advance)
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def watched(monkeypatch) -> Watched:
    monkeypatch.setattr(Watched, "readings", 0)
    monkeypatch.setattr(Watched, "failure", None)
    return Watched("watched", CORPUS.documents)


def test_it_tokenises_once(watched, tmp_path):
    first, second = prepare(watched, WORDS, tmp_path), prepare(watched, WORDS, tmp_path)
    assert Watched.readings == 1
    assert first.folder == second.folder


def test_another_corpus_tokenizer_or_limit_is_another_file(tmp_path):
    other = WordTokenizer(["<unk>", "<eos>", "b", "a"])
    folders = {
        prepare(CORPUS, WORDS, tmp_path).folder,
        prepare(MemoryCorpus("small", ("a b",)), WORDS, tmp_path).folder,
        prepare(CORPUS, other, tmp_path).folder,
        prepare(CORPUS, WORDS, tmp_path, max_tokens=4).folder,
    }
    assert len(folders) == 4


def test_max_tokens_stops_after_the_document_that_reaches_it(tmp_path):
    assert [len(prepare(CORPUS, WORDS, tmp_path, max_tokens=limit)) for limit in (1, 3, 4, 5, 99)] == [
        3,
        3,
        4,
        8,
        8,
    ]


def test_no_tokens_is_no_limit(tmp_path):
    with pytest.raises(TrellisError, match="max_tokens to 1 or more"):
        prepare(CORPUS, WORDS, tmp_path, max_tokens=0)


def test_a_file_that_changes_under_way_is_not_kept(tmp_path, monkeypatch):
    source = tmp_path / "a.txt"
    source.write_text("a b\n")
    monkeypatch.setattr(ids._Writer, "_append", lambda self, *_: (source.write_text("b\n"), setattr(self, "tokens", 1)))
    with pytest.raises(TrellisError, match=r"a\.txt changed while it was read"):
        prepare(open_corpus(source), WORDS, tmp_path / "cache")
    assert visible(tmp_path / "cache") == []


def test_a_cache_that_is_whole_needs_no_writing(watched, tmp_path, monkeypatch):
    prepare(watched, WORDS, tmp_path)
    monkeypatch.setattr(ids, "one_at_a_time", None)
    assert len(prepare(watched, WORDS, tmp_path)) == 8


def test_a_failure_leaves_nothing_behind(watched, tmp_path, monkeypatch):
    for failure in (KeyboardInterrupt(), RuntimeError("boom")):
        monkeypatch.setattr(Watched, "failure", failure)
        with pytest.raises(type(failure)):
            prepare(watched, WORDS, tmp_path)
        assert visible(tmp_path) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_said_and_tidied_up(watched, tmp_path, monkeypatch, code):
    monkeypatch.setattr(Watched, "failure", OSError(code, os.strerror(code)))
    with pytest.raises(TrellisError, match="full; make room"):
        prepare(watched, WORDS, tmp_path)
    assert visible(tmp_path) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_a_disk_that_fills_while_writing(tmp_path, monkeypatch):
    real = Path.open
    monkeypatch.setattr(Path, "open", lambda p, *a, **k: real(Path("/dev/full") if p.name == "ids.bin" else p, *a, **k))
    with pytest.raises(TrellisError, match="full; make room"):
        prepare(CORPUS, WORDS, tmp_path)
    assert visible(tmp_path) == []


def test_a_cache_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").touch()
    for cache in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(TrellisError, match="set TRELLIS_CACHE"):
            prepare(CORPUS, WORDS, cache)


def test_a_killed_prepare_is_never_taken_for_whole(tmp_path):
    script = f"""
import os, signal, sys
from trellis.text import MemoryCorpus, WordTokenizer, ids, prepare
ids._BATCH_CHARACTERS = 1
class Deadly(MemoryCorpus):
    def read(self, advance):
        yield from super().read(advance)
        os.kill(os.getpid(), signal.SIGKILL)
prepare(Deadly("small", {CORPUS.documents!r}), WordTokenizer({WORDS.words!r}), sys.argv[1])
"""
    run = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert run.returncode == -signal.SIGKILL
    assert [name for name in visible(tmp_path) if name.endswith(".partial")]
    assert len(prepare(CORPUS, WORDS, tmp_path)) == 8
    assert not [name for name in visible(tmp_path) if name.endswith(".partial")]


def test_several_at_once_write_once(watched, tmp_path):
    barrier = threading.Barrier(8)

    def work(_: int) -> list[int]:
        barrier.wait()
        found: list[int] = prepare(watched, WORDS, tmp_path).ids.tolist()
        return found

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(work, range(8)))
    assert answers == [[2, 3, 1, 1, 4, 0, 2, 1]] * 8
    assert Watched.readings == 1


@pytest.mark.parametrize("name", ["ids.bin", "documents.bin"])
def test_a_file_cut_short_is_refused_by_open_and_mended_by_prepare(tmp_path, name):
    folder = prepare(CORPUS, WORDS, tmp_path).folder
    (folder / name).write_bytes((folder / name).read_bytes()[:-1])
    with pytest.raises(TrellisError, match=f"{name} is missing or cut short"):
        IdFile.open(folder)
    assert prepare(CORPUS, WORDS, tmp_path).ids.tolist() == [2, 3, 1, 1, 4, 0, 2, 1]


@pytest.mark.parametrize("damage", ["{", "[]", '{"tokens": 8}'])
def test_broken_meta_is_refused(tmp_path, damage):
    folder = prepare(CORPUS, WORDS, tmp_path).folder
    (folder / "meta.json").write_text(damage)
    with pytest.raises(TrellisError, match=r"meta\.json has changed"):
        IdFile.open(folder)
    (folder / MANIFEST).unlink()
    with pytest.raises(TrellisError, match=r"meta\.json is broken"):
        IdFile.open(folder)


def test_another_format_and_an_empty_folder_are_refused(tmp_path):
    folder = prepare(CORPUS, WORDS, tmp_path).folder
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**meta, "format": 0}))
    (folder / MANIFEST).unlink()
    with pytest.raises(TrellisError, match="another version"):
        IdFile.open(folder)
    with pytest.raises(TrellisError, match="holds no prepared ids"):
        IdFile.open(tmp_path)


@pytest.mark.parametrize(
    "change",
    [{"tokens": "8"}, {"tokens": -1}, {"tokens": 8.0}, {"documents": True}, {"vocab_size": 0}, {"vocab_size": 10**18},
     {"eos_id": 99}, {"eos_id": "1"}, {"corpus": 3}, {"fingerprint": None}, {"unknown": 10**19}],
    ids=str,
)  # fmt: skip
def test_meta_of_other_types_or_sizes_is_refused(tmp_path, change):
    folder = prepare(CORPUS, WORDS, tmp_path).folder
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps(meta | change))
    (folder / MANIFEST).unlink()
    with pytest.raises(TrellisError, match=r"meta\.json is broken"):
        IdFile.open(folder)


DAMAGES = {
    "an id outside of the vocabulary": ("ids.bin", "<u2", 3, 5),
    "an end before the one before it": ("documents.bin", "<i8", 1, 1),
    "an end before the text": ("documents.bin", "<i8", 0, -1),
    "a last end that is not the last": ("documents.bin", "<i8", -1, 7),
}


@pytest.mark.parametrize(("name", "dtype", "place", "value"), DAMAGES.values(), ids=DAMAGES)
def test_numbers_that_changed_are_found_with_a_manifest_and_without(tmp_path, name, dtype, place, value):
    folder = prepare(CORPUS, WORDS, tmp_path).folder
    numbers = np.fromfile(folder / name, dtype)
    numbers[place] = value
    numbers.tofile(folder / name)
    with pytest.raises(TrellisError, match=f"{name} has changed since it was written"):
        IdFile.open(folder)
    (folder / MANIFEST).unlink()
    with pytest.raises(TrellisError, match=f"{name} is broken; delete"):
        IdFile.open(folder)
    assert prepare(CORPUS, WORDS, tmp_path).ids.tolist() == [2, 3, 1, 1, 4, 0, 2, 1]


def test_another_id_of_the_vocabulary_is_found_by_the_manifest(tmp_path):
    folder = prepare(CORPUS, WORDS, tmp_path).folder
    np.array([2, 3, 1, 1, 4, 0, 3, 1], "<u2").tofile(folder / "ids.bin")
    with pytest.raises(TrellisError, match=r"ids.bin has changed since it was written"):
        IdFile.open(folder)
    assert prepare(CORPUS, WORDS, tmp_path).ids.tolist() == [2, 3, 1, 1, 4, 0, 2, 1]


def test_a_corpus_without_tokens_is_refused(tmp_path):
    bare = SubwordTokenizer(SubwordTokenizer.train_bpe(["a"], 257)._tokenizer)
    for documents in ((), ("",)):
        with pytest.raises(TrellisError, match="has no tokens"):
            prepare(MemoryCorpus("nothing", documents), bare, tmp_path)
    assert visible(tmp_path) == []


def test_the_cache_goes_where_it_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("TRELLIS_CACHE", str(tmp_path))
    assert prepare(CORPUS, WORDS).folder.parent == default_cache() == tmp_path
    monkeypatch.delenv("TRELLIS_CACHE")
    assert default_cache() == Path.home() / ".cache" / "trellis"


def test_arrays_make_the_file_that_their_text_would(tmp_path):
    numbers, words = IntegerTokenizer(101), WORDS
    for tokenizer, texts in ((numbers, ("3 1 100", "7")), (words, ("a b", "é zebra a"))):
        arrays = [np.array(tokenizer.encode(text)) for text in texts]
        ours = IdFile.from_arrays(tmp_path / tokenizer.fingerprint(), arrays, tokenizer, "x")
        theirs = prepare(MemoryCorpus("x", texts), tokenizer, tmp_path / "cache")
        assert ours.ids.tolist() == theirs.ids.tolist()
        assert ours.documents.tolist() == theirs.documents.tolist()
        unknown = ours.meta.unknown * (len("<unk>") - len("zebra"))
        same = {"content_hash": "", "bytes": ours.meta.bytes}
        assert replace(ours.meta, content_hash="") == replace(theirs.meta, **same)
        assert ours.meta.bytes == theirs.meta.bytes + unknown
        assert IdFile.open(ours.folder).ids.tolist() == ours.ids.tolist()


def test_where_sequences_end_is_part_of_their_hash(tmp_path):
    tokenizer = IntegerTokenizer(9)
    one = IdFile.from_arrays(tmp_path / "a", [np.array([1, 2]), np.array([3])], tokenizer)
    other = IdFile.from_arrays(tmp_path / "b", [np.array([1]), np.array([2, 3])], tokenizer)
    again = IdFile.from_arrays(tmp_path / "c", [np.array([1]), np.array([2, 3], dtype=np.uint8)], tokenizer)
    assert one.meta.content_hash != other.meta.content_hash
    assert other.meta == again.meta


def test_arrays_outside_the_vocabulary_or_without_tokens_are_refused(tmp_path):
    for bad in (9, -1):
        with pytest.raises(TrellisError, match=f"no token {bad}; use an id from 0 to 8"):
            IdFile.from_arrays(tmp_path / "x", [np.array([1, bad, 3])], IntegerTokenizer(9))
    with pytest.raises(TrellisError, match="data has no tokens"):
        IdFile.from_arrays(tmp_path / "x", [np.array([], dtype=int)], IntegerTokenizer(9))


@pytest.mark.parametrize("given", ["a.txt", ["a b", "b"], None])
def test_what_is_no_corpus_is_refused_with_what_to_give(given, tmp_path):
    with pytest.raises(InputError, match=f"^prepare reads a corpus, not {type(given).__name__}: give what open_corpus"):
        prepare(given, WordTokenizer(["<unk>", "<eos>", "a", "b"]), tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_the_same_text_by_another_name_is_called_by_that(tmp_path):
    texts = [MemoryCorpus(name, ("the cat", "the dog")) for name in ("first", "second")]
    tokenizer = WordTokenizer.train(texts[0])
    first, second = (prepare(text, tokenizer, tmp_path, quiet=True) for text in texts)
    assert first.folder == second.folder
    assert (first.meta.corpus, second.meta.corpus) == ("first", "second")
