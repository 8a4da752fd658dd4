"""Automata that others are made of: every sequence, none, and one symbol out of a set after another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trellis.automata.automaton import Automaton
from trellis.automata.tables import distinct_rows


def every(allowed_V: NDArray[np.bool_]) -> Automaton:
    """All sequences of the allowed symbols, the empty one among them."""
    return Automaton(
        np.array([[1, 0], [1, 1]], np.int32), allowed_V.astype(np.int32), np.array([True, False])
    ).minimal()


def nothing(symbols: int) -> Automaton:
    """No sequence at all."""
    return Automaton(np.zeros((1, 1), np.int32), np.zeros(symbols, np.int32), np.array([False]))


def one_after_another(allowed: Sequence[NDArray[np.bool_]], symbols: int) -> Automaton:
    """The sequences of one symbol out of each set, in their order; of no sets, the empty sequence."""
    flags_VT = np.column_stack([np.zeros(symbols, np.bool_), *allowed])
    first, class_V = distinct_rows(flags_VT)
    length = len(allowed)
    dead = length + 1
    next_QC = np.full((length + 2, len(first)), dead, np.int32)
    for place in range(length):
        next_QC[place] = np.where(flags_VT[first, place + 1], place + 1, dead)
    return Automaton(next_QC, class_V.astype(np.int32), np.arange(length + 2) == length).minimal()
