"""Regular expressions as people write them, read over the bytes of UTF-8 text.

Literals, `.` (any character but a line's end), classes such as `[a-zé]` and `[^…]`, `\\d \\w \\s \\D \\W \\S` in their
ASCII meaning, escapes, groups, `|`, and `* + ? {m} {m,} {m,n}`. An expression always describes the whole text, so `^`
and `$` may stand at its ends only, and lazy quantifiers mean the same as greedy ones. What is not regular is refused.
"""

from __future__ import annotations

import re

from trellis.automata.automaton import Automaton
from trellis.automata.syntax import Choice, Node, Repeat, Row, automaton_of
from trellis.automata.utf8 import BYTES, LAST, Range, characters, complement
from trellis.errors import InputError

_NEWLINE = ord("\n")
_SETS = {
    "d": [(ord("0"), ord("9"))],
    "w": [(ord("0"), ord("9")), (ord("A"), ord("Z")), (ord("_"), ord("_")), (ord("a"), ord("z"))],
    "s": [(ord("\t"), ord("\r")), (ord(" "), ord(" "))],
}
_SETS |= {name.upper(): complement(ranges) for name, ranges in list(_SETS.items())}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}
_CODES = {"x": 2, "u": 4, "U": 8}  # hexadecimal digits of a character by its number
_COUNT = re.compile(r"\{(\d*)(?:(,)(\d*))?\}")
_DEEPEST = 100


def expression(pattern: str) -> Automaton:
    """The minimal automaton over bytes of the texts that an expression matches as a whole."""
    return automaton_of(parsed(pattern), BYTES)


def parsed(pattern: str) -> Node:
    """The tree of an expression, or one sentence that points at the character that is wrong."""
    return Reader(pattern).whole()


def refuse(pattern: str, place: int, why: str) -> InputError:
    """The error of an expression that cannot be read, with a line that points at the place."""
    shown = "".join(character if character.isprintable() else " " for character in pattern)
    return InputError(f"{why}, at character {place + 1} of the expression:\n  {shown}\n  {' ' * place}^")


class Reader:
    """Reads an expression from left to right; `place` is the next character."""

    def __init__(self, pattern: str) -> None:
        self.pattern, self.place, self.depth = pattern, 0, 0

    def whole(self) -> Node:
        """The tree of the whole expression."""
        tree = self._choice()
        if self.place < len(self.pattern):
            raise self._wrong("This ) closes nothing; remove it or write \\)")
        return tree

    def _choice(self) -> Node:
        parts = [self._row()]
        while self._take("|"):
            parts.append(self._row())
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def _row(self) -> Node:
        parts = []
        while self._peek_after_space() not in ("", "|", ")"):
            parts.append(self._counted(self._atom()))
        return parts[0] if len(parts) == 1 else Row(tuple(parts))

    def _counted(self, atom: Node) -> Node:
        limits = self._limits()
        if limits is None:
            return atom
        self._take("?")  # lazy: the same language
        if self._peek() == "+":
            raise self._wrong("A possessive quantifier is not supported; leave the + out")
        if self._limits() is not None:
            raise self._wrong("Two quantifiers follow one another; put what is repeated in parentheses", -1)
        return Repeat(atom, *limits)

    def _limits(self) -> tuple[int, int | None] | None:
        """How often what stands before is repeated, if a quantifier follows."""
        for sign, limits in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return limits
        found = _COUNT.match(self.pattern, self.place)
        if found is None or found[0] == "{}":
            return None
        least = int(found[1] or 0)
        most = least if found[2] is None else int(found[3]) if found[3] else None
        if most is not None and most < least:
            raise self._wrong("The smaller count comes first; write {least,most}")
        self.place = found.end()
        return least, most

    def _atom(self) -> Node:
        begin, sign = self.place, self._next()
        if sign == "(":
            return self._group(begin)
        if sign == "[":
            return self._class(begin)
        if sign == ".":
            return characters(complement([(_NEWLINE, _NEWLINE)]))
        if sign == "\\":
            return characters(self._escape(begin))
        if sign in "*+?":
            raise self._wrong(f"There is nothing that this {sign} could repeat; write \\{sign} for the sign itself", -1)
        if (sign == "^" and begin == 0) or (sign == "$" and self.place == len(self.pattern)):
            return Row()
        if sign in "^$":
            raise self._wrong(
                f"The expression is matched with the whole text; remove this {sign} or write \\{sign}", -1
            )
        return characters([self._number(sign, begin)])

    def _group(self, begin: int) -> Node:
        if self._take("?") and not self._take(":"):
            raise refuse(self.pattern, begin, "Only groups ( ) and (?: ) are regular and supported; rewrite this one")
        self.depth += 1
        if self.depth > _DEEPEST:
            raise refuse(self.pattern, begin, f"Over {_DEEPEST} groups are nested; write it with fewer")
        tree = self._choice()
        if not self._take(")"):
            raise refuse(self.pattern, begin, "This ( is never closed; add a ) or write \\(")
        self.depth -= 1
        return tree

    def _class(self, begin: int) -> Node:
        others, ranges = self._take("^"), []
        while True:
            if self._peek() == "":
                raise refuse(self.pattern, begin, "This [ is never closed; add a ] or write \\[")
            ranges += self._member()
            if self._take("]"):
                break
        ranges = complement(ranges) if others else ranges
        return characters(ranges)

    def _member(self) -> list[Range]:
        """A character, a range or a set such as \\d within brackets."""
        begin = self.place
        low = self._one()
        if self._peek() != "-" or self.pattern[self.place + 1 : self.place + 2] in ("]", ""):
            return low
        self._next()
        high = self._one()
        if any(len(limit) != 1 or limit[0][0] != limit[0][1] for limit in (low, high)) or high[0][0] < low[0][0]:
            raise refuse(
                self.pattern, begin, "This is no range; write the smaller character first, or \\- for the sign"
            )
        return [(low[0][0], high[0][1])]

    def _one(self) -> list[Range]:
        begin, sign = self.place, self._next()
        return self._escape(begin) if sign == "\\" else [self._number(sign, begin)]

    def _escape(self, begin: int) -> list[Range]:
        sign = self._next()
        if sign in _SETS:
            return list(_SETS[sign])
        if sign in _CODES:
            digits = self.pattern[self.place : self.place + _CODES[sign]]
            if not re.fullmatch(rf"[0-9A-Fa-f]{{{_CODES[sign]}}}", digits) or int(digits, 16) > LAST:
                raise refuse(self.pattern, begin, f"\\{sign} takes {_CODES[sign]} hexadecimal digits of a character")
            self.place += len(digits)
            return [self._number(chr(int(digits, 16)), begin)]
        if sign == "":
            raise refuse(self.pattern, begin, "Nothing follows this \\; write \\\\ for the sign itself")
        if sign.isalnum() and sign not in _CONTROLS:
            raise refuse(
                self.pattern, begin, f"\\{sign} is not supported; what it asks is not regular or not known here"
            )
        return [self._number(_CONTROLS.get(sign, sign), begin)]

    def _number(self, character: str, place: int) -> Range:
        number = ord(character)
        if 0xD800 <= number <= 0xDFFF:
            raise refuse(self.pattern, place, "A surrogate is no character; write the character itself")
        return number, number

    def _peek_after_space(self) -> str:
        """The next character; in expressions in which spaces mean nothing, the next that is none."""
        return self._peek()

    def _peek(self) -> str:
        return self.pattern[self.place : self.place + 1]

    def _next(self) -> str:
        sign = self._peek()
        self.place += len(sign)
        return sign

    def _take(self, sign: str) -> bool:
        if self._peek() != sign:
            return False
        self.place += 1
        return True

    def _wrong(self, why: str, back: int = 0) -> InputError:
        return refuse(self.pattern, self.place + back, why)
