"""`trellis inspect` says what the library says."""

import json

from trellis.inspection import inspect_states, stationary

from .commands import done


def test_inspect_says_what_the_library_says(capsys, run, model, tokenizer):
    found = json.loads(done(capsys, "inspect", run, "--states", 3, "--words", 2, "--json"))
    truth = inspect_states(model.tables(), stationary(model.tables()), words=2)
    assert [state["state"] for state in found["states"]] == [state.state for state in truth.states[:3]]
    assert found["states"][0]["words"][0][0] == tokenizer.token(truth.states[0].words[0].id)
    assert (found["total"], found["dead"]) == (8, truth.dead)


def test_inspect_on_a_corpus(capsys, run, place):
    out = done(capsys, "inspect", run, "--corpus", place / "valid.txt", "--distinct")
    assert "posterior over valid.txt" in " ".join(out.split())
    assert "dead" in out
