"""`trellis score` says what the library says."""

import json
import math
import os
import threading

import pytest
import torch

import trellis

from .commands import LINES, call, done, nats_of, records, rows, type_in


def test_carried_scores_add_up_to_the_evaluation(capsys, run, place):
    nats = json.loads(done(capsys, "evaluate", run, "--json"))["nats"]
    scored = records(done(capsys, "score", run, place / "test.txt", "--carry", "--json"))
    assert -sum(line["log_prob"] for line in scored) == pytest.approx(nats, rel=1e-6)


def test_lines_are_scored_on_their_own(capsys, run, place, model, tokenizer):
    scored = rows(done(capsys, "score", run, place / "test.txt", "--no-bos"))
    assert [line[3] for line in scored] == (place / "test.txt").read_text().splitlines()
    assert [(line[1], line[2]) for line in scored] == [("5", "0"), ("6", "0"), ("1", "0"), ("6", "1")]
    for line in scored:
        assert float(line[0]) == pytest.approx(sum(nats_of(model, tokenizer, line[3])[0]), abs=1e-3)


@pytest.mark.parametrize(("base", "unit"), [("2", math.log(2)), ("10", math.log(10))])
def test_bases(capsys, run, place, base, unit):
    natural = records(done(capsys, "score", run, place / "test.txt", "--json"))
    other = records(done(capsys, "score", run, place / "test.txt", "--json", "--base", base))
    assert [line["log_prob"] * unit for line in other] == pytest.approx([line["log_prob"] for line in natural])
    assert f"log{base} p" in done(capsys, "score", run, place / "test.txt", "--base", base).splitlines()[0]


def test_every_token_from_standard_input(capsys, monkeypatch, run, model, tokenizer):
    type_in(monkeypatch, "the cat saw\n")
    found = rows(done(capsys, "score", run, "--tokens", "--no-bos"))
    assert [line[1] for line in found] == ["the", "cat", "saw", "<eos>"]
    assert [float(line[2]) for line in found] == pytest.approx(nats_of(model, tokenizer, "the cat saw")[0], abs=1e-3)


def test_no_eos_and_empty_lines(capsys, monkeypatch, run):
    type_in(monkeypatch, "the\n\n")
    scored = records(done(capsys, "score", run, "-", "--no-eos", "--json"))
    assert [line["tokens"] for line in scored] == [1, 0]
    assert scored[1]["log_prob"] == 0.0
    type_in(monkeypatch, "\n")
    assert records(done(capsys, "score", run, "--no-eos", "--json"))[0]["tokens"] == 0


def test_a_gap_is_summed_over(capsys, monkeypatch, run, tokenizer):
    vocabulary = [tokenizer.token(id) for id in range(tokenizer.vocab_size)]
    type_in(monkeypatch, "".join(f"the {word} saw\n" for word in ["<mask>", *vocabulary]))
    gap, *filled = (line["log_prob"] for line in records(done(capsys, "score", run, "--json", "--no-eos")))
    # The text "<eos>" is a word like any other between spaces, so that every id takes part.
    assert gap == pytest.approx(math.log(sum(map(math.exp, filled))), abs=1e-4)


def test_long_lines_and_many_lines(capsys, run, model, tokenizer, tmp_path):
    long = " ".join(LINES * 50)
    (tmp_path / "long.txt").write_text("\n".join([LINES[0], long, *LINES * 3]))
    scored = records(done(capsys, "score", run, tmp_path / "long.txt", "--no-bos", "--json"))
    assert [line["line"] for line in scored] == list(range(1, 84))
    assert scored[1]["log_prob"] == pytest.approx(sum(nats_of(model, tokenizer, long)[0]), rel=1e-5)
    assert scored[0]["log_prob"] == pytest.approx(scored[2]["log_prob"])


def test_lines_may_begin_after_an_end(capsys, run, place, model, tokenizer):
    _, after = model.score(torch.tensor([[tokenizer.eos_id]]))
    for line in records(done(capsys, "score", run, place / "test.txt", "--bos", "--json")):
        assert line["log_prob"] == pytest.approx(sum(nats_of(model, tokenizer, line["text"], after)[0]), rel=1e-5)
    for line in records(done(capsys, "decode", run, place / "test.txt", "--bos", "--json")):
        best = model.viterbi(torch.tensor([[*tokenizer.encode(line["text"]), tokenizer.eos_id]]), after)
        assert line["paths"][0]["log_prob"] == pytest.approx(float(best.log_prob_B), rel=1e-5)


def test_the_number_of_lines_agrees_with_its_noun(capsys, monkeypatch, run):
    type_in(monkeypatch, "the\n")
    assert "1 line, 1 token, 0 unknown" in call(capsys, "score", run, "--no-eos")[2]
    type_in(monkeypatch, "the\ncat\n")
    assert "2 lines, 4 tokens, 0 unknown" in call(capsys, "score", run)[2]


@pytest.mark.parametrize("command", ["score", "decode", "fill"])
def test_unknown_words_are_named_with_the_spelling_that_is_known(capsys, monkeypatch, run, command):
    type_in(monkeypatch, "The cat saw <mask> fish\nthe fish likes seeds.\n")
    said = call(capsys, command, run)[2]
    assert "3 words are unknown: 'The' (known as 'the'), 'fish', 'seeds.' (known as 'seeds')" in said.splitlines()
    type_in(monkeypatch, "the cat saw <mask>\n")
    assert "unknown:" not in call(capsys, command, run)[2].replace("0 unknown:", "")


def test_a_fitted_model_of_samples_begins_at_the_start_distribution(capsys, tmp_path):
    fitted = trellis.fit(LINES, states=4, epochs=1, quiet=True)
    fitted.save(tmp_path / "model")
    (tmp_path / "lines.txt").write_text(f"{LINES[0]}\n")
    (found,) = records(done(capsys, "score", tmp_path / "model", tmp_path / "lines.txt", "--json"))
    assert found["log_prob"] == pytest.approx(float(fitted.score(LINES[0])[0]), rel=1e-4)


def test_a_byte_order_mark_is_no_part_of_the_text(capsys, monkeypatch, run, tmp_path):
    type_in(monkeypatch, "the cat saw a bone\n")
    plain = done(capsys, "score", run)
    type_in(monkeypatch, "\ufeffthe cat saw a bone\n")
    assert done(capsys, "score", run) == plain
    (tmp_path / "marked.txt").write_text("\ufeffthe cat saw a bone\n", encoding="utf-8")
    assert done(capsys, "score", run, tmp_path / "marked.txt") == plain


def test_lines_out_of_a_pipe(capsys, run, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    threading.Thread(target=(tmp_path / "pipe").write_text, args=["the cat saw a bone\n"], daemon=True).start()
    piped = done(capsys, "score", run, tmp_path / "pipe")
    (tmp_path / "file").write_text("the cat saw a bone\n")
    assert piped == done(capsys, "score", run, tmp_path / "file")
