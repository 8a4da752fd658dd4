import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFaceTokenizer

from trellis.errors import TrellisError
from trellis.text import IntegerTokenizer, MemoryCorpus, load_tokenizer, prepare
from trellis.text.integers import LARGEST


@given(numbers=st.lists(st.integers(0, 11)))
def test_a_number_is_its_own_id(numbers):
    tokenizer = IntegerTokenizer(12)
    text = " ".join(map(str, numbers))
    assert tokenizer.encode(text) == numbers
    assert tokenizer.decode(numbers) == text
    assert tokenizer.encode_batch([text, "3"]) == [numbers, [3]]


def test_symbols_go_up_to_the_largest_in_the_text():
    tokenizer = IntegerTokenizer.train(["3 1", "", "0  7\t2"])
    assert (tokenizer.vocab_size, tokenizer.eos_id, tokenizer.unk_id) == (8, None, None)
    assert (tokenizer.token(7), tokenizer.id("7")) == ("7", 7)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (lambda it: it.encode("1 8"), "8 is none of the symbols 0 to 7"),
        (lambda it: it.encode("1 -1"), "'-1' is no whole number"),
        (lambda it: it.encode("1 2.5"), r"'2\.5' is no whole number"),
        (lambda it: it.encode("1 ²"), "'²' is no whole number"),
        (lambda it: it.id(""), "no token"),
        (lambda it: it.token(8), "no token 8; use an id from 0 to 7"),
        (lambda it: it.encode("9" * 5000), "The text holds a number of 5000 digits"),
        (lambda it: IntegerTokenizer.train(["0 1", "2 x"], "x.txt"), "^x.txt holds 'x', which is no whole number"),
        (lambda it: IntegerTokenizer.train(["0 0", "0"], "x.txt"), "^x.txt holds one symbol only, 0; give more data"),
        (lambda it: IntegerTokenizer.train(["7", "", "7 7"]), "^The text holds one symbol only, 7"),
        (lambda it: IntegerTokenizer.train([str(LARGEST)] * 2), f"holds one symbol only, {LARGEST}"),
        (lambda it: IntegerTokenizer.train(["", " "]), "^The text holds no symbols"),
        (lambda it: IntegerTokenizer(1), "vocab_size=1 leaves nothing to predict"),
        (lambda it: IntegerTokenizer(LARGEST + 1), "number those that occur"),
    ],
)
def test_what_is_no_symbol_is_refused(asked, said):
    with pytest.raises(TrellisError, match=said):
        asked(IntegerTokenizer(8))


def test_saved_and_loaded_it_is_the_same_here_and_in_other_libraries(tmp_path):
    tokenizer = IntegerTokenizer(300)
    tokenizer.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert isinstance(loaded, IntegerTokenizer)
    assert (loaded.vocab_size, loaded.fingerprint()) == (300, tokenizer.fingerprint())
    assert loaded.fingerprint() != IntegerTokenizer(299).fingerprint()
    theirs = HuggingFaceTokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert theirs.encode("299 0 17").ids == [299, 0, 17]


def test_no_mark_ends_a_sequence(tmp_path):
    file = prepare(MemoryCorpus("x", ("1 0", "2")), IntegerTokenizer(3), tmp_path)
    assert file.ids.tolist() == [1, 0, 2]
    assert file.documents.tolist() == [2, 3]
