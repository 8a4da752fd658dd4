import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trellis.automata import Automaton, Spellings, lifted, lifting

from .languages import automata, sequences

BYTE = st.integers(0, 2)  # the symbols of the small automata stand for bytes
SPELLINGS = st.lists(st.one_of(st.none(), st.lists(BYTE, max_size=4).map(bytes)), min_size=1, max_size=4)


def read(automaton, tokens, within, first):
    """Whether the bytes of some tokens are accepted; a special token spoils everything."""
    spelt = [(first if place == 0 else within)[token] for place, token in enumerate(tokens)]
    return None not in spelt and automaton.accepts(b"".join(spelt))


@settings(max_examples=60)
@given(automata(5), SPELLINGS)
def test_tokens_do_what_their_bytes_do(automaton, spellings):
    tokens = lifted(automaton, Spellings(spellings))
    assert tokens.symbols == len(spellings)
    for word in sequences(4, len(spellings)):
        assert tokens.accepts(word) == read(automaton, word, spellings, spellings)


@settings(max_examples=60)
@given(automata(5), SPELLINGS)
def test_the_first_token_may_be_spelt_differently(automaton, spellings):
    first = [None if spelt is None else spelt[1:] for spelt in spellings]
    tokens = lifted(automaton, Spellings(spellings), Spellings(first))
    for word in sequences(4, len(spellings)):
        assert tokens.accepts(word) == read(automaton, word, spellings, first)


@settings(max_examples=60)
@given(automata(5), SPELLINGS)
def test_states_in_pieces_give_the_same(automaton, spellings):
    whole = lifted(automaton, Spellings(spellings))
    piece, lifting._PIECE = lifting._PIECE, 2
    try:
        pieces = lifted(automaton, Spellings(spellings))
    finally:
        lifting._PIECE = piece
    np.testing.assert_array_equal(whole.next_QC, pieces.next_QC)
    np.testing.assert_array_equal(whole.class_V, pieces.class_V)


def test_targets_are_runs_of_the_bytes():
    automaton = Automaton(np.array([[1, 0], [2, 0], [2, 1]]), np.array([0, 1]), np.array([False, False, True]))
    spellings = [b"\0", b"\0\0\1", None, b"", b"\1\0"]
    targets = Spellings(spellings).targets(automaton, np.array([2, 0]))
    for row, state in enumerate((2, 0)):
        assert targets[row].tolist() == [-1 if spelt is None else automaton.run(spelt, state) for spelt in spellings]
