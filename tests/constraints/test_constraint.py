import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trellis.automata import ending
from trellis.constraints import contains, length, matches, starts_with, times, tokens, without
from trellis.constraints.spelling import spelling_of
from trellis.errors import InputError
from trellis.text import IntegerTokenizer, WordTokenizer

from .texts import cut

LEAVES = [contains("dog"), without("big"), times("the", 1, 2), length(1, 3), starts_with("the"), tokens([4]), length(0)]
TREES = st.recursive(
    st.sampled_from(LEAVES),
    lambda parts: st.one_of(
        st.builds(lambda one, other: one & other, parts, parts),
        st.builds(lambda one, other: one | other, parts, parts),
        st.builds(lambda one: ~one, parts),
        st.builds(lambda one, other: one.then(other), parts, parts),
    ),
    max_leaves=5,
)
TOKENIZER = WordTokenizer(["<unk>", "<eos>", "the", "big", "dog"])
LONGEST = 4
ROWS = [ids for size in range(LONGEST + 1) for ids in itertools.product([0, 2, 3, 4], repeat=size)]


def texts(constraint):
    """The short texts that meet a constraint, by sets."""
    name = type(constraint).__name__
    if name == "Not":
        return set(ROWS) - texts(constraint.part)
    if name == "Then":
        halves = itertools.product(texts(constraint.one), texts(constraint.other))
        return {one + other for one, other in halves if len(one) + len(other) <= LONGEST}
    if name in ("All", "Either"):
        sets = [texts(member) for member in constraint.members]
        return set.intersection(*sets) if name == "All" else set.union(*sets)
    asked = {
        LEAVES[0]: lambda ids: 4 in ids,
        LEAVES[1]: lambda ids: 3 not in ids,
        LEAVES[2]: lambda ids: 1 <= ids.count(2) <= 2,
        LEAVES[3]: lambda ids: 1 <= len(ids) <= 3,
        LEAVES[4]: lambda ids: ids[:1] == (2,),
        LEAVES[5]: lambda ids: ids == (4,),
        LEAVES[6]: lambda ids: not ids,
    }[constraint]
    return {ids for ids in ROWS if asked(ids)}


@settings(max_examples=50)
@given(TREES)
def test_constraints_combine_as_sets_do(constraint):
    expected = texts(constraint)
    if constraint.compiled(spelling_of(TOKENIZER)).shortest() is None:
        assert not expected
        return
    automaton = constraint.automaton(TOKENIZER)
    assert {ids for ids in ROWS if automaton.accepts(ids)} == expected
    ended = constraint.automaton(TOKENIZER, ends=True)
    assert ended.same_language(ending(automaton, TOKENIZER.eos_id))
    assert {ids for ids in ROWS if ended.accepts((*ids, TOKENIZER.eos_id))} == expected


def test_automata_are_kept_for_each_tokenizer():
    constraint, same = contains("dog"), WordTokenizer(TOKENIZER.words)
    other = WordTokenizer([*TOKENIZER.words, "cat"])
    assert constraint.automaton(TOKENIZER) is constraint.automaton(same)
    assert constraint.automaton(TOKENIZER) is not constraint.automaton(TOKENIZER, ends=True)
    assert constraint.automaton(other).symbols == 6
    assert constraint.automaton(TOKENIZER).symbols == 5


def test_halves_of_then_are_texts_of_their_own(spellers):
    """The space before the second half's first token is not part of it."""
    constraint = matches("the").then(matches("dog"))
    for tokenizer in spellers:
        automaton = constraint.automaton(tokenizer)
        assert automaton.accepts([*cut("the", tokenizer, 0), *cut("dog", tokenizer, 0)])
    llama = spellers[-1]
    if llama.vocab_size == 32_000:
        assert constraint.automaton(llama).accepts([llama.id("▁the"), llama.id("▁dog")])
        assert not (matches("the dog") & constraint).automaton(llama).accepts([llama.id("▁the"), llama.id("dog")])


@pytest.mark.parametrize(
    ("constraint", "reason"),
    [
        (contains("dog") & without("dog") & length(5), r"contains\('dog'\) and without\('dog'\) contradict each other"),
        (contains("dog", "big") & length(1), r"length\(1\) is too short for the rest, which takes 2 tokens or more"),
        (length(0, 2) & times("the", 3, None), r"length\(0, 2\) is too short .* 3 tokens"),
        (length(2) & length(4, 5), r"length\(2\) is too short for the rest, which takes 4 tokens"),
        (matches("the dogs"), r"No text of this vocabulary meets matches\('the dogs'\)"),
        (contains("dog") & (tokens([2]) | tokens([3])), "contradict each other"),
        (contains("dog") & ~contains("dog"), r"contains\('dog'\) and ~contains\('dog'\) contradict"),
        (
            (tokens([2]) | tokens([3])) & (tokens([3]) | tokens([4])) & (tokens([2]) | tokens([4])),
            r"No text meets all of \(tokens\(\[2\]\) \| tokens\(\[3\]\)\) & ",
        ),
    ],
)
def test_contradictions_are_explained(constraint, reason):
    for ends in (False, True):
        with pytest.raises(InputError, match=reason):
            constraint.automaton(TOKENIZER, ends=ends)


def test_who_has_no_end_token_cannot_end():
    with pytest.raises(InputError, match="ends=False"):
        length(3).automaton(IntegerTokenizer(3), ends=True)


def test_constraints_read_well_and_compare_by_what_they_say():
    constraint = (contains("dog", "old castle") | ~length(2, None)) & matches(r"\d+").then(contains("it's"))
    written = "(contains('dog', 'old castle') | ~length(2, None)) & matches('\\\\d+').then(contains(\"it's\"))"
    assert str(constraint) == repr(constraint) == written
    assert str(~(contains("a") & contains("b"))) == "~(contains('a') & contains('b'))"
    assert contains("a") & contains("b") & contains("c") == contains("a") & (contains("b") & contains("c"))
    assert ~~contains("a") == contains("a")
    assert len({contains("a"), contains("a"), without("a")}) == 2


def test_ten_words_of_which_all_must_occur(llama):
    ten = ["dragon", "castle", "sword", "princess", "forest", "magic", "river", "king", "horse", "night"]
    automaton = contains(*ten).automaton(llama)
    text = "The king's horse drank at the river by night; magic forest, princess, sword and castle"
    assert not automaton.accepts(llama.encode(text))
    assert automaton.accepts(llama.encode(f"{text} dragon."))
    assert not automaton.accepts(llama.encode(f"{text} dragons."))
