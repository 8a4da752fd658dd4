"""lm-evaluation-harness measures what `trellis evaluate` does, on local files, through its own `hf` models."""

import json
import math
import subprocess
import sys

import pytest
import torch

from trellis import WordTokenizer, evaluate, load_model, prepare
from trellis.text import MemoryCorpus

from .models import HMM, HMMConfig, sharpened

TEXTS = ["the cat saw the dog", "a dog", "the zebra saw a cat and the dog saw the cat", "cat cat cat ."] * 3
CHOICES = [("the cat", ["saw the dog", "dog"]), ("", ["a dog", "saw saw"]), ("a", ["cat and", "the the", "zebra"])]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A saved model, and two tasks beside it: perplexity of texts, and questions with several answers."""
    folder = tmp_path_factory.mktemp("harness")
    tokenizer = WordTokenizer.train([*TEXTS, "."], min_count=1, vocab_size=9)
    sharpened(HMM(HMMConfig(tokenizer.vocab_size, 4), seed=1)).save_pretrained(folder / "model", tokenizer)
    (folder / "tasks").mkdir()
    lines(folder / "texts.jsonl", ({"text": f"{text} <eos>"} for text in TEXTS))
    lines(folder / "choices.jsonl", ({"context": c, "choices": answers, "answer": 0} for c, answers in CHOICES))
    task(folder, "texts", output_type="loglikelihood_rolling", doc_to_text="", doc_to_target="{{text}}",
         metric_list=[{"metric": "word_perplexity"}])  # fmt: skip
    task(folder, "choices", output_type="multiple_choice", doc_to_text="{{context}}", doc_to_choice="{{choices}}",
         doc_to_target="{{answer}}", metric_list=[{"metric": "acc"}])  # fmt: skip
    return folder


def lines(path, objects):
    path.write_text("".join(json.dumps(each) + "\n" for each in objects))


def task(folder, name, **settings):
    """YAML is a superset of JSON."""
    files = {"data_files": {"test": str(folder / f"{name}.jsonl")}, "cache_dir": str(folder / "cache")}
    data = {"task": f"local_{name}", "dataset_path": "json", "dataset_kwargs": files, "test_split": "test"}
    (folder / "tasks" / f"{name}.yaml").write_text(json.dumps(data | settings))


@pytest.fixture
def measured(folder, monkeypatch):
    """What the harness finds out about a saved model: figures, and log-likelihoods of each sample, by task."""
    pytest.importorskip("lm_eval")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    def measure(**options):
        return simple_evaluate(
            model="hf",
            model_args={"pretrained": str(folder / "model"), **options},
            tasks=["local_texts", "local_choices"],
            task_manager=TaskManager(include_path=str(folder / "tasks"), include_defaults=False),
            batch_size=5,
            device="cpu",
            bootstrap_iters=0,
        )

    return measure


@pytest.mark.filterwarnings("ignore")  # what the harness and its libraries warn of is theirs
@pytest.mark.parametrize("begins", ["start", "eos"])
def test_its_perplexity_is_that_of_trellis_evaluate(folder, measured, begins):
    model, tokenizer = load_model(folder / "model"), WordTokenizer.load(folder / "model")
    found = measured(begins=begins)
    if begins == "start":
        wanted = evaluate(
            model, prepare(MemoryCorpus("texts", TEXTS), tokenizer), "sequences", quiet=True
        ).word_perplexity
    else:
        texts = [[tokenizer.eos_id, *tokenizer.encode(text), tokenizer.eos_id] for text in TEXTS]
        nats = -sum(float(model.score(torch.tensor([text]))[0][0, 1:].sum()) for text in texts)
        wanted = math.exp(nats / sum(len(text) - 1 for text in texts))
    assert found["results"]["local_texts"]["word_perplexity,none"] == pytest.approx(wanted, abs=1e-4)
    assert_choices(model, tokenizer, found["samples"]["local_choices"], begins)


def assert_choices(model, tokenizer, samples, begins):
    """The log-likelihood of each answer is that of its words after the question's."""
    assert len(samples) == len(CHOICES)
    for sample, (context, answers) in zip(sorted(samples, key=lambda each: each["doc_id"]), CHOICES, strict=True):
        for answer, (found, _) in zip(answers, sample["filtered_resps"], strict=True):
            given = tokenizer.encode(context)
            mark = [tokenizer.eos_id] if not given and begins == "eos" else []
            text = [*mark, *given, *tokenizer.encode(answer)]
            log_prob_T = model.score(torch.tensor([text]))[0][0]
            assert float(found) == pytest.approx(float(log_prob_T[len(mark) + len(given) :].sum()), abs=1e-4)


def test_without_the_harness_the_command_says_what_to_install():
    code = (
        "import sys, runpy; sys.modules['lm_eval'] = None; runpy.run_module('trellis.hf.harness', run_name='__main__')"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert run.stderr.strip() == "lm-evaluation-harness is not installed: pip install 'trellis-lm[evaluation]'."
