"""Tables of blocked models, and of native kernels against PyTorch."""

from __future__ import annotations

from bench.cells import Results, Row, Sheet, megabytes, number, percent, quiet, quotient, rate
from bench.contenders import DYNAMAX
from bench.race_tables import dense_title

BLOCKED_HEAD = [
    "states", "blocks", "pairs", "hierarchical: tokens/s", "peak MB", "flat: tokens/s", "peak MB",
    "hierarchical / flat", "quiet",
]  # fmt: skip
BROWN_HEAD = ["corpus", "tokens", "types", "clusters", "seconds", "peak MB", "quiet"]
KERNELS_HEAD = [
    "model", "path", "precision", "step: tokens/s", "median", "× PyTorch float32", "× dynamax", "of bare rate",
    "in the recursion", "in the products", "peak MB", "quiet",
]  # fmt: skip
PARTS = ("recursion", "products", "exponentials", "optimiser", "other")
REST_HEAD = ["model", "path", "precision", "step: ms", *PARTS]


def _by_transition(points: list[Results]) -> dict[tuple[int, ...], dict[str, Results]]:
    """Points of the same size together, by their transition."""
    found: dict[tuple[int, ...], dict[str, Results]] = {}
    for point in points:
        size = tuple(point[name] for name in ("batch", "length", "states", "blocks"))
        found.setdefault(size, {})[point["transition"]] = point
    return found


def speedup(both: dict[str, Results]) -> float | None:
    """How many times as many tokens a second a hierarchical model trains on as a flat one of its size."""
    return quotient(rate(both.get("hierarchical")), rate(both.get("flat")))


def _point_cells(point: Results | None) -> Row:
    if point is None:
        return ["–", "–"]
    return [point["failure"] or number(rate(point)), megabytes(point.get("peak_bytes"))]


def _blocked_row(both: dict[str, Results]) -> Row:
    size = next(iter(both.values()))
    calls = [sum(point.get("undisturbed", 0) for point in both.values())]
    calls.append(sum(len(point.get("seconds", [])) for point in both.values()))
    return [
        f"{size['states']:,}",
        str(size["blocks"]),
        f"{size['pairs']:,}",
        *_point_cells(both.get("hierarchical")),
        *_point_cells(both.get("flat")),
        number(speedup(both)),
        f"{calls[0]}/{calls[1]}",
    ]


def _brown_row(brown: Results) -> Row:
    if brown["failure"] is not None:
        return [brown["failure"], "–", "–", str(brown["clusters"]), "–", "–", "–"]
    return [
        brown["corpus"],
        f"{brown['tokens']:,}",
        f"{brown['types']:,}",
        str(brown["clusters"]),
        number(brown["seconds"]),
        megabytes(brown["peak_bytes"]),
        f"{int(brown['undisturbed'])}/1",
    ]


def blocked_sheets(blocked: Results) -> list[Sheet]:
    """A table a batch, a row a number of states; and one of clustering."""
    by_batch: dict[str, list[Row]] = {}
    for (batch, length, *_), both in _by_transition(blocked["points"]).items():
        by_batch.setdefault(f"Blocked models, {batch} × {length} tokens", []).append(_blocked_row(both))
    sheets = [Sheet(title, BLOCKED_HEAD, rows) for title, rows in by_batch.items()]
    return [*sheets, Sheet("Brown clustering", BROWN_HEAD, [_brown_row(blocked["brown"])])]


def times_pytorch(match: Results, lap: Results) -> float | None:
    """How many times as many tokens a second as the same model on the PyTorch path in float32."""
    wanted = (lap.get("model"), "PyTorch", "float32")
    base = [o for o in match["contenders"] if (o.get("model"), o.get("path"), o.get("precision")) == wanted]
    return quotient(rate(lap["step"]), rate(base[0]["step"]) if base else None)


def times_dynamax(match: Results, lap: Results) -> float | None:
    """How many times as many tokens a second as dynamax."""
    base = [rate(other["step"]) for other in match["contenders"] if other["contender"] == DYNAMAX.name]
    return quotient(rate(lap["step"]), base[0] if base else None)


def share_of_bare(lap: Results, bare: Results, part: str | None = None) -> float | None:
    """Operations a second of the whole step, or of a part in its share of the step's time, over the bare rate's."""
    fastest, operations, spent = bare.get(lap.get("precision", "")), lap.get("operations"), lap.get("breakdown")
    seconds = lap["step"].get("best_seconds")
    if not (fastest and operations and spent and seconds):
        return None
    if part is None:
        return float(sum(operations.values()) / seconds / fastest)
    inside = seconds * spent[part] / sum(spent.values())
    return float(operations[part] / inside / fastest) if inside and operations[part] else None


def _who(lap: Results) -> Row:
    if "model" not in lap:
        return [lap["contender"], "–", "float32"]
    # A native entry says which level of the processor it found; none means that PyTorch did its work too.
    path = lap["path"] if lap["path"] == "PyTorch" else f"native ({lap.get('level') or 'none'})"
    return [lap["model"], path, lap["precision"]]


def _kernel_row(match: Results, lap: Results, bare: Results) -> Row:
    timing = lap["step"]
    if "failure" in timing:
        return [*_who(lap), lap["failure"] or timing["failure"], *["–"] * 7, quiet([timing])]
    return [
        *_who(lap),
        number(timing["tokens_per_second"]),
        number(timing["median_tokens_per_second"]),
        number(times_pytorch(match, lap)) if "model" in lap else "–",
        number(times_dynamax(match, lap)),
        *(percent(share_of_bare(lap, bare, part)) for part in (None, "recursion", "products")),
        megabytes(timing["peak_bytes"]),
        quiet([timing]),
    ]


def _rest_row(lap: Results) -> Row:
    total = sum(lap["breakdown"].values())
    shares = [percent(lap["breakdown"][part] / total) for part in PARTS]
    return [*_who(lap), number(1e3 * lap["step"]["best_seconds"]), *shares]


def problem_title(size: Results) -> str:
    """A problem of dense or of blocked models in words."""
    if "blocks" not in size:
        return dense_title(size)
    return f"{size['states']:,} states in {size['blocks']} blocks, {size['batch']} × {size['length']} tokens"


def kernel_sheets(kernels: Results) -> list[Sheet]:
    """Two tables a problem: speeds, and where the time goes."""
    sheets = []
    for match in kernels["matches"]:
        title, laps = problem_title(match["problem"]), match["contenders"]
        rows = [_kernel_row(match, lap, kernels["bare"]) for lap in laps]
        rest = [_rest_row(lap) for lap in laps if "breakdown" in lap and "best_seconds" in lap["step"]]
        sheets.append(Sheet(f"Kernels: {title}", KERNELS_HEAD, rows))
        sheets.append(Sheet(f"Where the time goes: {title}", REST_HEAD, rest))
    return sheets
