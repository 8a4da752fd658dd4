"""Files of whole numbers, from the command line."""

import json

import numpy as np
import pytest

from trellis import load_tokenizer
from trellis.text import IntegerTokenizer

from .commands import call, done, records

FEW = ["model.states=4", "training.epochs=2", "training.batch_size=4", "training.length=8"]


@pytest.fixture(autouse=True)
def numbers(tmp_path, monkeypatch):
    """The same sequences as a NumPy file and as text, in the folder where the commands run."""
    monkeypatch.chdir(tmp_path)
    rows = np.cumsum(np.random.default_rng(0).random((120, 12)) < 0.2, axis=1) % 5
    np.save(tmp_path / "x.npy", rows)
    (tmp_path / "x.txt").write_text("".join(f"{' '.join(map(str, row))}\n" for row in rows.tolist()))
    return rows


@pytest.mark.parametrize("told", [["x.npy"], ["data.corpus=x.txt", "data.tokenizer=integers"]])
def test_whole_numbers_are_learnt_sampled_scored_and_evaluated(capsys, tmp_path, told):
    found = json.loads(done(capsys, "train", *told, *FEW, "out=r", "--json"))
    assert found["valid_perplexity"] < 5
    assert found["protocol"] == "sequences", "each is a sample of its own"
    tokenizer = load_tokenizer(tmp_path / "r")
    assert isinstance(tokenizer, IntegerTokenizer)
    assert tokenizer.vocab_size == 5
    for file in ("x.npy", "x.txt"):
        measured = json.loads(done(capsys, "evaluate", "r", file, "--protocol", "sequences", "--json"))
        assert measured["tokens"] == 120 * 12
    drawn = records(done(capsys, "sample", "r", "--count", "2", "--length", "6", "--json"))
    assert all(0 <= int(word) < 5 for one in drawn for word in one["text"].split())


def test_what_is_measured_of_numbers_has_no_marks_in_it(capsys):
    done(capsys, "train", "x.npy", *FEW, "training.epochs=0.1", "out=r")
    shown = done(capsys, "evaluate", "r", "x.npy", "--protocol", "sequences")
    assert "a token" in shown
    assert not any(name in shown for name in ("<eos>", "<unk>", "word perplexity", "bits per byte"))


def test_the_same_numbers_give_the_same_run_from_either_file(capsys):
    told = (["data.corpus=x.npy"], ["data.corpus=x.txt", "data.tokenizer=integers"])
    runs = [json.loads(done(capsys, "train", *these, *FEW, f"out=r{at}", "--json")) for at, these in enumerate(told)]
    assert runs[0]["valid_perplexity"] == runs[1]["valid_perplexity"]


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.array([0.5, 1.5]), "x.npy holds 2 float64; save whole numbers"),
        (np.array([1, -1] * 9), "x.npy holds -1; number the symbols from 0"),
        (np.zeros((2, 2, 2), dtype=int), "x.npy holds 2 × 2 × 2 int64"),
        (np.array(3), "x.npy holds a single int64"),
        (np.array([], dtype=int), "x.npy holds no numbers"),
        (np.array([1.0, np.nan]), "x.npy holds 2 float64"),
        (np.array(["a", "1"]), "x.npy holds 2 <U1"),
        (np.zeros(2000, dtype=int), "x.npy holds one symbol only, 0"),
        (np.full((9, 9), 4), "x.npy holds one symbol only, 4"),
    ],
)
def test_files_of_anything_else_end_with_one_sentence_and_code_2(capsys, tmp_path, array, said):
    np.save(tmp_path / "x.npy", array)
    code, _, err = call(capsys, "train", "data.corpus=x.npy", *FEW, "out=r")
    assert code == 2
    assert said in " ".join(err.split())


@pytest.mark.parametrize("word", ["three", "0.5", "-1", "nan", "1,2"])
def test_text_that_is_no_number_ends_with_one_sentence_that_names_the_file(capsys, tmp_path, word):
    (tmp_path / "x.txt").write_text(f"1 2\n2 {word}\n")
    code, _, err = call(capsys, "train", "data.corpus=x.txt", "data.tokenizer=integers", *FEW, "out=r")
    assert code == 2
    assert f"x.txt holds '{word}', which is no whole number" in " ".join(err.split())
    assert not (tmp_path / "r").exists()
