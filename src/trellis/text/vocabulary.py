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
from trellis.text.tokenizer import read_json, refuse_id, refuse_token, tokenizer_file, write_folder

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
    def train(cls, documents: Iterable[str], size: int | None = None, min_count: int = 1) -> WordTokenizer:
        """Take the `size` most frequent words, specials included, seen `min_count` times; ties by name."""
        if size is not None and size < _SMALLEST:
            raise TrellisError(f"A vocabulary of {size} is too small; ask for {_SMALLEST} or more.")
        counts: Counter[str] = Counter()
        for document in documents:
            counts.update(document.split())
        frequent = [word for word, count in counts.items() if count >= min_count and word not in _SPECIALS]
        frequent.sort(key=lambda word: (-counts[word], word))
        return cls([*_SPECIALS, *frequent][:size])

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> WordTokenizer:
        """Read a folder that `save` wrote."""
        path = tokenizer_file(Path(folder))
        try:
            vocabulary = read_json(path)["model"]["vocab"]
            words = sorted(vocabulary, key=vocabulary.__getitem__)
            sound = [vocabulary[word] for word in words] == list(range(len(words)))
        except (KeyError, TypeError) as error:
            raise TrellisError(f"{path} holds no word vocabulary; save the tokenizer again.") from error
        if not sound:
            raise TrellisError(f"{path} skips or repeats an id; save the tokenizer again.")
        return cls(words)

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
