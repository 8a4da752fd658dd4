import numpy as np
import pytest

from trellis.errors import InputError
from trellis.fitting import data as kinds
from trellis.fitting.data import Numbers, Texts, Tokens
from trellis.text import (
    ByteTokenizer,
    CharacterTokenizer,
    IdFile,
    IntegerTokenizer,
    MemoryCorpus,
    SubwordTokenizer,
    WordTokenizer,
)
from trellis.text.sources import DataSettings

PLAIN = DataSettings()
DOCUMENTS = tuple(f"w{number} x y" for number in range(50))


def texts(documents=DOCUMENTS, *, running=False):
    return Texts("data", MemoryCorpus("data", tuple(documents)), running)


def everything(data):
    return [list(one) for one in data.sequences] if not isinstance(data, Texts) else list(data.corpus)


@pytest.mark.parametrize(
    "data",
    [
        texts(),
        Tokens("data", [document.split() for document in DOCUMENTS]),
        Numbers("data", [np.array([number, 1]) for number in range(50)]),
    ],
    ids=lambda data: data.kind,
)
def test_a_tenth_of_the_samples_is_held_out(data):
    learnt, measured = data.held_out(seed=0)
    assert (learnt.count, measured.count) == (45, 5)
    assert sorted(everything(learnt) + everything(measured)) == sorted(everything(data))
    assert everything(data.held_out(seed=0)[1]) == everything(measured)
    assert everything(data.held_out(seed=1)[1]) != everything(measured)
    assert not learnt.running


def test_no_more_is_held_out_than_measures_a_model_well(monkeypatch):
    monkeypatch.setattr(kinds, "MOST_TOKENS", 25)
    monkeypatch.setattr(kinds, "MOST", 25)
    long = [np.arange(10)] * 100
    assert Numbers("data", long).held_out(0)[1].count == 2
    assert Numbers("data", [np.arange(50)] * 100).held_out(0)[1].count == 1, "but one at least"
    assert texts(["word " * 2] * 100).held_out(0)[1].count == 2


def test_of_few_sequences_the_end_of_each_is_held_out():
    learnt, measured = Numbers("data", [np.arange(20), np.arange(3), np.arange(40)]).held_out(0)
    assert [len(one) for one in learnt.sequences] == [18, 3, 36]
    assert everything(measured) == [[18, 19], [36, 37, 38, 39]]


def test_of_one_text_the_end_is_held_out():
    words = [f"w{number}" for number in range(1000)]
    learnt, measured = texts([" ".join(words)], running=True).held_out(0)
    assert (" ".join([*learnt.corpus, *measured.corpus])).split() == words
    assert 80 < len(" ".join(measured.corpus).split()) < 120
    assert learnt.running


def test_too_little_is_not_parted():
    for data in (Numbers("data", [np.arange(4)]), Tokens("data", [["a", "b"]]), texts(["a b"], running=True)):
        learnt, measured = data.held_out(0)
        assert measured is None
        assert everything(learnt) == everything(data)


def test_both_parts_know_every_symbol():
    data = Numbers("data", [np.array([0, 1])] * 30 + [np.array([9, 2])])
    for seed in range(5):
        learnt, _ = data.held_out(seed)
        assert learnt.tokenizer(None, PLAIN, True).vocab_size == 10


@pytest.mark.parametrize(
    ("chosen", "kind"),
    [
        (None, WordTokenizer),
        ("words", WordTokenizer),
        ("characters", CharacterTokenizer),
        ("bytes", ByteTokenizer),
        ("bpe", SubwordTokenizer),
    ],
)
def test_texts_have_the_tokenizer_that_was_chosen(chosen, kind):
    assert isinstance(texts().tokenizer(chosen, PLAIN, True), kind)


def test_a_tokenizer_may_be_an_object_or_a_folder(tmp_path):
    mine = WordTokenizer(["<unk>", "<eos>", "x", "y"])
    mine.save(tmp_path)
    for data in (texts(), Tokens("data", [["x", "z"]])):
        assert data.tokenizer(mine, PLAIN, True) is mine
        assert data.tokenizer(tmp_path, PLAIN, True).fingerprint() == mine.fingerprint()
    assert Tokens("data", [["x", "z"]]).encoded(mine)[0].tolist() == [2, 0]
    assert Tokens("data", [["New York", "x"]]).tokenizer(None, PLAIN, True).words[2:] == ("New York", "x")
    assert Numbers("data", [np.array([3])]).tokenizer(IntegerTokenizer(9), PLAIN, True).vocab_size == 9


@pytest.mark.parametrize(
    ("data", "chosen", "said"),
    [
        (texts(), 3, "tokenizer is of type int: give a name"),
        (Tokens("data", [["a", "b"]]), "bpe", "tokenizer='bpe' cuts strings, but data holds lists of tokens"),
        (Numbers("data", [np.array([1, 2])]), "words", "tokenizer does not fit, since data holds whole numbers"),
        (Numbers("data", [np.array([4, 4]), np.array([4])]), None, "data holds one symbol only, 4"),
    ],
)
def test_a_tokenizer_that_does_not_fit(data, chosen, said):
    with pytest.raises(InputError, match=said):
        data.tokenizer(chosen, PLAIN, True)


def test_one_symbol_may_be_one_of_more():
    assert Numbers("data", [np.array([4, 4])]).tokenizer(None, DataSettings(vocab_size=6), True).vocab_size == 6


def test_symbols_that_the_model_does_not_know():
    with pytest.raises(InputError, match="valid holds the symbol 9, but the model knows 0 to 7: fit with vocab"):
        Numbers("valid", [np.array([9])]).encoded(IntegerTokenizer(8))
    words = SubwordTokenizer.train_bpe(["a b"], 257)
    with pytest.raises(InputError, match="'nowhere' is not in the vocabulary"):
        Tokens("data", [["nowhere"]]).encoded(words)


@pytest.mark.parametrize(
    "data",
    [texts(["a b", "c"]), Tokens("data", [["a", "b"], ["c"]]), Numbers("data", [np.array([2, 3]), np.array([4])])],
    ids=lambda data: data.kind,
)
def test_ids_on_disk_are_those_that_are_asked_about(data, tmp_path):
    tokenizer = data.tokenizer(None, PLAIN, True)
    ids, end = data.ids(tokenizer, tmp_path, True), [] if tokenizer.eos_id is None else [tokenizer.eos_id]
    assert isinstance(ids, IdFile)
    assert ids.ids.tolist() == [number for one in data.encoded(tokenizer) for number in [*one.tolist(), *end]]
    assert len(ids.documents) == 2
