"""The picture: contenders side by side, Trellis's growth along each axis, blocked models, and native kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

STEP, EVALUATION, SQUARE = "#1b6ca8", "#9cc5e3", "#b5563c"


def _bars(axes: Axes, race: dict[str, Any]) -> None:
    """Tokens a second of both passes, on a logarithmic axis: the field spans four orders of magnitude."""
    laps = race["contenders"][::-1]
    for offset, wanted, colour in ((0.2, "step", STEP), (-0.2, "evaluate", EVALUATION)):
        rates = [lap[wanted].get("tokens_per_second", 0.0) for lap in laps]
        label = {"step": "training step", "evaluate": "evaluation"}[wanted]
        axes.barh([i + offset for i in range(len(laps))], rates, 0.4, color=colour, label=label)
    axes.set_yticks(range(len(laps)), [lap["contender"] for lap in laps])
    axes.set_xscale("log")
    axes.set_xlabel("tokens a second")
    axes.set_title(f"{race['problem']['states']} states × {race['problem']['words']:,} words")
    axes.legend(fontsize=7)


def _growth(axes: Axes, axis: str, points: list[dict[str, Any]]) -> None:
    """Speed on the left, memory on the right beside what batch × time × states² would take."""
    points = [point for point in points if "peak_bytes" in point]
    sizes = [point[axis] for point in points]
    axes.plot(sizes, [point["tokens_per_second"] for point in points], "o-", color=STEP)
    axes.set(xscale="log", yscale="log", xlabel=axis)
    axes.set_ylabel("tokens a second", color=STEP)
    memory = axes.twinx()
    memory.plot(sizes, [point["peak_bytes"] / 1e9 for point in points], "s--", color=SQUARE, label="peak")
    square = [point["square_bytes"] / 1e9 for point in points]
    memory.plot(sizes, square, ":", color=SQUARE, label="batch × time × states²")
    memory.set_yscale("log")
    memory.set_ylabel("GB", color=SQUARE)
    memory.legend(fontsize=6)


def _blocked(axes: Axes, points: list[dict[str, Any]]) -> None:
    """Tokens a second by states, a line a transition and batch."""
    lines: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    for point in points:
        if "tokens_per_second" in point:
            lines.setdefault((point["transition"], point["batch"], point["length"]), []).append(point)
    for (transition, batch, length), line in lines.items():
        style = {"hierarchical": "o-", "flat": "s--"}[transition]
        colour = STEP if transition == "hierarchical" else SQUARE
        sizes, rates = [point["states"] for point in line], [point["tokens_per_second"] for point in line]
        shade = 1.0 if batch == max(key[1] for key in lines) else 0.5
        axes.plot(sizes, rates, style, color=colour, alpha=shade, label=f"{transition}, {batch} × {length}")
    axes.set(xscale="log", yscale="log", xlabel="states in blocks", ylabel="tokens a second")
    axes.set_title("training blocked models")
    axes.legend(fontsize=6)


def _kernels(axes: Axes, match: dict[str, Any]) -> None:
    """Tokens a second of training, native kernels beside PyTorch."""
    laps = match["contenders"][::-1]
    rates = [lap["step"].get("tokens_per_second", 0.0) for lap in laps]
    colours = [STEP if lap.get("path") == "native" else EVALUATION for lap in laps]
    axes.barh(range(len(laps)), rates, 0.7, color=colours)
    axes.set_yticks(range(len(laps)), [lap["contender"] for lap in laps])
    axes.set_xlabel("tokens a second, training")
    size = match["problem"]
    where = f"in {size['blocks']} blocks" if "blocks" in size else f"× {size['words']:,} words"
    axes.set_title(f"{size['states']:,} states {where}")


def _drawings(results: dict[str, Any]) -> list[list[Callable[[Axes], None]]]:
    """What goes into each row of the picture, left to right."""
    blocked, kernels = results.get("blocked"), results.get("kernels")
    lowest: list[Callable[[Axes], None]] = [partial(_blocked, points=blocked["points"])] if blocked else []
    lowest += [partial(_kernels, match=match) for match in (kernels or {}).get("matches", [])]
    rows: list[list[Callable[[Axes], None]]] = [
        [partial(_bars, race=race) for race in results["races"]],
        [partial(_growth, axis=axis, points=points) for axis, points in results["growth"].items()],
        lowest,
    ]
    return [row for row in rows if row]


def plot(results: dict[str, Any], path: Path) -> None:
    """Draw everything into one file."""
    rows = _drawings(results)
    with mpl.rc_context({"font.size": 8, "svg.hashsalt": "bench"}):  # a fixed salt: redrawing changes nothing
        figure = Figure(figsize=(4 * max(map(len, rows)), 3.25 * len(rows)), layout="constrained")
        for strip, row in zip(figure.subfigures(len(rows), 1, squeeze=False)[:, 0], rows, strict=True):
            for axes, draw in zip(strip.subplots(1, len(row), squeeze=False)[0], row, strict=True):
                draw(axes)
        figure.savefig(path, metadata={"Date": None})
