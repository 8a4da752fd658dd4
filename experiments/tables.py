"""Tables as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from typing import Any


def table(head: list[str], rows: Iterable[list[Any]]) -> list[str]:
    """A head and rows, a line each."""
    return [
        f"| {' | '.join(head)} |",
        f"| {' | '.join('---' for _ in head)} |",
        *(f"| {' | '.join(map(str, row))} |" for row in rows),
    ]


def three(numbers: Iterable[float | None]) -> tuple[float, float, float] | None:
    """Mean, lowest and highest of the numbers that there are; None if there are none."""
    known = [number for number in numbers if number is not None]
    return (statistics.fmean(known), min(known), max(known)) if known else None


def with_spread(numbers: Iterable[float | None], show: Callable[[float], str]) -> str:
    """The mean in one cell, and where there are several numbers the lowest and the highest behind it."""
    known = [number for number in numbers if number is not None]
    found = three(known)
    if found is None:
        return ""
    mean, low, high = map(show, found)
    return mean if len(known) == 1 else f"{mean} ({low}–{high})"
