"""Small automata, drawn at random, and what they accept, found by trying every short sequence."""

import itertools

import numpy as np
from hypothesis import strategies as st

from trellis.automata import Automaton

SYMBOLS = 3


@st.composite
def automata(draw, most_states=5, symbols=SYMBOLS):
    """Any complete automaton; classes may be unused or equal, and states may be out of reach."""
    states, classes = draw(st.integers(1, most_states)), draw(st.integers(1, symbols + 1))
    targets = st.lists(st.integers(0, states - 1), min_size=classes, max_size=classes)
    next_QC = draw(st.lists(targets, min_size=states, max_size=states))
    class_V = draw(st.lists(st.integers(0, classes - 1), min_size=symbols, max_size=symbols))
    accepting_Q = draw(st.lists(st.booleans(), min_size=states, max_size=states))
    return Automaton(np.array(next_QC), np.array(class_V), np.array(accepting_Q), draw(st.integers(0, states - 1)))


def sequences(longest, symbols=SYMBOLS):
    """Every sequence of up to so many symbols."""
    return [word for length in range(longest + 1) for word in itertools.product(range(symbols), repeat=length)]


def language(automaton, longest=5):
    """The accepted sequences among the short ones, by plain steps."""
    return {word for word in sequences(longest, automaton.symbols) if accepted(automaton, word)}


def accepted(automaton, word):
    """Whether a sequence is accepted, straight from the definition."""
    state = automaton.start
    for symbol in word:
        state = automaton.next_QC[state][automaton.class_V[symbol]]
    return bool(automaton.accepting_Q[state])


def distinguishable(automaton):
    """Whether any two states differ by some sequence: a table of pairs, filled until nothing changes."""
    states, classes = automaton.next_QC.shape
    differ = {
        (p, q) for p in range(states) for q in range(states) if automaton.accepting_Q[p] != automaton.accepting_Q[q]
    }
    while True:
        more = {
            (p, q)
            for p in range(states)
            for q in range(states)
            if any((automaton.next_QC[p, c], automaton.next_QC[q, c]) in differ for c in range(classes))
        }
        if more <= differ:
            return {(p, q): (p, q) in differ for p in range(states) for q in range(states)}
        differ |= more
