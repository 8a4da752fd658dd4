"""Texts that end: the end token as a symbol that may follow only what is accepted."""

from __future__ import annotations

import numpy as np

from trellis.automata.automaton import Automaton
from trellis.errors import InputError


def ending(automaton: Automaton, end_token: int) -> Automaton:
    """Sequences of the language with the end token after them, and any number of further end tokens.

    The end token leads from accepting states to a new state `end`, the only accepting one, where it stays. It is never
    part of a text: whatever it did before is forgotten.
    """
    if automaton.end is not None:
        raise InputError("This automaton has an end already; apply `ending` once.")
    if not 0 <= end_token < automaton.symbols:
        raise InputError(f"There is no symbol {end_token}; name an end token from 0 to {automaton.symbols - 1}.")
    states, classes = automaton.next_QC.shape
    end, dead = states, states + 1
    next_QC = np.full((states + 2, classes + 1), dead, np.int32)
    next_QC[:states, :classes] = automaton.next_QC
    next_QC[:states, classes] = np.where(automaton.accepting_Q, end, dead)
    next_QC[end, classes] = end
    class_V = automaton.class_V.copy()
    class_V[end_token] = classes
    return Automaton(next_QC, class_V, np.arange(states + 2) == end, automaton.start, end).minimal()
