"""Tables of encoders beside the scalar model, and of labelling beside its teacher."""

from __future__ import annotations

from bench.cells import Results, Row, Sheet, megabytes, number, percent, quiet, quotient, rate
from bench.encoders import FORWARD, SCALAR
from bench.race_tables import dense_title

ENCODERS_HEAD = ["encoder", "parameters", "step: tokens/s", "median", "× scalar", "median", "peak MB", "quiet"]
TEACHERS_HEAD = ["teacher", "tokens/s", "median", "of the forward pass", "peak MB", "quiet"]


def _named(laps: list[Results], name: str) -> Results | None:
    return next((lap["step"] for lap in laps if lap["contender"] == name), None)


def times_scalar(laps: list[Results], lap: Results, which: str = "best_seconds") -> float | None:
    """How many times as long a step takes as the scalar model's."""
    return quotient(lap["step"].get(which), (_named(laps, SCALAR.name) or {}).get(which))


def _encoder_row(laps: list[Results], lap: Results) -> Row:
    timing, parameters = lap["step"], lap.get("parameters")
    size = "–" if parameters is None else f"{parameters:,}"
    if "failure" in timing:
        return [lap["contender"], size, lap["failure"] or timing["failure"], *["–"] * 4, quiet([timing])]
    return [
        lap["contender"],
        size,
        number(timing["tokens_per_second"]),
        number(timing["median_tokens_per_second"]),
        number(times_scalar(laps, lap)),
        number(times_scalar(laps, lap, "median_seconds")),
        megabytes(timing["peak_bytes"]),
        quiet([timing]),
    ]


def _teacher_row(laps: list[Results], lap: Results) -> Row:
    timing = lap["step"]
    if "failure" in timing:
        return [lap["contender"], lap["failure"] or timing["failure"], *["–"] * 3, quiet([timing])]
    return [
        lap["contender"],
        number(timing["tokens_per_second"]),
        number(timing["median_tokens_per_second"]),
        percent(quotient(rate(timing), rate(_named(laps, FORWARD.name)))),
        megabytes(timing["peak_bytes"]),
        quiet([timing]),
    ]


def encoder_sheets(encoders: Results) -> list[Sheet]:
    """A row an encoder, and a row for the teacher's forward pass and for labelling."""
    models, teachers = encoders["models"], encoders["teachers"]
    title = f"Encoders: {dense_title(encoders['problem'])}"
    return [
        Sheet(title, ENCODERS_HEAD, [_encoder_row(models, lap) for lap in models]),
        Sheet("Labelling", TEACHERS_HEAD, [_teacher_row(teachers, lap) for lap in teachers]),
    ]
