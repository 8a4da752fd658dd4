import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from trellis.text import WordTokenizer
from trellis.text.subwords import SubwordTokenizer
from trellis.text.unknown import UnknownWords

WORDS = WordTokenizer(["<unk>", "<eos>", "returns", "list", "Paris", "UTF", "the", "."])


def said(*texts, tokenizer=WORDS):
    unknown = UnknownWords(tokenizer)
    for text in texts:
        unknown.read(text)
    return unknown.sentence()


def test_which_words_and_how_they_are_known():
    assert said("Returns the list.") == (
        "2 words are unknown: 'Returns' (known as 'returns'), 'list.' (known as 'list')"
    )
    assert said("the cow") == "1 word is unknown: 'cow'"


@pytest.mark.parametrize(
    ("word", "known"),
    [("LIST", "list"), ("(Returns)", "returns"), ("paris,", "Paris"), ("utf", "UTF"), ("“list”", "list")],
)
def test_other_spellings(word, known):
    assert UnknownWords(WORDS).known_as(word) == known


def test_no_other_spelling():
    assert UnknownWords(WORDS).known_as("cow") is None
    assert UnknownWords(WORDS).known_as("...") is None  # nothing is left of it


def test_each_word_once_in_order_and_the_rest_counted():
    assert said("b a", "a c d", "e f g b") == "7 words are unknown: 'b', 'a', 'c', 'd', 'e', and 2 more"


def test_nothing_to_say():
    assert said("the list <unk> returns", "") is None  # who writes <unk> means it


def test_tokenizers_that_know_everything_and_subwords_that_do_not():
    assert said("Ünknown", tokenizer=SubwordTokenizer.train_bpe(["a b"], 257)) is None
    pieces = Tokenizer(models.WordPiece({"[UNK]": 0, "re": 1, "##turn": 2}, unk_token="[UNK]"))
    pieces.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = SubwordTokenizer(pieces, unk="[UNK]")
    assert said("return Return cow", tokenizer=tokenizer) == (
        "2 words are unknown: 'Return' (known as 'return'), 'cow'"
    )
