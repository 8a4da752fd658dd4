"""Recorded runs, found again by the study and the row they stand for."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from experiments.layouts import as_typed_today, in_this_layout
from experiments.recipes import BUDGETS, Budget, Recipe, studies
from experiments.seeds import base
from experiments.tables import three

What = Literal["valid", "test", "train", "parameters", "milliseconds"]
Result = dict[str, Any]


@dataclass(frozen=True)
class Results:
    """What was recorded at one budget, by the name of the run."""

    budget: Budget
    runs: dict[str, Result]

    def row(self, study: str, label: str) -> Result | None:
        """The run behind a row of a table, if it was recorded; the first, if there are several seeds."""
        return next((run for run in self.rows(study, label) if run is not None), None)

    def labels(self, study: str) -> list[str]:
        """The rows of a study, each once however many seeds it has."""
        return list(dict.fromkeys(recipe.label for recipe in _recipes(study, self.budget)))

    def rows(self, study: str, label: str) -> list[Result | None]:
        """The runs behind a row, one a seed, those that the study does not ask for last; None of those not recorded."""
        found = [recipe.name for recipe in _recipes(study, self.budget) if recipe.label == label]
        bases = {base(name) for name in found}
        more = [name for name in self.runs if base(name) in bases and name not in all_names(self.budget)]
        return [self.runs.get(name) for name in [*found, *more]]

    def values(self, study: str, label: str, what: What) -> list[float | None]:
        """One figure of every seed of a row; None of those not recorded."""
        return [None if one is None else value(one, what) for one in self.rows(study, label)]

    def value(self, study: str, label: str, what: What) -> float | None:
        """One figure of a row: the mean of its seeds."""
        found = three(self.values(study, label, what))
        return found and found[0]


@functools.cache
def _recipes(study: str, budget: Budget) -> list[Recipe]:
    return studies()[study](budget)


@functools.cache
def all_names(budget: Budget) -> frozenset[str]:
    """The runs of all studies: a seed that one of them asks for is no further seed of another's row."""
    return frozenset(recipe.name for study in studies() for recipe in _recipes(study, budget))


@functools.cache
def names(study: str, budget: Budget) -> dict[str, Recipe]:
    """A study's recipes by label."""
    return {recipe.label: recipe for recipe in _recipes(study, budget)}


def value(result: Result, what: What) -> float | None:
    """One figure of a run: perplexity by its best protocol, parameters, or milliseconds an update."""
    if what in ("parameters", "milliseconds"):
        found: float | None = result.get(what)
        return found
    measured = result["evaluation"].get(what, {})
    measured = next((measured[protocol] for protocol in ("stream", "streams", "windows") if protocol in measured), None)
    return None if measured is None else float(measured["perplexity"])


def minutes(result: Result) -> float:
    """Of one processor, spent learning; of runs for which only the clock was read, its minutes."""
    return float(result.get("processor_seconds") or result["seconds"]) / 60


def load(path: Path) -> Result:
    """A recorded run, its settings and command in the layout of today."""
    found: Result = json.loads(path.read_text())
    return {**found, "config": in_this_layout(found["config"]), "command": as_typed_today(found["command"])}


def read(folder: Path) -> tuple[list[Result], dict[Budget, Results]]:
    """Runs of no study, and those of each budget that has any; the smoke budget's are nobody's business."""
    loose = [load(path) for path in sorted(folder.glob("*.json"))]
    found = {}
    for budget in BUDGETS[1:]:
        runs = {path.stem: load(path) for path in sorted((folder / budget).glob("*.json"))}
        if runs or budget == "laptop":
            found[budget] = Results(budget, runs)
    return loose, found
