"""The study of keywords counts by itself what the sentences have."""

import json
from pathlib import Path

import torch

from experiments import keywords
from trellis import WordTokenizer
from trellis.models import HMM, HMMConfig
from trellis.models.pretrained import Pretrained


def test_every_sentence_has_its_words(monkeypatch):
    monkeypatch.setattr(keywords, "COMMON", slice(2, None))
    tokenizer = WordTokenizer(["<unk>", "<eos>", *(f"w{number}" for number in range(8))])
    loaded = Pretrained(Path("nowhere"), HMM(HMMConfig(10, 4), seed=0).eval(), tokenizer)
    found = keywords.measured(loaded, 3, each=4)
    assert (found["met"], found["of"]) == (12, 12)
    for row in found["examples"]:
        assert len(set(row["words"])) == 3
        assert set(row["words"]) <= set(row["text"].split())


def test_a_sentence_without_its_words_is_not_counted(monkeypatch):
    monkeypatch.setattr(keywords, "COMMON", slice(2, None))
    told = type("Text", (), {"text": "w1 w2"})()
    monkeypatch.setattr(keywords.ask, "write", lambda *_, **__: [told, told])
    tokenizer = WordTokenizer(["<unk>", "<eos>", "w1", "w2", "w3"])
    assert keywords.measured(Pretrained(Path("x"), torch.nn.Identity(), tokenizer), 2, each=2)["met"] == 0


def test_the_page_says_what_was_found(tmp_path):
    assert keywords.section(tmp_path) == ""
    one = {"met": 9, "of": 10, "seconds": 3.2, "machine": "m", "hmm": ["4 states"],
           "examples": [{"words": ["a", "b"], "text": "a b c"}]}  # fmt: skip
    (tmp_path / "keywords.json").write_text(json.dumps(one))
    page = keywords.section(tmp_path)
    assert "10 sentences" in page
    assert ": 9 have them" in page
    assert "- *a, b*: a b c" in page
