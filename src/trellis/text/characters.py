"""Characters and bytes as tokens: for texts whose spelling is what a model shall learn."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as HuggingFaceTokenizer

from trellis.errors import TrellisError
from trellis.progress import counted
from trellis.text.tokenizer import read_vocabulary, refuse_id, refuse_token, several, write_folder
from trellis.text.vocabulary import EOS, UNK

CHARACTERS, BYTES = "characters", "bytes"  # mark their folders in tokenizer_config.json
_SPECIALS = (UNK, EOS)
_SMALLEST = len(_SPECIALS) + 2  # fewer characters than two predict nothing
_BYTES = 256


class CharacterTokenizer:
    """Every character (Unicode code point) is a token; `<unk>` stands for those not seen when it was learnt."""

    def __init__(self, characters: Sequence[str]) -> None:
        self.characters = tuple(characters)
        self.vocab_size = len(self.characters)
        self.unk_id, self.eos_id = _SPECIALS.index(UNK), _SPECIALS.index(EOS)
        self._ids = {character: number for number, character in enumerate(self.characters)}
        singles = all(len(character) == 1 for character in self.characters[len(_SPECIALS) :])
        if self.characters[: len(_SPECIALS)] != _SPECIALS or len(self._ids) != len(self.characters) or not singles:
            raise TrellisError("A vocabulary lists <unk>, <eos> and then each character once; mend the list.")
        if len(self.characters) < _SMALLEST:
            raise TrellisError("The text has fewer than two different characters; give text with more.")

    @classmethod
    def train(cls, documents: Iterable[str], vocab_size: int | None = None, min_count: int = 1) -> CharacterTokenizer:
        """Take the `vocab_size` most frequent characters, specials included, seen `min_count` times; ties by name."""
        if vocab_size is not None and vocab_size < _SMALLEST:
            raise TrellisError(f"A vocabulary of {vocab_size} is too small; ask for {_SMALLEST} or more.")
        counts: Counter[str] = Counter()
        for document in several(documents):
            counts.update(document)
        frequent = [character for character, count in counts.items() if count >= min_count]
        frequent.sort(key=lambda character: (-counts[character], character))
        return cls([*_SPECIALS, *frequent][:vocab_size])

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> CharacterTokenizer:
        """Read a folder that `save` wrote."""
        return cls(read_vocabulary(Path(folder)))

    def __repr__(self) -> str:
        return f"CharacterTokenizer({counted(self.vocab_size, 'character')})"

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write it as a Hugging Face tokenizer that cuts between any two characters."""
        tokenizer = HuggingFaceTokenizer(models.WordLevel(dict(self._ids), unk_token=UNK))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        tokenizer.decoder = decoders.Fuse()
        write_folder(Path(folder), tokenizer, unk_token=UNK, eos_token=EOS, trellis_kind=CHARACTERS)

    def encode(self, text: str) -> list[int]:
        """Look every character up."""
        look_up, unknown = self._ids.get, self.unk_id
        return [look_up(character, unknown) for character in text]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode one document after another."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """Join the characters."""
        return "".join(self.token(number) for number in ids)

    def token(self, id: int) -> str:
        """Character of an id."""
        if not 0 <= id < self.vocab_size:
            refuse_id(id, self.vocab_size)
        return self.characters[id]

    def id(self, token: str) -> int:
        """Id of a character in the vocabulary; unlike `encode` it does not fall back on `<unk>`."""
        if token not in self._ids:
            refuse_token(token, self.characters)
        return self._ids[token]

    def fingerprint(self) -> str:
        """Hash the characters, each of which is one code point."""
        content = CHARACTERS + "".join(self.characters[len(_SPECIALS) :])
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


class ByteTokenizer:
    """The bytes of UTF-8 text, each its own id, and `<eos>` after them: nothing is ever unknown."""

    vocab_size = _BYTES + 1
    eos_id = _BYTES
    unk_id = None

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> ByteTokenizer:
        """Read a folder that `save` wrote; all such tokenizers are the same."""
        return cls()

    def __repr__(self) -> str:
        return "ByteTokenizer()"

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write it as a Hugging Face tokenizer: byte-level BPE that joins nothing."""
        tokenizer = HuggingFaceTokenizer(models.BPE({token: number for number, token in enumerate(_TOKENS)}, []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        write_folder(Path(folder), tokenizer, eos_token=EOS, trellis_kind=BYTES)

    def encode(self, text: str) -> list[int]:
        """The bytes of a text."""
        return list(text.encode())

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The bytes of several texts."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of some bytes, with � for what is not UTF-8."""
        spelt = (EOS.encode() if id == self.eos_id else bytes([self._checked(id)]) for id in ids)
        return b"".join(spelt).decode("utf-8", errors="replace")

    def token(self, id: int) -> str:
        """Spelling of a byte as byte-level tokenizers write it: Ġ is a space, Ċ a line's end."""
        return _TOKENS[self._checked(id)]

    def id(self, token: str) -> int:
        """Id of a byte in that spelling."""
        if token not in _TOKENS:
            refuse_token(token, _TOKENS)
        return _TOKENS.index(token)

    def fingerprint(self) -> str:
        """Hash the kind, which decides everything."""
        return hashlib.blake2b(BYTES.encode(), digest_size=16).hexdigest()

    def _checked(self, id: int) -> int:
        if not 0 <= id < self.vocab_size:
            refuse_id(id, self.vocab_size)
        return int(id)


def _spellings() -> tuple[str, ...]:
    """A printable character for every byte, as GPT-2 chose them: itself, or for the others those from U+0100 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = [byte for byte in range(_BYTES) if byte not in printable]
    return tuple(chr(byte if byte in printable else _BYTES + others.index(byte)) for byte in range(_BYTES))


_TOKENS = (*_spellings(), EOS)
