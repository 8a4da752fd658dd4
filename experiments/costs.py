"""What a perplexity costs: every model of the Penn Treebank against the minutes that it learnt for."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.chiu import power
from experiments.plots import Line, save
from experiments.results import Result, Results, minutes
from experiments.tables import table

# Those that learn from the Penn Treebank.
STUDIES = ("chiu.table1", "chiu.figure3", "chiu.dropout", "memory.ptb", "memory.ideas", "memory.taught")
NAMED = ("memory.ideas", "memory.taught")  # by what they are: their labels say only what they add to the row before
BUDGETS = (1, 2, 5, 10, 20, 50, 100)  # minutes
PERPLEXITIES = (80, 100, 125, 150, 200, 300, 400)  # on the axis
KINDS = {
    "n-gram or network": "#777777",
    "HMM": "#1b6ca8",
    "HMM with a memory of words": "#d9822b",
    "and n-grams": "#2e8b57",
    "and a cache": "#8e3b8e",
}
ABOUT = """Every recorded run on the Penn Treebank by the minutes of one core that it had learnt for, at each of its
validations. A run whose learning rate has not fallen yet is worse than a shorter one that has ended, so what a time
buys is the lowest of all lines. Of a run whose states begin as an LSTM's, the minutes of that LSTM come first. Some
runs shared the machine with others, and would take a little less on a quiet one. The LSTM of ten epochs, models whose
states begin as its or are all kept, and of 2^14 states those with a word alone, flat transitions, factored vectors or
16 epochs learnt on a Zen 5, all others on a Zen 4, where an LSTM takes 2.3 times as long: only the former, and only the
latter, compare among themselves to the minute. In the figure, runs have names that no other of their kind had beaten
by the time they ended.
"""


def section(results: Results, path: Path) -> list[str]:
    """A table of what is best within some minutes, and its figure written to a path; nothing without runs."""
    runs = _runs(results)
    if not runs:
        return []
    _draw(runs, path)
    rows = ([f"{minutes:g}", *(_best(runs, kind, minutes) for kind in KINDS)] for minutes in BUDGETS)
    shown = f"![Validation perplexity by minutes]({path.parent.name}/{path.name})\n"
    return [ABOUT, *table(["minutes", *KINDS], rows), "", _buys(runs), shown]


def _runs(results: Results) -> dict[str, Result]:
    """One run a row, by its label; the same run in several studies once."""
    found: dict[str, Result] = {}
    seen: list[Result] = []
    for study in STUDIES:
        for label in results.labels(study):
            run = results.row(study, label)
            if run is None or run["config"]["data"]["corpus"] != "ptb" or run in seen:
                continue
            seen.append(run)
            hmm = run["config"]["model"]["kind"] == "hmm"
            label = _ngrams(run) if study in NAMED and hmm else label.removeprefix("PTB, ")
            label += f", {power(run['config']['model']['states'])}, long" if study == "chiu.dropout" else ""
            found[label] = run if (before := _taught(results, run)) is None else {**run, "before": before}
    return found


def _ngrams(run: Result) -> str:
    """What one of the ideas is called beside other models; its own label says only what it adds to the row before."""
    model, decay = run["config"]["model"], run["config"]["training"]["weight_decay"]
    said = "a word, half of it dropped" if model.get("memory") else "no memory"
    said = f"{model['ngrams']}-grams" if model.get("ngrams") else said
    said += f", cache of {model['cache']:,}" if model.get("cache") else ""
    said += f", {power(model['states'])}"
    if run["config"].get("distill", {}).get("teacher"):
        return f"{said}, from an LSTM"
    return said + (f", decay {decay:g}" if decay else "") + (", all kept" if model.get("dropout") == 0 else "")


def _taught(results: Results, run: Result) -> float | None:
    """The minutes in which the teacher of a run had learnt before it; None of one without."""
    teacher = run["config"].get("distill", {}).get("teacher")
    return None if teacher is None else minutes(results.runs[teacher.partition("/")[0]])


def _kind(run: Result) -> str:
    model = run["config"]["model"]
    if model["kind"] != "hmm":
        return "n-gram or network"
    if model.get("ngrams"):
        return "and a cache" if model.get("cache") else "and n-grams"
    return "HMM with a memory of words" if model.get("memory") else "HMM"


def _line(run: Result) -> Line:
    """Minutes, those of a teacher first, and validation perplexity; one that is counted has no updates, and a point."""
    before, spent, updates = run.get("before", 0.0), minutes(run), run["updates"]
    return [(before + (spent * update / updates if updates else spent), at) for update, at in run["curve"]]


def _best(runs: dict[str, Result], kind: str, minutes: float) -> str:
    """The lowest perplexity of a kind within some minutes, and whose it is."""
    within = [
        (perplexity, label)
        for label, run in runs.items()
        if _kind(run) == kind
        for spent, perplexity in _line(run)
        if spent <= minutes
    ]
    return "" if not within else "{:.1f} ({})".format(*min(within))


def _buys(runs: dict[str, Result]) -> str:
    """When an HMM is the better buy, in a sentence."""
    network, *kinds = KINDS
    said = []
    for about, some in (("an HMM", kinds), ("one without a cache", kinds[:-1]), ("a plain one", kinds[:1])):
        spans = [f"from {begin:.1f} to {end:.1f}" for begin, end in _lower(runs, some, network)]
        said.append(f"{about} {' and '.join(spans) or 'at no time'}")
    return (
        f"So the better buy, in minutes of one core, is {', '.join(said)}; else it is an n-gram model or a network.\n"
    )


def _lower(runs: dict[str, Result], kinds: list[str], other: str) -> list[tuple[float, float]]:
    """The minutes in which the lowest perplexity of some kinds is below that of another; to the last that was run."""
    points = sorted((spent, perplexity, _kind(run)) for run in runs.values() for spent, perplexity in _line(run))
    ours = theirs = float("inf")
    spans: list[list[float]] = []
    ahead = False
    for spent, perplexity, kind in points:
        ours = min(ours, perplexity) if kind in kinds else ours
        theirs = min(theirs, perplexity) if kind == other else theirs
        if ours < theirs and not ahead:
            spans.append([spent, points[-1][0]])
        elif ahead and ours >= theirs:
            spans[-1][1] = spent
        ahead = ours < theirs
    return [(begin, end) for begin, end in spans]


def _unbeaten(run: Result, runs: dict[str, Result]) -> bool:
    """Whether no run of its kind was lower by the time it ended; others go without a name, for want of room."""
    ended, last = _line(run)[-1]
    alike = (other for other in runs.values() if _kind(other) == _kind(run))
    return all(perplexity >= last for other in alike for spent, perplexity in _line(other) if spent <= ended)


def _draw(runs: dict[str, Result], path: Path) -> None:
    with mpl.rc_context({"font.size": 8}):
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes: Axes = figure.subplots()
        for label, run in runs.items():
            line = _line(run)
            axes.plot(*zip(*line, strict=True), color=KINDS[_kind(run)], marker="." if len(line) > 1 else "o")
            if _unbeaten(run, runs):
                axes.annotate(label, line[-1], (3, 0), textcoords="offset points", fontsize=6, va="center")
        for kind, colour in KINDS.items():
            axes.plot([], [], color=colour, label=kind)
        axes.set(xscale="log", yscale="log", xlabel="minutes of one core", ylabel="validation perplexity")
        axes.set_ylim(top=400)
        axes.set_xticks(BUDGETS, [f"{minutes:g}" for minutes in BUDGETS])
        axes.set_yticks(PERPLEXITIES, [str(perplexity) for perplexity in PERPLEXITIES])
        axes.set_yticks([], minor=True)
        axes.margins(x=0.1)
        axes.set_xlim(right=5 * BUDGETS[-1])  # room for labels
        axes.legend(fontsize=7)
        save(figure, path)
