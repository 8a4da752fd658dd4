"""Learning rates: searched on validation text once, written down, and used from then on."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import yaml

from experiments.recipes import Grid, Recipe, with_rate
from experiments.running import End, Place, train
from trellis.folders import write_atomically

HEAD = "# Found by `python -m experiments run`: validation perplexity after a short run at each rate, and the best.\n"


def settled(recipe: Recipe, place: Place) -> Recipe:
    """The recipe with the rate that was found for it, if it was searched already."""
    if recipe.grid is None:
        return recipe
    found = _read(place.rates).get(place.budget, {}).get(recipe.grid.name)
    return recipe if found is None else dataclasses.replace(recipe, config=with_rate(recipe.config, found["rate"]))


def unsearched(recipe: Recipe, place: Place) -> bool:
    """Whether the recipe's rate is still to be found."""
    return recipe.grid is not None and recipe.grid.name not in _read(place.rates).get(place.budget, {})


def search(grid: Grid, place: Place) -> End:
    """Train at every rate and write down which was best on validation text."""
    valid = {}
    for rate in grid.rates:
        name = f"search-{grid.name}-{rate:g}"
        end = train(name, with_rate(grid.config, rate), place)
        if end != "finished":
            return end
        valid[rate] = round(json.loads(place.finished(name).read_text())["valid_perplexity"], 3)
    known = _read(place.rates)
    known.setdefault(place.budget, {})[grid.name] = {
        "rate": min(valid, key=lambda rate: valid[rate]),
        "epochs": grid.config.training.epochs,
        "valid": valid,
    }
    write_atomically(place.rates, HEAD + yaml.safe_dump(known))
    return "finished"


def _read(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8")) or {} if path.exists() else {}
