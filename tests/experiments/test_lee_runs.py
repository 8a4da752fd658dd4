"""The guide's own commands: a distilled run and one of a pretrained network, at the smoke budget, to their records."""

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.__main__ import app
from experiments.lee.studies import figure5

GUIDE = Path(__file__).parents[2] / "docs" / "guide-lee.md"
SMOKE = re.compile(r"^python -m experiments (.* --budget smoke.*)$", re.MULTILINE)
COMMANDS = [shlex.split(line) for line in SMOKE.findall(GUIDE.read_text(encoding="utf-8"))]


def give(*arguments):
    """What a command says, and its exit code."""
    told = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200"})
    if told.exception and not isinstance(told.exception, SystemExit):
        raise told.exception
    return told.output, told.exit_code


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for command in COMMANDS[:2]:
        assert command[0] == "run"
        said, code = give(*command, "--runs", folder, "--threads", 1)
        assert code == 0, said
    return folder


def record(runs, command):
    return json.loads((runs / "results" / f"{command[command.index('--only') + 1]}.json").read_text())


@pytest.mark.slow
def test_a_distilled_point_of_a_figure_is_recorded(runs):
    found = record(runs, COMMANDS[0])
    settings = found["config"]["distill"]
    assert (settings["teacher"], settings["tokens"], settings["points"]) == ("teachers/stories15M", 500, 4)
    assert found["config"]["training"]["init"] == "distill"
    assert {split: set(known) for split, known in found["evaluation"].items()} == {
        "train": {"windows"},
        "valid": {"windows"},
    }
    assert 1 < found["evaluation"]["valid"]["windows"]["perplexity"] < 300  # of 300 types


@pytest.mark.slow
def test_a_row_with_a_pretrained_network_is_tested_too(runs):
    found = record(runs, COMMANDS[1])
    model = found["config"]["model"]
    assert (model["encoder"], model["network"]) == ("pretrained", "teachers/stories15M")
    assert found["config"]["distill"]["teacher"] == "teachers/stories15M"
    for split in ("train", "valid", "test"):
        (protocol,) = found["evaluation"][split]
        assert protocol == "windows"
        assert 1 < found["evaluation"][split]["windows"]["perplexity"] < 300
    searched = (runs / "rates.yaml").read_text()
    assert "smoke-openmix-pretrained-random-stories15M:" in searched  # with labels, the rate of random weights


@pytest.mark.slow
def test_status_knows_them(runs):
    said, code = give(*COMMANDS[2], "--runs", runs)
    assert code == 0
    assert re.search(r"smoke-openmix-pretrained-stories15M-from-stories15M-512-s42 +recorded", said)
    assert "missing" in said


@pytest.mark.slow
def test_centres_begin_as_embeddings_at_this_size_too(runs):
    name = figure5("smoke")[-1].name  # centres and head, frozen
    said, code = give("run", "lee.figure5", "--budget", "smoke", "--only", name, "--runs", runs, "--threads", 1)
    assert code == 0, said


def test_centres_are_as_wide_as_the_embeddings_that_they_begin():
    for budget in ("smoke", "laptop", "paper"):
        for recipe in figure5(budget):
            assert recipe.config.distill.pca == recipe.config.model.width
