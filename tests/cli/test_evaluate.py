"""`trellis evaluate` says what the library says."""

import json

import pytest

from trellis import HMM, HMMConfig, evaluate, open_corpus, prepare

from .commands import call, done, records, rows


@pytest.mark.parametrize("protocol", ["stream", "streams", "windows", "sequences"])
def test_evaluate_says_what_the_library_says(capsys, run, model, tokenizer, place, protocol):
    found = json.loads(done(capsys, "evaluate", run, place / "test.txt", "--protocol", protocol, "--json"))
    truth = evaluate(model, prepare(open_corpus(place / "test.txt"), tokenizer), protocol)
    assert found == found | truth.as_dict()
    assert (found["unknown"], found["words"]) == (1, truth.words)


def test_evaluate_defaults_to_the_runs_own_test_text(capsys, run, place):
    named = json.loads(done(capsys, "evaluate", run, place / "test.txt", "--json"))
    assert json.loads(done(capsys, "evaluate", run, "--json")) == named
    assert json.loads(done(capsys, "evaluate", run / "best", "--json")) == named
    assert json.loads(done(capsys, "evaluate", run, "--split", "valid", "--json")) != named


def test_evaluate_takes_prepared_ids(capsys, run, place):
    ids = json.loads(done(capsys, "prepare", place / "test.txt", "--tokenizer", run / "best", "--json"))["folder"]
    named = done(capsys, "evaluate", run, place / "test.txt", "--json")
    assert done(capsys, "evaluate", run, ids, "--json") == named


def test_evaluate_shows_all_figures(capsys, run):
    out = done(capsys, "evaluate", run)
    for name in ("<eos> and <unk> included", "tokens", "unknown", "word perplexity", "bits per byte", "nats"):
        assert name in out


def test_evaluate_names_the_impossible_token(capsys, place, tokenizer, model, tmp_path):
    hmm = HMM(HMMConfig(model.config.vocab_size, model.config.states))
    start_S, transition_SS, emission_SV = model.tables()
    emission_SV = emission_SV.clone()
    emission_SV[:, tokenizer.id("seeds")] = 0.0
    hmm.set_tables(start_S, transition_SS, emission_SV / emission_SV.sum(1, keepdim=True))
    hmm.save_pretrained(tmp_path / "m", tokenizer)
    code, out, err = call(capsys, "evaluate", tmp_path / "m", place / "test.txt", "--json")
    assert code == 0
    assert json.loads(out)["perplexity"] is None
    assert "'seeds', token 4 of document 1 (token 4 of the text)" in err
    code, out, _ = call(capsys, "decode", tmp_path / "m", place / "test.txt")
    assert rows(out)[0][1].startswith("impossible")
    assert (
        records(done(capsys, "decode", tmp_path / "m", place / "test.txt", "--posterior", "--json"))[0]["posterior"]
        == []
    )
    assert records(done(capsys, "score", tmp_path / "m", place / "test.txt", "--json"))[0]["log_prob"] is None
