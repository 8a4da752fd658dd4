"""What every kind of tokenizer keeps to."""

import copy
import json
from contextlib import suppress

import pytest

from trellis.errors import InputError, TrellisError
from trellis.text import IntegerTokenizer, WordTokenizer, load_tokenizer
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


ODD = (None, True, -1, 2**70, 0.5, "", "x", [], ["x"], {}, {"x": None}, {"x": [1]})


def places(value, before=()):
    """Every place in a JSON value but the first, of long lists and tables the first few and the last."""
    if isinstance(value, dict | list):
        names = [*value] if isinstance(value, dict) else [*range(len(value))]
        for name in [*names[:4], *names[4:][-1:]]:
            yield (*before, name)
            yield from places(value[name], (*before, name))


@pytest.mark.parametrize("kind", LEARN)
def test_whatever_a_file_says_it_is_read_or_refused(kind, tmp_path):
    LEARN[kind](["10 20", "10 30"]).save(tmp_path)
    read = 0
    for path in (tmp_path / "tokenizer.json", tmp_path / "tokenizer_config.json"):
        text = path.read_text("utf-8")
        for place in places(json.loads(text)):
            for odd in ODD:
                changed = copy.deepcopy(json.loads(text))
                holder = changed
                for name in place[:-1]:
                    holder = holder[name]
                holder[place[-1]] = odd
                path.write_text(json.dumps(changed), "utf-8")
                with suppress(TrellisError):
                    load_tokenizer(tmp_path)
                    read += 1
        path.write_text(text, "utf-8")
    assert read > 10  # much of what the files say decides nothing
