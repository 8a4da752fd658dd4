"""A deterministic automaton over the symbols of a vocabulary: a set of sequences that a computer can follow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trellis.automata import combining
from trellis.automata.tables import UNREACHED, Tables, distances, minimised
from trellis.errors import InputError


@dataclass(frozen=True, eq=False)
class Automaton:
    """A complete deterministic automaton over V symbols, which fall into classes that act alike.

    Vocabularies are large and most symbols do the same, so a table has a column for each class and not for each symbol.
    Every operation returns the minimal automaton. Whether two accept the same sequences, `same_language` says.
    """

    next_QC: NDArray[np.int32]  # the state that each class of symbols leads to
    class_V: NDArray[np.int32]  # the class of each symbol
    accepting_Q: NDArray[np.bool_]
    start: int = 0
    end: int | None = None  # the state of a text that has ended by its end token; nothing follows, and it is accepting

    def __post_init__(self) -> None:
        for name, kind in (("next_QC", np.int32), ("class_V", np.int32), ("accepting_Q", np.bool_)):
            object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name), kind))
        _check(self)

    def __repr__(self) -> str:
        return f"Automaton({self.states:,} states, {self.classes:,} classes of {self.symbols:,} symbols)"

    @property
    def states(self) -> int:
        """The number of states, Q."""
        return len(self.next_QC)

    @property
    def classes(self) -> int:
        """The number of classes of symbols, C."""
        return int(self.next_QC.shape[1])

    @property
    def symbols(self) -> int:
        """The number of symbols, V."""
        return len(self.class_V)

    def step(self, state: int, symbol: int) -> int:
        """The state after one more symbol."""
        if not 0 <= symbol < self.symbols:
            raise InputError(f"There is no symbol {symbol}; use those from 0 to {self.symbols - 1}.")
        return int(self.next_QC[state, self.class_V[symbol]])

    def run(self, symbols: Iterable[int], state: int | None = None) -> int:
        """The state after a sequence, from the start or from the state given."""
        state = self.start if state is None else state
        for symbol in symbols:
            state = self.step(state, symbol)
        return state

    def accepts(self, symbols: Iterable[int]) -> bool:
        """Whether a whole sequence is in the language."""
        return bool(self.accepting_Q[self.run(symbols)])

    @cached_property
    def distance_Q(self) -> NDArray[np.int64]:
        """The fewest symbols from each state to an accepting one; −1 where there is no way."""
        return distances(self.next_QC[:, np.unique(self.class_V)], self.accepting_Q)

    @cached_property
    def alive_Q(self) -> NDArray[np.bool_]:
        """States from which an accepting one can be reached."""
        return np.asarray(self.distance_Q != UNREACHED)

    def shortest(self) -> int | None:
        """Length of the shortest accepted sequence; None: the language is empty."""
        distance = int(self.distance_Q[self.start])
        return None if distance == UNREACHED else distance

    def minimal(self) -> Automaton:
        """The automaton of this language with the fewest states and classes, in its canonical order."""
        return _minimal(Tables(self.next_QC, self.class_V, self.accepting_Q, self.start, self.end))

    def same_language(self, other: Automaton) -> bool:
        """Whether both accept the same sequences (and end in the same way)."""
        one, other = self.minimal(), other.minimal()
        tables = ((one.next_QC, other.next_QC), (one.class_V, other.class_V), (one.accepting_Q, other.accepting_Q))
        return one.end == other.end and all(np.array_equal(mine, theirs) for mine, theirs in tables)

    def __and__(self, other: Automaton) -> Automaton:
        """Sequences that both accept."""
        _open(self, other)
        return _minimal(combining.product(self, other, np.logical_and))

    def __or__(self, other: Automaton) -> Automaton:
        """Sequences that either accepts."""
        _open(self, other)
        return _minimal(combining.product(self, other, np.logical_or))

    def __invert__(self) -> Automaton:
        """Sequences that this one does not accept."""
        _open(self)
        return _minimal(Tables(self.next_QC, self.class_V, ~self.accepting_Q, self.start))

    def then(self, other: Automaton) -> Automaton:
        """Sequences of this language followed by one of the other's."""
        _open(self, other)
        return _minimal(combining.concatenation(self.minimal(), other.minimal()))

    def repeat(self, least: int = 0, most: int | None = None) -> Automaton:
        """From `least` to `most` sequences of this language in a row; without a `most`, any number."""
        _open(self)
        if least < 0 or (most is not None and most < least):
            raise InputError(f"Nothing is repeated {least} to {most} times; give 0 ≤ least ≤ most.")
        return _minimal(combining.repetition(self.minimal(), least, most))


def _minimal(tables: Tables) -> Automaton:
    return Automaton(*minimised(tables))


def _open(*automata: Automaton) -> None:
    """An ended text goes on with nothing, so that combining comes before ending."""
    if any(automaton.end is not None for automaton in automata):
        raise InputError("An automaton with an end cannot be combined; combine first and apply `ending` last.")


def _check(automaton: Automaton) -> None:
    """Refuse tables that do not fit together."""
    next_QC, class_V, states = automaton.next_QC, automaton.class_V, len(automaton.accepting_Q)
    if next_QC.ndim != 2 or not next_QC.size or class_V.ndim != 1 or not len(class_V):
        raise InputError("An automaton has a state, a class and a symbol at least; give tables that have.")
    if automaton.accepting_Q.shape != next_QC.shape[:1]:
        raise InputError(f"There are {len(next_QC)} states, but {states} are accepting or not; give one flag a state.")
    if next_QC.min() < 0 or next_QC.max() >= states:
        raise InputError(f"`next_QC` leads to a state that is none of 0 to {states - 1}; mend it.")
    if class_V.min() < 0 or class_V.max() >= next_QC.shape[1]:
        raise InputError(f"`class_V` names a class that is none of 0 to {next_QC.shape[1] - 1}; mend it.")
    if not 0 <= automaton.start < states or not 0 <= (automaton.end or 0) < states:
        raise InputError(f"The start and the end are states from 0 to {states - 1}; mend them.")
