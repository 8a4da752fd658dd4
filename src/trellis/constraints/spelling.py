"""How tokens are spelt: the bytes that each adds to a text, for every tokenizer.

In texts of words and of SentencePiece tokens, a space belongs to the token after it, and `decode` drops the space
before the first token: there the first token is spelt without it. Special tokens have no spelling and are part of no
text.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trellis.automata import Automaton, Spellings, every, lifted
from trellis.errors import TrellisError
from trellis.text import ByteTokenizer, CharacterTokenizer, IntegerTokenizer, SubwordTokenizer, Tokenizer, WordTokenizer

Spelt = list[bytes | None]
_BYTE_ALPHABET = {ByteTokenizer().token(byte): byte for byte in range(256)}  # as GPT-2 writes bytes
_BYTE_PIECE = re.compile("<0x[0-9A-Fa-f]{2}>")
_KNOWN: weakref.WeakKeyDictionary[Tokenizer, Spelling] = weakref.WeakKeyDictionary()


class Spelling:
    """What constraints need of a tokenizer; `words` says that each token is a word, and phrases are made of these."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.end_token, self.symbols = tokenizer.eos_id, tokenizer.vocab_size
        self.words = isinstance(tokenizer, WordTokenizer | IntegerTokenizer)
        self._tokenizer = weakref.ref(tokenizer)  # it is the key under which this is kept

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer itself."""
        tokenizer = self._tokenizer()
        assert tokenizer is not None, "whoever asks holds the tokenizer"
        return tokenizer

    @cached_property
    def fingerprint(self) -> str:
        """The tokenizer's fingerprint, by which automata are kept."""
        return self.tokenizer.fingerprint()

    @cached_property
    def tokens(self) -> tuple[Spelt, Spelt]:
        """The bytes of every token within a text, and as its first; None: special."""
        return spelt(self.tokenizer)

    @cached_property
    def allowed_V(self) -> NDArray[np.bool_]:
        """The tokens that may be part of a text."""
        if self.words:
            return np.asarray(np.arange(self.symbols) != (-1 if self.end_token is None else self.end_token))
        return np.array([spelling is not None for spelling in self.tokens[0]])

    @cached_property
    def every(self) -> Automaton:
        """All texts."""
        return every(self.allowed_V)

    def lifted(self, automaton: Automaton) -> Automaton:
        """An automaton over the bytes of texts as one over tokens."""
        return lifted(automaton, *self._spellings)

    @cached_property
    def _spellings(self) -> tuple[Spellings, Spellings]:
        within, first = self.tokens
        return Spellings(within), Spellings(first)


def spelling_of(tokenizer: Tokenizer) -> Spelling:
    """The spelling of a tokenizer, made once."""
    if tokenizer not in _KNOWN:
        _KNOWN[tokenizer] = Spelling(tokenizer)
    return _KNOWN[tokenizer]


def spelt(tokenizer: Tokenizer) -> tuple[Spelt, Spelt]:
    """The bytes of every token within a text, and as its first; None for special tokens."""
    if isinstance(tokenizer, WordTokenizer | IntegerTokenizer):
        words: Spelt = [
            None if id == tokenizer.eos_id else tokenizer.token(id).encode() for id in range(tokenizer.vocab_size)
        ]
        return [None if word is None else b" " + word for word in words], words
    if isinstance(tokenizer, CharacterTokenizer):
        special = (tokenizer.unk_id, tokenizer.eos_id)
        characters = [None if id in special else _utf8(tokenizer.token(id)) for id in range(tokenizer.vocab_size)]
        return characters, characters
    if isinstance(tokenizer, ByteTokenizer):
        single = [bytes([id]) if id != tokenizer.eos_id else None for id in range(tokenizer.vocab_size)]
        return list(single), list(single)
    if isinstance(tokenizer, SubwordTokenizer):
        return _subwords(tokenizer)
    raise TrellisError(
        f"How {type(tokenizer).__name__} spells its tokens is not known; use a tokenizer of `trellis.text`."
    )


def _utf8(text: str) -> bytes | None:
    """The bytes of a character; half a surrogate pair has none and is never generated."""
    return text.encode("utf-8", errors="ignore") or None


def _subwords(tokenizer: SubwordTokenizer) -> tuple[Spelt, Spelt]:
    described = tokenizer.description()
    read = _decoder(described.get("decoder"))
    special = {added["id"] for added in described.get("added_tokens", []) if added.get("special")}
    special |= {tokenizer.eos_id, tokenizer.unk_id}
    within, first = Spelt(), Spelt()
    for id in range(tokenizer.vocab_size):
        token = None if id in special else _token(tokenizer, id)
        spellings = (None, None) if token is None else read(token)
        within.append(spellings[0])
        first.append(spellings[1])
    return within, first


def _token(tokenizer: SubwordTokenizer, id: int) -> str | None:
    """A token in the tokenizer's own alphabet; some vocabularies skip ids."""
    try:
        return tokenizer.token(id)
    except TrellisError:
        return None


def _decoder(described: dict[str, Any] | None) -> Callable[[str], tuple[bytes, bytes]]:
    """How a tokenizer's decoder writes a token within a text, and as its first."""
    if described is None:  # tokens are words, with spaces between them
        return lambda token: (b" " + token.encode(), token.encode())
    steps = described["decoders"] if described["type"] == "Sequence" else [described]
    if [step["type"] for step in steps] == ["ByteLevel"]:
        return _byte_level
    for step in steps:
        if not _known(step):
            raise TrellisError(
                f"How this tokenizer spells its tokens (decoder {step['type']}) is not known; use one of words, "
                "characters or bytes, or a SentencePiece or byte-level vocabulary."
            )
    return lambda token: _pieces(token, steps)


def _byte_level(token: str) -> tuple[bytes, bytes]:
    known = all(character in _BYTE_ALPHABET for character in token)
    written = bytes(_BYTE_ALPHABET[character] for character in token) if known else token.encode()
    return written, written


def _known(step: dict[str, Any]) -> bool:
    """Whether a step of a decoder writes every token by itself, but for one space before the first."""
    if step["type"] == "Replace":
        return "String" in step["pattern"]
    if step["type"] == "Strip":
        return bool(step["content"] == " " and step["start"] <= 1 and step["stop"] == 0)
    return step["type"] in ("ByteFallback", "Fuse", "Metaspace")


def _pieces(token: str, steps: list[dict[str, Any]]) -> tuple[bytes, bytes]:
    """A token of the SentencePiece kind: ▁ is a space, <0x0A> is a byte, and the first space of a text is dropped.

    Metaspace drops all the spaces of the first token.
    """
    written, first = token, None
    for step in steps:
        if step["type"] == "Replace":
            written = written.replace(step["pattern"]["String"], step["content"])
        elif step["type"] == "Metaspace":
            if step.get("prepend_scheme", "always") != "never":
                first = written.replace(step["replacement"], "")
            written = written.replace(step["replacement"], " ")
        elif step["type"] == "ByteFallback" and _BYTE_PIECE.fullmatch(written):
            return _dropped(bytes([int(written[3:5], 16)]), steps)
    return _dropped(written.encode(), steps) if first is None else (written.encode(), first.encode())


def _dropped(within: bytes, steps: list[dict[str, Any]]) -> tuple[bytes, bytes]:
    """A token within a text, and as its first, of which a decoder may strip one space."""
    strips = any(step["type"] == "Strip" and step["start"] for step in steps)
    return within, within[1:] if strips and within.startswith(b" ") else within
