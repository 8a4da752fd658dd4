"""Texts cut into tokens at random, and what constraints say of a text, found by Python's own means."""

import functools
import random
import re

from trellis.constraints.spelling import spelling_of
from trellis.text import ByteTokenizer, CharacterTokenizer, SubwordTokenizer

LETTER = "0-9A-Za-z_\u00c0-\u1fff\u3000-\uffff"  # what touches a word is part of it
FRAGMENTS = [
    *[
        "dragon",
        "drag",
        "on",
        "old castle",
        "old",
        "castle",
        " ",
        " ",
        " ",
        "s",
        "'s",
        "é",
        "”",
        "«",
        "-",
        "_",
        "9",
        ".",
    ],
    *["\n", "😀", "日", "castledragon", "Dragon", "dragon dragon", "dragon castle", "the end.", "!", "a b a b a"],
]


def trained():
    """A tokenizer of characters, one of bytes, and byte-level BPE that knows parts of the words."""
    sample = ["".join(FRAGMENTS), "the old dragon sat on the old castle, the old dragon's castle"] * 10
    return [CharacterTokenizer.train(sample), ByteTokenizer(), SubwordTokenizer.train_bpe(sample, 300)]


def cut(text, tokenizer, seed):
    """Some ids of a text: at each place, any token that is spelt so."""
    known = _tables(tokenizer)
    rest, ids, choose = text.encode(), [], random.Random(seed)
    while rest:
        table = known[bool(ids)]
        sizes = [size for size in range(1, min(len(rest), 30) + 1) if rest[:size] in table]
        size = choose.choice(sizes)
        ids.append(choose.choice(table[rest[:size]]))
        rest = rest[size:]
    return ids


@functools.cache
def _tables(tokenizer):
    """The ids of every spelling, of a text's first token and of the others."""
    within, first = spelling_of(tokenizer).tokens
    return _by_spelling(first), _by_spelling(within)


def _by_spelling(spellings):
    table = {}
    for id, spelt in enumerate(spellings):
        if spelt:
            table.setdefault(spelt, []).append(id)
    return table


def bounded(phrase):
    """A phrase as whole words, for `re`."""
    before = f"(?<![{LETTER}])" if re.match(f"[{LETTER}]", phrase) else ""
    after = f"(?![{LETTER}])" if re.search(f"[{LETTER}]$", phrase) else ""
    return before + re.escape(phrase) + after


def count(phrase, text):
    """How often a phrase stands in a text, overlapping ones too."""
    return len(re.findall(f"(?={bounded(phrase)})", text))
