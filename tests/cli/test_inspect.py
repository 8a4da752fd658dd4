"""`trellis inspect` says what the library says."""

import json

from trellis import HMM, HMMConfig
from trellis.inspection import inspect_states, stationary

from .commands import call, done


def test_inspect_says_what_the_library_says(capsys, run, model, tokenizer):
    found = json.loads(done(capsys, "inspect", run, "--states", 3, "--words", 2, "--json"))
    truth = inspect_states(model.tables(), stationary(*model.tables()[:2]), words=2)
    assert [state["state"] for state in found["states"]] == [state.state for state in truth.states[:3]]
    assert found["states"][0]["words"][0][0] == tokenizer.token(truth.states[0].words[0].id)
    assert (found["total"], found["dead"]) == (8, truth.dead)


def test_inspect_on_a_corpus(capsys, run, place):
    out = done(capsys, "inspect", run, "--corpus", place / "valid.txt", "--distinct")
    assert "posterior over valid.txt" in " ".join(out.split())
    assert "dead" in out


def test_a_model_without_tables_wants_a_text(capsys, place, tokenizer, tmp_path):
    parts = {"start": "low_rank", "transition": "low_rank", "emission": "low_rank", "width": 4}
    for memory in (1, 2):
        model = HMM(HMMConfig(tokenizer.vocab_size, 6, memory=memory, **parts), seed=0)
        model.save_pretrained(tmp_path / "m", tokenizer)
        if memory == 1:  # the states of which are a Markov chain
            assert json.loads(done(capsys, "inspect", tmp_path / "m", "--json"))["total"] == 6
    code, _, err = call(capsys, "inspect", tmp_path / "m")
    assert code == 2
    assert "measure usage on a text instead, with --corpus" in err
    found = json.loads(done(capsys, "inspect", tmp_path / "m", "--corpus", place / "valid.txt", "--json"))
    assert found["total"] == 6
