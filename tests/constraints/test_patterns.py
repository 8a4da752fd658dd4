import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trellis.constraints import matches, matches_words
from trellis.errors import InputError, TrellisError

from .texts import FRAGMENTS, cut

TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=5).map("".join)
PATTERNS = [
    "(?:[a-z]+ )*[a-z]*",
    ".*dragon.*",
    "[^é日]*",
    r"\w+\W\w+",
    "(dragon|old castle| )+",
    "",
    r"[\s\S]{3,9}",
    " .*",
]
CONSTRAINTS = [matches(pattern) for pattern in PATTERNS]


@settings(max_examples=80)
@given(TEXTS, st.integers(0, 10**6))
def test_expressions_of_characters_are_pythons(spellers, text, seed):
    for tokenizer in spellers:
        ids = cut(text, tokenizer, seed)
        for constraint, pattern in zip(CONSTRAINTS, PATTERNS, strict=True):
            expected = bool(re.fullmatch(pattern, text, re.ASCII))
            assert constraint.automaton(tokenizer).accepts(ids) == expected, (pattern, ids)


# An expression of words, and the same for `re` on texts in which every word ends with a space.
WORDS = [
    ("the (big|dog)* dogs", "the (?:big |dog )*dogs "),
    ("the . dog", r"the \S+ dog "),
    (".{2} dog?", r"(?:\S+ ){2}(?:dog )?"),
    (".*", r"(?:\S+ )*"),
    ("(the|)dog+", "(?:the |)(?:dog )+"),
    (r"big | dogs{2,}", "big |(?:dogs ){2,}"),
    ("", ""),
]


@pytest.mark.parametrize(("pattern", "python"), WORDS)
def test_expressions_of_words(words, spellers, pattern, python):
    by_word = matches_words(pattern).automaton(words)
    by_byte = [(tokenizer, matches_words(pattern).automaton(tokenizer)) for tokenizer in spellers[1:]]
    for size in range(5):
        for ids in itertools.product([2, 3, 4, 5], repeat=size):
            text = words.decode(ids)
            expected = bool(re.fullmatch(python, "".join(f"{words.token(id)} " for id in ids)))
            assert by_word.accepts(ids) == expected, text
            for tokenizer, automaton in by_byte if len(text) < 12 else []:
                assert automaton.accepts(cut(text, tokenizer, size)) == expected, text


def test_words_are_cut_at_single_spaces_and_the_expression_may_quote_signs(spellers):
    for tokenizer in spellers[1:]:
        for text, expected in (("the dog.", True), ("the dog", False), ("the  dog.", False), (" the dog.", False)):
            assert matches_words(r"the dog\.").automaton(tokenizer).accepts(cut(text, tokenizer, 0)) == expected


def test_expressions_that_cannot_be_read_are_refused_at_once(words):
    with pytest.raises(InputError, match=r"never closed.*at character 3"):
        matches("ab(c")
    with pytest.raises(InputError, match=r"no word before this \*.*at character 1"):
        matches_words("* dog")
    with pytest.raises(InputError, match=r"never closed.*at character 5"):
        matches_words("the (dog")
    with pytest.raises(InputError, match="Nothing follows"):
        matches_words("the \\")
    for make in (matches, matches_words):
        with pytest.raises(InputError, match="is no expression"):
            make(3)
    with pytest.raises(TrellisError, match="'dogz' is not in the vocabulary"):
        matches_words("the dogz").automaton(words)
    with pytest.raises(InputError, match="use smaller counts"):
        matches("(a{1000}){1000}").automaton(words)


def test_expressions_of_characters_on_words(words):
    automaton = matches("the( big)* dogs?").automaton(words)
    for size in range(5):
        for ids in itertools.product([0, 2, 3, 4, 5], repeat=size):
            assert automaton.accepts(ids) == bool(re.fullmatch("the( big)* dogs?", words.decode(ids)))
