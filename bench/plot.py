"""The picture: contenders side by side, and Trellis's growth along each axis."""

from __future__ import annotations

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


def plot(results: dict[str, Any], path: Path) -> None:
    """Draw everything into one file."""
    races, grown = results["races"], results["growth"]
    columns = max(len(races), len(grown), 1)
    with mpl.rc_context({"font.size": 8, "svg.hashsalt": "bench"}):  # a fixed salt: redrawing changes nothing
        figure = Figure(figsize=(4 * columns, 6.5), layout="constrained")
        upper, lower = figure.subfigures(2, 1)
        for axes, race in zip(upper.subplots(1, len(races), squeeze=False)[0], races, strict=True):
            _bars(axes, race)
        if grown:
            cells = lower.subplots(1, len(grown), squeeze=False)[0]
            for axes, (axis, points) in zip(cells, grown.items(), strict=True):
                _growth(axes, axis, points)
        figure.savefig(path, metadata={"Date": None})
