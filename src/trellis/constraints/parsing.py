"""Constraints written as text, for the command line: `contains(dragon) & ~contains(castle) & length(5, 12)`.

The names are those of the functions. `&`, `|`, `~` and parentheses combine, as do the words `and`, `or` and `not`;
`.then( )` follows a constraint. Phrases and expressions may be quoted, and must be if they hold commas, brackets or
quotes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NoReturn

from trellis.constraints import limits, patterns, phrases
from trellis.constraints.constraint import Constraint
from trellis.errors import InputError, TrellisError
from trellis.settings import nearest

_TEXTS: dict[str, Callable[..., Constraint]] = {
    "contains": phrases.contains,
    "contains_any": phrases.contains_any,
    "without": phrases.without,
    "starts_with": phrases.starts_with,
    "ends_with": phrases.ends_with,
    "matches": patterns.matches,
    "matches_words": patterns.matches_words,
}
_IDS: dict[str, Callable[..., Constraint]] = {"tokens": limits.tokens, "contains_tokens": limits.contains_tokens}
_NAMES = sorted([*_TEXTS, *_IDS, "times", "length"])
_NAME = re.compile(r"[A-Za-z_]+")
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_BARE = re.compile(r"[^,()'\"\[\]]+")
_DEEPEST = 100


def parse(text: str) -> Constraint:
    """The constraint that a text describes, or one sentence that points at the character that is wrong."""
    return _Parser(text).whole()


class _Parser:
    """Reads a constraint from left to right; `place` is the next character."""

    def __init__(self, text: str) -> None:
        self.text, self.place, self.depth = text, 0, 0

    def whole(self) -> Constraint:
        constraint = self._either()
        if self.place < len(self.text):
            self._refuse("Put & or | between two constraints")
        return constraint

    def _either(self) -> Constraint:
        constraint = self._all()
        while self._sign("|", "or"):
            constraint = constraint | self._all()
        return constraint

    def _all(self) -> Constraint:
        constraint = self._single()
        while self._sign("&", "and"):
            constraint = constraint & self._single()
        return constraint

    def _single(self) -> Constraint:
        self.depth += 1
        if self.depth > _DEEPEST:
            self._refuse(f"Over {_DEEPEST} constraints are nested; write it with fewer")
        constraint = ~self._single() if self._sign("~", "not") else self._chain()
        self.depth -= 1
        return constraint

    def _chain(self) -> Constraint:
        constraint = self._group() if self._sign("(") else self._call()
        while self._sign("."):
            if self._name() != "then" or not self._sign("("):
                self._refuse("Only .then( ) may follow a constraint")
            constraint = constraint.then(self._group())
        return constraint

    def _group(self) -> Constraint:
        constraint = self._either()
        if not self._sign(")"):
            self._refuse("A ) is missing")
        return constraint

    def _call(self) -> Constraint:
        self._skip()
        begin, name = self.place, self._name()
        if name not in _NAMES:
            self.place = begin
            self._refuse(
                f"Unknown constraint {name!r}: {nearest(name, _NAMES)[:-1]}" if name else "Name a constraint here"
            )
        if not self._sign("("):
            self._refuse(f"Write {name}( ) with what it asks for between the parentheses")
        values = self._values()
        try:
            return _made(name, values)
        except TrellisError as error:
            raise InputError(f"In {name}( ) at character {begin + 1}: {error}") from error

    def _values(self) -> list[str]:
        """What stands between the parentheses of a call, quotes and brackets taken off."""
        values: list[str] = []
        self._sign("[")
        while not self._closed():
            if values and not self._sign(","):
                self._refuse("Put a comma between two values, or quote what holds signs")
            values.append(self._value())
        return values

    def _closed(self) -> bool:
        self._sign("]")
        return self._sign(")")

    def _value(self) -> str:
        self._skip()
        if found := _QUOTED.match(self.text, self.place):
            self.place = found.end()
            return _unquoted(found[0])
        if found := _BARE.match(self.text, self.place):
            self.place = found.end()
            return found[0].strip()
        return self._refuse("Here a value is missing, or a quote or a ) is")

    def _name(self) -> str:
        self._skip()
        found = _NAME.match(self.text, self.place)
        self.place = found.end() if found else self.place
        return found[0] if found else ""

    def _sign(self, sign: str, word: str | None = None) -> bool:
        """Take a sign, or the word for it, if it comes next."""
        self._skip()
        found = _NAME.match(self.text, self.place)
        for spelt in (sign, word if found and found[0] == word else None):
            if spelt is not None and self.text.startswith(spelt, self.place):
                self.place += len(spelt)
                return True
        return False

    def _skip(self) -> None:
        while self.text[self.place : self.place + 1].isspace():
            self.place += 1

    def _refuse(self, why: str) -> NoReturn:
        shown = "".join(character if character.isprintable() else " " for character in self.text)
        raise InputError(f"{why}, at character {self.place + 1}:\n  {shown}\n  {' ' * self.place}^")


def _made(name: str, values: list[str]) -> Constraint:
    if name in _TEXTS:
        if name not in ("contains", "contains_any", "without") and len(values) != 1:
            raise InputError(f"{name} takes one value, not {len(values)}; quote it if it holds commas.")
        return _TEXTS[name](*values)
    if name in _IDS:
        return _IDS[name]([_number(value) for value in values])
    given = values[1:] if name == "times" else values
    if len(given) not in (1, 2) or (name == "times" and not values):
        raise InputError(f"{name} takes {'a phrase and then ' if name == 'times' else ''}one number or two.")
    least = _number(given[0])
    most: limits.Most = _number_or_none(given[1]) if len(given) == 2 else "exactly"
    return phrases.times(values[0], least, most) if name == "times" else limits.length(least, most)


def _number(value: str) -> int:
    if not (value.isascii() and value.isdigit()) or len(value) > 9:
        raise InputError(f"{value!r} is no whole number; write digits.")
    return int(value)


def _number_or_none(value: str) -> int | None:
    return None if value.lower() in ("none", "any") else _number(value)


def _unquoted(quoted: str) -> str:
    """Text between quotes; a backslash is kept, as expressions need it, but before a backslash or a quote."""
    return re.sub(r"\\([\\'\"])", r"\1", quoted[1:-1])
