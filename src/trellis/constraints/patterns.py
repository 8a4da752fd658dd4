"""Constraints by regular expressions: of the characters of a text, or of its words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trellis.automata import Automaton
from trellis.automata.expressions import Reader, parsed
from trellis.automata.syntax import Node, One, Repeat, Row, automaton_of
from trellis.automata.utf8 import BYTES, literal
from trellis.constraints.constraint import Constraint, quoted
from trellis.constraints.spelling import Spelling
from trellis.errors import InputError

_SPACES = b" \t\n\v\f\r"
_SIGNS = "()|*+?{}."


@dataclass(frozen=True, repr=False)
class Matches(Constraint):
    """Texts that an expression matches as a whole, by their characters."""

    pattern: str

    def compiled(self, spelling: Spelling) -> Automaton:
        """The expression's automaton over bytes, read by tokens."""
        return spelling.lifted(automaton_of(parsed(self.pattern), BYTES))

    def __str__(self) -> str:
        return f"matches({quoted(self.pattern)})"


@dataclass(frozen=True, repr=False)
class MatchesWords(Constraint):
    """Texts that an expression matches as a whole, by their words."""

    pattern: str

    def compiled(self, spelling: Spelling) -> Automaton:
        """Over tokens if these are words; else each word is spelt with a space before it, and the first is dropped."""
        tree = _WordReader(self.pattern, spelling).whole()
        if spelling.words:
            return automaton_of(tree, spelling.symbols)
        spaced = automaton_of(tree, BYTES)
        if not spaced.accepting_Q[spaced.start]:
            return spelling.lifted(_after(spaced, b" "))
        return spelling.lifted(_after(spaced, b" ") | automaton_of(Row(), BYTES))

    def __str__(self) -> str:
        return f"matches_words({quoted(self.pattern)})"


def _after(automaton: Automaton, beginning: bytes) -> Automaton:
    """What may follow a beginning."""
    place = automaton.run(beginning)
    return Automaton(automaton.next_QC, automaton.class_V, automaton.accepting_Q, place).minimal()


class _WordReader(Reader):
    """Reads an expression whose atoms are words; spaces only keep them apart."""

    def __init__(self, pattern: str, spelling: Spelling | None = None) -> None:
        super().__init__(pattern)
        self.spelling = spelling

    def _peek_after_space(self) -> str:
        while self._peek().isspace():
            self._next()
        return self._peek()

    def _atom(self) -> Node:
        begin, sign = self.place, self._next()
        if sign == "(":
            return self._group(begin)
        if sign == ".":
            return self._any_word()
        if sign in _SIGNS:
            raise self._wrong(f"There is no word before this {sign}; write \\{sign} for the sign itself", -1)
        self.place = begin
        return self._word()

    def _word(self) -> Node:
        letters = []
        while (sign := self._peek()) and not sign.isspace() and sign not in _SIGNS:
            self._next()
            if sign == "\\" and not self._peek():
                raise self._wrong("Nothing follows this \\; write \\\\ for the sign itself", -1)
            letters.append(self._next() if sign == "\\" else sign)
        word = "".join(letters)
        if self.spelling is None or not self.spelling.words:
            return literal(" " + word)
        return One(np.arange(self.spelling.symbols) == self.spelling.tokenizer.id(word))

    def _any_word(self) -> Node:
        if self.spelling is not None and self.spelling.words:
            return One(self.spelling.allowed_V)
        letters = np.array([byte not in _SPACES for byte in range(BYTES)])
        return Row((literal(" "), Repeat(One(letters), 1)))


def matches(pattern: str) -> Constraint:
    """Texts that a regular expression matches as a whole, by characters, from the first to the last.

    What expressions may hold is said in `trellis.automata.expressions`.
    """
    parsed(_text(pattern))
    return Matches(pattern)


def matches_words(pattern: str) -> Constraint:
    """Texts that match an expression whose atoms are words, as in `the (big|small)* dog`; `.` is any word.

    Words are what stands between single spaces, so that `dog.` is not `dog`; a `\\\\` before a sign makes it a letter.
    """
    _WordReader(_text(pattern)).whole()
    return MatchesWords(pattern)


def _text(pattern: str) -> str:
    if not isinstance(pattern, str):
        raise InputError(f"{pattern!r} is no expression; give text.")
    return pattern
