"""Subword vocabularies: any Hugging Face tokenizer folder, or a byte-level BPE of our own."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from trellis.errors import TrellisError
from trellis.progress import counted
from trellis.text.tokenizer import read_config, refuse_id, refuse_token, several, tokenizer_file, write_folder
from trellis.text.vocabulary import EOS

# Tried in this order when a folder does not say which token ends a document.
_USUAL_EOS = ("</s>", "<|endoftext|>", "<|end_of_text|>", EOS)
_BYTES = 256
_LONG = re.compile(r"\S{1000}|\s{1000}")


class SubwordTokenizer:
    """A `tokenizers` tokenizer that adds no special tokens and never cuts or pads a document."""

    def __init__(
        self, tokenizer: HuggingFaceTokenizer, eos: str | None = None, unk: str | None = None, bos: str | None = None
    ) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer, self._eos, self._unk, self._bos = tokenizer, eos, unk, bos
        vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
        if len(vocabulary) <= 1:
            raise TrellisError("A vocabulary of one token cannot model text; choose another tokenizer.")
        self.vocab_size = max(vocabulary.values()) + 1
        self.eos_id = vocabulary.get(eos) if eos is not None else None
        self.unk_id = vocabulary.get(unk) if unk is not None else None

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> SubwordTokenizer:
        """Read a folder with tokenizer.json, taking the names of special tokens from its config."""
        path = tokenizer_file(Path(folder))
        try:
            tokenizer = HuggingFaceTokenizer.from_file(str(path))
        except Exception as error:  # the Rust side raises plain Exception
            raise TrellisError(f"{path} is not a sound tokenizer ({error}); fetch or save it again.") from error
        if isinstance(tokenizer.post_processor, processors.TemplateProcessing) and not _adds_tokens(tokenizer):
            tokenizer.post_processor = None  # transformers saves a template that adds nothing where there was none
        config = read_config(Path(folder))
        eos = _spelling(config.get("eos_token"))
        if eos is None:
            eos = next((token for token in _USUAL_EOS if tokenizer.token_to_id(token) is not None), None)
        unk = _spelling(config.get("unk_token")) or getattr(tokenizer.model, "unk_token", None)
        return cls(tokenizer, eos, unk, _spelling(config.get("bos_token")))

    @classmethod
    def train_bpe(cls, documents: Iterable[str], vocab_size: int) -> SubwordTokenizer:
        """Learn byte-level BPE: every byte is a token, so nothing is ever unknown; `<eos>` has id 0.

        Words of more than a thousand characters are learnt from in pieces: a merge moves all of a word that follows it,
        so that learning would take the square of a word's length.
        """
        if vocab_size <= _BYTES:
            raise TrellisError(f"A byte-level vocabulary needs {_BYTES + 1} tokens or more; raise vocab_size.")
        tokenizer = HuggingFaceTokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[EOS],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(_cut(several(documents)), trainer)
        return cls(tokenizer, EOS)

    def __repr__(self) -> str:
        return f"SubwordTokenizer({counted(self.vocab_size, 'token')})"

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write tokenizer.json and the names of the special tokens."""
        names = {"eos_token": self._eos, "unk_token": self._unk, "bos_token": self._bos}
        write_folder(Path(folder), self._tokenizer, **names)

    def encode(self, text: str) -> list[int]:
        """Ids of one document."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of several documents, on as many threads as RAYON_NUM_THREADS allows."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def encode_with_begins(self, text: str) -> tuple[list[int], list[int]]:
        """Ids of one document, and the character of the text at which each begins."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return encoding.ids, [begin for begin, _ in encoding.offsets]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of some ids, special tokens spelt out."""
        text: str = self._tokenizer.decode([int(number) for number in ids], skip_special_tokens=False)
        return text

    def token(self, id: int) -> str:
        """Spelling of an id in the tokenizer's own alphabet (▁ or Ġ for a space)."""
        token: str | None = self._tokenizer.id_to_token(int(id)) if 0 <= id < self.vocab_size else None
        if token is None:
            refuse_id(id, self.vocab_size)
        return token

    def id(self, token: str) -> int:
        """Id of a token in the tokenizer's own alphabet."""
        number: int | None = self._tokenizer.token_to_id(token)
        if number is None:
            refuse_token(token, self._tokenizer.get_vocab())
        return number

    def pieces(self) -> set[int]:
        """Ids of the pieces that words are cut into; not of special and other tokens that were added to them."""
        vocabulary: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        return set(vocabulary.values()) - set(self._tokenizer.get_added_tokens_decoder())

    def description(self) -> dict[str, Any]:
        """All of the tokenizer as its file says it, its decoder and its special tokens among that."""
        described: dict[str, Any] = json.loads(self._tokenizer.to_str())
        return described

    def fingerprint(self) -> str:
        """Hash the tokenizer and its document end, all that decides the ids in a file."""
        content = f"{self._tokenizer.to_str()}\n{self.eos_id}\n{self.unk_id}"
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def _cut(documents: Iterable[str]) -> Iterator[str]:
    """The documents, cut within words and runs of spaces that are too long to learn from."""
    for document in documents:
        begin = 0
        for long in _LONG.finditer(document):
            yield document[begin : long.end()]
            begin = long.end()
        yield document[begin:]


def _spelling(token: Any) -> str | None:
    """Configs name a special token by a string or by an object with its content."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _adds_tokens(tokenizer: HuggingFaceTokenizer) -> bool:
    return bool(tokenizer.num_special_tokens_to_add(is_pair=False) or tokenizer.num_special_tokens_to_add(is_pair=True))
