"""Guidance of a language model by an HMM: what a step costs beside the model's own, and how long constraints compile.

The language model is a Llama of the shape of stories15M and the HMM a low-rank one, both with random weights.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from multiprocessing import get_context
from typing import Any

from bench.categorical import Stopwatch
from bench.quiet import Patience
from trellis.folders import places

TOKENIZER = "tokenizers/llama2"  # in the data folder; without it, words are made up
KEYWORDS = ("dragon", "castle", "princess", "forest", "bird", "river", "magic", "king", "tree", "house")
PATTERN = r"[A-Z][a-z]{2,8} (was|is) [a-z]{3,9}\."  # 28 states over the tokens of Llama 2
OUTLINES = "outlines_core"


@dataclass(frozen=True)
class Task:
    """Sizes, from which everything is drawn."""

    states: int = 512
    width: int = 128  # of the HMM's vectors
    words: int = 32_000
    batch: int = 8
    tokens: int = 32
    hidden: int = 288  # of the language model
    layers: int = 6
    keywords: int = 2
    data_dir: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """For the record; where data lie on this machine is nobody's business."""
        return {name: value for name, value in asdict(self).items() if name != "data_dir"}


def task(data_dir: str | None = None) -> Task:
    """The figures to cite."""
    return Task(data_dir=data_dir)


def quick_task() -> Task:
    """The same in no time."""
    return Task(states=4, width=3, words=40, batch=2, tokens=4, hidden=8, layers=1)


def _tokenizer(task: Task) -> Any:
    """That of Llama 2 if it is there and has as many tokens; else made-up words."""
    from trellis.text import WordTokenizer, load_tokenizer

    for folder in places(TOKENIZER, task.data_dir):
        if folder.is_dir() and load_tokenizer(folder).vocab_size == task.words:
            return load_tokenizer(folder)
    others = (f"w{number}" for number in range(task.words - 2 - len(KEYWORDS)))
    return WordTokenizer(["<unk>", "<eos>", *KEYWORDS, *others])


def _language_model(task: Task) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    heads = max(1, task.hidden // 48)
    config = LlamaConfig(
        vocab_size=task.words, hidden_size=task.hidden, intermediate_size=task.hidden * 8 // 3,
        num_hidden_layers=task.layers, num_attention_heads=heads, max_position_embeddings=256,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def measure(task: Task, rounds: int, wait: float) -> dict[str, Any]:
    """Steps with and without guidance in turns, and compilations; best of all."""
    import torch

    torch.set_num_threads(2)
    patience, tokenizer = Patience(wait), _tokenizer(task)
    return {
        "task": task.as_dict(),
        "tokenizer": "Llama 2" if type(tokenizer).__name__ == "SubwordTokenizer" else "made-up words",
        "step": _steps(task, tokenizer, rounds, patience),
        "compiling": _compiling(tokenizer, rounds, patience),
    }


def _steps(task: Task, tokenizer: Any, rounds: int, patience: Patience) -> dict[str, Any]:
    """Seconds of a step of `generate`, sampling, of the whole batch."""
    import torch

    from trellis.constraints import contains
    from trellis.models import HMM, HMMConfig
    from trellis.steering import Guide

    kinds = dict.fromkeys(("start", "transition", "emission"), "low_rank")
    hmm = HMM(HMMConfig(task.words, task.states, width=task.width, **kinds), seed=0)
    guide = Guide(hmm, tokenizer, contains(*KEYWORDS[: task.keywords]), task.tokens)
    model, ids_BT = _language_model(task), torch.randint(2, task.words, (task.batch, 6))
    told = {"max_new_tokens": task.tokens, "do_sample": True, "top_k": 0, "pad_token_id": 0}
    guide.processor(ids_BT)  # looks ahead once for all texts
    watches = {"alone": Stopwatch(), "guided": Stopwatch()}
    for turn in range(rounds + 1):
        for name, watch in watches.items():
            patience.wait()
            more = {"logits_processor": [guide.processor(ids_BT)]} if name == "guided" else {}
            (Stopwatch() if turn == 0 else watch).time(lambda more=more: model.generate(ids_BT, **told, **more))
    return {name: watch.as_dict(task.tokens) for name, watch in watches.items()}


def _compiling(tokenizer: Any, rounds: int, patience: Patience) -> dict[str, Any]:
    """Seconds to make automata, once the spellings of tokens are known; beside outlines-core if it is there."""
    from trellis.constraints import contains, matches

    contains(KEYWORDS[0]).automaton(tokenizer)  # makes the spellings
    makers: dict[str, Callable[[], Any]] = {
        "one keyword": lambda: contains(KEYWORDS[0]).automaton(tokenizer, ends=True),
        "three keywords": lambda: contains(*KEYWORDS[:3]).automaton(tokenizer, ends=True),
        "ten keywords": lambda: contains(*KEYWORDS).automaton(tokenizer, ends=True),
    }
    if type(tokenizer).__name__ == "SubwordTokenizer":
        makers["regular expression"] = lambda: matches(PATTERN).automaton(tokenizer, ends=True)
        if find_spec(OUTLINES):
            makers["regular expression, outlines-core"] = _outlines(tokenizer)
    found = {}
    for name, make in makers.items():
        watch = Stopwatch()
        for _ in range(max(1, rounds // 2)):
            patience.wait()
            made = watch.time(make)
        found[name] = watch.as_dict(1) | {"states": getattr(made, "states", None)}
    return found


def _outlines(tokenizer: Any) -> Callable[[], Any]:
    """The same expression over the same spellings by outlines-core, its vocabulary made before."""
    from outlines_core import Index, Vocabulary

    from trellis.constraints.spelling import spelling_of

    spelt: dict[bytes, list[int]] = {}
    for id, spelling in enumerate(spelling_of(tokenizer).tokens[0]):
        if spelling:
            spelt.setdefault(bytes(spelling), []).append(id)
    vocabulary = Vocabulary(tokenizer.eos_id, spelt)
    return lambda: Index(PATTERN, vocabulary)


def compare(asked: Task, rounds: int, wait: float) -> dict[str, Any] | None:
    """Measure in a process of its own; None without the transformers library."""
    if find_spec("transformers") is None:
        return None
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as worker:
        return worker.submit(measure, asked, rounds, wait).result()
