"""A study at the smoke budget, from the docs' own commands to records; run again, interrupted, refused."""

import dataclasses
import json
import os
import re
import shlex
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from experiments.__main__ import app
from experiments.chiu import table2
from experiments.report import HEAD
from experiments.running import check_code, default_place, state_of, train
from experiments.smoke import write_texts
from trellis import TrellisError
from trellis.folders import one_at_a_time
from trellis.training.precision import bf16_works

COMMANDS = [shlex.split(line) for line in re.search(r"```sh\n(.*?)```", HEAD, re.DOTALL)[1].splitlines()]


def give(*arguments):
    """What a command says, and its exit code."""
    told = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200"})
    if told.exception and not isinstance(told.exception, SystemExit):
        raise told.exception
    return told.output, told.exit_code


def results(runs: Path):
    return {path.stem: json.loads(path.read_text()) for path in (runs / "results").glob("*.json")}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Table 2 as the docs say to make it."""
    folder = tmp_path_factory.mktemp("runs")
    command = COMMANDS[0]
    assert command[:3] == ["python", "-m", "experiments"]
    said, code = give(*command[3:], "--runs", folder, "--threads", 1)
    assert code == 0, said
    return folder


def test_every_run_is_recorded_whole(runs):
    found = results(runs)
    assert sorted(found) == sorted(recipe.name for recipe in table2("smoke"))
    for name, result in found.items():
        assert result["name"] == name
        assert result["command"] == (
            f"python -m experiments run chiu.table2 --budget smoke --only {name} --data-dir DATA --threads 1"
        )
        assert (
            set(result["corpus_hash"]) == set(result["evaluation"]) == {"train", "valid"}
        )  # Table 1 alone has test figures
        assert result["updates"] > 10
        assert result["tokens"] == result["evaluation"]["train"]["streams"]["tokens"]
        assert result["milliseconds"] > 0
        assert result["evaluation"]["valid"]["stream"]["perplexity"] > 1
        assert result["curve"][-1][0] == result["updates"]
        assert "data_dir" not in result["config"]["data"]
        assert str(runs) not in json.dumps(result)


def test_products_have_the_precision_that_suits_the_processor(tmp_path):
    if not bf16_works():
        pytest.skip("bf16 products crash on this processor")
    name = "smoke-wikitext-2-feed-forward"
    asked = ("run", "chiu.table1", "--budget", "smoke", "--only", name, "--runs", tmp_path, "--threads", 1)
    said, code = give(*asked, "--precision", "bf16")
    assert code == 0, said
    found = results(tmp_path)[name]
    assert found["config"]["training"]["precision"] == "bf16"
    assert found["command"].endswith("--threads 1 --precision bf16")
    said, _ = give(*asked)  # in float32, as the recipe says
    assert "recorded, skipped" in said
    with pytest.raises(TrellisError, match="--precision half is not known: write bf16 or float32"):
        give(*asked, "--precision", "half")


def test_a_row_of_table_1_is_tested_too(tmp_path):
    said, code = give(
        "run", "chiu.table1", "--budget", "smoke", "--only", "smoke-ptb-kneser-ney", "--runs", tmp_path, "--threads", 1
    )
    assert code == 0, said
    measured = results(tmp_path)["smoke-ptb-kneser-ney"]["evaluation"]
    assert {split: set(protocols) for split, protocols in measured.items()} == {
        "train": {"streams"},
        "valid": {"stream", "streams"},
        "test": {"stream", "streams"},
    }


def test_dropout_and_parameters_are_what_the_rows_say(runs):
    full, scalar, without = (results(runs)[recipe.name] for recipe in table2("smoke"))
    assert full["parameters"] == without["parameters"] != scalar["parameters"]
    assert (full["config"]["model"]["dropout"], without["config"]["model"]["dropout"]) == (0.5, 0)
    parts = [scalar["config"]["model"][part] for part in ("start", "transition", "emission")]
    assert parts == ["scalar", "hierarchical_scalar", "scalar"]


def test_the_rate_was_searched_on_validation_text_and_used(runs):
    found = yaml.safe_load((runs / "rates.yaml").read_text())["smoke"]["smoke-ptb-scalar-blocks"]
    recipe = table2("smoke")[1]
    assert set(found["valid"]) == set(recipe.grid.rates)
    assert found["valid"][found["rate"]] == min(found["valid"].values())
    assert results(runs)[recipe.name]["config"]["training"]["lr"] == found["rate"]


def test_a_second_time_everything_is_skipped(runs):
    before = {path: path.stat().st_mtime_ns for path in runs.rglob("*") if path.is_file()}
    said, code = give("run", "chiu.table2", "--budget", "smoke", "--runs", runs, "--threads", 1)
    assert code == 0
    assert said.count("recorded, skipped") == 3
    assert {path: path.stat().st_mtime_ns for path in runs.rglob("*") if path.is_file()} == before


def test_status_tells_recorded_from_missing_running_and_outdated(runs):
    said, code = give(*COMMANDS[1][3:], "--runs", runs)
    assert code == 0
    assert said.count("recorded") == 3
    said, _ = give("status", "chiu.table4", "--budget", "smoke", "--runs", runs)
    assert re.search(r"m128-factored +missing", said)
    with one_at_a_time(runs / "smoke-ptb-hierarchical-8192-m128-factored"):
        said, _ = give("status", "chiu.table4", "--budget", "smoke", "--runs", runs)
    assert re.search(r"m128-factored +running", said)
    recipe = table2("smoke")[0]
    other = dataclasses.replace(recipe, config=dataclasses.replace(recipe.config, training=dataclasses.replace(
        recipe.config.training, seed=9)))  # fmt: skip
    place = default_place("smoke", runs)
    assert state_of(recipe, place) == "recorded"
    assert state_of(other, dataclasses.replace(place, runs=runs / "elsewhere")) == "outdated"
    with pytest.raises(TrellisError, match=r"holds another run, with training.seed=0 and not 9: move it away"):
        train(other.name, other.config, place)


def test_a_run_by_hand_is_recorded_as_a_recipe_only_if_it_is_that_recipe(runs):
    names = [recipe.name for recipe in table2("smoke")]
    path = runs / "results" / f"{names[0]}.json"
    before = json.loads(path.read_text())
    path.unlink()
    assert give("record", runs / names[0], "--budget", "smoke", "--threads", 1)[1] == 0
    assert json.loads(path.read_text()) == before | {"command": before["command"].replace("table2", "figure3")}
    path.write_text(json.dumps(before))
    with pytest.raises(TrellisError, match=r"is not the recipe .*-no-dropout: it has model.dropout=0.5 and not 0"):
        give("record", runs / names[0], "--name", names[2], "--budget", "smoke")
    with pytest.raises(TrellisError, match="no study has a run 'nobody'"):
        give("record", runs / names[0], "--name", "nobody", "--budget", "smoke")


def wait_for(path: Path, lines: int) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until and not (path.exists() and path.read_text().count("\n") >= lines):
        time.sleep(0.01)


def test_an_interrupted_run_stops_with_a_checkpoint_and_goes_on(tmp_path):
    place = default_place("smoke", tmp_path, str(write_texts(tmp_path / "data")))
    recipe = table2("smoke")[0]
    training = dataclasses.replace(recipe.config.training, epochs=8)
    recipe = dataclasses.replace(recipe, config=dataclasses.replace(recipe.config, training=training))
    metrics = tmp_path / recipe.name / "metrics.jsonl"

    def interrupt() -> None:
        wait_for(metrics, 5)
        os.kill(os.getpid(), signal.SIGINT)  # as Ctrl-C does

    threading.Thread(target=interrupt).start()
    assert train(recipe.name, recipe.config, place) == "stopped"
    assert state_of(recipe, place) == "interrupted"
    seen = metrics.read_text().count('"loss"')
    assert 5 <= seen < 280

    check_code(recipe.name, "one", place)
    check_code(recipe.name, "one", place)
    with pytest.raises(TrellisError, match="began with commit one and the code is now two"):
        check_code(recipe.name, "two", place)
    with one_at_a_time(tmp_path / recipe.name):
        assert train(recipe.name, recipe.config, place) == "busy"
    assert train(recipe.name, recipe.config, place) == "finished"
    assert state_of(recipe, place) == "finished"
    losses = [entry["update"] for line in metrics.read_text().splitlines() if "loss" in (entry := json.loads(line))]
    assert losses == list(range(1, len(losses) + 1))  # none lost, none made twice
    text = (tmp_path / "data" / "ptb" / "ptb.train.txt").read_text()
    tokens = len(text.split()) + len(text.splitlines())  # an <eos> a line
    assert json.loads(place.finished(recipe.name).read_text())["tokens"] == 8 * tokens


def test_a_run_that_fails_is_said_and_the_others_go_on(runs, monkeypatch):
    fine = table2("smoke")[0]
    data = dataclasses.replace(fine.config.data, tokenizer="nowhere")
    broken = dataclasses.replace(fine, name="broken", config=dataclasses.replace(fine.config, data=data))
    monkeypatch.setattr("experiments.recipes.studies", lambda: {"mine": lambda budget: [broken, fine]})
    said, code = give("run", "mine", "--budget", "smoke", "--runs", runs, "--threads", 1)
    assert code == 1
    assert "broken: failed, skipped" in said
    assert f"{fine.name}: recorded, skipped" in said


@pytest.mark.slow
def test_a_model_that_a_run_needs_is_made_again_if_only_its_record_is_here(tmp_path):
    name = "smoke-ptb-4096-memory-1-memory_dropout-0.5-ngrams-5-all-kept-decay-0.1-from-lstm-4-epochs"
    asked = ("run", "memory.taught", "--budget", "smoke", "--only", name, "--runs", tmp_path, "--threads", 1)
    said, code = give(*asked)
    assert code == 0, said
    before = results(tmp_path)
    said, _ = give(*asked)
    assert "training it again" not in said  # what is recorded needs nothing
    for one in (name, "smoke-ptb-lstm"):
        shutil.rmtree(tmp_path / one)
    (tmp_path / "results" / f"{name}.json").unlink()
    said, code = give(*asked)
    assert code == 0, said
    assert "smoke-ptb-lstm: its model is needed and not here, training it again" in said
    after = results(tmp_path)
    assert after["smoke-ptb-lstm"] == before["smoke-ptb-lstm"]
    assert after[name]["curve"] == before[name]["curve"]  # of the same teacher
