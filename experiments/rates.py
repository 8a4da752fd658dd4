"""Learning rates: searched on validation text once, written down, and used from then on."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import yaml

from experiments.recipes import Grid, Recipe, with_rate
from experiments.running import End, Place, train
from trellis.config import RunConfig
from trellis.folders import one_at_a_time, write_atomically

HEAD = "# Found by `python -m experiments run`: validation perplexity of a run at each rate, and the best.\n"
Measured = dict[float, float]  # validation perplexity by rate


class _Ended(Exception):  # noqa: N818  # not always an error: a search may be asked to stop
    """A run of a search came to another end than a finished one."""


def settled(recipe: Recipe, place: Place) -> Recipe:
    """The recipe with the rate that was found for it, if it was searched already."""
    if recipe.grid is None:
        return recipe
    found = _read(place.rates).get(place.budget, {}).get(recipe.grid.name)
    if found is None:
        return recipe
    return dataclasses.replace(recipe, config=with_rate(recipe.config, _rounded(found["rate"] * recipe.share)))


def unsearched(recipe: Recipe, place: Place) -> bool:
    """Whether the recipe's rate is still to be found."""
    return recipe.grid is not None and recipe.grid.name not in _read(place.rates).get(place.budget, {})


def search(grid: Grid, place: Place) -> End:
    """Train at one rate after the other and write down which was best on validation text."""
    try:
        valid = _tried(grid, place)
        if min(valid.values()) == float("inf"):
            raise _Ended("failed")  # at every rate: that is no matter of rates
        found: dict[str, Any] = {"rate": _best(valid), **_length(grid.config), "valid": valid}
        if grid.around is not None:
            around = _tried_around(grid.around, _best(valid), place)
            found |= {"rate": _best(around), "around": {**_length(grid.around.config), "valid": around}}
    except _Ended as ended:
        end: End = ended.args[0]
        return end
    with one_at_a_time(place.rates):  # two searches may end together
        known = _read(place.rates)
        known.setdefault(place.budget, {})[grid.name] = found
        write_atomically(place.rates, HEAD + yaml.safe_dump(known))
    return "finished"


def _tried(grid: Grid, place: Place) -> Measured:
    """Every rate; where a search around the best follows, down to the first that is worse than the one before."""
    valid: Measured = {}
    for rate in grid.rates:
        before = min(valid.values(), default=float("inf"))
        _measure(f"search-{grid.name}-{rate:g}", grid.config, rate, valid, place)
        if grid.around is not None and valid[rate] > before:
            break
    return valid


def _tried_around(recipe: Recipe, rate: float, place: Place) -> Measured:
    """Whole runs at this rate and its doubles and halves, until the best lies between two that are worse.

    Doubles come first: on less text too low a rate is often the best. The best of them is the recipe's own run.
    """
    valid: Measured = {}
    trying: float | None = rate
    while trying is not None:
        _measure(f"{recipe.name}-lr{trying:g}", recipe.config, trying, valid, place)
        beside = (_rounded(_best(valid) * 2), _rounded(_best(valid) / 2))
        trying = next((one for one in beside if one not in valid), None)
    for ending in ("", ".yaml"):
        found = place.runs / f"{recipe.name}-lr{_best(valid):g}{ending}"
        if found.exists() and not (place.runs / f"{recipe.name}{ending}").exists():
            found.rename(place.runs / f"{recipe.name}{ending}")
    return valid


def _measure(name: str, config: RunConfig, rate: float, valid: Measured, place: Place) -> None:
    """Add a run at this rate; one that fails has diverged, which is an answer too."""
    end = train(name, with_rate(config, rate), place)
    if end == "failed":
        valid[rate] = float("inf")
        return
    if end != "finished":
        raise _Ended(end)
    valid[rate] = round(json.loads(place.finished(name).read_text())["valid_perplexity"], 3)


def _length(config: RunConfig) -> dict[str, Any]:
    """How long a run of a search is."""
    tokens = {} if config.data.max_tokens is None else {"tokens": config.data.max_tokens}
    return {"epochs": config.training.epochs, **tokens}


def _best(valid: Measured) -> float:
    return min(valid, key=lambda rate: valid[rate])


def _rounded(rate: float) -> float:
    return float(f"{rate:.6g}")


def _read(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8")) or {} if path.exists() else {}
