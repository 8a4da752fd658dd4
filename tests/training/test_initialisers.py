import itertools
import json
import math
from types import SimpleNamespace

import pytest
import torch

from trellis.errors import TrellisError
from trellis.training import loop
from trellis.training.initialisers import Beginning, random, restarts

from .runs import diary, make_model, run, settings, tensors, text

CHOSEN = {"seed": 1, "init": "restarts", "restarts": 3, "restart_steps": 6}


def beginning(perplexities, seed=4):
    """What an initialiser is given, where seeds make models of themselves, and a note of what it asked for."""
    asked = []

    def make(seed):
        asked.append(("make", seed))
        return seed

    def trial(seed):
        asked.append(("trial", seed))
        return perplexities[seed]

    return Beginning(make, seed, len(perplexities), trial), asked


def test_random_is_the_runs_own_seed_and_tries_nothing():
    given, asked = beginning({4: 3.0, 5: 1.0})
    assert random(given) == 4
    assert asked == [("make", 4)]


@pytest.mark.parametrize(
    ("perplexities", "best"),
    [
        ({4: 3.0, 5: 1.0, 6: 2.0}, 5),
        ({4: 2.0, 5: 2.0}, 4),  # of two that are as good, the first
        ({4: math.inf, 5: 900.0}, 5),
        ({4: math.inf, 5: math.inf}, 4),
        ({4: 7.0}, 4),
    ],
)
def test_restarts_take_the_best_of_the_seeds_from_the_runs_own_on(perplexities, best):
    given, asked = beginning(perplexities)
    assert restarts(given) == best
    assert asked == [*(("trial", seed) for seed in perplexities), ("make", best)]


def test_restarts_go_on_with_the_best_seed(tmp_path):
    run(tmp_path / "restarts", settings(**CHOSEN))
    trials = {}
    for seed in (1, 2, 3):
        lines = (tmp_path / "restarts" / "run" / f"restart-{seed}" / "metrics.jsonl").read_text().splitlines()
        found = [json.loads(line) for line in lines]
        assert max(line["update"] for line in found) == 6
        trials[seed] = min(line["valid_loss"] for line in found if "valid_loss" in line)
    best = min(trials, key=trials.__getitem__)
    assert best != 1  # otherwise this says nothing
    run(tmp_path / "alone", settings(seed=1), make=lambda seed: make_model(best))
    ours, theirs = tensors(tmp_path / "restarts"), tensors(tmp_path / "alone")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert diary(tmp_path / "restarts") == diary(tmp_path / "alone")


@pytest.mark.parametrize("objective", ["marginal", "joint"])
def test_trials_learn_as_the_run_will(objective, tmp_path):
    run(tmp_path / "restarts", settings(**CHOSEN, objective=objective))
    run(tmp_path / "alone", settings(seed=1, objective=objective), make=lambda seed: make_model(2))
    lines = (tmp_path / "restarts" / "run" / "restart-2" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["loss"] == diary(tmp_path / "alone")[0]["loss"]


def test_trials_are_no_part_of_the_runs_seconds_and_tokens(monkeypatch, tmp_path):
    ticks, away, finish = itertools.count(), [0.0], loop._Run.finish

    def slowly(self):
        if self.folder.name.startswith("restart-"):
            away[0] += 1e6
        return finish(self)

    monkeypatch.setattr(loop._Run, "finish", slowly)
    clock = SimpleNamespace(monotonic=lambda: next(ticks) * 1e-3 + away[0], process_time=lambda: 0.0)
    monkeypatch.setattr(loop, "time", clock)
    found = run(tmp_path, settings(**CHOSEN))
    assert away[0] == 3e6
    assert 0 < found.seconds < 1e3
    assert found.tokens == 2 * len(text(tmp_path / "cache"))


def test_without_a_word_about_restarts_there_are_none(tmp_path):
    run(tmp_path, settings())
    assert list((tmp_path / "run").glob("restart-*")) == []


def test_restarts_need_validation_text(tmp_path):
    with pytest.raises(TrellisError, match="chooses by validation text"):
        run(tmp_path, settings(init="restarts", restarts=2), valid=False)
    assert not (tmp_path / "run").exists()
