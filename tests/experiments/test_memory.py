"""The study of memories compares models that differ in what they remember alone, and its page says what was found."""

import dataclasses

import pytest

from experiments import memory
from experiments.budgets import CONFIGS
from experiments.chiu import figure3
from experiments.chiu import table1 as chiu_table1
from experiments.lee.budgets import SEEDS, TOKENS
from experiments.lee.studies import table1
from experiments.recipes import settings_of, studies
from experiments.results import Results
from trellis.config import load


def test_every_study_has_a_title():
    assert set(memory.TITLES) == {name for name in studies() if name.startswith("memory.")}


def test_rows_differ_in_what_they_remember_and_in_the_rate_alone():
    rows = [recipe for recipe in memory.words("laptop") if recipe.label in memory.SHAPES]
    assert [(recipe.config.model.memory, recipe.config.training.seed) for recipe in rows] == [
        (words, seed) for words in (0, 1, 2) for seed in SEEDS
    ]
    plain = rows[0].config
    for recipe in rows:
        model = dataclasses.replace(recipe.config.model, memory=0)
        training = dataclasses.replace(recipe.config.training, seed=SEEDS[0])
        assert (model, training, recipe.config.data) == (plain.model, plain.training, plain.data)
    searched = [recipe.grid.name.removeprefix("openmix-") for recipe in rows[:: len(SEEDS)]]
    assert searched == ["linear-split", "memory-1", "memory-1"]


def test_blocked_rows_differ_in_their_memory_and_counts_alone():
    plain, word, counted = (recipe.config for recipe in memory.words("laptop") if "blocks" in recipe.label)
    assert dataclasses.replace(plain.model, memory=1) == word.model
    assert dataclasses.replace(word.model, ngrams=5) == counted.model
    assert (plain.training, plain.data) == (word.training, word.data) == (counted.training, counted.data)


def test_the_model_without_a_memory_is_a_row_of_lees_study_and_not_run_again():
    theirs = {recipe.name: recipe.config for recipe in table1("laptop")}
    for recipe in memory.words("laptop")[:3]:
        assert theirs[recipe.name] == recipe.config


def test_all_of_the_text_is_read_in_one_study_alone():
    assert {recipe.config.data.max_tokens for recipe in memory.full("laptop")} == {None}
    assert {recipe.config.data.max_tokens for recipe in memory.states("laptop")} == {TOKENS["laptop"]}


def test_blocked_models_differ_in_their_memory_from_points_of_chiu_and_rush():
    points = {recipe.name: recipe.config for recipe in figure3("laptop")}
    plain, word = memory.ptb("laptop")[:3], memory.ptb("laptop")[3:]
    assert [points[recipe.name] for recipe in plain] == [recipe.config for recipe in plain]
    for without, recipe in zip(plain, word, strict=True):
        model = dataclasses.replace(without.config.model, memory=1)
        assert recipe.config == dataclasses.replace(without.config, model=model)


def test_each_idea_is_the_one_before_and_one_thing_more():
    rows = [recipe.config for recipe in memory.ideas("laptop")]
    points = {recipe.name: recipe.config for recipe in (*memory.ptb("laptop"), *figure3("laptop"))}
    assert [points[recipe.name] for recipe in memory.ideas("laptop")[:2]] == rows[:2]
    wanted = [
        {"model.memory": 1},
        {"model.memory_dropout": 0.5},
        {"model.ngrams": 5},
        {"training.weight_decay": memory.DECAY},
        {"model.states": 2**14},
        {"model.states": 2**15, "training.epochs": 10.0},
        {"training.weight_decay": 0.25, "training.epochs": 8.0},
        {"data.corpus": "wikitext-2", "model.states": 2**14, "training.weight_decay": 0.1},
        {"model.cache": 2000, "training.shuffle": False},
        {"data.corpus": "ptb", "model.states": 2**12, "model.cache": 1000, "training.epochs": 4.0},
        {"model.states": 2**15, "training.epochs": 10.0},
    ]
    for before, after, changes in zip(rows[:-1], rows[1:], wanted, strict=True):
        for name, value in changes.items():
            group, _, setting = name.partition(".")
            part = dataclasses.replace(getattr(before, group), **{setting: value})
            before = dataclasses.replace(before, **{group: part})
        assert before == after
    assert len({recipe.name for recipe in memory.ideas("laptop")}) == len(rows) == len(wanted) + 1


def test_taught_rows_differ_in_their_beginning_and_in_one_thing_each():
    teacher, *rows = memory.taught("laptop")
    kept, begun, larger, cached, other, other_cached, plain = (recipe.config for recipe in rows)
    assert dataclasses.replace(larger.model, memory=0, memory_dropout=0.0, ngrams=0) == plain.model
    assert (larger.training, larger.distill) == (plain.training, plain.distill)
    assert [recipe.needs for recipe in rows[:4]] == [(), *[(teacher,)] * 3]
    assert [recipe.needs[0].config.data.corpus for recipe in rows[4:6]] == ["wikitext-2"] * 2
    without = next(recipe.config for recipe in memory.ideas("laptop") if recipe.label == "PTB, + weight decay")
    assert dataclasses.replace(without, model=dataclasses.replace(without.model, dropout=0.0)) == kept
    assert dataclasses.replace(kept.training, init="distill") == begun.training
    assert (kept.model, kept.data) == (begun.model, begun.data)
    assert begun.distill.teacher == "ptb-lstm-10-epochs/best"
    assert dataclasses.replace(begun, model=dataclasses.replace(begun.model, states=2**14)) == larger
    for without, remembering, more in (
        (larger, cached, {"cache": 1000}),
        (other, other_cached, {"cache": 2000, "states": 2**12}),
    ):
        model = dataclasses.replace(without.model, **more)
        in_order = dataclasses.replace(without.training, shuffle=False)
        assert dataclasses.replace(without, model=model, training=in_order) == remembering
    assert other.distill.teacher == "wikitext-2-lstm/best"
    assert (other.model, other.training) == (larger.model, larger.training)


def test_those_that_are_tested_stand_in_other_studies_too():
    known = {recipe.name: recipe.config for recipe in (*chiu_table1("laptop"), *memory.taught("laptop"))}
    rows = memory.best("laptop")
    assert [known[recipe.name] for recipe in rows] == [recipe.config for recipe in rows]
    assert [recipe.config.model.ngrams for recipe in rows] == [0, 5, 5, 0, 5, 5]
    assert [recipe.config.model.cache for recipe in rows] == [0, 0, 1000, 0, 0, 2000]
    assert [recipe.config.data.corpus for recipe in rows] == ["ptb"] * 3 + ["wikitext-2"] * 3


def result(perplexity):
    return {"evaluation": {"valid": {"windows": {"perplexity": perplexity}}}, "parameters": 4_000_000, "seconds": 60.0}


def test_the_page_has_the_mean_and_the_spread_of_seeds_and_draws_lines_of_both(tmp_path):
    found = {
        recipe.name: result({0: 290, 1: 225, 2: 219}[recipe.config.model.memory] + recipe.config.training.seed / 10)
        for recipe in memory.words("laptop")
    }
    found |= {recipe.name: result(1e5 / recipe.config.model.states) for recipe in memory.states("laptop")}
    found["openmix-linear-split-512-s42"] = result(294.2)
    text = memory.page({"laptop": Results("laptop", found)}, tmp_path / "results-memory.md").read_text()
    assert "| no memory | 3 | 295.2 | 294.2 | 296.2 |" in text
    assert "| two words | 3 | 224.2 | 223.2 | 225.2 |" in text
    assert "| a word, 64 | 1 | 1562.5 |" in text
    assert "| a word | 0 of 1 |" in text  # all of the text
    assert [path.name for path in (tmp_path / "results-memory").iterdir()] == ["states-laptop.png"]


@pytest.mark.parametrize(("text", "name"), [("PTB", "ptb-memory"), ("WikiText-2", "wikitext-2-memory")])
def test_the_best_of_each_text_without_a_teacher_is_shipped(text, name):
    shipped = settings_of(load(CONFIGS / f"{name}.yaml"))
    shipped["training"]["keep"] = 1  # checkpoint: a study keeps fewer
    (best,) = (recipe for recipe in memory.ideas("laptop") if recipe.label == memory.BEST[text][1])
    assert settings_of(best.config) == shipped
