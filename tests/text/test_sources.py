from contextlib import contextmanager

import numpy as np
import pytest

from trellis.errors import TrellisError
from trellis.text import (
    ByteTokenizer,
    CharacterTokenizer,
    IntegerTokenizer,
    MemoryCorpus,
    WordTokenizer,
    prepare,
    sources,
)
from trellis.text.sources import (
    DataSettings,
    evaluation_ids,
    find_tokenizer,
    open_sources,
    open_split,
    prepare_texts,
)

WORDS = WordTokenizer(["<unk>", "<eos>", "a", "b", "c"])


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A data folder with a named corpus and two files; a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRELLIS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TRELLIS_DATA", raising=False)
    (tmp_path / "ptb").mkdir()
    for split, text in (("train", "a b c\nb a\n"), ("valid", "a x\n"), ("test", "y\n")):
        (tmp_path / "ptb" / f"ptb.{split}.txt").write_text(text)
    (tmp_path / "one.txt").write_text("a b\nc\n")
    (tmp_path / "two.txt").write_text("c c\n")
    return tmp_path


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"corpus": ""}, "data.corpus names no text"),
        ({"corpus": []}, "data.corpus names no text"),
        ({"vocab_size": 0}, "data.vocab_size must be at least 1, not 0"),
        ({"min_count": -1}, "data.min_count must be at least 1, not -1"),
        ({"max_tokens": 0}, "data.max_tokens must be at least 1, not 0"),
        ({"tokenizer": "there", "vocab_size": 9}, "data.vocab_size is for tokenizers learnt from the text"),
        ({"tokenizer": "bpe", "min_count": 2}, "data.min_count is for words"),
    ],
)
def test_settings_that_cannot_be(settings, said):
    with pytest.raises(TrellisError, match=said):
        DataSettings(**settings)


def test_sources_are_a_named_corpus_or_files(place):
    assert list(open_sources(["ptb"], "valid", str(place))) == ["a x"]
    assert list(open_sources(["one.txt", "two.txt"], "valid")) == ["a b", "c", "c c"]


def test_a_split_is_as_set_or_the_named_corpuss_own(place):
    named = DataSettings("ptb", data_dir=str(place))
    assert [list(open_split(named, split)) for split in ("valid", "validation", "test")] == [["a x"], ["a x"], ["y"]]
    assert list(open_split(DataSettings("ptb", valid="two.txt", data_dir=str(place)), "valid")) == ["c c"]
    assert open_split(DataSettings("one.txt"), "valid") is None
    with pytest.raises(TrellisError, match="no split 'dev'"):
        open_split(named, "dev")


def test_another_data_folder_goes_before_that_of_the_settings(place):
    assert list(open_split(DataSettings("ptb", data_dir="nowhere"), "test", str(place))) == ["y"]


def test_texts_share_the_vocabulary_of_the_first(place):
    tokenizer, train, valid, _ = prepare_texts(DataSettings("ptb", data_dir=str(place)), quiet=True)
    assert tokenizer.vocab_size == 2 + 3
    assert (train.meta.tokens, train.meta.unknown) == (7, 0)
    assert (valid.meta.tokens, valid.meta.unknown) == (3, 1)
    assert prepare_texts(DataSettings("one.txt"), quiet=True).valid is None


def test_every_text_is_opened_before_any_is_read(place):
    with pytest.raises(TrellisError, match=r"gone\.txt"):
        prepare_texts(DataSettings("one.txt", valid="gone.txt"), quiet=True)
    assert not (place / "cache").exists()


def test_a_limit_on_tokens_limits_the_vocabulary_too():
    tokenizer, train, *_ = prepare_texts(DataSettings("one.txt", max_tokens=2), quiet=True)
    assert (tokenizer.vocab_size, train.meta.tokens) == (2 + 2, 3)


def test_a_tokenizer_is_learnt_once(place, monkeypatch):
    corpus = open_sources(["one.txt"], "train")
    first = find_tokenizer(corpus, DataSettings("one.txt"), quiet=True)
    monkeypatch.setattr("trellis.text.sources.learn_tokenizer", None)
    assert find_tokenizer(corpus, DataSettings("one.txt"), quiet=True).fingerprint() == first.fingerprint()
    with pytest.raises(TypeError):  # other settings, another tokenizer
        find_tokenizer(corpus, DataSettings("one.txt", min_count=2), quiet=True)


@pytest.mark.parametrize("saved", ["run/best", "run", "data/run"])
def test_a_tokenizer_lies_in_a_run_a_folder_or_the_data_folder(place, saved):
    WORDS.save(place / saved)
    data = DataSettings("one.txt", tokenizer="run", data_dir="data")
    assert find_tokenizer(open_sources(["one.txt"], "train"), data).fingerprint() == WORDS.fingerprint()


def test_a_tokenizer_that_is_not_there():
    data = DataSettings("one.txt", tokenizer="wrods", data_dir="data")
    with pytest.raises(TrellisError, match=r"'wrods' is neither .* looked at wrods/best and wrods and data"):
        find_tokenizer(open_sources(["one.txt"], "train"), data)


def test_text_to_evaluate_on_is_a_corpus_files_or_what_settings_name(place):
    data = DataSettings("ptb", test="two.txt", data_dir=str(place))
    assert list(evaluation_ids(WORDS, ["ptb"], "test", str(place), quiet=True).ids) == [0, 1]
    assert list(evaluation_ids(WORDS, ["two.txt"], "test", quiet=True).ids) == [4, 4, 1]
    assert list(evaluation_ids(WORDS, data, "test", quiet=True).ids) == [4, 4, 1]
    assert list(evaluation_ids(WORDS, data, "valid", quiet=True).ids) == [2, 0, 1]
    with pytest.raises(TrellisError, match="the run was given no test text: name a corpus or files"):
        evaluation_ids(WORDS, DataSettings("one.txt"), "test", quiet=True)


def test_prepared_ids_are_taken_from_the_same_tokenizer_only():
    ids = prepare(open_sources(["one.txt"], "train"), WORDS, quiet=True)
    assert evaluation_ids(WORDS, [str(ids.folder)], "test").folder == ids.folder
    other = WordTokenizer(["<unk>", "<eos>", "a", "b", "d"])
    with pytest.raises(TrellisError, match="was prepared with another tokenizer than the model's: give the text"):
        evaluation_ids(other, [str(ids.folder)], "test")


@pytest.mark.parametrize(
    ("name", "kind", "size"),
    [("characters", CharacterTokenizer, 2 + 4), ("bytes", ByteTokenizer, 257), ("words", WordTokenizer, 2 + 3)],
)
def test_kinds_of_tokenizers_have_names(place, name, kind, size):
    data = DataSettings("ptb", data_dir=str(place), tokenizer=name, min_count=None if name != "words" else 1)
    found = find_tokenizer(open_split(data, "train"), data, quiet=True)
    assert type(found) is kind
    assert found.vocab_size == size


def test_numpy_files_have_integers_for_words(place):
    np.save(place / "x.npy", np.array([[0, 3], [1, 2]] * 400 + [[1, 4]]))
    tokenizer, train, valid, _ = prepare_texts(DataSettings("x.npy"), quiet=True)
    assert isinstance(tokenizer, IntegerTokenizer)
    assert tokenizer.vocab_size == 5, "a symbol that only the held-out end has is known"
    assert train.ids[:4].tolist() == [0, 3, 1, 2]
    assert valid is not None
    assert valid.ids[-2:].tolist() == [1, 4]


def test_a_text_of_whole_numbers_is_words_unless_told(place):
    (place / "numbers.txt").write_text("10 2\n2 0\n")
    plain, told = (DataSettings("numbers.txt", valid="numbers.txt", tokenizer=name) for name in ("words", "integers"))
    assert isinstance(prepare_texts(plain, quiet=True).tokenizer, WordTokenizer)
    tokenizer, train, *_ = prepare_texts(told, quiet=True)
    assert (tokenizer.vocab_size, train.ids.tolist(), train.documents.tolist()) == (11, [10, 2, 2, 0], [2, 4])
    wider = DataSettings("numbers.txt", tokenizer="integers", vocab_size=20)
    assert prepare_texts(wider, quiet=True).tokenizer.vocab_size == 20


def test_what_follows_the_reading_of_a_text_is_said_before_it_begins(monkeypatch):
    """Joining letters to pieces takes longer than reading, and cannot say how far it is."""
    said = []

    @contextmanager
    def waiting(what):
        said.append(what)
        yield
        said.append("done")

    monkeypatch.setattr(sources, "waiting", waiting)
    corpus = MemoryCorpus("x", ("a text of some words", "and more of them"))
    told = DataSettings(tokenizer="bpe", vocab_size=300)
    found = sources.learn_tokenizer(corpus, told)
    assert said == ["joining letters to pieces", "done"]
    assert sources.learn_tokenizer(corpus, told, quiet=True).fingerprint() == found.fingerprint()
    assert len(said) == 2
