"""Text for the smoke budget: sentences of a tiny grammar, laid out as the corpora are."""

from __future__ import annotations

import json
import random
from pathlib import Path

import torch
import zstandard

from experiments.lee.budgets import TEACHER
from trellis.text.corpora import LOCAL, open_corpus
from trellis.text.subwords import SubwordTokenizer

SENTENCES = {"train": 150, "valid": 25, "test": 25}
NAMES = ["ann", "ben", "cleo", "dora", "emil", "fay"]
NOUNS = ["cat", "dog", "bird", "horse", "boat", "river", "stone", "tree", "song", "letter", "door", "garden"]
VERBS = ["sees", "hears", "likes", "finds", "paints", "leaves", "follows", "opens"]
ADJECTIVES = ["old", "small", "green", "quiet", "bright", "slow"]


def write_texts(folder: Path) -> Path:
    """Write every split of all texts, unless they are there already; the same each time."""
    for corpus in ("ptb", "wikitext-2", "openmix"):
        for split, sentences in SENTENCES.items():
            path = folder / LOCAL[corpus].format(split=split)
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                chance = random.Random(f"{corpus} {split}")
                path.write_bytes(_laid_out(path, [_sentence(chance) for _ in range(sentences)]))
    return folder


def _laid_out(path: Path, sentences: list[str]) -> bytes:
    """Sentences as the corpus has them: a line each, or compressed records."""
    if path.suffix != ".zst":
        return "".join(f"{sentence}\n" for sentence in sentences).encode()
    return zstandard.compress("".join(json.dumps({"text": sentence}) + "\n" for sentence in sentences).encode())


def write_teacher(folder: Path) -> None:
    """Write a tokenizer of the text and a random transformer of the same vocabulary, unless they are there."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer, teacher = folder / "tokenizers" / "llama2", folder / TEACHER
    if teacher.exists():
        return
    corpus = open_corpus("openmix", "train", str(folder))
    learnt = SubwordTokenizer.train_bpe(corpus, 300)
    shape = LlamaConfig(
        vocab_size=learnt.vocab_size, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=64, tie_word_embeddings=True, bos_token_id=None, eos_token_id=learnt.eos_id,
    )  # fmt: skip
    for place in (tokenizer, teacher):
        place.mkdir(parents=True)
        learnt.save(place)
    torch.manual_seed(0)
    LlamaForCausalLM(shape).save_pretrained(teacher)


def _sentence(chance: random.Random) -> str:
    words = [*_phrase(chance), chance.choice(VERBS), *_phrase(chance)]
    return " ".join([*words, "and", chance.choice(VERBS), *_phrase(chance)] if chance.random() < 0.3 else words)


def _phrase(chance: random.Random) -> list[str]:
    if chance.random() < 0.3:
        return [chance.choice(NAMES)]
    between = [chance.choice(ADJECTIVES)] if chance.random() < 0.4 else []
    return [chance.choice(["the", "a"]), *between, chance.choice(NOUNS)]
