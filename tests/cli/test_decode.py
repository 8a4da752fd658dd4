"""`trellis decode` says what the library says."""

import pytest
import torch

from .commands import done, records, rows, type_in


def test_the_best_path(capsys, run, place, model, tokenizer):
    found = records(done(capsys, "decode", run, place / "test.txt", "--no-bos", "--json"))
    for line in found:
        best = model.viterbi(torch.tensor([[*tokenizer.encode(line["text"]), tokenizer.eos_id]]))
        assert line["paths"][0]["states"] == best.states_BT[0].tolist()
        assert line["paths"][0]["log_prob"] == pytest.approx(float(best.log_prob_B), rel=1e-5)
    shown = rows(done(capsys, "decode", run, place / "test.txt", "--no-bos", "--words", 0))
    states = found[0]["paths"][0]["states"]
    words = ["the", "cat", "likes", "seeds", "<eos>"]
    assert shown[0][2] == " ".join(f"{word}/{state}" for word, state in zip(words, states, strict=True))


def test_states_are_shown_with_their_foremost_words(capsys, run, place, model, tokenizer):
    (line, *_) = records(done(capsys, "decode", run, place / "test.txt", "--words", 2, "--json"))
    path = line["paths"][0]
    for state, words in zip(path["states"], path["words"], strict=True):
        best = model.tables().emission_SV[state].topk(2).indices
        assert words == [tokenizer.token(int(id)) for id in best]
    shown = rows(done(capsys, "decode", run, place / "test.txt", "--words", 2))
    labelled = zip(line["tokens"], path["states"], map(" ".join, path["words"]), strict=True)
    assert shown[0][2] == " ".join(f"{word}/{state}[{name}]" for word, state, name in labelled)
    assert len(records(done(capsys, "decode", run, place / "test.txt", "--json"))[0]["paths"][0]["words"][0]) == 3
    bare = records(done(capsys, "decode", run, place / "test.txt", "--words", 0, "--json"))[0]["paths"][0]
    assert bare == {key: value for key, value in path.items() if key != "words"}


@pytest.mark.parametrize(
    ("options", "heading"),
    [
        (["--k", 2], ["line", "ln p", "token", "state", "words"]),
        (["--posterior", "--entropy"], ["line", "entropy", "token", "state", "p", "words"]),
        (["--samples", 2, "--words", 0], ["line", "draw", "token", "state"]),
    ],
)
def test_a_row_for_every_token(capsys, run, place, options, heading):
    out = done(capsys, "decode", run, place / "test.txt", "--tokens", *options)
    assert out.splitlines()[0].split("\t") == heading
    found = [dict(zip(heading, row, strict=True)) for row in rows(out)]
    kind = {"--k": "paths", "--posterior": "posterior", "--samples": "samples"}[options[0]]
    want = records(done(capsys, "decode", run, place / "test.txt", "--json", *options))
    told = [
        (str(line["line"]), token, str(state))
        for line in want
        for path in line[kind]
        for token, state in zip(line["tokens"], path["states"], strict=True)
    ]
    assert [(row["line"], row["token"], row["state"]) for row in found] == told
    if "words" in heading:
        words = [" ".join(name) for line in want for path in line[kind] for name in path["words"]]
        assert [row["words"] for row in found] == words
    if "p" in heading:
        assert float(found[0]["p"]) == pytest.approx(want[0][kind][0]["probabilities"][0], abs=0.01)


def test_several_paths_with_entropy(capsys, run, place, model, tokenizer):
    shown = rows(done(capsys, "decode", run, place / "test.txt", "--k", 3, "--entropy", "--no-bos"))
    first = [line for line in shown if line[0] == "1"]
    assert len(first) == 3
    assert [float(line[1]) for line in first] == sorted((float(line[1]) for line in first), reverse=True)
    ids = torch.tensor([[*tokenizer.encode("the cat likes seeds"), tokenizer.eos_id]])
    assert float(first[0][2]) == pytest.approx(float(model.entropy(ids)), abs=1e-3)


def test_posteriors_and_samples(capsys, run, place, model, tokenizer):
    found = records(done(capsys, "decode", run, place / "test.txt", "--posterior", "--no-bos", "--json"))
    ids = torch.tensor([[*tokenizer.encode("the cat likes seeds"), tokenizer.eos_id]])
    probability_T, state_T = model.smooth(ids).posterior_BTS[0].max(-1)
    assert found[0]["posterior"][0]["states"] == state_T.tolist()
    assert found[0]["posterior"][0]["probabilities"] == pytest.approx(probability_T.tolist(), abs=1e-5)
    assert ":" in rows(done(capsys, "decode", run, place / "test.txt", "--posterior"))[0][1]
    drawn = [done(capsys, "decode", run, place / "test.txt", "--samples", 2, "--seed", 5) for _ in "ab"]
    assert drawn[0] == drawn[1]
    assert [line[:2] for line in rows(drawn[0])[:3]] == [["1", "1"], ["1", "2"], ["2", "1"]]


def test_decoding_nothing(capsys, monkeypatch, run):
    type_in(monkeypatch, "\nthe\n")
    assert [len(line["tokens"]) for line in records(done(capsys, "decode", run, "--no-eos", "--json"))] == [0, 1]
