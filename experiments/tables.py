"""Tables as Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def table(head: list[str], rows: Iterable[list[Any]]) -> list[str]:
    """A head and rows, a line each."""
    return [
        f"| {' | '.join(head)} |",
        f"| {' | '.join('---' for _ in head)} |",
        *(f"| {' | '.join(map(str, row))} |" for row in rows),
    ]
