"""Every kind of baseline through the same commands: trained, measured, scored, and refused where it has no states."""

import json
import math

import pytest

from trellis import evaluate, load_model, load_tokenizer, open_corpus, prepare
from trellis.cli import main

SMALL = {
    "kneser_ney": ["model.order=3"],
    "feed_forward": ["model.width=8", "model.order=3"],
    "lstm": ["model.width=8", "model.layers=1"],
    "awd_lstm": ["model.width=8", "model.hidden=10", "model.layers=2", "model.input_dropout=0"],
    "transformer": ["model.width=16", "model.layers=1", "model.heads=2", "model.context=8"],
    "hmm_rnn": ["model.states=5", "model.width=4"],
}
TRAINING = ["training.batch_size=4", "training.length=8", "training.epochs=8", "training.lr=0.05"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with texts, and a cache of its own."""
    folder = tmp_path_factory.mktemp("kinds")
    lines = [f"{s} {v} {o}" for s in ("the cat", "a dog") for v in ("saw", "likes") for o in ("the milk", "a bone")]
    (folder / "text.txt").write_text("".join(f"{line}\n" for line in lines * 12))
    (folder / "valid.txt").write_text("".join(f"{line}\n" for line in lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRELLIS_CACHE", str(folder / "cache"))
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module", params=SMALL)
def run(request, place):
    texts = ["data.corpus=text.txt", "data.valid=valid.txt", "data.test=valid.txt"]
    assert main(["train", *texts, *TRAINING, f"model.kind={request.param}", *SMALL[request.param]]) == 0
    (folder,) = (place / "runs").glob(f"text-{request.param}*")
    return folder


def test_it_learns_and_is_measured_as_the_library_says(run, place, capsys):
    assert main(["evaluate", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    ids = prepare(open_corpus(str(place / "valid.txt"), "train"), load_tokenizer(run / "best"))
    assert found["perplexity"] == pytest.approx(evaluate(load_model(run / "best"), ids, quiet=True).perplexity)
    assert found["perplexity"] < 7  # there are ten types


def test_lines_are_scored_in_one_go_and_one_by_one(run, capsys):
    assert main(["score", str(run), "valid.txt", "--json", "--no-bos"]) == 0
    alone = [json.loads(line)["log_prob"] for line in capsys.readouterr().out.splitlines()]
    assert main(["score", str(run), "valid.txt", "--json", "--carry"]) == 0
    carried = [json.loads(line)["log_prob"] for line in capsys.readouterr().out.splitlines()]
    assert main(["evaluate", str(run), "valid.txt", "--json"]) == 0
    assert math.fsum(carried) == pytest.approx(-json.loads(capsys.readouterr().out)["nats"], rel=1e-5)
    assert alone[0] == pytest.approx(carried[0], rel=1e-5)
    assert main(["score", str(run), "valid.txt", "--bos"]) == 0


def test_the_saved_config_goes_on(run, capsys):
    before = (run / "best" / "model.safetensors").read_bytes()
    assert main(["train", str(run), "--resume"]) == 0
    assert (run / "best" / "model.safetensors").read_bytes() == before
    said = capsys.readouterr().out
    assert f"trellis evaluate {run}" in " ".join(said.split())
    assert "inspect" not in said


@pytest.mark.parametrize("command", ["decode", "fill", "inspect"])
def test_questions_about_states_are_refused(run, command, capsys):
    assert main([command, str(run), *(["valid.txt"] if command in ("decode", "fill") else [])]) == 2
    about = json.loads((run / "best" / "config.json").read_text())
    kind = about.get("trellis", about)["model_type"].removeprefix("trellis_")
    assert f"of kind {kind}, which cannot say this: give an HMM" in capsys.readouterr().err


def test_sentences_are_drawn(run, capsys):
    assert main(["sample", str(run), "--count", "5", "--seed", "3", "--prompt", "the", "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(found) == 5
    assert all(line["text"].startswith("the") and "states" not in line for line in found)
    assert len({line["text"] for line in found}) > 1
    assert main(["sample", str(run), "--count", "5", "--seed", "3", "--prompt", "the", "--json"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == found


def test_gaps_are_refused(run, place, capsys):
    (place / "gap.txt").write_text("the <mask> saw\n")
    assert main(["score", str(run), "gap.txt"]) == 2
    assert "cannot sum over <mask>" in capsys.readouterr().err


def test_another_kind_is_another_run(run, capsys):
    other = "lstm" if "hmm_rnn" in run.name else "hmm_rnn"
    texts = ["data.corpus=text.txt", "data.valid=valid.txt", "data.test=valid.txt"]
    assert main(["train", *texts, *TRAINING, f"model.kind={other}", f"out={run}", "--resume"]) == 2
    assert f"holds another run, with model.kind={run.name.split('-')[1]} and not {other}" in capsys.readouterr().err
