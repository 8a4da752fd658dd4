"""`trellis export --format ctrl-g` and `trellis import`, and back."""

import json

import pytest
import torch

from trellis import load_model, load_tokenizer
from trellis.text import IntegerTokenizer

from .commands import call, done, records


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    from trellis.cli import main

    folder = tmp_path_factory.mktemp("ctrl-g") / "out"
    assert main(["export", str(run), str(folder), "--format", "ctrl-g"]) == 0
    return folder


def test_a_round_trip_keeps_scores_and_words(capsys, run, exported, model, tmp_path):
    (told,) = records(done(capsys, "import", exported, tmp_path / "back", "--tokenizer", run, "--json"))
    assert (told["states"], told["eos_id"]) == (model.config.states, load_tokenizer(run).eos_id)
    again = load_model(tmp_path / "back")
    ids = torch.randint(model.config.vocab_size, (4, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(again.score(ids)[0], model.score(ids)[0], rtol=1e-6, atol=1e-6)
    assert load_tokenizer(tmp_path / "back").fingerprint() == load_tokenizer(run).fingerprint()
    (tmp_path / "text.txt").write_text("the cat likes seeds\n")
    scores = [
        records(done(capsys, "score", one, tmp_path / "text.txt", "--json"))[0] for one in (run, tmp_path / "back")
    ]
    assert scores[0]["log_prob"] == pytest.approx(scores[1]["log_prob"], rel=1e-6)


def test_without_a_tokenizer_tokens_are_numbers(capsys, exported, model, tmp_path):
    done(capsys, "import", exported, tmp_path / "back")
    words = load_tokenizer(tmp_path / "back")
    assert isinstance(words, IntegerTokenizer)
    assert words.vocab_size == model.config.vocab_size
    done(capsys, "sample", tmp_path / "back", "--count", 1)


def test_a_tokenizer_with_another_end_is_doubted(capsys, run, exported, tmp_path):
    path = exported.parent / "other"
    path.mkdir()
    (path / "model.safetensors").write_bytes((exported / "model.safetensors").read_bytes())
    told = json.loads((exported / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(told | {"eos_token_id": 3}))
    code, _, err = call(capsys, "import", path, tmp_path / "back", "--tokenizer", run)
    assert code == 0
    assert "ends texts with token 3, but its tokenizer with 1: is it the right one?" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["import", "nowhere", "OUT"], "nowhere has no model.safetensors"),
        (["import", "EXPORTED", "OUT", "--tokenizer", "LARGE"], "does not fit a model of"),
        (["import", "EXPORTED", "OUT", "--tokenizer", "nowhere"], "nowhere has no tokenizer.json"),
        (["export", "RUN", "OUT", "--format", "arpa"], "there is no format 'arpa': choose from trellis, ctrl-g"),
        (["export", "RUN", "OUT", "--eos-id", 3], "--eos-id is for --format ctrl-g"),
        (["export", "RUN", "OUT", "--format", "ctrl-g", "--eos-id", 999], "token 999 is none of the"),
        (["export", "NUMBERS", "OUT", "--format", "ctrl-g"], "this tokenizer has none: give --eos-id"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(capsys, run, exported, tmp_path, arguments, said):
    IntegerTokenizer(99).save(tmp_path / "large")
    done(capsys, "import", exported, tmp_path / "numbers")
    names = {"RUN": run, "EXPORTED": exported, "OUT": tmp_path / "out", "LARGE": tmp_path / "large",
             "NUMBERS": tmp_path / "numbers"}  # fmt: skip
    code, _, err = call(capsys, *(names.get(argument, argument) for argument in arguments))
    assert (code, err.count("error:")) == (2, 1)
    assert said in err
    assert not (tmp_path / "out").exists()
