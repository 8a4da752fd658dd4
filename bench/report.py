"""Results on the screen, in JSON, and as the page docs/bench.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.contenders import DYNAMAX, HMMLEARN
from bench.plot import plot

Results = dict[str, Any]
Row = list[str]

RACE_HEAD = [
    "contender", "sequences",
    "step: tokens/s", "median", "× dynamax", "× hmmlearn", "peak MB",
    "evaluation: tokens/s", "median", "× dynamax", "peak MB", "quiet",
]  # fmt: skip
GROWTH_HEAD = ["states", "words", "batch × length", "step: tokens/s", "peak MB", "batch × time × states² MB", "quiet"]


def _rate(race: Results, name: str, wanted: str) -> float | None:
    for lap in race["contenders"]:
        if lap["contender"] == name:
            rate: float | None = lap[wanted].get("tokens_per_second")
            return rate
    return None


def ratio(race: Results, lap: Results, wanted: str, to: str) -> float | None:
    """How many times as many tokens a second as the other contender, both at their best."""
    ours, theirs = lap[wanted].get("tokens_per_second"), _rate(race, to, wanted)
    return ours / theirs if ours and theirs else None


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _megabytes(value: float | None) -> str:
    return "–" if value is None else f"{value / 1e6:,.0f}"


def _pass_cells(race: Results, lap: Results, wanted: str, others: list[str]) -> Row:
    timing = lap[wanted]
    if "failure" in timing:
        return [lap["failure"] or timing["failure"], *["–"] * (len(others) + 2)]
    return [
        _number(timing["tokens_per_second"]),
        _number(timing["median_tokens_per_second"]),
        *(_number(ratio(race, lap, wanted, other)) for other in others),
        _megabytes(timing["peak_bytes"]),
    ]


def _quiet(lap: Results) -> str:
    """How many of a contender's calls nobody disturbed."""
    counts = [sum(lap[wanted].get(key, 0) for wanted in ("step", "evaluate")) for key in ("undisturbed", "samples")]
    return f"{counts[0]}/{counts[1]}"


def race_rows(race: Results) -> list[Row]:
    """A row a contender."""
    return [
        [
            lap["contender"],
            str(lap["sequences"]),
            *_pass_cells(race, lap, "step", [DYNAMAX.name, HMMLEARN.name]),
            *_pass_cells(race, lap, "evaluate", [DYNAMAX.name]),
            _quiet(lap),
        ]
        for lap in race["contenders"]
    ]


def growth_rows(points: list[Results]) -> list[Row]:
    """A row a size."""
    return [
        [
            f"{point['states']:,}",
            f"{point['words']:,}",
            f"{point['batch']} × {point['length']:,}",
            _number(point.get("tokens_per_second")) if point["failure"] is None else point["failure"],
            _megabytes(point.get("peak_bytes")),
            _megabytes(point["square_bytes"]),
            f"{point.get('undisturbed', 0)}/{len(point.get('seconds', []))}",
        ]
        for point in points
    ]


def race_title(race: Results) -> str:
    """The problem in words."""
    size = race["problem"]
    return f"{size['states']:,} states × {size['words']:,} words, {size['batch']} × {size['length']} tokens"


def _tables(results: Results) -> list[tuple[str, Row, list[Row]]]:
    """Every table as title, head and rows, for whichever way they are shown."""
    races = [(race_title(race), RACE_HEAD, race_rows(race)) for race in results["races"]]
    grown = [(f"Growth with {axis}", GROWTH_HEAD, growth_rows(points)) for axis, points in results["growth"].items()]
    return [*races, *grown]


def show(results: Results, console: Console | None = None) -> None:
    """Print every table."""
    console = console or Console()
    if not console.is_terminal:
        console.width = 160  # a log has no width of its own, and the default folds numbers
    for title, head, rows in _tables(results):
        table = Table(title=title, title_justify="left")
        for i, name in enumerate(head):
            table.add_column(name, justify="left" if i == 0 else "right")
        for row in rows:
            table.add_row(*row)
        console.print(table)


def _markdown_table(head: Row, rows: list[Row]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _provenance(results: Results) -> str:
    where = results["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items() if version)
    changes = " with uncommitted changes" if where["uncommitted_changes"] else ""
    return (
        f"Last run: {results['date']}, {results['seconds']:.0f} s, commit `{(where['commit'] or 'none')[:10]}`"
        f"{changes}, {where['cpu']}, {where['threads']} threads of {where['cores']} cores, "
        f"{where['memory_bytes'] / 1e9:.0f} GB, load {where['load_average'][0]:.1f} at the start.\n"
        f"{where['system']}, Python {where['python']}, {versions}."
    )


METHOD = """\
A *training step* is forward, backward and update; an *evaluation* the log-likelihood alone. All contenders get the same
model and the same words (Zipf–Mandelbrot frequencies), drawn from one seed. Each runs in a process of its own on the
same two threads, and is timed only if its log-likelihood agrees with a plain double-precision filter to 1e-5. The fast
ones take turns within the run, so that a drift of the machine meets them all. Turns wait for a quiet machine, within
limits; calls during which other processes still took over a tenth of the cores are made again, and count only if there
are none better; "quiet" says how many of all calls were spared.

"Tokens/s" is the best of the repeats, and what ratios are made of; "median" is their median. "Peak" is the high-water
mark of resident memory during the pass, above what the libraries take after a toy step: parameters, optimiser, data and
scratch. Those that cannot take the whole batch, for time or memory, take its first sequences; so their update is shared
by fewer tokens."""


def page(results: Results) -> str:
    """docs/bench.md."""
    notes = [f"- **{lap['contender']}**: {lap['note']}." for lap in results["races"][0]["contenders"]]
    tables = [f"## {title}\n\n{_markdown_table(head, rows)}" for title, head, rows in _tables(results)]
    command = f"Written by `{results['command']}` (`make bench`), which see in `bench/`; edits here are lost."
    parts = ["# Speed and memory", command, METHOD, "\n".join(notes), _provenance(results)]
    parts.append("![Speed of all contenders, and how Trellis grows](bench/bench.svg)")
    return "\n\n".join([*parts, *tables]) + "\n"


def write(results: Results, out: Path) -> None:
    """bench.json and bench.svg into the folder, and the page beside it."""
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(results, indent=1, ensure_ascii=False, allow_nan=False)
    (out / "bench.json").write_text(text + "\n", "utf-8")
    plot(results, out / "bench.svg")
    out.with_name(f"{out.name}.md").write_text(page(results), "utf-8")
