"""Words that a vocabulary does not have: which ones, and whether it knows them by another spelling."""

from __future__ import annotations

import string

from trellis.progress import counted
from trellis.text.tokenizer import Tokenizer

SHOWN = 5  # words named in a sentence; the rest are counted
_EDGES = string.punctuation + "“”‘’«»…"  # what often sticks to a word


class UnknownWords:
    """The distinct unknown words of texts, in the order in which they came."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.words: dict[str, None] = {}

    def read(self, text: str) -> None:
        """Take note of the unknown words between the spaces of a text."""
        if self.tokenizer.unk_id is None:
            return
        written = self.tokenizer.token(self.tokenizer.unk_id)  # who writes <unk> knows
        self.words |= {word: None for word in text.split() if word != written and not self._known(word)}

    def sentence(self) -> str | None:
        """One sentence that names the first few, with the spelling by which each is known, if there is one."""
        if not self.words:
            return None
        named = [self._named(word) for word in list(self.words)[:SHOWN]]
        more = f", and {len(self.words) - SHOWN:,} more" if len(self.words) > SHOWN else ""
        verb = "is" if len(self.words) == 1 else "are"
        return f"{counted(len(self.words), 'word')} {verb} unknown: {', '.join(named)}{more}"

    def known_as(self, word: str) -> str | None:
        """The same word in other letters, or without what sticks to it, if the vocabulary has that."""
        bare = word.strip(_EDGES)
        for other in (word.lower(), bare, bare.lower(), word.capitalize(), bare.capitalize(), bare.upper()):
            if other and other != word and self._known(other):
                return other
        return None

    def _named(self, word: str) -> str:
        known = self.known_as(word)
        return f"'{word}'" if known is None else f"'{word}' (known as '{known}')"

    def _known(self, word: str) -> bool:
        return self.tokenizer.unk_id not in self.tokenizer.encode(word)
