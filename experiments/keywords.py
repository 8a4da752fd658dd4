"""A thousand sentences of a Penn Treebank model with three given words each: whether every one has them."""

from __future__ import annotations

import json
import platform
import random
import time
from pathlib import Path
from typing import Any

import torch

from experiments.recipes import HERE
from experiments.record import commit_of
from trellis import ask, load_pretrained
from trellis.constraints import contains
from trellis.folders import write_atomically
from trellis.models.pretrained import Pretrained
from trellis.progress import Progress

RESULT = HERE / "results" / "steering" / "keywords.json"
SETS, EACH, WORDS, SEED = 100, 10, 30, 0  # sets of three words, sentences for each, most words of one
COMMON = slice(100, 3_000)  # ranks of the words that are asked for, by frequency


def keywords(run: str, sets: int = SETS) -> None:
    """Draw the sentences, look at each, and record what came of it."""
    commit, loaded = commit_of(HERE.parent), load_pretrained(run)
    told = measured(loaded, sets)
    about = {
        "name": RESULT.stem,
        "command": "python -m experiments keywords --run RUN",
        "seed": SEED,
        "commit": commit,
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}",
        "hmm": loaded.model.described(),
    }
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(RESULT, json.dumps(about | told, indent=1) + "\n")


def measured(loaded: Pretrained, sets: int, each: int = EACH) -> dict[str, Any]:
    """Sentences with every set of three words, and how many have them, by splitting at spaces."""
    words = [loaded.tokenizer.token(id) for id in range(loaded.tokenizer.vocab_size)][COMMON]
    drawn, met, examples, began = random.Random(SEED), 0, [], time.perf_counter()
    with Progress("writing", sets, unit="sets") as progress:
        for number in range(sets):
            three = drawn.sample(words, 3)
            texts = ask.write(loaded, contains(*three), WORDS, each, seed=number)
            met += sum(set(three) <= set(text.text.split()) for text in texts)
            examples.append({"words": three, "text": texts[0].text})
            progress.advance()
    seconds = round(time.perf_counter() - began, 1)
    return {"met": met, "of": sets * each, "seconds": seconds, "examples": examples[:10]}


def section(results: Path) -> str:
    """What was found, as a section of a page; nothing where it was not measured."""
    path = results / RESULT.name
    if not path.exists():
        return ""
    one = json.loads(path.read_text(encoding="utf-8"))
    shown = "\n".join(f"- *{', '.join(row['words'])}*: {row['text']}" for row in one["examples"])
    model, seconds = ", ".join(one["hmm"]), f"{one['seconds']:.0f} s"
    return (
        "\n## Sentences of an HMM with three given words\n\n"
        f"A model of the Penn Treebank ({model}) wrote {one['of']:,} sentences of at most {WORDS} words,\n"
        f"each with three words that were drawn for it: {one['met']:,} have them. That took {seconds} in all\n"
        f"({one['machine']}). The first of some sets:\n\n{shown}\n"
    )
