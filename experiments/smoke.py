"""Text for the smoke budget: sentences of a tiny grammar, laid out as the corpora are."""

from __future__ import annotations

import random
from pathlib import Path

from trellis.text.corpora import LOCAL

SENTENCES = {"train": 150, "valid": 25, "test": 25}
NAMES = ["ann", "ben", "cleo", "dora", "emil", "fay"]
NOUNS = ["cat", "dog", "bird", "horse", "boat", "river", "stone", "tree", "song", "letter", "door", "garden"]
VERBS = ["sees", "hears", "likes", "finds", "paints", "leaves", "follows", "opens"]
ADJECTIVES = ["old", "small", "green", "quiet", "bright", "slow"]


def write_texts(folder: Path) -> Path:
    """Write every split of both texts, unless they are there already; the same each time."""
    for corpus in ("ptb", "wikitext-2"):
        for split, sentences in SENTENCES.items():
            path = folder / LOCAL[corpus].format(split=split)
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                chance = random.Random(f"{corpus} {split}")
                path.write_text("".join(f"{_sentence(chance)}\n" for _ in range(sentences)), encoding="utf-8")
    return folder


def _sentence(chance: random.Random) -> str:
    words = [*_phrase(chance), chance.choice(VERBS), *_phrase(chance)]
    return " ".join([*words, "and", chance.choice(VERBS), *_phrase(chance)] if chance.random() < 0.3 else words)


def _phrase(chance: random.Random) -> list[str]:
    if chance.random() < 0.3:
        return [chance.choice(NAMES)]
    between = [chance.choice(ADJECTIVES)] if chance.random() < 0.4 else []
    return [chance.choice(["the", "a"]), *between, chance.choice(NOUNS)]
