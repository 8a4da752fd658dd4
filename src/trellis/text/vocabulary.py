"""Word-level vocabularies: one id for every word between spaces, as the word-level benchmarks count them."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as HuggingFaceTokenizer

from trellis.errors import TrellisError
from trellis.progress import counted
from trellis.text.tokenizer import read_vocabulary, refuse_id, refuse_token, several, write_folder

UNK, EOS = "<unk>", "<eos>"
KIND = "words"  # marks our own folders in tokenizer_config.json
_SPECIALS = (UNK, EOS)
_SMALLEST = len(_SPECIALS) + 2  # fewer words than two predict nothing


class WordTokenizer:
    """Words between spaces, `<unk>` first and `<eos>` second; a `<unk>` in the text is the same one."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        self.vocab_size = len(self.words)
        self.unk_id, self.eos_id = _SPECIALS.index(UNK), _SPECIALS.index(EOS)
        self._ids = {word: number for number, word in enumerate(self.words)}
        if self.words[: len(_SPECIALS)] != _SPECIALS or len(self._ids) != len(self.words):
            raise TrellisError("A vocabulary lists <unk>, <eos> and then each word once; mend the list.")
        if len(self.words) < _SMALLEST:
            raise TrellisError(
                "The vocabulary holds fewer than two words besides <unk> and <eos>; "
                "give text with more, or a lower min_count."
            )

    @classmethod
    def train(cls, documents: Iterable[str], vocab_size: int | None = None, min_count: int | None = 1) -> WordTokenizer:
        """Take the `vocab_size` most frequent words, specials included, seen `min_count` times; ties by name.

        Without a `min_count`, words seen too seldom to learn from are left out, unless the text says `<unk>` of them.
        """
        return cls.count((document.split() for document in several(documents)), vocab_size, min_count)

    @classmethod
    def count(
        cls, sequences: Iterable[Iterable[str]], vocab_size: int | None = None, min_count: int | None = 1
    ) -> WordTokenizer:
        """The same of texts that are lists of words already, which then may hold spaces."""
        if vocab_size is not None and vocab_size < _SMALLEST:
            raise TrellisError(f"A vocabulary of {vocab_size} is too small; ask for {_SMALLEST} or more.")
        counts: Counter[str] = Counter()
        for words in sequences:
            counts.update(words)
        min_count = _seldom(counts) if min_count is None else min_count
        frequent = [word for word, count in counts.items() if count >= min_count and word not in _SPECIALS]
        frequent.sort(key=lambda word: (-counts[word], word))
        return cls([*_SPECIALS, *frequent][:vocab_size])

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> WordTokenizer:
        """Read a folder that `save` wrote."""
        return cls(read_vocabulary(Path(folder)))

    def __repr__(self) -> str:
        return f"WordTokenizer({counted(self.vocab_size, 'word')})"

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write it as a Hugging Face tokenizer, so that one format serves words and subwords alike."""
        tokenizer = HuggingFaceTokenizer(models.WordLevel(dict(self._ids), unk_token=UNK))
        # Python splits at these four control characters and Hugging Face does not: make them agree.
        tokenizer.normalizer = normalizers.Replace(Regex("[\x1c-\x1f]"), " ")
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        write_folder(Path(folder), tokenizer, unk_token=UNK, eos_token=EOS, trellis_kind=KIND)

    def encode(self, text: str) -> list[int]:
        """Look every word up."""
        look_up, unknown = self._ids.get, self.unk_id
        return [look_up(word, unknown) for word in text.split()]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode one document after another."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """Join the words with spaces."""
        return " ".join(self.token(number) for number in ids)

    def token(self, id: int) -> str:
        """Word of an id."""
        if not 0 <= id < self.vocab_size:
            refuse_id(id, self.vocab_size)
        return self.words[id]

    def id(self, token: str) -> int:
        """Id of a word in the vocabulary; unlike `encode` it does not fall back on `<unk>`."""
        if token not in self._ids:
            refuse_token(token, self.words)
        return self._ids[token]

    def fingerprint(self) -> str:
        """Hash the word list; a word has no spaces, so a line each is unambiguous."""
        return hashlib.blake2b("\n".join([KIND, *self.words]).encode(), digest_size=16).hexdigest()


def _seldom(counts: Counter[str]) -> int:
    """The fewest times a word is seen in a text of this size to be worth an id of its own."""
    total = counts.total()
    if UNK in counts or total < 2_000:
        return 1
    return 2 if total < 300_000 else 3 if total < 3_000_000 else 5
