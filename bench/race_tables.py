"""Tables of the race, and of how Trellis grows."""

from __future__ import annotations

from bench.cells import Results, Row, Sheet, megabytes, number, quiet, quotient, rate
from bench.contenders import DYNAMAX, HMMLEARN

RACE_HEAD = [
    "contender", "sequences",
    "step: tokens/s", "median", "× dynamax", "× hmmlearn", "peak MB",
    "evaluation: tokens/s", "median", "× dynamax", "peak MB", "quiet",
]  # fmt: skip
GROWTH_HEAD = ["states", "words", "batch × length", "step: tokens/s", "peak MB", "batch × time × states² MB", "quiet"]


def ratio(race: Results, lap: Results, wanted: str, to: str) -> float | None:
    """How many times as many tokens a second as the other contender, both at their best."""
    others = [rate(other[wanted]) for other in race["contenders"] if other["contender"] == to]
    return quotient(rate(lap[wanted]), others[0] if others else None)


def _pass_cells(race: Results, lap: Results, wanted: str, others: list[str]) -> Row:
    timing = lap[wanted]
    if "failure" in timing:
        return [lap["failure"] or timing["failure"], *["–"] * (len(others) + 2)]
    return [
        number(timing["tokens_per_second"]),
        number(timing["median_tokens_per_second"]),
        *(number(ratio(race, lap, wanted, other)) for other in others),
        megabytes(timing["peak_bytes"]),
    ]


def _race_rows(race: Results) -> list[Row]:
    return [
        [
            lap["contender"],
            str(lap["sequences"]),
            *_pass_cells(race, lap, "step", [DYNAMAX.name, HMMLEARN.name]),
            *_pass_cells(race, lap, "evaluate", [DYNAMAX.name]),
            quiet([lap["step"], lap["evaluate"]]),
        ]
        for lap in race["contenders"]
    ]


def _growth_rows(points: list[Results]) -> list[Row]:
    return [
        [
            f"{point['states']:,}",
            f"{point['words']:,}",
            f"{point['batch']} × {point['length']:,}",
            number(rate(point)) if point["failure"] is None else point["failure"],
            megabytes(point.get("peak_bytes")),
            megabytes(point["square_bytes"]),
            f"{point.get('undisturbed', 0)}/{len(point.get('seconds', []))}",
        ]
        for point in points
    ]


def dense_title(size: Results) -> str:
    """A problem of dense models in words."""
    return f"{size['states']:,} states × {size['words']:,} words, {size['batch']} × {size['length']} tokens"


def race_sheets(races: list[Results]) -> list[Sheet]:
    """A table a problem, a row a contender."""
    return [Sheet(dense_title(race["problem"]), RACE_HEAD, _race_rows(race)) for race in races]


def growth_sheets(growth: dict[str, list[Results]]) -> list[Sheet]:
    """A table an axis, a row a size."""
    return [Sheet(f"Growth with {axis}", GROWTH_HEAD, _growth_rows(points)) for axis, points in growth.items()]
