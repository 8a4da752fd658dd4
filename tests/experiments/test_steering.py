"""The study of guidance: its page, what it counts, and the whole of it with a tiny language model."""

import json
import math

import pytest
import torch

from experiments import keywords, steering
from experiments.steering import CASES, Case, _nats, _summary, page
from trellis.constraints import contains, length
from trellis.models import HMM, HMMConfig
from trellis.text import WordTokenizer

WORDS = WordTokenizer(["<unk>", "<eos>", "a", "b", "c", "d"])


def text(constraint, met, nats, tokens):
    return {"constraint": constraint, "met": met, "nats": nats, "tokens": tokens, "text": "one two three a a"}


def test_perplexity_is_of_all_tokens_and_texts_are_counted_by_constraint():
    found = _summary([text("x", True, 2.0, 4), text("y", False, 6.0, 2), text("x", False, 1.0, 4)], 3.0)
    assert (found["met"], found["of"], found["tokens"]) == (1, 3, 10)
    assert found["perplexity"] == pytest.approx(math.exp(0.9), abs=1e-3)
    assert found["by_constraint"]["x"] == {"met": 1, "of": 2, "perplexity": round(math.exp(3 / 8), 3), "tokens": 8}


def test_the_page_has_a_row_a_method_and_a_row_a_constraint(tmp_path):
    about = {"hmm": {"states": 512, "valid_perplexity": 40.0}, "machine": "x86"}
    for name, met in (("guided", True), ("alone", False)):
        told = _summary([text("contains('a')", met, 2.0, 2), text("matches('a\\\\.')", True, 2.0, 2)], 61.0)
        (tmp_path / f"{name}.json").write_text(json.dumps(about | told))
    found = page(tmp_path)
    assert "| alone | 1 of 2 | 2.7 | – | 1m01s |\n| guided | 2 of 2 | 2.7 | 0 % | 1m01s |" in found
    assert "| `contains('a')` | 0 of 1 | 2.7 | 1 of 1 | 2.7 |" in found
    assert "512 states, with a perplexity of 40.0" in found
    assert page(tmp_path / "nothing").startswith("# Guided texts")


def test_keywords_that_first_stand_in_the_last_tenth_are_late():
    said = "one two three four five six seven eight nine b"
    texts = [text("contains('one', 'b')", True, 1.0, 1) | {"text": said}, text("contains('one')", False, 1.0, 1)]
    assert steering._late(texts) == "50 %"
    assert steering._late([text("length(3)", True, 1.0, 1)]) == "–"


SAID = [
    ("A dragon came.", 0, True),
    ("Some dragons came, snapdragon too", 0, False),
    ("a boat", 6, True),
    ("the boat", 6, False),
    ("so there, he saw it. They went home. The end.", 8, True),
    ("So there. They went home. The end.", 8, False),
    ("we are happy", 9, False),
]


@pytest.mark.parametrize(("said", "case", "holds"), SAID)
def test_texts_are_looked_at_by_other_means(said, case, holds):
    assert CASES[case].holds(said, 3) == holds


def tiny_llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=6, bos_token_id=None, eos_token_id=1, **sizes)).eval()


def test_a_text_that_ended_counts_its_end_by_any_token():
    model = tiny_llama()
    prompt, ids = torch.tensor([2, 3]), [4, 5]
    with torch.no_grad():
        chance_TV = model(torch.tensor([[2, 3, 4, 5]])).logits[0].softmax(-1)
    want = chance_TV[1, 4] * chance_TV[2, 5]
    assert _nats(model, prompt, ids, ()) == pytest.approx(-math.log(want), rel=1e-5)
    assert _nats(model, prompt, ids, (0, 1)) == pytest.approx(-math.log(want * chance_TV[3, :2].sum()), rel=1e-5)


def test_the_study_at_its_smallest(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    folder = tmp_path / "teachers" / "stories15M"
    tiny_llama().save_pretrained(folder)
    WORDS.save(folder)
    HMM(HMMConfig(6, 3), 0).save_pretrained(tmp_path / "hmm", WORDS)
    cases = (
        Case(contains("b"), lambda text, _: "b" in text.split()),
        Case(length(3), lambda _, size: size == 3),
    )
    monkeypatch.setattr(steering, "CASES", cases)
    monkeypatch.setattr(steering, "PROMPTS", ("a", "c d", "d"))
    monkeypatch.setattr(steering, "TOKENS", 5)
    monkeypatch.setattr(steering, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(steering, "commit_of", lambda root: "abc1234")
    steering.steering(str(tmp_path), str(tmp_path / "hmm"), batches=4)
    found = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "results").glob("*.json")}
    assert set(found) == set(steering.METHODS)
    assert {name: one["met"] == one["of"] == 8 for name, one in found.items()} == {
        "alone": False, "forbidden": True, "guided": True, "particles": True,
    }  # fmt: skip
    assert str(tmp_path) not in json.dumps(found)
    assert "| particles | 8 of 8 |" in page(tmp_path / "results")


def test_the_committed_page_is_what_the_committed_results_give():
    committed = steering.HERE.parent / "docs" / "results-steering.md"
    results = steering.HERE / "results" / "steering"
    assert page(results) + keywords.section(results) == committed.read_text(encoding="utf-8")
