"""`trellis ask` and `trellis write` say what `trellis.ask` says."""

import math

import pytest

from trellis import ask, constraints, load_pretrained

from .commands import call, done, records


@pytest.fixture(scope="module")
def loaded(run):
    return load_pretrained(run)


def test_the_next_words(capsys, run, loaded):
    out = records(done(capsys, "ask", run, "the cat", "--best", 3, "--json"))
    assert [(row["word"], row["p"]) for row in out] == [tuple(word) for word in ask.next_word(loaded, "the cat", 3)]
    out = done(capsys, "ask", run, "the cat", "--next", 2, "--best", 2)
    want = ask.next_words(loaded, "the cat", 2, 2).texts
    assert out.splitlines() == [f"{one.probability:.6g}\t{one.text}" for one in want]
    drawn = records(done(capsys, "ask", run, "the cat", "--next", 2, "--draw", 3, "--seed", 5, "--json"))
    assert [row["text"] for row in drawn] == [one.text for one in ask.draw_next(loaded, "the cat", 2, 3, seed=5)]


def test_gaps(capsys, run, loaded):
    for text in ("the ___ saw ___", "the <mask> saw <mask>"):
        out = records(done(capsys, "ask", run, text, "--best", 3, "--json"))
        assert [row["text"] for row in out] == [one.text for one in ask.fillings(loaded, text, 3).texts]
        assert [row["text"].split()[::2] for row in out] == [["the", "saw"]] * 3
    drawn = records(done(capsys, "ask", run, "the ___ saw ___", "--draw", 4, "--json"))
    assert [row["text"] for row in drawn] == [one.text for one in ask.draw_fillings(loaded, "the ___ saw ___", 4)]


def test_a_continuation_ends_with_its_whole(capsys, run, loaded):
    out = records(done(capsys, "ask", run, "the cat", "--then", "saw a bone", "--json"))
    want = [word.probability for word in ask.continuation(loaded, "the cat", "saw a bone")]
    assert [row["p"] for row in out] == pytest.approx([*want, math.prod(want)])
    assert out[-1]["text"] == "saw a bone"


def test_what_happens_within_some_words(capsys, run, loaded):
    out = done(capsys, "ask", run, "the cat", "--within", 4, "--constraint", "contains(bone)")
    assert float(out) == pytest.approx(ask.within(loaded, constraints.contains("bone"), 4, "the cat"), rel=1e-5)


def test_two_models(capsys, run):
    first, *rest = done(capsys, "ask", run, "the cat saw", "--against", run).splitlines()
    assert first.split("\t")[0] == "token"
    assert [row.split("\t")[0] for row in rest] == ["the", "cat", "saw"]
    assert {row.split("\t")[3] for row in rest} == {"1"}


def test_texts_that_meet_a_constraint(capsys, run, loaded):
    said = "contains(bone) & ~contains(cat) & length(3, 6)"
    constraint = constraints.parse(said)
    out = done(capsys, "write", run, said, "--count", 20, "--length", 8, "--seed", 2).splitlines()
    assert out == [one.text for one in ask.write(loaded, constraint, 8, 20, seed=2)]
    assert all("bone" in text.split() and "cat" not in text.split() and 3 <= len(text.split()) <= 6 for text in out)
    told = records(done(capsys, "write", run, said, "--best", 2, "--length", 8, "--json"))
    assert [row["text"] for row in told] == [one.text for one in ask.write_best(loaded, constraint, 8, 2).texts]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("ask", "the", "--next", 2, "--then", "cat"), "ask one at a time"),
        (("ask", "the", "--within", 2), "belong together"),
        (("ask", "the", "--constraint", "contains(cat)"), "belong together"),
        (("ask", "the ___ cat", "--then", "dog"), "only fillings take one"),
        (("write", "contains(zebra)"), "zebra"),
        (("write", "contains(cat"), "character"),
        (("write", "contains(cat, dog, bird)", "--length", 2), "allow at least 4"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(capsys, run, arguments, sentence):
    command, *rest = arguments
    code, out, err = call(capsys, command, run, *rest)
    assert (code, out) == (2, "")
    assert sentence in err


def test_unknown_words_are_named(capsys, run):
    _, _, err = call(capsys, "ask", run, "the Cat", "--next", 1)
    assert "Cat" in err
