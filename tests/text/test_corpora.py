import json

import pytest
import zstandard

from trellis.errors import TrellisError
from trellis.text import corpora
from trellis.text.corpora import MemoryCorpus, open_corpus
from trellis.text.files import hash_files


@pytest.mark.parametrize(
    ("name", "split", "documents", "words"),
    [
        ("ptb", "train", 42_068, 887_521),
        ("ptb", "valid", 3_370, 70_390),
        ("ptb", "test", 3_761, 78_669),
        ("wikitext-2", "train", 36_718, 2_088_628 - 36_718),
        ("wikitext-2", "validation", 3_760, 217_646 - 3_760),
        ("wikitext-2", "test", 4_358, 245_569 - 4_358),
    ],
)
def test_published_sizes(data_dir, name, split, documents, words):
    texts = list(open_corpus(name, split, data_dir))
    assert (len(texts), sum(len(text.split()) for text in texts)) == (documents, words)


def test_openmix_keeps_line_ends_inside_documents(data_dir):
    texts = list(open_corpus("openmix", "valid", data_dir))
    assert sum(map(len, texts)) == pytest.approx(4.0e6, rel=0.01)
    assert any("\n" in text for text in texts)


def test_the_data_folder_comes_from_the_argument_or_the_environment(tmp_path, monkeypatch):
    for name, text in (("given", "a b"), ("environment", "c d")):
        (tmp_path / name / "ptb").mkdir(parents=True)
        (tmp_path / name / "ptb" / "ptb.train.txt").write_text(text)
    monkeypatch.setenv("TRELLIS_DATA", str(tmp_path / "environment"))
    assert list(open_corpus("ptb")) == ["c d"]
    assert list(open_corpus("ptb", data_dir=tmp_path / "given")) == ["a b"]


def test_paths_are_corpora_and_size_counts_their_bytes(tmp_path):
    text, records = tmp_path / "a.txt", tmp_path / "b.jsonl.zst"
    text.write_text("a b\n")
    records.write_bytes(zstandard.compress(json.dumps({"text": "c"}).encode()))
    corpus = open_corpus([text, str(records)])
    assert list(corpus) == list(corpus) == ["a b", "c"]
    assert corpus.name == "a.txt, b.jsonl.zst"
    assert corpus.size == 4 + records.stat().st_size
    assert list(open_corpus(text, "test")) == list(open_corpus(str(text))) == ["a b"]


def test_a_hash_tells_where_documents_end():
    hashes = {MemoryCorpus("x", docs).content_hash() for docs in (("ab",), ("a", "b"), ("b", "a"), ("a", "b", ""))}
    assert len(hashes) == 4


@pytest.mark.parametrize(
    ("source", "split", "message"),
    [
        ("wikitext2", "train", r"did you mean 'wikitext-2'\?"),
        ("pydoc", "train", r"did you mean 'pydocs'\?"),
        ("zzzzz", "train", "choose from openmix, ptb, pydocs"),
        ("some/where.txt", "train", r"no file some/where\.txt"),
        ("pydocs", "dev", "use train, valid or test"),
        ([], "train", "at least one"),
    ],
)
def test_what_cannot_be_opened(source, split, message):
    with pytest.raises(TrellisError, match=message):
        open_corpus(source, split)


def test_a_local_corpus_that_is_missing_says_where_it_belongs(tmp_path, monkeypatch):
    monkeypatch.delenv("TRELLIS_DATA", raising=False)
    with pytest.raises(TrellisError, match=r"set TRELLIS_DATA .* holds openmix/test\.jsonl\.zst"):
        open_corpus("openmix", "test")
    with pytest.raises(TrellisError, match=f"which {tmp_path} does not"):
        open_corpus("openmix", "test", tmp_path)


def test_every_name_is_local_or_in_the_package():
    assert set(corpora.HUB) <= set(corpora.LOCAL)
    assert set(corpora.NAMES) == {"pydocs", *corpora.LOCAL}


def test_a_file_is_hashed_again_only_when_it_changed(tmp_path, monkeypatch):
    path = tmp_path / "text.txt"
    path.write_text("one two\n")
    corpus, hashed = open_corpus(path), []
    monkeypatch.setattr(corpora, "hash_files", lambda paths: (hashed.append(paths), hash_files(paths))[1])
    first = corpus.content_hash()
    assert corpus.content_hash() == first == hash_files((path,))
    assert len(hashed) == 1
    path.write_text("one two three\n")
    assert corpus.content_hash() != first
