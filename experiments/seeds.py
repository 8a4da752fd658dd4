"""The same recipe from several seeds: their names, and which seeds a command asks for."""

from __future__ import annotations

import dataclasses
import re

from experiments.recipes import Recipe
from trellis import TrellisError
from trellis.settings import nearest

APART = 10  # between seeds that are only counted: 42, 52 and 62, or 0, 10 and 20
_SEEDED = re.compile(r"(?P<base>.+)-s(?P<seed>\d+)")


def base(name: str) -> str:
    """A run's name without its seed: the same for all runs that differ in nothing else."""
    found = _SEEDED.fullmatch(name)
    return found["base"] if found else name


def seeded(recipe: Recipe, seed: int) -> Recipe:
    """The same run from this seed; it is the recipe itself if that is its own."""
    if seed == recipe.config.training.seed:
        return recipe
    training = dataclasses.replace(recipe.config.training, seed=seed)
    config = dataclasses.replace(recipe.config, training=training)
    return dataclasses.replace(recipe, name=f"{base(recipe.name)}-s{seed}", config=config)


def spread(recipes: list[Recipe], seeds: str | None) -> list[Recipe]:
    """Every recipe from each of the seeds that were asked for, as `3` or `42,52,62`; None is what the study has."""
    if seeds is None:
        return recipes
    firsts: dict[str, Recipe] = {}
    for recipe in recipes:
        firsts.setdefault(base(recipe.name), recipe)
    return [seeded(one, seed) for one in firsts.values() for seed in _asked(seeds, one.config.training.seed)]


def _asked(seeds: str, own: int) -> list[int]:
    """How many seeds, beginning with the recipe's own; or, with a comma, which."""
    words = [word.strip() for word in seeds.split(",") if word.strip()]
    if not words or not all(word.isascii() and word.isdigit() for word in words) or seeds.strip() == "0":
        raise TrellisError(f"--seeds {seeds} is not understood: write how many, as 3, or which, as 42,52,62.")
    if "," not in seeds:
        return [own + APART * step for step in range(int(seeds))]
    return list(dict.fromkeys(map(int, words)))


def chosen(recipes: list[Recipe], only: str | None) -> list[Recipe]:
    """All of them, or the one of that name, which may be one of the study's from another seed."""
    if only is None:
        return recipes
    found = named(recipes, only)
    if found is None:
        raise TrellisError(f"there is no run '{only}' in it: {nearest(only, [recipe.name for recipe in recipes])}")
    return [found]


def named(recipes: list[Recipe], name: str) -> Recipe | None:
    """The recipe of a run, by its own name or from another seed."""
    exact = next((recipe for recipe in recipes if recipe.name == name), None)
    seed = _SEEDED.fullmatch(name)
    if exact or not seed:
        return exact
    like = next((recipe for recipe in recipes if base(recipe.name) == seed["base"]), None)
    return like and seeded(like, int(seed["seed"]))
