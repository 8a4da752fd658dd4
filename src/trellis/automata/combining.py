"""Two automata made one: products by pairs of states, concatenation and repetition by sets of states."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trellis.automata.subsets import Words, determinised, joined, packed
from trellis.automata.tables import Tables, distinct_rows
from trellis.errors import InputError

if TYPE_CHECKING:
    from trellis.automata.automaton import Automaton

Accept = Callable[[NDArray[np.bool_], NDArray[np.bool_]], NDArray[np.bool_]]
Classes = NDArray[np.int32]
LARGEST_TABLE = 2**28  # entries of a table, a gigabyte
_ROWS = 1_024  # states of a product whose steps are found at a time
_LARGEST_FLAGS = 2**26  # pairs of states of which a flag each is held


def product(one: Automaton, other: Automaton, accept: Accept) -> Tables:
    """Both automata at once: states and classes are pairs, as far as they occur."""
    one_C, other_C, class_V = shared_classes(one, other)
    next_one, next_other = one.next_QC[:, one_C].astype(np.int64), other.next_QC[:, other_C]
    start = one.start * other.states + other.start
    pairs = _reached(next_one, next_other, start)
    left, right = np.divmod(pairs, other.states)
    next_QC = np.empty((len(pairs), len(one_C)), np.int32)
    number = _numbers(pairs, one.states * other.states)
    for begin in range(0, len(pairs), _ROWS):
        rows = slice(begin, begin + _ROWS)
        next_QC[rows] = number(next_one[left[rows]] * other.states + next_other[right[rows]])
    accepting_Q = accept(one.accepting_Q[left], other.accepting_Q[right])
    return Tables(next_QC, class_V, accepting_Q, int(number(np.array(start))))


def shared_classes(one: Automaton, other: Automaton) -> tuple[Classes, Classes, Classes]:
    """The distinct pairs of classes of the symbols: each one's class, the other's, and the pair of every symbol."""
    if one.symbols != other.symbols:
        raise InputError(
            f"One automaton has {one.symbols:,} symbols and the other {other.symbols:,}; make both for one vocabulary."
        )
    key_V = one.class_V.astype(np.int64) * other.classes + other.class_V
    first, class_V = distinct_rows(key_V[:, None])
    return one.class_V[first], other.class_V[first], class_V.astype(np.int32)


def _reached(next_one: NDArray[np.int64], next_other: NDArray[np.int32], start: int) -> NDArray[np.int64]:
    """The pairs of states that are reached, each as one number, sorted."""
    others, classes = len(next_other), next_one.shape[1]
    seen = np.array([start])
    fresh = seen
    while len(fresh):
        left, right = np.divmod(fresh, others)
        met = _distinct(next_one[left] * others + next_other[right], len(next_one) * others)
        fresh = np.setdiff1d(met, seen, assume_unique=True)
        seen = np.union1d(seen, fresh)
        if len(seen) * classes > LARGEST_TABLE:
            raise InputError(f"Together these need over {len(seen):,} states; combine fewer or simpler constraints.")
    return seen


def _numbers(pairs: NDArray[np.int64], below: int) -> Callable[[NDArray[np.int64]], NDArray[np.integer]]:
    """The place of each pair among the sorted ones: out of a table where that is small, else by search."""
    if below > _LARGEST_FLAGS // 4:
        return lambda met: np.searchsorted(pairs, met)
    number = np.zeros(below, np.int32)
    number[pairs] = np.arange(len(pairs))
    return lambda met: number[met]


def _distinct(numbers: NDArray[np.int64], below: int) -> NDArray[np.int64]:
    """The distinct numbers, sorted; by flags where all possible ones can have a flag, which is faster than sorting."""
    if below > _LARGEST_FLAGS or below > 16 * numbers.size:
        return np.unique(numbers)
    flags = np.zeros(below, np.bool_)
    flags[numbers.reshape(-1)] = True
    return np.flatnonzero(flags)


class Linked:
    """Automata side by side, between which one may go over without a symbol: where a part ends, another begins."""

    def __init__(self, states: int, class_V: Classes) -> None:
        if states * states * (int(class_V.max()) + 1) // 64 > LARGEST_TABLE // 4:
            raise InputError(f"{states:,} states are too many to repeat or to chain; use smaller counts or parts.")
        self.class_V = class_V
        self.ahead_NCW = np.zeros((states, int(class_V.max()) + 1, -(-states // 64)), np.uint64)
        self.first_N = np.zeros(states, np.bool_)
        self.accepting_N = np.zeros(states, np.bool_)

    @property
    def first_W(self) -> Words:
        """The states it begins in."""
        return packed(self.first_N)

    @property
    def accepting_W(self) -> Words:
        """The states of which one is enough to accept."""
        return packed(self.accepting_N)

    def expand(self, sets_FW: Words) -> Words:
        """The sets (F, C, W) that each class of symbols leads to from some sets."""
        return joined(self.ahead_NCW, sets_FW)

    def place(self, begin: int, part: Automaton, part_C: Classes, onward: int | None = None) -> None:
        """Put a part's states from `begin` on; where it accepts after a symbol, the state `onward` may begin too.

        States from which the part accepts nothing are left out, which keeps sets small.
        """
        next_QC = part.next_QC[:, part_C]
        self._go(begin, next_QC + begin, part.alive_Q[next_QC])
        if onward is not None:
            self._go(begin, np.full_like(next_QC, onward), part.accepting_Q[next_QC])

    def _go(self, begin: int, targets_QC: NDArray[np.int32], where_QC: NDArray[np.bool_]) -> None:
        bits_QC = np.where(where_QC, np.uint64(1) << (targets_QC % 64).astype(np.uint64), np.uint64(0))
        rows, columns = np.indices(targets_QC.shape)
        self.ahead_NCW[begin + rows, columns, targets_QC // 64] |= bits_QC


def concatenation(one: Automaton, other: Automaton) -> Tables:
    """A sequence of the one, then one of the other."""
    one_C, other_C, class_V = shared_classes(one, other)
    linked = Linked(one.states + other.states, class_V)
    second = one.states + other.start
    linked.place(0, one, one_C, second)
    linked.place(one.states, other, other_C)
    linked.first_N[one.start] = True
    linked.first_N[second] = one.accepting_Q[one.start]
    linked.accepting_N[one.states :] = other.accepting_Q
    return determinised(linked)


def repetition(part: Automaton, least: int, most: int | None) -> Tables:
    """From `least` to `most` sequences of the part in a row, or any number from `least` on.

    The states are those of the part, once for each of the rounds that are told apart, and before them one that has
    read nothing.
    """
    if part.accepting_Q[part.start]:
        least = 0  # rounds may be empty, so any number of them is also the least
    rounds = max(1, least) if most is None else most
    linked = Linked(1 + rounds * part.states, part.class_V)
    begins = [1 + number * part.states for number in range(rounds)]
    for number, begin in enumerate(begins):
        last = begin if most is None else None
        onward = begins[number + 1] if number + 1 < rounds else last
        linked.place(
            begin, part, np.arange(part.classes, dtype=np.int32), None if onward is None else onward + part.start
        )
        linked.accepting_N[begin : begin + part.states] = part.accepting_Q & (number + 1 >= least)
    linked.first_N[0] = True
    linked.accepting_N[0] = least == 0
    if rounds:
        linked.ahead_NCW[0] = linked.ahead_NCW[1 + part.start]
    return determinised(linked)
