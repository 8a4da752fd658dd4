"""Short training runs whose every number was recorded before the house was rebuilt.

A case names the model, the training, and the precision; parameters are drawn here, by what they mean and not by where a
model keeps them, so that the same run can be made of any layout of the code.
"""

import math
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trellis.text import IdFile, MemoryCorpus, WordTokenizer, prepare

VOCABULARY, UPDATES = 60, 30
WORDS = WordTokenizer(["<unk>", "<eos>", *(f"w{n}" for n in range(VOCABULARY - 2))])
BLOCKS, BLOCK_SIZE, WIDTH, DENSE = 12, 8, 16, 40
BLOCK_V = torch.arange(VOCABULARY) % BLOCKS
PRECISIONS = ("float64", "float32", "bf16")


@dataclass(frozen=True)
class Case:
    """One run: `model` in words of the papers, `training` as settings."""

    support: str = "dense"  # dense, blocks or uniform
    encoder: str = "none"  # none (free logits), table, residual, factored
    transition: str = "flat"  # or hierarchical
    dropout: float = 0.0
    shared: bool = False
    training: dict[str, Any] = field(default_factory=dict)


STREAMS = {"batching": "streams"}
CASES = {
    "dense scalar": Case(),
    "dense scalar, carried": Case(training=STREAMS),
    "dense low-rank": Case(encoder="table"),
    "dense low-rank, carried": Case(encoder="table", training=STREAMS),
    "dense low-rank, shared": Case(encoder="table", shared=True),
    "Baum-Welch": Case(training={"method": "baum_welch", "step_size": 0.5}),
    "Baum-Welch, carried": Case(training={"method": "baum_welch", "step_size": 0.5, **STREAMS}),
    "neural hierarchical": Case("blocks", "residual", "hierarchical"),
    "neural hierarchical, carried": Case("blocks", "residual", "hierarchical", training=STREAMS),
    "neural hierarchical, dropout, carried": Case("blocks", "residual", "hierarchical", 0.5, training=STREAMS),
    "neural flat": Case("blocks", "residual"),
    "neural flat, dropout": Case("blocks", "residual", dropout=0.5),
    "neural flat, dropout, carried": Case("blocks", "residual", dropout=0.5, training=STREAMS),
    "factored hierarchical, dropout, carried": Case("blocks", "factored", "hierarchical", 0.5, training=STREAMS),
    "factored flat": Case("blocks", "factored"),
    "blocked low-rank hierarchical, carried": Case("blocks", "table", "hierarchical", training=STREAMS),
    "blocked low-rank flat": Case("blocks", "table"),
    "blocked scalar hierarchical, dropout, carried": Case("blocks", "none", "hierarchical", 0.5, training=STREAMS),
    "blocked scalar flat, carried": Case("blocks", "none", training=STREAMS),
    "uniform neural, carried": Case("uniform", "residual", training=STREAMS),
    "uniform neural, dropout, carried": Case("uniform", "residual", dropout=0.5, training=STREAMS),
    "uniform scalar, dropout": Case("uniform", "none", dropout=0.5),
}


def states_of(case: Case) -> int:
    return DENSE if case.support == "dense" else BLOCKS * BLOCK_SIZE


def drawn(name: str, *shape: int, scale: float) -> Tensor:
    """A parameter of this meaning, the same wherever it is kept."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randn(*shape, generator=generator, dtype=torch.float64) * scale


def parameters(case: Case) -> dict[str, Tensor]:
    """Every parameter that does not begin as zeros or ones, by its meaning."""
    states, blocks = states_of(case), BLOCKS
    emitting = states if case.support == "dense" else BLOCK_SIZE  # states that may emit a word
    found: dict[str, Tensor] = {}
    if case.encoder == "none":
        found |= {
            "start": drawn("start", states, scale=1.0),
            "transition": drawn("transition", states, states, scale=1.0),
            "emission": drawn("emission", VOCABULARY, emitting, scale=1.0),
        }
        if case.transition == "hierarchical":
            found["to block"] = drawn("to block", states, blocks, scale=1.0)
        return found
    scale = WIDTH**-0.25 if case.encoder == "table" else WIDTH**-0.5
    found |= {"words": drawn("words", VOCABULARY, WIDTH, scale=scale), "first": drawn("first", WIDTH, scale=scale)}
    if case.transition == "hierarchical":
        found["to block"] = drawn("to block", blocks, WIDTH, scale=scale)
    if case.encoder == "table":
        roles = ("states",) if case.shared else ("leaving", "entering", "emitting")
        return found | {role: drawn(role, states, WIDTH, scale=scale) for role in roles}
    networks = ["leaving", "emitting", "starting"]
    found["states"] = drawn("states", states, WIDTH, scale=scale)
    if case.encoder == "factored":
        found["states"] = drawn("states", states, WIDTH // 2, scale=scale)
        found["blocks"] = drawn("blocks", blocks, WIDTH - WIDTH // 2, scale=scale)
        networks += [f"compose {role}" for role in ("leaving", "entering", "emitting", "starting")]
    for network in networks:
        for layer in ("first", "second"):
            name = f"{network} {layer}"
            found[name] = drawn(name, WIDTH, WIDTH, scale=1 / math.sqrt(3 * WIDTH))
    return found


def text(cache: Path) -> IdFile:
    """Sentences in which each word likes some others to follow it; frequent words come first."""
    rng = np.random.default_rng(11)
    sentences, tokens = [], 0
    while tokens < 4200:
        word, words = int(rng.random() ** 2 * 58), []
        for _ in range(1 + int(rng.random() * 20)):
            words.append(f"w{word}")
            word = (7 * word + int(rng.random() * 5)) % 58 if rng.random() < 0.7 else int(rng.random() ** 2 * 58)
        sentences.append(" ".join(words))
        tokens += len(words) + 1
    return prepare(MemoryCorpus("golden", tuple(sentences)), WORDS, cache, quiet=True)


def settings(case: Case, precision: str) -> dict[str, Any]:
    """Thirty updates of 8 × 16 tokens."""
    told = {
        "batching": "windows", "batch_size": 8, "length": 16, "epochs": 0.9, "lr": 0.02, "weight_decay": 0.0,
        "validations": 0.001, "checkpoint_every": 1000,
    }  # fmt: skip
    return told | {"precision": "bf16" if precision == "bf16" else "float32"} | case.training


def question(vocabulary: int = VOCABULARY) -> tuple[Tensor, Tensor]:
    """A fixed text: three rows, ragged."""
    generator = torch.Generator().manual_seed(5)
    return torch.randint(vocabulary, (3, 14), generator=generator), torch.tensor([14, 5, 9])
