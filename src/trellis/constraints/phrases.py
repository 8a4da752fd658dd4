"""Constraints on words and phrases: which a text contains, how often, and how it begins and ends.

A phrase is found in the text, however the tokenizer cuts it, in just these letters (capitals matter), with single
spaces between its words. It stands for whole words: where it begins or ends with a letter, a digit or `_`, no such
character may touch it. An apostrophe and a hyphen are none, so that `dragon's` and `dragon-slayer` contain `dragon`.
Of the characters beyond ASCII, those of U+0080 to U+00BF, U+2000 to U+2FFF and from U+10000 on (spaces, quotes,
dashes, symbols, emoji) bound words; all others count as letters.

Where every token is a word, or a number, a phrase is a row of such tokens, each with a space before the next.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trellis.automata import Automaton, counting
from trellis.automata.syntax import Choice, Node, One, Repeat, Row, automaton_of
from trellis.automata.utf8 import BYTES, literal
from trellis.constraints.constraint import Constraint, merged, quoted
from trellis.constraints.limits import Most, shown, upper
from trellis.constraints.spelling import Spelling
from trellis.errors import InputError
from trellis.text import WordTokenizer

_BYTE = np.arange(BYTES)
_CONTINUES = (_BYTE >= 0x80) & (_BYTE < 0xC0)  # a byte within a character, which is what its first byte says
_BOUNDS_FROM = [0xC2, 0xE2, 0xF0, 0xF1, 0xF2, 0xF3, 0xF4]  # first bytes of the characters beyond ASCII that bound words
_LETTER = np.array([chr(byte).isalnum() or chr(byte) == "_" if byte < 0x80 else byte >= 0xC0 for byte in range(BYTES)])
_LETTER[_BOUNDS_FROM] = False
_BOUND = ~_LETTER & ~_CONTINUES


@dataclass(frozen=True)
class _Phrase:
    """A phrase over V symbols, which are bytes or whole tokens."""

    symbols: int
    itself: Node
    before: Node  # what a text has before it
    after: Node
    confirming_V: NDArray[np.bool_]  # what may come next

    @property
    def seen(self) -> Automaton:
        """Texts that end with it."""
        return automaton_of(Row((self.before, self.itself)), self.symbols)


def _phrase(text: str, spelling: Spelling) -> _Phrase:
    if spelling.words:
        words = [One(np.arange(spelling.symbols) == id) for id in _ids(text, spelling)]
        anything = Repeat(One(spelling.allowed_V))
        return _Phrase(spelling.symbols, Row(tuple(words)), anything, anything, spelling.allowed_V)
    written = " ".join(text.split())
    anything = Repeat(One(np.ones(BYTES, np.bool_)))
    bounded = Row((anything, One(_BOUND), Repeat(One(_CONTINUES))))
    begins, ends = (_LETTER[character.encode()[0]] for character in (written[0], written[-1]))
    return _Phrase(
        BYTES,
        literal(written),
        Choice((Row(), bounded)) if begins else anything,
        Choice((Row(), Row((One(_BOUND), anything)))) if ends else anything,
        _BOUND if ends else np.ones(BYTES, np.bool_),
    )


def _ids(text: str, spelling: Spelling) -> list[int]:
    """The tokens of a phrase of words."""
    tokenizer = spelling.tokenizer
    words = text.split()
    if isinstance(tokenizer, WordTokenizer) and tokenizer.token(tokenizer.eos_id) in words:
        raise InputError(f"{tokenizer.token(tokenizer.eos_id)} ends a text and is never within one; leave it out.")
    return [tokenizer.id(word) for word in words] if isinstance(tokenizer, WordTokenizer) else tokenizer.encode(text)


def _over_tokens(automaton: Automaton, spelling: Spelling) -> Automaton:
    return automaton & spelling.every if spelling.words else spelling.lifted(automaton)


def _checked(phrases: tuple[str, ...]) -> tuple[str, ...]:
    """Phrases as they are shown and looked for, with single spaces."""
    if not phrases:
        raise InputError("No phrase is given; name one at least.")
    for phrase in phrases:
        if not isinstance(phrase, str) or not phrase.split():
            raise InputError(f"{phrase!r} is no phrase; give a word, or several with spaces between them.")
        if any("\ud800" <= character <= "\udfff" for character in phrase):
            raise InputError(f"{phrase!r} holds half a character; give whole ones.")
    return tuple(" ".join(phrase.split()) for phrase in phrases)


@dataclass(frozen=True, repr=False)
class Times(Constraint):
    """Texts in which a phrase occurs so many times; occurrences may overlap."""

    phrase: str
    least: int
    most: int | None

    def compiled(self, spelling: Spelling) -> Automaton:
        """A counter beside what sees the phrase."""
        phrase = _phrase(self.phrase, spelling)
        return _over_tokens(counting(phrase.seen, phrase.confirming_V, self.least, self.most), spelling)

    def __str__(self) -> str:
        return f"times({quoted(self.phrase)}, {shown(self.least, self.most)})"


@dataclass(frozen=True, repr=False)
class Contains(Constraint):
    """Texts that contain all of some phrases, or one of them, or none."""

    phrases: tuple[str, ...]
    how: str  # "contains", "contains_any" or "without"

    @property
    def parts(self) -> tuple[Constraint, ...]:
        """A part for each phrase, unless one of them is enough."""
        alone = self.how == "contains_any" or len(self.phrases) == 1
        return (self,) if alone else tuple(Contains((phrase,), self.how) for phrase in self.phrases)

    def compiled(self, spelling: Spelling) -> Automaton:
        """What each phrase asks, put together."""
        limits = (0, 0) if self.how == "without" else (1, None)
        each = [Times(phrase, *limits).compiled(spelling) for phrase in self.phrases]
        return merged(each, union=self.how == "contains_any")

    def __str__(self) -> str:
        return f"{self.how}({', '.join(map(quoted, self.phrases))})"


@dataclass(frozen=True, repr=False)
class Edge(Constraint):
    """Texts that begin with a phrase, or end with it."""

    phrase: str
    begins: bool

    def compiled(self, spelling: Spelling) -> Automaton:
        """The phrase and anything after it, or before it."""
        phrase = _phrase(self.phrase, spelling)
        tree = Row((phrase.itself, phrase.after) if self.begins else (phrase.before, phrase.itself))
        return _over_tokens(automaton_of(tree, phrase.symbols), spelling)

    def __str__(self) -> str:
        return f"{'starts' if self.begins else 'ends'}_with({quoted(self.phrase)})"


def contains(*phrases: str) -> Constraint:
    """Texts that contain all of these words or phrases, in any order."""
    return Contains(_checked(phrases), "contains")


def contains_any(*phrases: str) -> Constraint:
    """Texts that contain one of these words or phrases at least."""
    return Contains(_checked(phrases), "contains_any")


def without(*phrases: str) -> Constraint:
    """Texts that contain none of these words or phrases."""
    return Contains(_checked(phrases), "without")


def starts_with(phrase: str) -> Constraint:
    """Texts whose first words are these."""
    return Edge(_checked((phrase,))[0], True)


def ends_with(phrase: str) -> Constraint:
    """Texts whose last words are these, with nothing after them: not even a full stop, unless the phrase has it."""
    return Edge(_checked((phrase,))[0], False)


def times(phrase: str, least: int, most: Most = "exactly") -> Constraint:
    """Texts in which a phrase occurs `least` to `most` times; `times(p, n)` exactly n, `times(p, n, None)` n or more.

    Every place where it stands as whole words counts, also where two of them overlap.
    """
    return Times(_checked((phrase,))[0], least, upper(least, most))
