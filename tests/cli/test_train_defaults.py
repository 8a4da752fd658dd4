"""`trellis train` with nothing but a text: what it chooses, says and leaves."""

import json
import re
from pathlib import Path

import pytest
import yaml

from trellis.cli import START
from trellis.cli.train import _report as report
from trellis.config import RunConfig
from trellis.training import Trained
from trellis.training.defaults import Size, model_for

from .commands import LINES, TINY, call, done

FEW = ["model.states=4", "training.epochs=0.5"]


@pytest.fixture(scope="module")
def novel(tmp_path_factory):
    file = tmp_path_factory.mktemp("texts") / "novel.txt"
    file.write_text("".join(f"{line}\n" for line in LINES * 8))
    return file


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_file_is_all_it_takes(capsys, novel, tmp_path):
    code, out, err = call(capsys, "train", novel, "training.epochs=2")
    assert code == 0
    assert "(set what you like): model.states=" in err
    assert "training.epochs" not in err.split("chosen for")[1], "it was told"
    assert "memory" not in err.split("chosen for")[1], "it has none"
    assert "validating on novel.txt, its end" in err
    assert "a unigram's" in out
    assert "(16 streams)" in out
    config = yaml.safe_load((tmp_path / "runs" / "novel" / "config.yaml").read_text())
    tokens = json.loads((tmp_path / "runs" / "novel" / "metrics.jsonl").read_text().splitlines()[-2])["tokens"] / 2
    assert config["model"]["states"] == model_for(round(tokens), 14, {})["states"]
    assert config["training"]["batch_size"] is not None


def test_its_figures_are_beside_a_unigrams_with_their_protocol_and_the_time_that_passed(capsys, novel):
    found = json.loads(done(capsys, "train", novel, *FEW, "--json"))
    assert found["unigram_perplexity"] > 1
    assert found["protocol"] == "streams"
    assert found["validation_seconds"] > 0
    measured = json.loads(
        done(capsys, "evaluate", found["run"], "--split", "valid", "--protocol", found["protocol"], "--json")
    )
    assert measured["perplexity"] == pytest.approx(found["valid_perplexity"], rel=1e-4)


def test_the_time_that_is_shown_is_all_that_passed(capsys):
    report(RunConfig(), Trained(Path("best"), 99.0, 455.0, "streams", 250_000, 125.0, 69.0), json=False)
    assert "time 3m14s: 2m05s learning, 2.0k tokens a second; 1m09s validating" in " ".join(
        capsys.readouterr().out.split()
    )
    report(RunConfig(), Trained(Path("best"), None, None, "streams", 250_000, 125.0, 0.0), json=False)
    assert "time 2m05s learning, 2.0k tokens a second" in " ".join(capsys.readouterr().out.split())


def test_the_evaluation_that_is_recommended_is_by_the_same_protocol(capsys, place, texts, tmp_path):
    out = " ".join(done(capsys, "train", *texts, *TINY, "training.epochs=0.2", f"out={tmp_path / 'r'}").split())
    assert f"trellis evaluate {tmp_path / 'r'} --protocol streams" in out


def test_what_was_chosen_stands_when_the_run_goes_on(capsys, novel, monkeypatch):
    done(capsys, "train", novel, *FEW, "out=r")
    monkeypatch.setattr("trellis.training.defaults.SIZES", (Size(float("inf"), 9, 9, 9, 9, 9.0),))
    done(capsys, "train", novel, *FEW, "out=r", "--resume")
    code, _, err = call(capsys, "train", novel, *FEW, "out=r", "training.batch_size=9", "--resume")
    assert code == 2
    assert "and not 9" in err


def test_several_files_and_names_of_corpora_and_shipped_configurations(capsys, novel):
    code, _, err = call(capsys, "train", novel, novel, *FEW, "out=two")
    assert (code, "novel.txt, novel.txt" in err) == (0, True)
    code, _, err = call(capsys, "train", "ptb-low-rank", "--data-dir", "nowhere")
    assert (code, "ptb/ptb.train.txt" in err) == (2, True)
    code, _, err = call(capsys, "train", "ptb", "--data-dir", "nowhere")
    assert (code, "ptb/ptb.train.txt" in err) == (2, True)
    code, _, err = call(capsys, "train", "ptb-low-rnk")
    assert (code, "did you mean 'ptb-low-rank'?" in err) == (2, True)


def test_all_of_the_text_is_learnt_from_if_asked(capsys, novel):
    code, out, err = call(capsys, "train", novel, *FEW, "data.valid=none")
    assert (code, "validation text: none" in err, "no validation text" in out) == (0, True, True)


def test_validation_text_can_be_bounded(capsys, novel):
    whole = call(capsys, "train", novel, *FEW, f"data.valid={novel}", "out=whole")[2]
    part = call(capsys, "train", novel, *FEW, f"data.valid={novel}", "data.valid_tokens=20", "out=part")[2]
    (all_of_it,), (some,) = (re.findall(r"validating on \S+: (\S+) tokens", err) for err in (whole, part))
    assert all_of_it.endswith("k")
    assert 20 <= int(some) < 30


def test_one_of_a_thing_is_said_as_one(capsys, tmp_path):
    (tmp_path / "line.txt").write_text("the cat saw the dog\n")
    _, _, err = call(capsys, "train", "line.txt", "model.states=1", "training.epochs=1")
    assert "learning from line.txt: 6 tokens in 1 document, 6 types" in err.splitlines()
    assert "1 state, into runs/line-1" in err.splitlines()


def test_restarts_without_validation_text_are_refused_before_anything_is_announced(capsys, novel):
    code, _, err = call(capsys, "train", novel, *FEW, "data.valid=none", "training.init=restarts")
    assert code == 2
    assert err.startswith("error: training.init=restarts chooses by validation text")


def test_baum_welch_gets_parameters_that_it_can_set(capsys, novel):
    code, _, err = call(capsys, "train", novel, "model.states=4", "training.method=baum_welch", "training.epochs=1")
    assert (code, "model.transition" in err) == (0, False)


def test_a_memory_is_all_that_need_be_said(capsys, novel):
    assert call(capsys, "train", novel, "model.memory=1", "training.epochs=0.1")[0] == 0
    code, _, err = call(capsys, "train", novel, "model.memory=1", "model.transition=scalar", "out=no")
    assert (code, "model.memory needs" in err) == (2, True)


@pytest.mark.slow  # reads the prose of Python's own documentation
def test_the_command_that_help_recommends_learns_far_more_than_a_unigram_in_one_pass(capsys):
    command = next(line for line in START.splitlines() if line.startswith("trellis train"))
    _, *arguments = command.split()
    found = json.loads(done(capsys, *arguments, "training.epochs=1", "--json"))
    assert found["valid_perplexity"] < 0.6 * found["unigram_perplexity"]
