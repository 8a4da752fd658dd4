"""How many: the least and the most, and constraints on the number of tokens and on the tokens themselves."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from trellis.automata import Automaton
from trellis.automata.syntax import One, Repeat, Row, automaton_of
from trellis.constraints.constraint import Constraint
from trellis.constraints.spelling import Spelling
from trellis.errors import InputError

Most = int | None | Literal["exactly"]
LARGEST = 10_000  # more than this is rather a mistake, and its automaton would be large


def upper(least: int, most: Most) -> int | None:
    """The most that is meant, after a look at both numbers; None: no limit."""
    most = least if most == "exactly" else most
    for number in (least, most):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 0):
            raise InputError(f"{number!r} is no count; give whole numbers from 0 on.")
    if max(least, most or 0) > LARGEST:
        raise InputError(f"{max(least, most or 0):,} is more than can be counted; give {LARGEST:,} or less.")
    if most is not None and most < least:
        raise InputError(f"At least {least} and at most {most} contradict each other; give the smaller number first.")
    return most


def shown(least: int, most: int | None) -> str:
    """Both numbers as they are written; one if they are the same."""
    return str(least) if most == least else f"{least}, {most}"


@dataclass(frozen=True, repr=False)
class Length(Constraint):
    """Texts of so many tokens."""

    least: int
    most: int | None

    @property
    def most_tokens(self) -> int | None:
        """The most tokens that this allows."""
        return self.most

    def compiled(self, spelling: Spelling) -> Automaton:
        """A state for every number of tokens that is told apart."""
        last = self.least if self.most is None else self.most + 1
        number_Q = np.arange(last + 2)
        dead = last + 1
        onward_Q = np.minimum(number_Q + 1, last if self.most is None else dead)
        next_QC = np.stack([np.full(len(number_Q), dead), np.where(number_Q == dead, dead, onward_Q)], axis=1)
        accepting_Q = (number_Q >= self.least) & (number_Q <= (last if self.most is None else self.most))
        return Automaton(next_QC.astype(np.int32), spelling.allowed_V.astype(np.int32), accepting_Q).minimal()

    def __str__(self) -> str:
        return f"length({shown(self.least, self.most)})"


@dataclass(frozen=True, repr=False)
class Tokens(Constraint):
    """Texts that are a row of tokens, or contain it."""

    ids: tuple[int, ...]
    whole: bool

    def compiled(self, spelling: Spelling) -> Automaton:
        """The tokens one after another, and any others around them."""
        for id in self.ids:
            if not 0 <= id < spelling.symbols:
                raise InputError(f"There is no token {id}; use ids from 0 to {spelling.symbols - 1}.")
            if not spelling.allowed_V[id]:
                raise InputError(f"Token {id} is special and part of no text; leave it out.")
        row = Row(tuple(One(np.arange(spelling.symbols) == id) for id in self.ids))
        anything = Repeat(One(spelling.allowed_V))
        return automaton_of(row if self.whole else Row((anything, row, anything)), spelling.symbols)

    def __str__(self) -> str:
        return f"{'tokens' if self.whole else 'contains_tokens'}({list(self.ids)})"


def length(least: int, most: Most = "exactly") -> Constraint:
    """Texts of `least` to `most` tokens, the end not counted; `length(n)` exactly n, `length(n, None)` n or more."""
    return Length(least, upper(least, most))


def tokens(ids: Iterable[int]) -> Constraint:
    """The text of just these tokens."""
    return Tokens(_ids(ids), True)


def contains_tokens(ids: Iterable[int]) -> Constraint:
    """Texts with these tokens in a row somewhere."""
    if not (checked := _ids(ids)):
        raise InputError("No token is given; name one id at least.")
    return Tokens(checked, False)


def _ids(ids: Iterable[int]) -> tuple[int, ...]:
    try:
        return tuple(operator.index(id) for id in ids)
    except TypeError:
        raise InputError(f"{ids!r} are no token ids; give a list of whole numbers.") from None
