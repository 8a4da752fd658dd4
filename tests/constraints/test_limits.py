import itertools

import pytest

from trellis.constraints import contains_tokens, length, tokens
from trellis.errors import InputError
from trellis.text import IntegerTokenizer


@pytest.mark.parametrize(
    ("constraint", "least", "most"),
    [(length(0), 0, 0), (length(2), 2, 2), (length(1, 3), 1, 3), (length(2, None), 2, 9), (length(0, None), 0, 9)],
)
def test_lengths_count_tokens(words, constraint, least, most):
    automaton = constraint.automaton(words)
    for size in range(6):
        for ids in itertools.product([0, 2, words.eos_id], repeat=size):
            assert automaton.accepts(ids) == (words.eos_id not in ids and least <= size <= most)


def test_rows_of_tokens(words):
    whole, inside = tokens([2, 4]).automaton(words), contains_tokens([2, 2]).automaton(words)
    for size in range(5):
        for ids in itertools.product(range(words.vocab_size), repeat=size):
            assert whole.accepts(ids) == (ids == (2, 4))
            held = any(ids[place : place + 2] == (2, 2) for place in range(size))
            assert inside.accepts(ids) == (held and words.eos_id not in ids)
    assert tokens([]).automaton(words).same_language(length(0).automaton(words))


def test_what_does_not_fit_is_refused(words):
    with pytest.raises(InputError, match="smaller number first"):
        length(5, 2)
    with pytest.raises(InputError, match="is no count"):
        length(-1)
    with pytest.raises(InputError, match="10,000 or less"):
        length(10_001)
    with pytest.raises(InputError, match="ids from 0 to 5"):
        tokens([6]).automaton(words)
    with pytest.raises(InputError, match="special"):
        contains_tokens([words.eos_id]).automaton(words)
    with pytest.raises(InputError, match="name one id"):
        contains_tokens([])
    for wrong in ([1.5], 3, ["a"]):
        with pytest.raises(InputError, match="no token ids"):
            tokens(wrong)


def test_large_vocabularies_of_numbers():
    tokenizer = IntegerTokenizer(1_000_000)
    automaton = (contains_tokens([999_999, 3]) & length(3)).automaton(tokenizer)
    assert automaton.accepts([999_999, 3, 77])
    assert not automaton.accepts([999_999, 77, 3])
    assert automaton.classes == 3
