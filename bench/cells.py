"""Numbers as cells of tables, and tables as something both the screen and the page can show."""

from __future__ import annotations

from typing import Any, NamedTuple

Results = dict[str, Any]
Row = list[str]


class Sheet(NamedTuple):
    """A table for whichever way it is shown."""

    title: str
    head: Row
    rows: list[Row]


def number(value: float | None) -> str:
    """Three digits, or all of the whole part."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def megabytes(value: float | None) -> str:
    """A size in memory."""
    return "–" if value is None else f"{value / 1e6:,.0f}"


def percent(value: float | None) -> str:
    """A share."""
    return "–" if value is None else f"{100 * value:.1f} %"


def rate(timing: Results | None) -> float | None:
    """The best tokens a second of a pass, if it was timed."""
    found: float | None = (timing or {}).get("tokens_per_second")
    return found


def quotient(ours: float | None, theirs: float | None) -> float | None:
    """How many times as much, if both are known."""
    return ours / theirs if ours and theirs else None


def quiet(timings: list[Results]) -> str:
    """How many calls nobody disturbed."""
    counts = [sum(timing.get(key, 0) for timing in timings) for key in ("undisturbed", "samples")]
    return f"{counts[0]}/{counts[1]}"
