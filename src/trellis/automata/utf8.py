"""Characters as bytes: ranges of Unicode as ranges of the bytes of UTF-8."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from trellis.automata.syntax import Choice, Node, One, Row

BYTES = 256
LAST = 0x10FFFF
Range = tuple[int, int]  # the first and the last of a range
_SURROGATES = (0xD800, 0xDFFF)  # no characters, and not in UTF-8
_LENGTHS = (0x7F, 0x7FF, 0xFFFF, LAST)  # the last character of one byte, of two, three and four
_SHARED: dict[Range, One] = {}


def characters(ranges: Iterable[Range]) -> Node:
    """One character of these ranges, as its bytes."""
    return _choice([row for low, high in normal(ranges) for row in _byte_ranges(low, high)])


def _choice(rows: Iterable[tuple[Range, ...]]) -> Node:
    """One of several rows of byte ranges; those that end alike share their end, and single bytes are one set."""
    leads, fronts = [], dict[Range, list[tuple[Range, ...]]]()
    for row in rows:
        if len(row) == 1:
            leads.append(row[0])
        else:
            fronts.setdefault(row[-1], []).append(row[:-1])
    parts: list[Node] = [_bytes_in(leads)] if leads else []
    parts += [Row((_choice(front), byte_range(last))) for last, front in fronts.items()]
    return Choice(tuple(parts))


def normal(ranges: Iterable[Range]) -> list[Range]:
    """The same characters as sorted ranges that neither meet nor overlap, without surrogates."""
    cut = [part for low, high in ranges for part in _without_surrogates(low, high)]
    merged: list[Range] = []
    for low, high in sorted(cut):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return merged


def complement(ranges: Iterable[Range]) -> list[Range]:
    """All other characters."""
    others, begin = [], 0
    for low, high in normal(ranges):
        others.append((begin, low - 1))
        begin = high + 1
    return normal([(low, high) for low, high in [*others, (begin, LAST)] if low <= high])


def byte_range(limits: Range) -> One:
    """One byte of a range; equal ranges are one object, which keeps sets of labels small."""
    if limits not in _SHARED:
        _SHARED[limits] = _bytes_in([limits])
    return _SHARED[limits]


def literal(text: str | bytes) -> Node:
    """The bytes of a text, one after another."""
    spelt = text.encode() if isinstance(text, str) else text
    return Row(tuple(byte_range((byte, byte)) for byte in spelt))


def _bytes_in(ranges: Iterable[Range]) -> One:
    allowed = np.zeros(BYTES, np.bool_)
    for low, high in ranges:
        allowed[low : high + 1] = True
    return One(allowed)


def _without_surrogates(low: int, high: int) -> Iterator[Range]:
    first, last = _SURROGATES
    parts = [(low, high)] if high < first or low > last else [(low, first - 1), (last + 1, high)]
    return ((begin, end) for begin, end in parts if begin <= end)


def _byte_ranges(low: int, high: int) -> Iterator[tuple[Range, ...]]:
    """Rows of byte ranges that make up a range of characters: cut where lengths change, and where bytes run over."""
    for limit in _LENGTHS:
        if low <= limit < high:
            yield from _byte_ranges(low, limit)
            yield from _byte_ranges(limit + 1, high)
            return
    first, last = chr(low).encode(), chr(high).encode()
    for tail in range(1, len(first)):
        block = (1 << 6 * tail) - 1
        if low & ~block != high & ~block:
            if low & block:
                yield from _byte_ranges(low, low | block)
                yield from _byte_ranges((low | block) + 1, high)
                return
            if high & block != block:
                yield from _byte_ranges(low, (high & ~block) - 1)
                yield from _byte_ranges(high & ~block, high)
                return
    yield tuple(zip(first, last, strict=True))
