"""A recorded run is made once more beside its record, and compared with it."""

import dataclasses
import json

import pytest
from typer.testing import CliRunner

from experiments.__main__ import app
from experiments.again import beside, comparison
from experiments.chiu import table1
from experiments.recipes import settings_of
from experiments.running import default_place

NAME = "smoke-ptb-kneser-ney"


def give(*arguments):
    told = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200"})
    if told.exception and not isinstance(told.exception, SystemExit):
        raise told.exception
    assert told.exit_code == 0, told.output
    return told.output


def run(folder, *arguments):
    study = ("run", "chiu.table1", "--budget", "smoke", "--runs", folder, "--threads", 1)
    return give(*study, *arguments)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One recorded run."""
    folder = tmp_path_factory.mktemp("runs")
    run(folder, "--only", NAME)
    return folder


def test_a_recorded_run_says_how_it_is_made_again(runs):
    assert f"{NAME}: recorded, skipped; --again makes it once more" in run(runs, "--only", NAME)


def test_a_run_made_again_leaves_the_record_and_is_compared_with_it(runs):
    path = runs / "results" / f"{NAME}.json"
    changed = json.loads(path.read_text())
    changed["evaluation"]["valid"]["stream"]["perplexity"] = 12.345
    path.write_text(json.dumps(changed))
    said = run(runs, "--only", NAME, "--again")
    assert f"{NAME}: missing" in said
    assert json.loads(path.read_text()) == changed
    new = json.loads((runs / "again" / "results" / f"{NAME}.json").read_text())
    assert new["config"] == changed["config"]
    assert "--again" in new["command"]
    figures = [new["evaluation"][split]["stream"]["perplexity"] for split in ("valid", "test")]
    assert f"valid perplexity {figures[0]:.2f} (recorded: 12.35)" in said  # rounded, as 12.345 is in binary
    assert f"test perplexity {figures[1]:.2f} (recorded: {figures[1]:.2f})" in said  # counts have no seed
    once_more = run(runs, "--only", NAME, "--again")
    assert f"made again already, skipped; delete {runs / 'again' / NAME} and" in once_more
    assert "(recorded: 12.35)" in once_more


def test_every_seed_is_a_run_of_its_own(runs):
    said = run(runs, "--only", NAME, "--seeds", "2")
    assert f"{NAME}: recorded, skipped" in said
    assert f"{NAME}-s10: missing" in said
    found = json.loads((runs / "results" / f"{NAME}-s10.json").read_text())
    assert (found["seed"], found["name"]) == (10, f"{NAME}-s10")
    assert f"--only {NAME}-s10 " in found["command"]
    assert "test" in found["evaluation"]  # as the row of Table 1 that it is
    assert f"{NAME}-s10: recorded, skipped" in run(runs, "--only", f"{NAME}-s10")
    status = give("status", "chiu.table1", "--budget", "smoke", "--runs", runs)
    assert sum("-s10" in line and "recorded" in line for line in status.splitlines()) == 1


def test_what_was_never_recorded_is_said(tmp_path):
    records = default_place("laptop", tmp_path)
    place = beside(records)
    recipe = next(recipe for recipe in table1("laptop") if recipe.name == "ptb-kneser-ney")
    place.results.mkdir(parents=True)
    measured = {"valid": {"stream": {"perplexity": 99.0}}}
    result = {"config": settings_of(recipe.config), "command": "", "evaluation": measured}
    for name in ("ptb-kneser-ney-s5", "ptb-kneser-ney"):
        place.result(name).write_text(json.dumps(result))
    assert comparison(recipe, place, records).startswith("ptb-kneser-ney: valid perplexity 99.00 (recorded: 1")
    other = dataclasses.replace(recipe, name="ptb-kneser-ney-s5")
    assert comparison(other, place, records) == "ptb-kneser-ney-s5: valid perplexity 99.00 (not recorded)"
    assert tmp_path in place.result("x").parents
    assert tmp_path not in records.result("x").parents
