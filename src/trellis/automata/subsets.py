"""The subset construction: a deterministic automaton out of one that may be in several states at once.

A set of N states is a row of bits, 64 to a word, so that sets are joined and compared by whole words.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trellis.automata.tables import Tables, distinct_rows
from trellis.errors import InputError

Words = NDArray[np.uint64]
MOST_STATES = 100_000  # of a deterministic automaton: beyond it, an expression grows out of hand
_PIECE = 2**22  # words held at a time


class Nondeterministic(Protocol):
    """An automaton that goes from a set of states to a set of states."""

    @property
    def class_V(self) -> NDArray[np.int32]:
        """The class of each symbol."""

    @property
    def first_W(self) -> Words:
        """The states it begins in."""

    @property
    def accepting_W(self) -> Words:
        """The states of which one is enough to accept."""

    def expand(self, sets_FW: Words) -> Words:
        """The sets (F, C, W) that each class of symbols leads to from some sets."""


def packed(members: NDArray[np.bool_]) -> Words:
    """Flags (…, N) as words of 64 bits (…, W)."""
    bits = np.packbits(members, axis=-1, bitorder="little")
    padding = [(0, 0)] * (bits.ndim - 1) + [(0, -bits.shape[-1] % 8)]
    return np.ascontiguousarray(np.pad(bits, padding)).view("<u8").astype(np.uint64)


def unpacked(words: Words) -> NDArray[np.bool_]:
    """The flags (…, 64 W) of rows of words."""
    bits = np.ascontiguousarray(words.astype("<u8")).view(np.uint8)
    return np.unpackbits(bits, axis=-1, bitorder="little").astype(np.bool_)


def joined(table: Words, sets_FW: Words) -> Words:
    """The union of the rows of a table that each set names: (F, …) out of (N, …)."""
    union = np.zeros((len(sets_FW), *table.shape[1:]), np.uint64)
    rows, members = np.nonzero(unpacked(sets_FW))
    filled, begins = np.unique(rows, return_index=True)
    if len(filled):
        union[filled] = np.bitwise_or.reduceat(table[members], begins, axis=0)
    return union


def determinised(automaton: Nondeterministic) -> Tables:
    """The automaton whose states are the sets that are reached; it accepts with any accepting member."""
    first_W, class_V = automaton.first_W, automaton.class_V
    number = {first_W.tobytes(): 0}
    levels, nexts = [first_W[None]], []
    while len(levels[-1]):
        fresh: list[Words] = []
        for piece_FW in _pieces(levels[-1], int(class_V.max()) + 1):
            ahead_FCW = automaton.expand(piece_FW)
            ahead_NW = ahead_FCW.reshape(-1, len(first_W))
            firsts, kind_N = distinct_rows(ahead_NW)
            known = len(number)
            numbers = [number.setdefault(row.tobytes(), len(number)) for row in ahead_NW[firsts]]
            fresh += [row for row, its in zip(ahead_NW[firsts], numbers, strict=True) if its >= known]
            nexts.append(np.array(numbers, np.int32)[kind_N].reshape(ahead_FCW.shape[:2]))
        if len(number) > MOST_STATES:
            raise InputError(f"This needs over {MOST_STATES:,} states; write it with smaller counts or fewer parts.")
        levels.append(np.array(fresh, np.uint64).reshape(len(fresh), len(first_W)))
    accepting_Q = ((np.concatenate(levels) & automaton.accepting_W) != 0).any(axis=1)
    return Tables(np.concatenate(nexts), class_V, np.asarray(accepting_Q))


def _pieces(sets_FW: Words, classes: int) -> list[Words]:
    """The sets in pieces, of which each takes bounded memory when it is expanded."""
    members = 1 + max(int(unpacked(set_W).sum()) for set_W in sets_FW[:100])
    rows = max(1, _PIECE // (members * classes * sets_FW.shape[1]))
    return [sets_FW[begin : begin + rows] for begin in range(0, len(sets_FW), rows)]
