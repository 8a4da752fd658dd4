"""`trellis prepare` on tiny texts."""

import json
from pathlib import Path

from .commands import LINES, done


def test_prepare_counts_and_says_where(capsys, place):
    found = json.loads(done(capsys, "prepare", place / "train.txt", "--json"))
    assert (found["documents"], found["vocab_size"], found["unknown"]) == (216, 2 + 12, 0)
    assert found["tokens"] == sum(len(line.split()) + 1 for line in LINES * 8)
    assert (Path(found["folder"]) / "ids.bin").exists()
    shown = done(capsys, "prepare", place / "train.txt", "--vocab-size", 6, "--max-tokens", 100)
    assert "types      6" in shown
    assert "%)" in shown


def test_prepare_learns_the_vocabulary_of_the_train_split(capsys, place, tmp_path):
    (tmp_path / "ptb").mkdir()
    for split, text in (("train", "a b c"), ("valid", "a x"), ("test", "y")):
        (tmp_path / "ptb" / f"ptb.{split}.txt").write_text(text)
    found = json.loads(done(capsys, "prepare", "ptb", "--split", "valid", "--data-dir", tmp_path, "--json"))
    assert (found["vocab_size"], found["unknown"], found["tokens"]) == (5, 1, 3)


def test_prepare_learns_bytes(capsys, place):
    found = json.loads(
        done(capsys, "prepare", place / "train.txt", "--tokenizer", "bpe", "--vocab-size", 300, "--json")
    )
    assert found["unknown"] == 0
    assert 257 < found["vocab_size"] <= 300
