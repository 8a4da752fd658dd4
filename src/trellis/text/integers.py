"""Symbols that are whole numbers already: a vocabulary of 0, 1, 2 …, and arrays of such on disk."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers import models, pre_tokenizers

from trellis.errors import TrellisError
from trellis.progress import counted
from trellis.text.tokenizer import read_vocabulary, refuse_id, several, write_folder

KIND = "integers"  # marks our own folders in tokenizer_config.json
LONGEST = 1000  # digits: Python reads no more than a few thousand of them
LARGEST = 1 << 24  # symbols that people can mean; beyond it, they are rather codes or hashes


class IntegerTokenizer:
    """The whole numbers below `vocab_size`, each its own id and spelt as usual; no end of documents, no unknown."""

    eos_id = None
    unk_id = None

    def __init__(self, vocab_size: int) -> None:
        if vocab_size < 2:
            raise TrellisError(f"vocab_size={vocab_size} leaves nothing to predict; give 2 or more.")
        if vocab_size > LARGEST:
            raise TrellisError(f"Symbols up to {vocab_size - 1} are too many; number those that occur 0, 1, 2 ….")
        self.vocab_size = vocab_size

    @classmethod
    def train(cls, documents: Iterable[str], name: str = "The text") -> IntegerTokenizer:
        """Take all numbers up to the largest one in the text; `name` is the text's, for what is said about it."""
        ends: set[int] = set()  # the smallest and the largest so far
        for document in several(documents):
            if found := ends.union(_numbers(document, f"{name} holds ")):
                ends = {min(found), max(found)}
        if len(ends) < 2:
            only = f"one symbol only, {max(ends)}" if ends else "no symbols"
            raise TrellisError(f"{name} holds {only}; give more data, or vocab_size if others are possible.")
        return cls(1 + max(ends))

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> IntegerTokenizer:
        """Read a folder that `save` wrote."""
        return cls(len(read_vocabulary(Path(folder))))

    def __repr__(self) -> str:
        return f"IntegerTokenizer({counted(self.vocab_size, 'symbol')})"

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write it as a Hugging Face tokenizer of words between spaces."""
        tokenizer = HuggingFaceTokenizer(models.WordLevel({str(id): id for id in range(self.vocab_size)}, unk_token=""))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        write_folder(Path(folder), tokenizer, trellis_kind=KIND)

    def encode(self, text: str) -> list[int]:
        """Read whole numbers between spaces."""
        ids = _numbers(text)
        if ids and max(ids) >= self.vocab_size:
            raise TrellisError(f"{max(ids)} is none of the symbols 0 to {self.vocab_size - 1} that the model knows.")
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode one document after another."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """Write the numbers with spaces between them."""
        return " ".join(self.token(number) for number in ids)

    def token(self, id: int) -> str:
        """Spelling of a number."""
        if not 0 <= id < self.vocab_size:
            refuse_id(id, self.vocab_size)
        return str(int(id))

    def id(self, token: str) -> int:
        """The number that is spelt so."""
        (id,) = self.encode(token) or [-1]
        if id < 0:
            refuse_id(id, self.vocab_size)
        return id

    def fingerprint(self) -> str:
        """Hash the size, which decides everything."""
        return hashlib.blake2b(f"{KIND}\n{self.vocab_size}".encode(), digest_size=16).hexdigest()


def _numbers(text: str, found: str = "") -> list[int]:
    """Whole numbers between spaces; `found` is said before a word that is none."""
    words = text.split()
    for word in words:
        if not (word.isascii() and word.isdigit()):
            which = f"{found}{word!r}, which" if found else repr(word)
            raise TrellisError(f"{which} is no whole number from 0 on; give such numbers with spaces between them.")
        if len(word) > LONGEST:
            raise TrellisError(
                f"{found or 'The text holds '}a number of {len(word)} digits; number the symbols 0, 1, 2 …."
            )
    return [int(word) for word in words]
