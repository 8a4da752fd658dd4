"""What defaults come to: a text of its own in place of the six, and the page."""

import json

import numpy as np
import pytest

from experiments import first
from trellis import TrellisError


def one(**changes):
    default = {"command": "trellis train novel.txt", "perplexity": 20.0, "seconds": 61.0}
    return {
        "name": "novel", "commit": "abc1234", "tokens": 1000, "types": 50, "default": default,
        "perplexity": {"unigram": 40.0, "bigram": 30.0, "kneser_ney": 25.0},
        "by_hand": [default | {"perplexity": 19.0}, default | {"perplexity": 21.0}],
    } | changes  # fmt: skip


def test_the_page_sets_the_defaults_beside_counting_and_the_best_by_hand(tmp_path):
    (tmp_path / "novel.json").write_text(json.dumps(one()))
    (tmp_path / "small.json").write_text(json.dumps(one(name="small", tokens=9, by_hand=[])))
    page = first.page(tmp_path)
    row = "| novel | 1,000 | 50 | 40.0 | 30.0 | 25.0 | **20.0** | 1m01s | 19.0 | 1m01s |"
    assert row in page
    assert page.index("| small |") < page.index("| novel |")


def test_sentences_become_rows_of_tags(tmp_path):
    words = [[f"w{place}\t{'NV'[place % 2]}" for place in range(length)] for length in (13, 4, 12)]
    (tmp_path / "x.tsv").write_text("\n\n".join("\n".join(lines) for lines in words) + "\n")
    first._write_tags(tmp_path / "x.tsv", tmp_path / "x.npy")
    assert np.load(tmp_path / "x.npy").tolist() == [[0, 1] * 6, [0, 1] * 6]


@pytest.mark.slow
def test_a_text_is_trained_on_with_defaults_and_by_hand_and_recorded(tmp_path, monkeypatch):
    text = tmp_path / "novel.txt"
    text.write_text("".join(f"the {a} saw the {b}\n" for a in ("cat", "dog", "cow") * 30 for b in ("bird", "fish")))
    by_hand = ["model.states=4", "training.epochs=1"]
    monkeypatch.setattr(first, "_texts", lambda data, runs: {"novel": ([str(text)], [by_hand])})
    monkeypatch.setattr(first, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(first, "commit_of", lambda root: "abc1234")
    first.first(str(tmp_path), tmp_path / "runs", None, 1)
    found = json.loads((tmp_path / "results" / "novel.json").read_text())
    assert found["default"]["command"] == "trellis train novel.txt --threads 1"
    assert found["default"]["unigram"] == pytest.approx(found["perplexity"]["unigram"])
    assert found["default"]["perplexity"] < found["perplexity"]["unigram"]
    (hand,) = found["by_hand"]
    assert (hand["states"], hand["chosen"]["epochs"]) == (4, 1)
    monkeypatch.setattr(first, "commit_of", lambda root: "def5678")
    monkeypatch.setattr(first, "_train", lambda name, *_: found["default"] | {"perplexity": 1.5, "told": name})
    first.first(str(tmp_path), tmp_path / "runs", None, 1, defaults=True)
    again = json.loads((tmp_path / "results" / "novel.json").read_text())
    assert (again["commit"], again["default"]["perplexity"]) == ("def5678", 1.5)
    assert again["by_hand"] == [{"commit": "abc1234", **hand}], "which stay as they were recorded"
    with pytest.raises(TrellisError, match="choose from novel"):
        first.first(str(tmp_path), tmp_path / "runs", "other", 1)
