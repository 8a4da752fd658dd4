import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trellis.constraints import contains, contains_any, ends_with, starts_with, times, without
from trellis.errors import InputError, TrellisError
from trellis.text import IntegerTokenizer

from .texts import FRAGMENTS, bounded, count, cut

TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=6).map("".join)
# Each constraint, and what it asks of a text.
CASES = [
    (contains("dragon"), lambda text: count("dragon", text) > 0),
    (contains("dragon", "old castle"), lambda text: count("dragon", text) > 0 and count("old castle", text) > 0),
    (contains("é"), lambda text: count("é", text) > 0),
    (contains("'s"), lambda text: count("'s", text) > 0),
    (contains("end."), lambda text: count("end.", text) > 0),
    (contains_any("dragon", "castle"), lambda text: count("dragon", text) + count("castle", text) > 0),
    (without("dragon", "castle"), lambda text: count("dragon", text) + count("castle", text) == 0),
    (starts_with("dragon"), lambda text: bool(re.match(bounded("dragon"), text))),
    (starts_with("old castle"), lambda text: bool(re.match(bounded("old castle"), text))),
    (starts_with("."), lambda text: text.startswith(".")),
    (ends_with("dragon"), lambda text: bool(re.search(bounded("dragon") + r"\Z", text))),
    (ends_with("end."), lambda text: bool(re.search(bounded("end.") + r"\Z", text))),
    (times("dragon", 2), lambda text: count("dragon", text) == 2),
    (times("dragon", 1, 2), lambda text: 1 <= count("dragon", text) <= 2),
    (times("dragon", 2, None), lambda text: count("dragon", text) >= 2),
    (times("a b a", 2), lambda text: count("a b a", text) == 2),
]


@settings(max_examples=80)
@given(TEXTS, st.integers(0, 10**6))
def test_phrases_are_found_however_a_text_is_cut(spellers, text, seed):
    for tokenizer in spellers:
        ids = cut(text, tokenizer, seed)
        assert tokenizer.decode(ids) == text
        for constraint, holds in CASES:
            assert constraint.automaton(tokenizer).accepts(ids) == holds(text), (constraint, ids)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        *[("dragon", True), ("a dragon.", True), ("dragon's", True), ("dragon-slayer", True), ("“dragon”", True)],
        *[("«dragon»", True), ("dragon\u2014", True), ("dragon😀", True), ("\u00a0dragon", True), ("\ndragon\n", True)],
        *[("dragons", False), ("Dragon", False), ("dragoné", False), ("édragon", False), ("dragon_", False)],
        *[("dragon9", False), ("日dragon", False), ("", False), ("drag on", False)],
    ],
)
def test_what_bounds_a_word(spellers, text, found):
    for tokenizer in spellers[1:]:  # that of characters has not seen all of these
        for seed in range(3):
            assert contains("dragon").automaton(tokenizer).accepts(cut(text, tokenizer, seed)) == found


def runs(phrase, words):
    """How often a phrase stands in a list of words."""
    wanted = phrase.split()
    return sum(words[place : place + len(wanted)] == wanted for place in range(len(words)))


def test_phrases_of_words(words):
    cases = [
        (contains("dog"), lambda text: runs("dog", text) > 0),
        (contains("dog", "big"), lambda text: runs("dog", text) > 0 and runs("big", text) > 0),
        (contains("<unk> dog"), lambda text: runs("<unk> dog", text) > 0),
        (contains_any("dog", "the big"), lambda text: runs("dog", text) + runs("the big", text) > 0),
        (without("dog", "the big"), lambda text: runs("dog", text) + runs("the big", text) == 0),
        (starts_with("the big"), lambda text: text[:2] == ["the", "big"]),
        (ends_with("the the"), lambda text: text[-2:] == ["the", "the"]),
        (times("the the", 2), lambda text: runs("the the", text) == 2),
        (times("dog", 0, 1), lambda text: runs("dog", text) <= 1),
    ]
    for constraint, holds in cases:
        automaton = constraint.automaton(words)
        for size in range(5):
            for ids in itertools.product(range(words.vocab_size), repeat=size):
                expected = words.eos_id not in ids and holds([words.token(id) for id in ids])
                assert automaton.accepts(ids) == expected, (constraint, ids)


def test_phrases_of_numbers():
    tokenizer = IntegerTokenizer(4)
    automaton = contains("3 1").automaton(tokenizer)
    for ids in itertools.product(range(4), repeat=4):
        assert automaton.accepts(ids) == any(ids[place : place + 2] == (3, 1) for place in range(3))
    with pytest.raises(TrellisError, match="none of the symbols"):
        contains("4").automaton(tokenizer)
    with pytest.raises(TrellisError, match="no whole number"):
        contains("dog").automaton(tokenizer)


def test_special_tokens_are_part_of_no_text(spellers):
    for tokenizer in spellers:
        for constraint in (contains("dragon"), without("dragon"), ~contains("dragon")):
            automaton = constraint.automaton(tokenizer)
            ids = cut("a dragon.", tokenizer, 0)
            for place in range(len(ids)):
                assert not automaton.accepts([*ids[:place], tokenizer.eos_id, *ids[place:]])


def test_an_unknown_word_is_named_with_the_nearest_one(words):
    with pytest.raises(TrellisError, match=r"'dogz' is not in the vocabulary; did you mean 'dogs?'"):
        contains("the dogz").automaton(words)
    with pytest.raises(InputError, match="<eos> ends a text"):
        contains("dog <eos>").automaton(words)


@pytest.mark.parametrize("make", [contains, contains_any, without, starts_with, ends_with])
def test_what_is_no_phrase_is_refused(make):
    for phrase in ("", "  ", None, 3):
        with pytest.raises(InputError, match="is no phrase"):
            make(phrase)
    with pytest.raises(InputError, match="half a character"):
        make("a\ud800")


def test_no_phrases_and_counts_that_are_none():
    with pytest.raises(InputError, match="name one at least"):
        contains()
    with pytest.raises(InputError, match="smaller number first"):
        times("dog", 3, 2)
    for least in (-1, 1.5, True, "2"):
        with pytest.raises(InputError, match="is no count"):
            times("dog", least)
    with pytest.raises(InputError, match="10,000 or less"):
        times("dog", 1, 10**9)


def test_spaces_between_words_are_single():
    assert contains(" old   castle ") == contains("old castle")
