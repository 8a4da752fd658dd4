"""What every kind of tokenizer keeps to."""

import pytest

from trellis.errors import InputError
from trellis.text import IntegerTokenizer, WordTokenizer
from trellis.text.characters import CharacterTokenizer
from trellis.text.subwords import SubwordTokenizer

LEARN = {
    "words": WordTokenizer.train,
    "characters": CharacterTokenizer.train,
    "bpe": lambda documents: SubwordTokenizer.train_bpe(documents, 300),
    "integers": IntegerTokenizer.train,
}


@pytest.mark.parametrize("kind", LEARN)
def test_one_string_is_no_list_of_documents(kind):
    with pytest.raises(InputError, match="documents is a single string: give a list of strings"):
        LEARN[kind]("10 20 10 30")
    assert LEARN[kind](["10 20", "10 30"]).fingerprint() == LEARN[kind](iter(["10 20", "10 30"])).fingerprint()
