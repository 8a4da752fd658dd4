"""Regular expressions as trees, over any symbols, and the minimal automaton of such a tree.

The positions of a tree are its leaves, once for every round of a repetition. A position is left for those that may
follow it, by a symbol that the next one allows (Glushkov's construction), so there are no empty moves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trellis.automata.automaton import Automaton
from trellis.automata.subsets import Words, determinised, joined, packed
from trellis.automata.tables import distinct_rows, minimised
from trellis.errors import InputError

MOST_POSITIONS = 10_000
Allowed = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class One:
    """One symbol of a set."""

    allowed_V: Allowed


@dataclass(frozen=True, eq=False)
class Row:
    """Its parts, one after another; without parts, the empty sequence."""

    parts: tuple[Node, ...] = ()


@dataclass(frozen=True, eq=False)
class Choice:
    """One of its parts."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, eq=False)
class Repeat:
    """Its part from `least` to `most` times; without a `most`, any number of times from `least` on."""

    part: Node
    least: int = 0
    most: int | None = None


Node = One | Row | Choice | Repeat


def automaton_of(tree: Node, symbols: int) -> Automaton:
    """The minimal automaton of the sequences that a tree describes."""
    if (positions := size(tree)) > MOST_POSITIONS:
        raise InputError(
            f"The expression is as long as {positions:,} single symbols, of which {MOST_POSITIONS:,} are the most; "
            "use smaller counts."
        )
    return Automaton(*minimised(determinised(Positions(tree, symbols))))


def size(tree: Node) -> int:
    """How many leaves a tree has when its repetitions are written out."""
    if isinstance(tree, One):
        return 1
    if isinstance(tree, Repeat):
        return size(tree.part) * max(1, tree.least if tree.most is None else tree.most)
    return sum(size(part) for part in tree.parts)


@dataclass(frozen=True)
class _Span:
    """Part of the positions, as sets of bits: those it may begin with and end with, and whether it may be empty."""

    empty: bool
    first: int
    last: int


_NOTHING_READ = _Span(True, 0, 0)


class Positions:
    """The positions of a tree as an automaton that may be in several at once; position 0 has read nothing."""

    def __init__(self, tree: Node, symbols: int) -> None:
        self._follow: list[int] = [0]
        self._labels: list[Allowed] = [np.zeros(symbols, np.bool_)]
        whole = self._span(tree)
        self._follow[0] = whole.first
        words = -(-len(self._follow) // 64)
        self._follow_NW = np.array([_words(follow, words) for follow in self._follow])
        self.first_W = _words(1, words)
        self.accepting_W = _words(whole.last | int(whole.empty), words)
        self.class_V, self._allowed_CW = self._classes()

    def expand(self, sets_FW: Words) -> Words:
        """What may follow, as far as each class of symbols allows it."""
        return joined(self._follow_NW, sets_FW)[:, None, :] & self._allowed_CW

    def _classes(self) -> tuple[NDArray[np.int32], Words]:
        """The classes of symbols that no label tells apart, and the positions that allow each."""
        labels = {id(label): label for label in self._labels}
        first, class_V = distinct_rows(np.column_stack(list(labels.values())))
        allowed = {key: label[first] for key, label in labels.items()}
        allowed_NC = np.array([allowed[id(label)] for label in self._labels])
        return class_V.astype(np.int32), packed(allowed_NC.T)

    def _span(self, tree: Node) -> _Span:
        if isinstance(tree, One):
            self._follow.append(0)
            self._labels.append(tree.allowed_V)
            place = 1 << (len(self._follow) - 1)
            return _Span(False, place, place)
        if isinstance(tree, Choice):
            spans = [self._span(part) for part in tree.parts]
            first, last = 0, 0
            for span in spans:
                first, last = first | span.first, last | span.last
            return _Span(any(span.empty for span in spans), first, last)
        if isinstance(tree, Repeat):
            return self._repeated(tree)
        whole = _NOTHING_READ
        for part in tree.parts:
            whole = self._after(whole, self._span(part))
        return whole

    def _repeated(self, tree: Repeat) -> _Span:
        """The rounds that must be, then those that may be: each within the one before, as in a(b(c)?)?."""
        rest = _NOTHING_READ
        if tree.most is None:
            rest = self._span(tree.part)
            self._link(rest.last, rest.first)
            rest = rest if tree.least else _Span(True, rest.first, rest.last)
        for _ in range((tree.most or 0) - tree.least if tree.most is not None else 0):
            longer = self._after(self._span(tree.part), rest)
            rest = _Span(True, longer.first, longer.last)
        for _ in range(tree.least if tree.most is not None else max(0, tree.least - 1)):
            rest = self._after(self._span(tree.part), rest)
        return rest

    def _after(self, one: _Span, other: _Span) -> _Span:
        self._link(one.last, other.first)
        first = one.first | (other.first if one.empty else 0)
        return _Span(one.empty and other.empty, first, other.last | (one.last if other.empty else 0))

    def _link(self, last: int, first: int) -> None:
        for place in _members(last) if first else ():
            self._follow[place] |= first


def _members(bits: int) -> Iterator[int]:
    """The numbers of the bits that are set."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def _words(bits: int, words: int) -> Words:
    return np.frombuffer(bits.to_bytes(8 * words, "little"), "<u8").astype(np.uint64)
