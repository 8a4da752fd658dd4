"""The figures of the paper in its own form: lines along a number, or bars with the highest and lowest seed."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.plots import save
from experiments.results import Results, minutes, value

AXES = {
    "lee.figure1": "states",
    "lee.figure2": "parameters of the reparameterised HMM",
    "lee.figure6": "learning rate",
    "lee.figure11": "parameters of the reparameterised HMM, 256 states",
    "lee.figure12": "parameters of the reparameterised HMM, 1,024 states",
    "memory.states": "states",
    "memory.ptb": "states",
}
BARS = {
    "lee.figure3": "teacher",
    "lee.figure4": "parameters, with and without distillation",
    "lee.figure5": "initial embeddings",
    "lee.figure7": "network to begin with",
    "lee.figure8": "share of the run with labels",
}
COLOURS = ("#1b6ca8", "#d9822b", "#5a8f3c", "#8e5aa8")
Seeds = dict[str, list[float]]


def draw(study: str, results: Results, path: Path) -> bool:
    """A study's figure; whether there was anything to draw."""
    if study == "lee.blocked":
        return _draw_costs(study, results, path)
    found: Seeds = {}
    places: dict[str, float] = {}
    for label in results.labels(study):
        runs = [run for run in results.rows(study, label) if run is not None]
        numbers = [number for run in runs if (number := value(run, "valid")) is not None]
        if numbers:
            found[label], places[label] = numbers, float(runs[0]["parameters"])
    if study not in AXES | BARS or not found:
        return False
    with mpl.rc_context({"font.size": 8}):
        figure = Figure(figsize=(4.8, 3.2), layout="constrained")
        axes: Axes = figure.subplots()
        if study in BARS:
            _bars(axes, study, found)
        else:
            _lines(axes, study, found, places if "parameters" in AXES[study] else {})
        save(figure, path)
    return True


def _draw_costs(study: str, results: Results, path: Path) -> bool:
    """Perplexity against the minutes of learning, and against parameters; whether there was anything to draw."""
    runs = {label: run for label in results.labels(study) for run in results.rows(study, label) if run is not None}
    if not runs:
        return False
    with mpl.rc_context({"font.size": 8}):
        figure = Figure(figsize=(8, 3.6), layout="constrained")
        time, parameters = figure.subplots(1, 2, sharey=True)
        for (label, run), marker in zip(runs.items(), "osD^v<>pP*XhH", strict=False):
            perplexity = value(run, "valid")
            time.plot(minutes(run), perplexity, marker, label=label)
            parameters.plot(run["parameters"] / 1e6, perplexity, marker)
        time.set(xlabel="minutes of one core", ylabel="validation perplexity", xscale="log")
        parameters.set(xlabel="million parameters", xscale="log")
        figure.legend(fontsize=7, loc="outside right upper")
        save(figure, path)
    return True


def _lines(axes: Axes, study: str, found: Seeds, places: dict[str, float]) -> None:
    """A line for each name before the comma; a row without one is the star of the paper, a level.

    A point lies at its place, or at the number after its comma.
    """
    lines: dict[str, list[tuple[float, list[float]]]] = {}
    for label, numbers in found.items():
        name, comma, at = label.rpartition(", ")
        if comma:
            lines.setdefault(name, []).append((places.get(label) or _number(at), numbers))
        else:
            axes.axhline(statistics.fmean(numbers), color="#777777", linestyle="--", label=f"{label} ★")
    for (name, points), colour in zip(lines.items(), COLOURS, strict=False):
        points.sort()
        means = [statistics.fmean(numbers) for _, numbers in points]
        axes.errorbar([x for x, _ in points], means, yerr=_spread(numbers for _, numbers in points),
                      label=name, color=colour, marker="o", capsize=2)  # fmt: skip
    axes.set_xscale("log", base=10 if study == "lee.figure6" else 2)
    axes.set(xlabel=AXES[study], ylabel="validation perplexity")
    axes.legend(fontsize=7)


def _number(text: str) -> float:
    """Of a rate or of states, which may be a power of two."""
    return float(2 ** int(text[2:])) if text.startswith("2^") else float(text)


def _bars(axes: Axes, study: str, found: Seeds) -> None:
    means = [statistics.fmean(numbers) for numbers in found.values()]
    colours = [COLOURS[1] if "LVD" in label or label == "none" else COLOURS[0] for label in found]
    axes.bar(range(len(found)), means, yerr=_spread(found.values()), color=colours, capsize=3)
    axes.set_xticks(range(len(found)), list(found), rotation=30, ha="right", fontsize=7)
    low = min(min(numbers) for numbers in found.values())
    axes.set(xlabel=BARS[study], ylabel="validation perplexity", ylim=(0.9 * low, None))


def _spread(rows: Any) -> list[list[float]]:
    """How far the lowest and the highest seed are from the mean."""
    lists = list(rows)
    means = [statistics.fmean(numbers) for numbers in lists]
    return [
        [mean - min(numbers) for mean, numbers in zip(means, lists, strict=True)],
        [max(numbers) - mean for mean, numbers in zip(means, lists, strict=True)],
    ]
