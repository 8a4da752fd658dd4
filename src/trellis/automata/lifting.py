"""From bytes to tokens: an automaton over bytes as one over tokens, each of which is spelt with some bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trellis.automata.automaton import Automaton
from trellis.automata.tables import distinct_rows

_PIECE = 64  # states of which the tokens' targets are held at a time


class Spellings:
    """The bytes of every token, laid out so that all tokens are read at once, a byte at a time.

    A token without a spelling (None) is special: it leads nowhere.
    """

    def __init__(self, spellings: Sequence[bytes | None]) -> None:
        self.symbols = len(spellings)
        self.special_V = np.array([spelt is None for spelt in spellings], np.bool_)
        length_V = np.array([len(spelt or b"") for spelt in spellings], np.int64)
        self._order = np.argsort(-length_V, kind="stable")  # those still being read come first
        joined = np.frombuffer(b"".join(spellings[place] or b"" for place in self._order), np.uint8)
        length_V = length_V[self._order]
        begin_V = np.cumsum(length_V) - length_V
        self._bytes: list[NDArray[np.uint8]] = []  # the byte at each place, of the tokens that are so long
        for place in range(int(length_V[0]) if self.symbols else 0):
            self._bytes.append(joined[begin_V[length_V > place] + place])

    def targets(self, automaton: Automaton, states: NDArray[np.integer]) -> NDArray[np.int32]:
        """The state (R, V) that every token leads to from each of some states; for special tokens, −1."""
        step_QC = automaton.next_QC.astype(np.int64) * automaton.classes  # a state is named by the place of its row
        place_RV = np.repeat(np.asarray(states)[:, None] * automaton.classes, self.symbols, axis=1)
        for byte in self._bytes:
            reading = place_RV[:, : len(byte)]
            place_RV[:, : len(byte)] = step_QC.reshape(-1).take(reading + automaton.class_V[byte])
        target_RV = np.empty(place_RV.shape, np.int32)
        target_RV[:, self._order] = place_RV // automaton.classes
        target_RV[:, self.special_V] = -1
        return target_RV


def lifted(automaton: Automaton, spellings: Spellings, first: Spellings | None = None) -> Automaton:
    """The token sequences whose bytes the automaton accepts; the first token of a text may be spelt differently."""
    rows = [np.arange(begin, min(begin + _PIECE, automaton.states)) for begin in range(0, automaton.states, _PIECE)]
    pieces = [_columns(spellings.targets(automaton, states)) for states in rows]
    pieces.append(_columns((first or spellings).targets(automaton, np.array([automaton.start]))))
    kinds_VP = np.column_stack([kind_V for _, kind_V in pieces])
    token_C, class_V = distinct_rows(kinds_VP)
    next_QC = np.concatenate([columns[:, kind_V[token_C]] for columns, kind_V in pieces])
    fresh, dead = automaton.states, automaton.states + 1
    next_QC = np.concatenate([np.where(next_QC < 0, dead, next_QC), np.full((1, len(token_C)), dead)])
    accepting_Q = np.append(automaton.accepting_Q, [automaton.accepting_Q[automaton.start], False])
    return Automaton(next_QC.astype(np.int32), class_V.astype(np.int32), accepting_Q, fresh).minimal()


def _columns(target_RV: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The distinct columns of a table, and which of them each token has."""
    first, kind_V = distinct_rows(np.ascontiguousarray(target_RV.T))
    return target_RV[:, first], kind_V
