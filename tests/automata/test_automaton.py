import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trellis.automata import Automaton, every, nothing, one_after_another
from trellis.errors import InputError

from .languages import SYMBOLS, automata, language, sequences

ANY = every(np.ones(SYMBOLS, bool))
NONE = nothing(SYMBOLS)
EMPTY = one_after_another([], SYMBOLS)
WORDS = sequences(5)


@settings(max_examples=40)
@given(automata())
def test_steps_runs_and_acceptance(automaton):
    expected = language(automaton)
    assert {word for word in WORDS if automaton.accepts(word)} == expected
    for word in WORDS[:40]:
        half = automaton.run(word[:2])
        assert automaton.run(word[2:], half) == automaton.run(word)


@settings(max_examples=40)
@given(automata(), automata())
def test_and_or_and_not_are_those_of_sets(one, other):
    assert language(one & other) == language(one) & language(other)
    assert language(one | other) == language(one) | language(other)
    assert language(~one) == set(WORDS) - language(one)


@settings(max_examples=40)
@given(automata(), automata())
def test_de_morgan_double_negation_idempotence(one, other):
    assert (~(one & other)).same_language(~one | ~other)
    assert (~(one | other)).same_language(~one & ~other)
    assert (~~one).same_language(one)
    assert (one & one).same_language(one)
    assert (one | one).same_language(one)
    assert (one & ~one).same_language(NONE)
    assert (one | ~one).same_language(ANY)


@settings(max_examples=40)
@given(automata(), automata())
def test_then_splits_somewhere(one, other):
    first, second = language(one), language(other)
    expected = {word for word in WORDS if any(word[:cut] in first and word[cut:] in second for cut in range(6))}
    assert language(one.then(other)) == expected


@settings(max_examples=40)
@given(automata(3), automata(3), automata(3))
def test_then_is_associative_and_spreads_over_or(one, two, three):
    assert one.then(two).then(three).same_language(one.then(two.then(three)))
    assert one.then(two | three).same_language(one.then(two) | one.then(three))


@settings(max_examples=40)
@given(automata(4), st.integers(0, 3), st.integers(0, 2))
def test_repeat_is_then_unrolled(part, least, more):
    rounds = [EMPTY]
    for _ in range(least + more):
        rounds.append(rounds[-1].then(part))
    expected = NONE
    for number in range(least, least + more + 1):
        expected = expected | rounds[number]
    assert part.repeat(least, least + more).same_language(expected)
    star = part.repeat()
    assert star.same_language(EMPTY | part.then(star))
    assert part.repeat(least).same_language(rounds[least].then(star))


@settings(max_examples=40)
@given(automata(4))
def test_any_number_of_rounds_by_brute_force(part):
    pieces = language(part, 4)
    chained = [word for word in sequences(4) if any_cut(word, pieces)]
    assert language(part.repeat(), 4) == set(chained)
    assert language(part.repeat(1), 4) == {word for word in chained if word or () in pieces}


def any_cut(word, pieces):
    return not word or any(word[:cut] in pieces and any_cut(word[cut:], pieces) for cut in range(1, len(word) + 1))


@settings(max_examples=40)
@given(automata())
def test_alive_shortest_and_distances(automaton):
    for state in range(automaton.states):
        here = Automaton(automaton.next_QC, automaton.class_V, automaton.accepting_Q, state)
        lengths = [len(word) for word in language(here)]  # five states: four steps reach what can be reached
        assert automaton.alive_Q[state] == bool(lengths)
        assert here.shortest() == min(lengths, default=None)
        assert automaton.distance_Q[state] == min(lengths, default=-1)


@settings(max_examples=40)
@given(automata(4), automata(3))
def test_same_language_is_equality_of_sets(one, other):
    # Automata of four and three states that differ do so on a sequence of at most five symbols.
    assert one.same_language(other) == (language(one) == language(other))


def test_what_does_not_fit_together_is_refused():
    two = nothing(2)
    with pytest.raises(InputError, match="3 symbols and the other 2"):
        ANY & two
    with pytest.raises(InputError, match="3 symbols and the other 2"):
        ANY.then(two)
    with pytest.raises(InputError, match="0 ≤ least ≤ most"):
        ANY.repeat(3, 2)
    with pytest.raises(InputError, match="0 ≤ least ≤ most"):
        ANY.repeat(-1)
    for symbol in (-1, SYMBOLS):
        with pytest.raises(InputError, match="from 0 to 2"):
            ANY.step(0, symbol)
