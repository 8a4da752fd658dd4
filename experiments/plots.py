"""The figures, ours beside what is published of theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.results import Results, names

COLOURS = {"hierarchical": "#1b6ca8", "flat": "#b5563c", "independent": "#1b6ca8", "factored": "#b5563c"}
PUBLISHED = "#777777"
Line = list[tuple[float, float]]


def lines(study: str, along: str, results: Results, rows: list[dict[str, Any]]) -> dict[str, Line]:
    """Validation perplexity along a setting of the model, a line a kind; published points come last."""
    found: dict[str, Line] = {}
    recipes = names(study, results.budget)
    for label, recipe in recipes.items():
        perplexity = results.value(study, label, "valid")
        if perplexity is not None:
            found.setdefault(label.partition(",")[0], []).append((getattr(recipe.config.model, along), perplexity))
    if not found:
        return {}
    for row in rows:
        kind, _, at = row["label"].partition(", ")
        size = 2 ** int(at[2:]) if at.startswith("2^") else int(at[2:])
        found.setdefault(f"{kind}, published", []).append((size, row["valid"]))
    return found


def draw(drawn: dict[str, Line], along: str, path: Path) -> None:
    """Perplexity against a power of two."""
    with mpl.rc_context({"font.size": 8}):
        figure = Figure(figsize=(4.5, 3), layout="constrained")
        axes: Axes = figure.subplots()
        for name, points in drawn.items():
            kind = name.partition(",")[0]
            style: dict[str, Any] = {"linestyle": "none", "marker": "x"} if "published" in name else {"marker": "o"}
            axes.plot(*zip(*sorted(points), strict=True), label=name, color=COLOURS[kind], **style)
        axes.set_xscale("log", base=2)
        axes.set(xlabel=along, ylabel="validation perplexity")
        axes.legend(fontsize=7)
        save(figure, path)


def draw_curves(results: Results, path: Path) -> bool:
    """Validation perplexity of Table 1's runs as they learnt; whether there was anything to draw."""
    with mpl.rc_context({"font.size": 8}):
        figure = Figure(figsize=(8, 3), layout="constrained")
        for axes, text in zip(figure.subplots(1, 2), ("PTB", "WikiText-2"), strict=True):
            for label in names("chiu.table1", results.budget):
                run = results.row("chiu.table1", label)
                if run and len(run["curve"]) > 1 and label.startswith(text):
                    each = run["tokens"] / run["updates"] / 1e6
                    points = [(update * each, perplexity) for update, perplexity in run["curve"]]
                    axes.plot(*zip(*points, strict=True), label=label.partition(", ")[2])
            axes.set(title=text, xlabel="million tokens learnt from", ylabel="validation perplexity", yscale="log")
            if axes.lines:
                axes.legend(fontsize=7)
        if not any(axes.lines for axes in figure.axes):
            return False
        save(figure, path)
    return True


def save(figure: Figure, path: Path) -> None:
    """Write a figure; drawn again, the file is the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, metadata={"Software": None})
