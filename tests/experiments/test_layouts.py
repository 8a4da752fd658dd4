"""What was recorded in an older layout is known again in this one."""

import json

import pytest

from experiments import rates, results
from experiments.layouts import as_typed_today, in_this_layout
from experiments.recipes import HERE, settings_of, studies, unlike
from experiments.running import default_place, state_of
from experiments.seeds import named
from trellis.config import as_dict, load
from trellis.configs import shipped

STUDIES = ("first", "steering", "tagging")  # whose records are no runs of `trellis train`
RECORDED = sorted(path for path in (HERE / "results").rglob("*.json") if path.parent.name not in STUDIES)
BLOCKED = {
    "kind": "blocked", "states": 64, "blocks": 8, "clusters": "brown", "unclustered": None,
    "transition": "hierarchical", "parameters": "neural", "embeddings": "independent", "width": 16, "dropout": 0.5,
    "start_scale": None,
}  # fmt: skip
LEARNT = {"start": "low_rank", "emission": "low_rank", "bias": True, "width": 16, "init_scale": None}


def test_every_recorded_run_of_a_study_is_still_its_point(tmp_path):
    place = default_place("laptop", tmp_path)
    recipes = [recipe for one in studies().values() for run in one("laptop") for recipe in (run, *run.needs)]
    recorded = {path.stem for path in RECORDED if path.parent.name == "laptop"}
    assert len(recorded) >= 25
    for name in recorded:
        assert state_of(rates.settled(named(recipes, name), place), place) == "recorded", name


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recorded_settings_are_settings(path):
    model = results.load(path)["config"]["model"]
    overrides = [f"model.{name}={'null' if value is None else value}" for name, value in model.items()]
    assert as_dict(load(None, overrides))["model"].items() >= model.items()


@pytest.mark.parametrize("name", ["ptb-low-rank", "openmix-low-rank", "ptb-scalar"])
def test_the_runs_of_no_study_are_those_of_the_shipped_configs(name):
    recorded = results.load(HERE / "results" / f"{name}.json")["config"]
    assert unlike(recorded, settings_of(load(shipped(name)))) == []


def test_recorded_commands_can_be_typed_today():
    old = "TRELLIS_KERNELS=off trellis train configs/ptb-low-rank.yaml training.lr=1 --data-dir DATA"
    assert as_typed_today(old) == "TRELLIS_KERNELS=off trellis train ptb-low-rank training.lr=1 --data-dir DATA"
    for command in (results.load(path)["command"] for path in RECORDED):
        assert "configs/" not in command
        if " train " in command:
            assert shipped(command.partition(" train ")[2].split()[0])


def test_recorded_settings_that_differ_are_told_in_the_words_of_today():
    wanted = {"model": {"kind": "hmm", "support": "brown", "width": 128}}
    old = {"model": {"kind": "hmm", "rank": 64}}
    assert unlike(in_this_layout(old), wanted) == [
        "model.support=dense and not brown",
        "model.width=64 and not 128",
    ]


@pytest.mark.parametrize(
    ("changes", "now"),
    [
        ({}, {**LEARNT, "support": "brown", "transition": "hierarchical", "encoder": "residual"}),
        ({"transition": "flat"}, {**LEARNT, "transition": "low_rank"}),
        ({"transition": "flat", "clusters": "uniform"}, {"support": "uniform", "transition": "low_rank"}),
        ({"embeddings": "factored", "start_scale": 1.0}, {"encoder": "factored", "init_scale": 1.0}),
        ({"parameters": "low_rank"}, {**LEARNT, "encoder": "table"}),
        ({"blocks": 1}, {**LEARNT, "support": "dense", "blocks": 1, "transition": "low_rank", "encoder": "residual"}),
        ({"parameters": "scalar"}, {"start": "scalar", "transition": "hierarchical_scalar", "emission": "scalar"}),
        ({"parameters": "scalar", "transition": "flat"}, {"transition": "scalar"}),
    ],
)
def test_a_blocked_model_is_an_hmm_with_a_support(changes, now):
    found = in_this_layout({"model": BLOCKED | changes})["model"]
    assert found.items() >= {"kind": "hmm", "states": 64, "dropout": 0.5, **now}.items()
    assert not found.keys() & {"clusters", "parameters", "embeddings", "start_scale"}
    if changes.get("parameters") == "scalar":  # of which these say nothing
        assert not found.keys() & {"encoder", "width", "bias", "init_scale"}


def test_restarts_are_an_initialiser():
    assert in_this_layout({"training": {"restarts": 1, "restart_steps": 100, "lr": 1}}) == {
        "training": {"init": "random", "lr": 1}
    }
    assert in_this_layout({"training": {"restarts": 3}}) == {"training": {"init": "restarts", "restarts": 3}}
    assert in_this_layout({"training": {"init": "random", "restarts": 5}}) == {
        "training": {"init": "random", "restarts": 5}
    }


def test_what_is_in_this_layout_stays_as_it_is():
    config = json.loads(json.dumps(settings_of(load(shipped("ptb-blocked")))))
    assert in_this_layout(config) == config
