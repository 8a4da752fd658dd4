"""A folder of ids is a corpus: exact with its own tokenizer, text with any other."""

import numpy as np
import pytest

from trellis.errors import TrellisError
from trellis.text import IdFile, MemoryCorpus, WordTokenizer, prepare
from trellis.text.ids import decoded
from trellis.text.prepared import PreparedCorpus, as_ids, is_prepared, open_text
from trellis.text.sources import DataSettings, open_split, prepare_texts

DOCUMENTS = ("the cat saw the milk", "a dog heard everything", "nobody here", "the dog saw a cat", "seeds")


@pytest.fixture
def words():
    return WordTokenizer.train(DOCUMENTS)


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRELLIS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(words, tmp_path):
    """Ids of the documents, of which the last is cut: it has no end."""
    pieces = [[*words.encode(text), words.eos_id] for text in DOCUMENTS]
    pieces[-1].pop()
    ids, ends = np.concatenate(pieces), np.cumsum([len(piece) for piece in pieces])
    (tmp_path / "ids").mkdir()
    IdFile.from_documents(tmp_path / "ids", ids, ends, words, "a text")
    words.save(tmp_path / "ids")
    return tmp_path / "ids"


def test_ids_are_written_as_they_are(folder, words):
    found = IdFile.open(folder)
    expected = [number for text in DOCUMENTS for number in (*words.encode(text), words.eos_id)][:-1]
    assert found.ids.tolist() == expected
    assert found.meta.documents == 5
    assert found.meta.words == sum(len(text.split()) + 1 for text in DOCUMENTS)
    assert found.meta.bytes == sum(len(text.encode()) + 1 for text in DOCUMENTS)


def test_what_is_counted_is_as_prepare_counts(words, tmp_path):
    by_text = prepare(MemoryCorpus("a text", DOCUMENTS), words, tmp_path / "cache", quiet=True)
    (tmp_path / "ids").mkdir()
    by_ids = IdFile.from_documents(tmp_path / "ids", by_text.ids, by_text.documents, words, "a text")
    for name in ("tokens", "documents", "bytes", "words", "unknown", "fingerprint", "vocab_size", "eos_id"):
        assert getattr(by_ids.meta, name) == getattr(by_text.meta, name)


def test_ids_outside_the_vocabulary_are_refused(words, tmp_path):
    with pytest.raises(TrellisError, match="There is no token 99"):
        IdFile.from_documents(tmp_path, np.array([1, 99]), np.array([2]), words, "a text")


@pytest.mark.parametrize("ends", [[1, 2], [1, 5], [3, 1, 3], []])
def test_documents_that_do_not_end_where_the_ids_do_are_refused(words, tmp_path, ends):
    with pytest.raises(TrellisError, match="do not end where"):
        IdFile.from_documents(tmp_path, np.array([1, 2, 0]), np.array(ends, dtype=np.int64), words, "a text")


def test_a_document_decodes_without_its_end(words):
    ids = np.array(words.encode("the cat"))
    assert decoded(ids, words) == decoded(np.append(ids, words.eos_id), words) == "the cat"
    assert decoded(np.array([words.eos_id]), words) == decoded(np.array([], dtype=np.int64), words) == ""


@pytest.mark.usefixtures("own_cache")
def test_its_own_tokenizer_has_the_ids_and_another_the_text(folder, words):
    corpus = open_text(str(folder))
    assert isinstance(corpus, PreparedCorpus)
    assert (corpus.name, corpus.size, list(corpus)) == ("a text", 5, list(DOCUMENTS))
    assert as_ids(corpus, words).folder == folder
    other = WordTokenizer.train(DOCUMENTS[:2])
    ids = as_ids(corpus, other, quiet=True)
    assert ids.ids.tolist() == prepare(MemoryCorpus("", DOCUMENTS), other, quiet=True).ids.tolist()


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("tokens", [1, 6, 7, 11, 18, 100])
def test_a_limit_keeps_whole_documents(folder, words, tokens):
    whole, found = IdFile.open(folder), as_ids(open_text(folder), words, tokens)
    assert found.ids.tolist() == whole.ids[: len(found)].tolist()
    ends = whole.documents.tolist()
    assert len(found) == next((end for end in ends if end >= tokens), ends[-1])
    assert as_ids(open_text(folder), words, tokens).ids.tolist() == found.ids.tolist()


@pytest.mark.usefixtures("own_cache")
def test_settings_name_it_like_any_text(folder, words):
    data = DataSettings(corpus=str(folder), valid=str(folder), tokenizer=str(folder), valid_tokens=4)
    texts = prepare_texts(data, quiet=True)
    assert texts.train.folder == folder
    assert texts.valid.ids.tolist() == texts.train.ids[:6].tolist()
    assert list(open_split(data, "valid")) == list(DOCUMENTS)


def test_ids_without_their_tokenizer_are_no_text(folder):
    (folder / "tokenizer.json").unlink()
    with pytest.raises(TrellisError, match="does not say which: give the text itself"):
        next(iter(open_text(folder)))


def test_the_hash_changes_with_the_ids(folder, words, tmp_path):
    (tmp_path / "other").mkdir()
    found = IdFile.open(folder)
    IdFile.from_documents(tmp_path / "other", found.ids[:6], found.documents[:1], words, "a text")
    assert open_text(folder).content_hash() == open_text(str(folder)).content_hash()
    assert open_text(tmp_path / "other").content_hash() != open_text(folder).content_hash()


def test_other_folders_are_no_ids(tmp_path):
    assert not is_prepared(tmp_path)
    assert not is_prepared(tmp_path / "nowhere")
