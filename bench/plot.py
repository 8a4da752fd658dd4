"""The picture: contenders side by side, Trellis's growth along each axis, blocked models, and native kernels.

It is kept in the repository, so it is drawn to change little: text stays text, axes end at round numbers and stand at
fixed places, and coordinates have one decimal. New figures move their own bars and points and nothing else.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FixedLocator, FuncFormatter, NullLocator

from trellis.folders import write_atomically

STEP, EVALUATION, SQUARE, FAINT = "#1b6ca8", "#9cc5e3", "#b5563c", "#dddddd"
WIDTH, HEIGHT, BELOW, ABOVE = 15.0, 3.25, 0.55, 0.4  # inches: the picture, a row, and its margins
STYLE = {
    "font.size": 8,
    "font.sans-serif": ["DejaVu Sans"],
    "axes.spines.top": False,
    "axes.edgecolor": "#888888",
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "xtick.bottom": False,
    "ytick.left": False,
    "axes.titlesize": 9,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "svg.fonttype": "none",
    "svg.hashsalt": "bench",
}
SPACES = {"": "http://www.w3.org/2000/svg", "xlink": "http://www.w3.org/1999/xlink"}
GROUP_NUMBER = re.compile(r"[a-z0-9.]+_\d+")  # matplotlib's name for a group: one more group renames all after it
Draw = Callable[[Axes], None]


class Row(NamedTuple):
    """Panels side by side, and the inches to the left and right of each."""

    left: float
    right: float
    panels: list[Draw]


def _decades(axes: Axes, which: str, values: Iterable[float], unit: str = "") -> None:
    """A logarithmic axis over whole powers of ten, a tick each."""
    logs = [math.log10(value) for value in values if value > 0]
    low, high = (math.floor(min(logs)), math.ceil(max(logs))) if logs else (0, 1)
    _axis(axes, which, "log", [10.0**power for power in range(low, max(high, low + 1) + 1)])
    if unit:
        getattr(axes, f"{which}axis").set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}{unit}"))


def _axis(axes: Axes, which: str, scale: str, ticks: list[float]) -> None:
    """An axis from the first tick to the last."""
    axes.set(**{f"{which}scale": scale, f"{which}lim": (ticks[0], ticks[-1])})
    axis = getattr(axes, f"{which}axis")
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(EngFormatter(sep=""))


def _round_up(value: float) -> float:
    """The next of 1, 1.5, 2, 3, 4, 5, 6, 8 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next((step * power for step in (1, 1.5, 2, 3, 4, 5, 6, 8) if value <= step * power), 10 * power)


def _legend_above(axes: Axes, handles: list[Any], columns: int) -> None:
    axes.legend(handles=handles, loc="lower right", bbox_to_anchor=(1, 0.99), ncols=columns, borderaxespad=0.2)


def _names(axes: Axes, laps: list[dict[str, Any]]) -> None:
    axes.set_yticks(range(len(laps)), [lap["contender"] for lap in laps])
    axes.set_ylim(-0.6, len(laps) - 0.4)
    axes.spines["right"].set_visible(False)
    axes.grid(axis="x", color=FAINT)


def _bars(axes: Axes, race: dict[str, Any]) -> None:
    """Tokens a second of both passes, on a logarithmic axis: the field spans four orders of magnitude."""
    laps = race["contenders"][::-1]
    rates = {wanted: [lap[wanted].get("tokens_per_second", 0.0) for lap in laps] for wanted in ("step", "evaluate")}
    _decades(axes, "x", rates["step"] + rates["evaluate"])
    low, drawn = axes.get_xlim()[0], []
    for offset, wanted, colour in ((0.2, "step", STEP), (-0.2, "evaluate", EVALUATION)):
        label = {"step": "training step", "evaluate": "evaluation"}[wanted]
        heights, lengths = [i + offset for i in range(len(laps))], [max(rate - low, 0.0) for rate in rates[wanted]]
        drawn.append(axes.barh(heights, lengths, 0.4, low, color=colour, label=label, clip_on=False))
    _names(axes, laps)
    axes.set_xlabel("tokens a second")
    axes.set_title(f"{race['problem']['states']} states × {race['problem']['words']:,} words")
    _legend_above(axes, drawn, 2)


def _growth(axes: Axes, axis: str, points: list[dict[str, Any]]) -> None:
    """Speed on the left, memory on the right beside what batch × time × states² would take."""
    points = [point for point in points if "peak_bytes" in point]
    sizes, rates = [point[axis] for point in points], [point["tokens_per_second"] for point in points]
    memory = axes.twinx()
    peak, square = ([point[name] / 1e9 for point in points] for name in ("peak_bytes", "square_bytes"))
    drawn = [
        *memory.plot(sizes, peak, "s--", color=SQUARE, label="peak memory", clip_on=False),
        *memory.plot(sizes, square, ":", color=SQUARE, label="batch × time × states²", clip_on=False),
    ]
    axes.plot(sizes, rates, "o-", color=STEP, clip_on=False)
    _decades(axes, "x", sizes)
    _decades(axes, "y", rates)
    _decades(memory, "y", peak + square, " GB")
    axes.set_xlabel(axis)
    axes.set_ylabel("tokens a second", color=STEP)
    axes.tick_params(axis="y", left=False, labelcolor=STEP)
    memory.tick_params(axis="y", right=False, labelcolor=SQUARE)
    axes.grid(color=FAINT)
    _legend_above(axes, drawn, 2)


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
        label = f"{transition}, {batch} × {length}"
        axes.plot(sizes, rates, style, color=colour, alpha=shade, label=label, clip_on=False)
    _decades(axes, "x", [point["states"] for line in lines.values() for point in line])
    _decades(axes, "y", [point["tokens_per_second"] for line in lines.values() for point in line])
    axes.set(xlabel="states in blocks", ylabel="tokens a second", title="training blocked models")
    axes.spines["right"].set_visible(False)
    axes.grid(color=FAINT)
    axes.legend(loc="upper right")


def _kernels(axes: Axes, match: dict[str, Any]) -> None:
    """Tokens a second of training, native kernels beside PyTorch."""
    laps = match["contenders"][::-1]
    rates = [lap["step"].get("tokens_per_second", 0.0) for lap in laps]
    colours = [STEP if lap.get("path") == "native" else EVALUATION for lap in laps]
    axes.barh(range(len(laps)), rates, 0.7, color=colours, clip_on=False)
    end = _round_up(max([*rates, 1.0]))
    _axis(axes, "x", "linear", [0.0, end / 2, end])
    _names(axes, laps)
    axes.set_xlabel("tokens a second, training")
    size = match["problem"]
    where = f"in {size['blocks']} blocks" if "blocks" in size else f"× {size['words']:,} words"
    axes.set_title(f"{size['states']:,} states {where}")


def _rows(results: dict[str, Any]) -> list[Row]:
    """What goes into the picture, from the top down and left to right."""
    blocked, kernels = results.get("blocked"), results.get("kernels")
    lowest: list[Draw] = [partial(_blocked, points=blocked["points"])] if blocked else []
    lowest += [partial(_kernels, match=match) for match in (kernels or {}).get("matches", [])]
    rows = [
        Row(1.4, 0.2, [partial(_bars, race=race) for race in results["races"]]),
        Row(0.6, 0.55, [partial(_growth, axis=axis, points=points) for axis, points in results["growth"].items()]),
        Row(1.6, 0.2, lowest),
    ]
    return [row for row in rows if row.panels]


def plot(results: dict[str, Any], path: Path) -> None:
    """Draw everything into one SVG file."""
    rows = _rows(results)
    drawn = io.StringIO()
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, HEIGHT * len(rows)))
        for number, row in enumerate(rows):
            width, bottom = WIDTH / len(row.panels), HEIGHT * (len(rows) - 1 - number) + BELOW
            for column, draw in enumerate(row.panels):
                inches = (column * width + row.left, bottom, width - row.left - row.right, HEIGHT - BELOW - ABOVE)
                across, up = figure.get_size_inches()
                draw(figure.add_axes([n / side for n, side in zip(inches, (across, up, across, up), strict=True)]))
        figure.savefig(drawn, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    write_atomically(path, _tidied(drawn.getvalue()))


def _tidied(svg: str) -> str:
    """The same picture with an element a line: without numbered names, and to a tenth of a point."""
    for prefix, space in SPACES.items():
        ElementTree.register_namespace(prefix, space)
    root = ElementTree.fromstring(svg)
    _flatten(root)
    ElementTree.indent(root, " ")
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _flatten(element: ElementTree.Element) -> None:
    """Let the children of groups that say nothing take their groups' places, and round all coordinates."""
    children = []
    for child in element:
        _flatten(child)
        if GROUP_NUMBER.fullmatch(child.get("id", "")):
            del child.attrib["id"]
        children += child if child.tag.endswith("}g") and not child.attrib else [child]
    element[:] = children
    if element.get("transform", "").startswith("rotate(-0 "):
        del element.attrib["transform"]
    for name in {"d", "x", "y", "transform"} & set(element.attrib):
        tidy = " ".join(element.attrib[name].split())
        element.set(name, re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):.1f}", tidy))
