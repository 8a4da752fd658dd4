"""The table of `CategoricalHMM` beside hmmlearn's."""

from __future__ import annotations

from bench.categorical import LOG, OURS, QUESTIONS, SCALING
from bench.cells import Results, Row, Sheet, number, quiet, quotient

HEAD = [
    "states", "sequences × length",
    "EM step: ms", "× log", "× scaling", "score: ms", "× log", "× scaling", "decode: ms", "× hmmlearn",
    "tables differ by", "quiet",
]  # fmt: skip


def faster(found: Results, question: str, than: str) -> float | None:
    """How many times as fast we answer as one of hmmlearn's implementations, both at their best."""
    ours, theirs = (found["contenders"][name][question]["best_seconds"] for name in (OURS, than))
    return quotient(theirs, ours)


def _row(found: Results) -> Row:
    task, ours = found["task"], found["contenders"][OURS]
    size = [f"{task['states']:,}", f"{task['sequences']:,} × {task['length']:,}"]
    if found["failure"]:
        return [*size, found["failure"], *["–"] * (len(HEAD) - 3)]
    cells = []
    for question in QUESTIONS:
        others = (LOG, SCALING) if question != "decode" else (SCALING,)  # which decode alike
        cells += [number(1e3 * ours[question]["best_seconds"])]
        cells += [number(faster(found, question, other)) for other in others]
    return [*size, *cells, f"{found['table_difference']:.0e}", quiet(list(ours.values()))]


def categorical_sheets(categorical: list[Results]) -> list[Sheet]:
    """A row a size."""
    return [Sheet("CategoricalHMM beside hmmlearn", HEAD, [_row(found) for found in categorical])]
