"""A recorded run made once more: beside the record, which stays as it is, and compared with it."""

from __future__ import annotations

import dataclasses

from experiments import results
from experiments.recipes import Recipe
from experiments.results import What
from experiments.running import Place

COMPARED: tuple[What, ...] = ("valid", "test")


def beside(place: Place) -> Place:
    """Where runs that are made again go, results and all: a folder of their own among the runs."""
    runs = place.runs / "again"
    return dataclasses.replace(place, runs=runs, results=runs / "results", rates=runs / "rates.yaml")


def comparison(recipe: Recipe, place: Place, records: Place) -> str:
    """The figures of a run that was made again, with the recorded ones beside them."""
    new = results.load(place.result(recipe.name))
    path = records.result(recipe.name)
    old = results.load(path) if path.exists() else None
    figures = [_beside(what, results.value(new, what), old and results.value(old, what)) for what in COMPARED]
    return f"{recipe.name}: {', '.join(filter(None, figures))}"


def _beside(what: What, new: float | None, old: float | None) -> str:
    if new is None:
        return ""
    return f"{what} perplexity {new:.2f}" + (" (not recorded)" if old is None else f" (recorded: {old:.2f})")
