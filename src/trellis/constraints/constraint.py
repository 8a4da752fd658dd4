"""Constraints: sets of texts, which are combined as sets are and become automata over the tokens of a tokenizer."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field

from trellis.automata import Automaton, ending
from trellis.constraints.spelling import Spelling, spelling_of
from trellis.errors import InputError
from trellis.text import Tokenizer


@dataclass(frozen=True, repr=False)
class Constraint(ABC):
    """A set of texts. `&`, `|` and `~` combine them; `then` puts one text behind another.

    Its automaton reads the tokens of a text, whichever way the text is cut into tokens. Special tokens are part of no
    text: not of those that a constraint leaves out either.
    """

    _kept: dict[tuple[str, bool], Automaton] = field(default_factory=dict, init=False, compare=False)

    def automaton(self, tokenizer: Tokenizer, *, ends: bool = False) -> Automaton:
        """The minimal automaton over a tokenizer's tokens; with `ends`, texts end with the tokenizer's end token.

        It is made once for a tokenizer. A constraint that no text meets is refused, with the reason if it is plain.
        """
        spelling = spelling_of(tokenizer)
        key = (spelling.fingerprint, ends)
        if key not in self._kept:
            if ends and spelling.end_token is None:
                raise InputError("This tokenizer has no token that ends a text; ask for the automaton with ends=False.")
            made = self.compiled(spelling)
            if not made.accepting_Q.any():
                raise InputError(self.explain_empty(spelling))
            self._kept[key] = ending(made, spelling.end_token) if ends and spelling.end_token is not None else made
        return self._kept[key]

    @abstractmethod
    def compiled(self, spelling: Spelling) -> Automaton:
        """The minimal automaton over tokens, without an end; its language may be empty."""

    @property
    def parts(self) -> tuple[Constraint, ...]:
        """The constraints of which all must be met."""
        return (self,)

    @property
    def most_tokens(self) -> int | None:
        """The most tokens that this allows, if it is about their number alone."""
        return None

    def explain_empty(self, spelling: Spelling) -> str:
        """One sentence on why no text meets this: an impossible part, a length, or two parts that contradict."""
        made = [part.compiled(spelling) for part in self.parts]
        for part, its in zip(self.parts, made, strict=True):
            if its.shortest() is None:
                return f"No text of this vocabulary meets {part}; change or remove it."
        for number, part in enumerate(self.parts):
            rest = merged([its for place, its in enumerate(made) if place != number] or [spelling.every])
            shortest = rest.shortest()
            if part.most_tokens is not None and shortest is not None and shortest > part.most_tokens:
                return f"{part} is too short for the rest, which takes {shortest} tokens or more; allow that many."
        for number, part in enumerate(self.parts):
            for place in range(number):
                if (made[place] & made[number]).shortest() is None:
                    return f"{self.parts[place]} and {part} contradict each other; change or remove one."
        return f"No text meets all of {self}; change or remove a part."

    def __and__(self, other: Constraint) -> Constraint:
        return All((*_flat(self, All), *_flat(other, All)))

    def __or__(self, other: Constraint) -> Constraint:
        return Either((*_flat(self, Either), *_flat(other, Either)))

    def __invert__(self) -> Constraint:
        return self.part if isinstance(self, Not) else Not(self)

    def then(self, other: Constraint) -> Constraint:
        """A text of this, then one of the other: the tokens are cut in two somewhere, and each half is read by itself.

        So the second half is a text of its own: the space before its first token is not part of it, and the cut bounds
        words like the end of a text.
        """
        return Then(self, other)

    def __repr__(self) -> str:
        return str(self)

    @abstractmethod
    def __str__(self) -> str: ...


@dataclass(frozen=True, repr=False)
class All(Constraint):
    """Texts that meet all of its members."""

    members: tuple[Constraint, ...]

    @property
    def parts(self) -> tuple[Constraint, ...]:
        """The constraints of which all must be met."""
        return tuple(part for member in self.members for part in member.parts)

    def compiled(self, spelling: Spelling) -> Automaton:
        """The product of its members."""
        return merged(member.compiled(spelling) for member in self.members)

    def __str__(self) -> str:
        return " & ".join(f"({member})" if isinstance(member, Either) else str(member) for member in self.members)


@dataclass(frozen=True, repr=False)
class Either(Constraint):
    """Texts that meet one of its members at least."""

    members: tuple[Constraint, ...]

    def compiled(self, spelling: Spelling) -> Automaton:
        """The union of its members."""
        return merged((member.compiled(spelling) for member in self.members), union=True)

    def __str__(self) -> str:
        return " | ".join(map(str, self.members))


@dataclass(frozen=True, repr=False)
class Not(Constraint):
    """All other texts."""

    part: Constraint

    def compiled(self, spelling: Spelling) -> Automaton:
        """The complement, among the sequences that are texts."""
        return ~self.part.compiled(spelling) & spelling.every

    def __str__(self) -> str:
        return f"~({self.part})" if isinstance(self.part, All | Either) else f"~{self.part}"


@dataclass(frozen=True, repr=False)
class Then(Constraint):
    """A text of one, then a text of another, cut between tokens."""

    one: Constraint
    other: Constraint

    def compiled(self, spelling: Spelling) -> Automaton:
        """The concatenation."""
        return self.one.compiled(spelling).then(self.other.compiled(spelling))

    def __str__(self) -> str:
        one = f"({self.one})" if isinstance(self.one, All | Either | Not) else str(self.one)
        return f"{one}.then({self.other})"


def merged(automata: Iterable[Automaton], union: bool = False) -> Automaton:
    """The product of some automata, or their union, the smallest first, so that intermediate ones stay small."""
    heap = [(automaton.states, number, automaton) for number, automaton in enumerate(automata)]
    heapq.heapify(heap)
    number = len(heap)
    while len(heap) > 1:
        one, other = heapq.heappop(heap)[2], heapq.heappop(heap)[2]
        both = one | other if union else one & other
        heapq.heappush(heap, (both.states, number, both))
        number += 1
    return heap[0][2]


def quoted(text: str) -> str:
    """A text between quotes, as `parse` and Python read it."""
    sign = '"' if "'" in text and '"' not in text else "'"
    return sign + text.replace("\\", "\\\\").replace(sign, "\\" + sign) + sign


def _flat(constraint: Constraint, kind: type[All] | type[Either]) -> tuple[Constraint, ...]:
    return constraint.members if isinstance(constraint, kind) else (constraint,)
