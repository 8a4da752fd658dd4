import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trellis.automata import ending, every, nothing
from trellis.errors import InputError

from .languages import SYMBOLS, automata, language, sequences


@settings(max_examples=60)
@given(automata(4), st.integers(0, SYMBOLS - 1))
def test_texts_end_by_the_end_token_and_stay_ended(automaton, end_token):
    texts = {word for word in language(automaton, 4) if end_token not in word}
    expected = {text + (end_token,) * (length - len(text)) for text in texts for length in range(len(text) + 1, 6)}
    ended = ending(automaton, end_token)
    assert language(ended, 5) == {word for word in expected if len(word) <= 5}
    for word in sequences(4):
        assert (ended.run(word) == ended.end) == ended.accepts(word)


@settings(max_examples=60)
@given(automata(4), st.integers(0, SYMBOLS - 1))
def test_nothing_follows_the_end(automaton, end_token):
    ended = ending(automaton, end_token)
    if ended.end is None:
        assert ended.shortest() is None
        return
    assert ended.accepting_Q.tolist() == [state == ended.end for state in range(ended.states)]
    for symbol in range(SYMBOLS):
        after = ended.step(ended.end, symbol)
        assert after == ended.end if symbol == end_token else not ended.alive_Q[after]


def test_ending_comes_last_and_once():
    ended = ending(every(np.ones(SYMBOLS, bool)), 1)
    for combine in (
        lambda: ended & ended,
        lambda: ended | ended,
        lambda: ~ended,
        lambda: ended.then(nothing(SYMBOLS)),
        lambda: ended.repeat(),
    ):
        with pytest.raises(InputError, match="apply `ending` last"):
            combine()
    with pytest.raises(InputError, match="apply `ending` once"):
        ending(ended, 1)
    with pytest.raises(InputError, match="from 0 to 2"):
        ending(nothing(SYMBOLS), SYMBOLS)


def test_ends_by_different_tokens_are_different_languages():
    anything = every(np.ones(SYMBOLS, bool))
    assert ending(anything, 1).same_language(ending(anything, 1))
    assert not ending(anything, 1).same_language(ending(anything, 2))
