"""Several seeds of a recipe are the recipe but for the seed, and are found by their names."""

import dataclasses

import pytest

from experiments.chiu import table2
from experiments.lee.studies import figure2, table1
from experiments.recipes import settings_of
from experiments.seeds import base, chosen, named, seeded, spread
from trellis import TrellisError


def seeds(recipes):
    return [recipe.config.training.seed for recipe in recipes]


def test_another_seed_is_the_same_run_but_for_its_seed_and_name():
    recipe = table2("laptop")[1]
    other = seeded(recipe, 52)
    assert other.name == f"{recipe.name}-s52"
    assert (other.label, other.grid) == (recipe.label, recipe.grid)
    training = dataclasses.replace(other.config.training, seed=recipe.config.training.seed)
    assert dataclasses.replace(other.config, training=training) == recipe.config
    assert seeded(recipe, recipe.config.training.seed) == recipe


def test_seeds_that_a_study_has_anyway_are_its_own_recipes():
    recipes = table1("laptop")
    assert spread(recipes, "42,52,62") == spread(recipes, "3") == recipes
    more = spread(recipes, "4")
    assert seeds(more) == [42, 52, 62, 72] * 4
    assert more[3].name == recipes[0].name.replace("-s42", "-s72")


def test_seeds_are_counted_from_the_recipes_own_or_named():
    recipes = table2("laptop")
    assert spread(recipes, None) == recipes
    assert seeds(spread(recipes, "2")) == [0, 10] * 3
    assert seeds(spread(recipes, " 7, 0,7 ")) == [7, 0] * 3
    assert seeds(spread(recipes[:1], "5,")) == [5]
    assert spread(recipes, "1") == recipes


@pytest.mark.parametrize("wrong", ["", "0", "many", "-1", "1,two", ",", "1.5", "²"])
def test_what_is_no_number_of_seeds_is_refused(wrong):
    with pytest.raises(TrellisError, match="write how many, as 3, or which, as 42,52,62"):
        spread(table2("laptop"), wrong)


def test_a_run_is_found_by_name_from_any_seed():
    recipes = table2("laptop")
    assert chosen(recipes, None) == recipes
    (found,) = chosen(recipes, f"{recipes[2].name}-s9")
    assert found == seeded(recipes[2], 9)
    lee = table1("laptop")
    assert named(lee, lee[1].name) is lee[1]
    assert settings_of(named(lee, f"{base(lee[1].name)}-s7").config) == settings_of(seeded(lee[0], 7).config)
    assert named(lee, "nobody-s7") is None
    with pytest.raises(TrellisError, match=f"did you mean '{recipes[2].name}'"):
        chosen(recipes, recipes[2].name + "x")


def test_names_without_a_seed_stay_as_they_are():
    assert base("ptb-flat-1024-m128") == "ptb-flat-1024-m128"
    assert base("openmix-scalar-512-s42") == "openmix-scalar-512"
    assert {base(recipe.name) for recipe in figure2("smoke")} >= {"smoke-openmix-scalar-512"}
