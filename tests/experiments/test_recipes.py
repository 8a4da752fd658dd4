"""Recipes are complete, fit their text, and say at the paper's budget what the paper says."""

import dataclasses
import math
import subprocess
import sys

import pytest

from experiments import chiu
from experiments.budgets import CONFIGS, SWEEP_EPOCHS
from experiments.recipes import BUDGETS, HERE, budget_of, settings_of, studies, study, unlike, with_rate
from experiments.record import count
from experiments.seeds import chosen
from trellis import TrellisError
from trellis.config import load, save
from trellis.models.registry import model_class

WORDS = {"ptb": 10_000, "wikitext-2": 33_278, "openmix": 32_000, "slimpajama": 32_000}
SMOKE_WORDS = 37


def recipes(budget):
    return [recipe for one in studies().values() for recipe in one(budget)]


def test_runs_need_no_matplotlib():
    said = """import sys; sys.modules["matplotlib"] = None
import experiments.__main__
from experiments.recipes import studies
assert len([recipe for one in studies().values() for recipe in one("smoke")]) > 100"""
    told = subprocess.run([sys.executable, "-c", said], cwd=HERE.parent, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr


@pytest.mark.parametrize("budget", BUDGETS)
def test_every_config_is_complete_and_can_be_read_again(budget, tmp_path):
    for recipe in recipes(budget):
        for config in [recipe.config, *([recipe.grid.config] if recipe.grid else [])]:
            save(config, tmp_path / "config.yaml")
            assert settings_of(load(tmp_path / "config.yaml")) == settings_of(config)
            words = SMOKE_WORDS if budget == "smoke" else WORDS[config.data.corpus]
            assert config.with_vocabulary(words).vocab_size == words  # more blocks than words would be refused
            assert config.training.batching == ("windows" if "openmix" in recipe.name else "streams")
            assert config.out is None


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_name_is_one_configuration_and_a_label_one_row(budget):
    configs = {}
    for recipe in recipes(budget):
        assert configs.setdefault(recipe.name, recipe.config) == recipe.config
    searched = {recipe.name: recipe.grid and recipe.grid.name for recipe in recipes(budget)}
    assert len({(str(settings_of(config)), searched[name]) for name, config in configs.items()}) == len(configs)
    for name, one in studies().items():
        labels = [(recipe.label, recipe.config.training.seed) for recipe in one(budget)]
        assert len(set(labels)) == len(labels), name


def test_smoke_runs_do_not_bear_the_names_of_large_ones():
    def names(budget):
        grids = {recipe.grid.name for recipe in recipes(budget) if recipe.grid}
        needed = {one.name for recipe in recipes(budget) for one in recipe.needs}
        return {recipe.name for recipe in recipes(budget)} | grids | needed

    assert all(name.startswith("smoke-") for name in names("smoke"))
    assert not any(name.startswith("smoke-") for budget in ("laptop", "paper") for name in names(budget))
    for recipe in recipes("smoke"):  # what a run reads of another is found by that one's name
        for one in recipe.needs:
            assert f"{one.name}/best" in (recipe.config.distill.teacher, getattr(recipe.config.model, "network", None))


def row(study_, budget, label):
    (found,) = [recipe.config for recipe in study_(budget) if recipe.label == label]
    return found


def test_the_papers_budget_has_the_published_settings():
    for text, corpus, rate in (("PTB", "ptb", 0.01), ("WikiText-2", "wikitext-2", 0.001)):
        large = row(chiu.table1, "paper", f"{text}, VL-HMM 2^15")
        assert large.data.corpus == corpus
        model, training = large.model, large.training
        assert (model.states, model.blocks, model.width, model.dropout) == (2**15, 128, 256, 0.5)
        assert (model.transition, model.init_scale, model.support) == ("low_rank", 1.0, "brown")
        assert (model.start, model.emission, model.encoder, model.bias) == ("low_rank", "low_rank", "residual", True)
        assert (training.batch_size, training.length, training.epochs) == (16, 32, 50)
        assert (training.lr, training.betas, training.clip, training.weight_decay) == (rate, (0.9, 0.999), 5, 0)
        assert (training.schedule, training.patience, training.factor) == ("plateau", 8, 0.25)
        assert (training.validations, training.warmup) == (4, 0)
        lstm = row(chiu.table1, "paper", f"{text}, 2x256 LSTM")
        assert (lstm.training.batch_size, lstm.training.length, lstm.training.lr) == (16, 32, 0.001)
        assert (lstm.model.width, lstm.model.layers, lstm.model.dropout, lstm.training.epochs) == (256, 2, 0.3, 50)
        forward = row(chiu.table1, "paper", f"{text}, 256 FF 5-gram")
        assert (forward.training.batch_size, forward.training.length, forward.training.epochs) == (128, 64, 100)
        assert (forward.training.lr, forward.model.dropout, forward.model.order) == (0.001, 0.3, 5)


def test_the_papers_sweeps_are_the_published_ones():
    assert [r.config.model.states for r in chiu.figure3("paper")] == [2**power for power in range(10, 17)]
    assert [r.config.model.states for r in chiu.table2("paper")] == [2**14] * 3
    assert {r.config.training.lr for r in (*chiu.figure3("paper"), *chiu.table2("paper"))} == {0.01}
    shapes = [(r.config.model.support, r.config.model.states, r.config.model.blocks) for r in chiu.table3("paper")]
    assert shapes == [
        *(("brown", 2**14, blocks) for blocks in (32, 64, 128, 256)),
        ("dense", 2**10, 1),
        *(("brown", 2**10, blocks) for blocks in (4, 8)),
        *(("uniform", 2**13, 64), ("brown", 2**13, 64), ("uniform", 2**14, 128), ("brown", 2**14, 128)),
    ]
    scalar = row(chiu.table2, "paper", "- neural param").model
    assert (scalar.start, scalar.transition, scalar.emission) == ("scalar", "scalar", "scalar")
    assert row(chiu.table2, "paper", "- state dropout").model.dropout == 0
    assert row(chiu.table4, "paper", "+ block emb").model.encoder == "factored"


# Millions, to the digit the paper prints. Its HMM+RNN is another (10M), its feed-forward model has 0.1M more.
@pytest.mark.parametrize(
    ("study_", "label", "words", "millions"),
    [
        ("chiu.table1", "PTB, VL-HMM 2^15", 10_000, 11.4),
        ("chiu.table1", "WikiText-2, VL-HMM 2^15", 33_278, 17.3),
        ("chiu.table1", "PTB, 2x256 LSTM", 10_000, 3.6),
        ("chiu.table1", "WikiText-2, 2x256 LSTM", 33_278, 9.6),
        ("chiu.table1", "WikiText-2, 256 FF 5-gram", 33_278, 8.8),
        ("chiu.table2", "VL-HMM", 10_000, 7.2),
        ("chiu.table4", "+ block emb", 10_000, 5.6),
    ],
)
def test_parameters_are_as_many_as_published(study_, label, words, millions):
    shape = row(study(study_), "paper", label).with_vocabulary(words)
    assert round(count(model_class(shape.kind)(shape, seed=0)) / 1e6, 1) == millions


def test_a_laptops_sweep_has_one_schedule():
    points = [r for one in (chiu.figure3, chiu.table2, chiu.table3, chiu.figure4) for r in one("laptop")]
    assert {dataclasses.replace(r.config.training, lr=1) for r in points} == {
        dataclasses.replace(points[0].config.training, lr=1)
    }
    training = points[0].config.training
    assert (training.batch_size, training.length, training.epochs) == (32, 64, SWEEP_EPOCHS)
    assert (training.schedule, training.lr) == ("cosine", 0.01)
    blocked = [r for r in points if r.config.model.support != "dense"]
    assert {r.label for r in points if r not in blocked} == {"None, 2^10"}
    flat = {r.label for r in blocked if r.config.model.transition == "low_rank"}
    assert flat == {
        *(f"flat, 2^{power}" for power in range(10, 15)),
        *(f"{kind}, 2^13, k=128" for kind in ("Brown", "Uniform")),
    }


def test_long_runs_of_state_dropout_differ_from_a_sweeps_point_in_their_length():
    with_it, without = chiu.dropout("laptop")
    point = row(chiu.figure3, "laptop", "hierarchical, 2^14")
    for recipe, dropout in ((with_it, 0.5), (without, 0.0)):
        assert recipe.config.model == dataclasses.replace(point.model, dropout=dropout)
        assert recipe.config.training == dataclasses.replace(point.training, epochs=16)
    assert [r.config for r in chiu.dropout("paper")] == [chiu.table2("paper")[i].config for i in (0, 2)]


def test_a_laptops_models_are_those_of_the_shipped_configs():
    large = row(chiu.table1, "laptop", "PTB, VL-HMM 2^15")
    assert settings_of(large) == settings_of(load(CONFIGS / "ptb-blocked.yaml"))
    assert (large.model.states, large.model.transition) == (2**15, "hierarchical")


def test_grids_hold_the_rate_that_the_recipe_starts_from_open():
    grids = [recipe for recipe in recipes("laptop") if recipe.grid and recipe.grid.around is None]
    assert {recipe.grid.name for recipe in grids} == {"ptb-scalar-blocks", "wikitext-2-vl-hmm"}
    for recipe in grids:
        assert len(set(recipe.grid.rates)) > 1
        assert recipe.grid.config.training.epochs < recipe.config.training.epochs
        assert with_rate(recipe.config, 7.0).training == dataclasses.replace(recipe.config.training, lr=7.0)


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(TrellisError, match=r"did you mean 'chiu.table1'"):
        study("chiu.tabel1")
    with pytest.raises(TrellisError, match="did you mean 'laptop'"):
        budget_of("lapdog")
    with pytest.raises(TrellisError, match="did you mean 'ptb-lstm'"):
        chosen(chiu.table1("laptop"), "ptb-lstn")
    assert [recipe.name for recipe in chosen(chiu.table1("laptop"), "ptb-lstm")] == ["ptb-lstm"]


def test_a_recorded_run_is_compared_setting_by_setting():
    wanted = {"model": {"states": 8, "new": math.pi}, "seed": 0}
    assert unlike({"model": {"states": 8}, "seed": 0}, wanted) == []
    assert unlike({"model": {"states": 4}, "seed": 0}, wanted) == ["model.states=4 and not 8"]
    assert unlike({"model": {"gone": 1}}, wanted) == ["model.gone=1 and not None"]
    precise = {"training": {"precision": "float32", "lr": 0.1}, "model": {"precision": 1}}
    assert unlike({"training": {"precision": "bf16", "lr": 0.2}, "model": {"precision": 2}}, precise) == [
        "training.lr=0.2 and not 0.1",
        "model.precision=2 and not 1",
    ]
