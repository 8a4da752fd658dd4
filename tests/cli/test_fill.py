"""`trellis fill` gives the words that scoring every one of them gives."""

import math

import pytest
import torch

from .commands import call, done, records, rows, type_in


def by_scoring(capsys, monkeypatch, run, tokenizer, text):
    """p(word) at the one `<<>>` of a text, by scoring the text with each word of the vocabulary there."""
    words = [tokenizer.token(id) for id in range(tokenizer.vocab_size)]
    type_in(monkeypatch, "".join(f"{text.replace('<<>>', word)}\n" for word in words))
    scores = torch.tensor([line["log_prob"] for line in records(done(capsys, "score", run, "--json"))])
    return dict(zip(words, scores.double().softmax(0).tolist(), strict=True))


@pytest.mark.parametrize(
    ("text", "one_by_one"),
    [
        ("the <mask> saw a bone", ["the <<>> saw a bone"]),
        ("<mask> dog likes <mask>", ["<<>> dog likes <mask>", "<mask> dog likes <<>>"]),
    ],
)
def test_the_words_of_every_gap_given_both_sides(capsys, monkeypatch, run, tokenizer, text, one_by_one):
    type_in(monkeypatch, f"{text}\n")
    (line,) = records(done(capsys, "fill", run, "--best", 99, "--json"))
    assert (line["line"], line["text"]) == (1, text)
    assert len(line["gaps"]) == len(one_by_one)
    for gap, alone in zip(line["gaps"], one_by_one, strict=True):
        want = by_scoring(capsys, monkeypatch, run, tokenizer, alone)
        found = dict(gap["words"])
        assert found == pytest.approx({word: want[word] for word in found}, abs=1e-4)
        assert math.fsum(found.values()) == pytest.approx(1, abs=1e-4)
        assert list(found.values()) == sorted(found.values(), reverse=True)
        assert gap["token"] == alone.split().index("<<>>") + 1


def test_what_people_read(capsys, monkeypatch, run):
    type_in(monkeypatch, "the <mask> saw\nthe cat saw\n<mask> <mask>\n")
    code, out, err = call(capsys, "fill", run, "--best", 2)
    assert code == 0
    assert out.splitlines()[0] == "line\tgap\tp\tword"
    assert [row[:2] for row in rows(out)] == [[line, gap] for line, gap in ("11", "31", "32") for _ in "ab"]
    type_in(monkeypatch, "the <mask> saw\nthe cat saw\n<mask> <mask>\n")
    told = records(done(capsys, "fill", run, "--best", 2, "--json"))
    assert [len(line["gaps"]) for line in told] == [1, 0, 2]
    words = [word for line in told for gap in line["gaps"] for word in gap["words"]]
    assert [row[2:] for row in rows(out)] == [[f"{p:.4f}", word] for word, p in words]
    assert "each is filled by itself" in err
    type_in(monkeypatch, "the <mask> saw\n")
    assert "by itself" not in call(capsys, "fill", run)[2]


def test_a_text_without_gaps(capsys, monkeypatch, run):
    type_in(monkeypatch, "the cat saw\n")
    code, _, err = call(capsys, "fill", run)
    assert code == 2
    assert "write <mask> where a word is missing" in err


def test_how_a_line_begins(capsys, monkeypatch, run, model, tokenizer):
    _, after = model.score(torch.tensor([[tokenizer.eos_id]]))
    gap = torch.tensor([[True, False]])
    ids = torch.tensor([[0, tokenizer.id("cat")]])
    for options, state in ((["--bos"], after), (["--no-bos"], None), ([], after)):
        type_in(monkeypatch, "<mask> cat\n")
        (line,) = records(done(capsys, "fill", run, "--no-eos", "--best", 1, "--json", *options))
        probability, word = model.eval().fill(ids, gap, state).best(1)
        assert line["gaps"][0]["words"] == [[tokenizer.token(int(word)), pytest.approx(float(probability), rel=1e-4)]]
