"""Results on the screen, in JSON, and as the page docs/bench.md."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.categorical_tables import categorical_sheets
from bench.cells import Results, Row, Sheet
from bench.encoder_tables import encoder_sheets
from bench.kernel_tables import blocked_sheets, kernel_sheets
from bench.memory import memory_sheets
from bench.plot import plot
from bench.race_tables import growth_sheets, race_sheets
from bench.steering_tables import steering_sheets
from trellis.folders import write_atomically


def _sheets(results: Results) -> dict[str, list[Sheet]]:
    """Every table, by the part of the run it belongs to; a part that was not run has none."""
    found = {
        "race": race_sheets(results["races"]),
        "growth": growth_sheets(results["growth"]),
        "blocked": blocked_sheets(results["blocked"]) if results.get("blocked") else [],
        "kernels": kernel_sheets(results["kernels"]) if results.get("kernels") else [],
        "encoders": encoder_sheets(results["encoders"]) if results.get("encoders") else [],
        "memory": memory_sheets(results["memory"]) if results.get("memory") else [],
        "categorical": categorical_sheets(results["categorical"]) if results.get("categorical") else [],
        "steering": steering_sheets(results["steering"]) if results.get("steering") else [],
    }
    return {part: sheets for part, sheets in found.items() if sheets}


def show(results: Results, console: Console | None = None) -> None:
    """Print every table."""
    console = console or Console()
    if not console.is_terminal:
        console.width = 160  # a log has no width of its own, and the default folds numbers
    for title, head, rows in (sheet for sheets in _sheets(results).values() for sheet in sheets):
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
A *training step* is forward, backward and update; an *evaluation* the log-likelihood alone, by a model in use. There
Trellis keeps its distributions until parameters change: of two evaluations in a turn the first makes them, and the best
is one that finds them made; dynamax, compiled with its softmax, makes them in each. All contenders get the same model
and the same words (Zipf–Mandelbrot frequencies), drawn from one seed. Each runs in a process of its own on the same two
threads, and is timed only if its log-likelihood agrees with a plain double-precision filter to 1e-5. The fast ones take
turns within the run, so that a drift of the machine meets them all. Turns wait for a quiet machine, within limits;
calls during which other processes still took over a tenth of the cores are made again, and count only if there are none
better; "quiet" says how many of all calls were spared.

"Tokens/s" is the best of the repeats, and what ratios are made of; "median" is their median. "Peak" is the high-water
mark of resident memory during the pass, above what the libraries take after a toy step: parameters, optimiser, data and
scratch. Those that cannot take the whole batch, for time or memory, take its first sequences; so their update is shared
by fewer tokens."""


BLOCKED = """\
Steps of blocked models (neural, width 256, dropout .5, float32, clipped AdamW, beliefs carried from batch to batch) on
10,000 words. The text is a Markov chain over blocks, as uneven as the Penn Treebank's: "pairs" counts the distinct
pairs of blocks that a batch crosses; each is computed once. Up to 2^15 states there are 128 blocks, as published;
above, a power of two near √states. Flat transitions stop at 2^15. Each size has a process of its own."""


ENCODERS = """\
Training steps of low-rank HMMs by encoder (vectors 128 wide, float32, clipped AdamW), in turns with the scalar model in
one run; "× scalar" is the time of a step over that of the scalar one. ψ has a network for each role of a state and ι
one for all; `pretrained` is a Llama of four layers with random weights. Each model is held to its own log-likelihood in
double precision. Labelling reads the same windows as the forward pass of its teacher, a Llama of the shape of
stories15M with random weights, rounds the states to 512 centres and writes the labels."""


MEMORY = """\
Training steps of low-rank HMMs (`model.memory=1`, .3 of the words' vectors left out) in turns with the same model
without a memory; "× plain" is the time of a step over that of the plain one. The one with blocks is that of the table
of blocked models, hierarchical. Each is held to its own log-likelihood in double precision; a fresh memory is zero."""


CATEGORICAL = """\
`trellis.CategoricalHMM` in float64 and hmmlearn's estimator with the same data, 50 symbols, and the same tables to
begin with, in turns within one process, one thread each, since hmmlearn uses no more. Times are the best of all turns;
a step of EM is a share of a call of `fit`. "× log" is beside hmmlearn as installed, "× scaling" beside its faster
`implementation`; they decode alike. A size counts only if all tables agree to 1e-6 after these steps, and so do the
log-likelihoods and the probabilities of the best paths."""


STEERING = """\
A step of `generate` of a Llama of the shape of stories15M, sampling, alone and guided by a low-rank HMM towards texts
with two keywords, in turns, two threads; weights are random, which does not change the time. Compiling is timed once
the spellings of the tokens are known; outlines-core makes its index of the same expression and spellings."""


def _about_kernels(kernels: Results) -> str:
    bare = kernels["bare"]
    if bare.get("level") is None:
        rates = f"There are no native kernels here: {bare.get('reason')}"
    else:
        rates = (
            f"The bare rate, products that never leave the first cache on all threads at once, was "
            f"{bare['float32'] / 1e9:,.0f} GFLOP/s in float32 and {bare['bf16'] / 1e9:,.0f} in bf16 ({bare['level']})."
        )
    return f"""\
Training steps with native kernels and without (`TRELLIS_KERNELS=off`), in turns within one run. {rates} "Of bare rate"
is the operations that a step's products need, none counted twice, a second, over that; "in the recursion" and "in the
products" are the same within the time of those parts alone. Where the time goes is by PyTorch's profiler, of the
quickest of four steps; native products have their exponentials, gathering and scattering among them, and "other" is the
rest. In bf16 the log-likelihood must agree to 1e-4, a thousandth of a nat a token. Blocked models are held to the
PyTorch path in double precision."""


def _part(results: Results, part: str, sheets: list[Sheet]) -> list[str]:
    """The paragraphs of a part; where something must be said before its tables, it has a heading of its own."""
    words = {
        "blocked": lambda: ["## Blocked models", BLOCKED],
        "kernels": lambda: ["## Native kernels", _about_kernels(results["kernels"])],
        "encoders": lambda: ["## Encoders and teachers", ENCODERS],
        "memory": lambda: ["## States that remember their word", MEMORY],
        "categorical": lambda: ["## The estimator", CATEGORICAL],
        "steering": lambda: ["## Guidance", STEERING],
    }.get(part, list)()
    level = "###" if words else "##"
    return [*words, *(f"{level} {title}\n\n{_markdown_table(head, rows)}" for title, head, rows in sheets)]


def page(results: Results) -> str:
    """docs/bench.md."""
    notes = [f"- **{lap['contender']}**: {lap['note']}." for race in results["races"][:1] for lap in race["contenders"]]
    command = f"Written by `{results['command']}` (`make bench`), which see in `bench/`; edits here are lost."
    parts = ["# Speed and memory", command, METHOD, *(["\n".join(notes)] if notes else []), _provenance(results)]
    parts.append("![Speed of all contenders, and how Trellis grows](bench/bench.svg)")
    for part, sheets in _sheets(results).items():
        parts += _part(results, part, sheets)
    return "\n\n".join(parts) + "\n"


def write(results: Results, out: Path) -> None:
    """bench.json and bench.svg into the folder, and the page beside it."""
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(results, indent=1, ensure_ascii=False, allow_nan=False)
    write_atomically(out / "bench.json", text + "\n")
    plot(results, out / "bench.svg")
    write_atomically(out.with_name(f"{out.name}.md"), page(results))
