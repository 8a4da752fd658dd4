"""A search ends at the best rate of its grid, and one that goes on around it at the lowest point nearby."""

import json
import math

import pytest
import yaml

from experiments import rates
from experiments.budgets import sweep, very_large
from experiments.recipes import Grid, Recipe
from experiments.running import Place


@pytest.fixture
def place(tmp_path):
    return Place("laptop", tmp_path / "runs", tmp_path / "results", tmp_path / "rates.yaml")


@pytest.fixture
def tried(place, monkeypatch):
    """Runs that never ran, whose perplexity is lowest at a rate of 0.1 and which fail above 3."""
    found = []

    def train(name, config, place):
        rate = config.training.lr
        found.append(rate)
        if rate > 3:
            return "failed"
        place.finished(name).parent.mkdir(parents=True, exist_ok=True)
        perplexity = 100 + 10 * abs(math.log(rate / 0.1))
        place.finished(name).write_text(json.dumps({"valid_perplexity": perplexity}))
        return "finished"

    monkeypatch.setattr(rates, "train", train)
    return found


def grid(*tries, around=False):
    config = sweep(very_large("laptop", 2**13, flat=False))
    return Grid("some", config, tries, Recipe("whole", "a row", config) if around else None)


def told(place):
    return yaml.safe_load(place.rates.read_text())["laptop"]["some"]


def test_a_plain_search_tries_every_rate(place, tried):
    assert rates.search(grid(0.3, 0.03, 0.003), place) == "finished"
    assert tried == [0.3, 0.03, 0.003]
    assert told(place)["rate"] == 0.3
    assert told(place)["valid"].keys() == {0.3, 0.03, 0.003}


def test_a_search_around_the_best_stops_going_down_and_ends_between_two_that_are_worse(place, tried):
    rates.search(grid(0.4, 0.04, 0.004, 0.0004, around=True), place)
    assert tried == [0.4, 0.04, 0.004, 0.04, 0.08, 0.16]
    assert told(place)["rate"] == 0.08
    assert told(place)["around"]["valid"].keys() == {0.04, 0.08, 0.16}


def test_the_best_of_the_whole_runs_is_the_recipes_own(place, tried):
    rates.search(grid(0.4, 0.04, around=True), place)
    assert place.finished("whole").exists()
    assert not place.finished("whole-lr0.08").exists()
    assert place.finished("whole-lr0.04").exists()


def test_a_search_climbs_from_the_edge_of_its_grid(place, tried):
    rates.search(grid(0.004, 0.0004, around=True), place)
    assert told(place)["rate"] == 0.128
    assert {0.256, 0.064} <= told(place)["around"]["valid"].keys()


@pytest.mark.parametrize("order", [(2.0, 4.0), (4.0, 2.0)])
def test_a_rate_that_diverges_is_a_bad_one(order, place, tried):
    assert rates.search(grid(*order), place) == "finished"
    assert told(place)["valid"][4.0] == math.inf
    assert told(place)["rate"] == 2.0


def test_a_search_of_which_every_run_fails_is_a_failure(place, tried):
    assert rates.search(grid(5.0, 4.0), place) == "failed"
    assert not place.rates.exists()


def test_a_recipe_takes_its_share_of_the_rate_that_was_found(place, tried):
    recipe = Recipe("half", "a row", grid().config, grid(0.3, 0.03), share=0.5)
    assert rates.settled(recipe, place) is recipe  # nothing was found yet
    rates.search(recipe.grid, place)
    assert rates.settled(recipe, place).config.training.lr == 0.15


def test_searches_of_others_stay(place, tried):
    place.rates.write_text("laptop:\n  other: {rate: 1.0}\nsmoke:\n  some: {rate: 2.0}\n")
    rates.search(grid(0.4, 0.04), place)
    known = yaml.safe_load(place.rates.read_text())
    assert known["laptop"]["other"] == {"rate": 1.0}
    assert known["smoke"]["some"] == {"rate": 2.0}
