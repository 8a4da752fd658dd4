"""A text in two: all but its end to learn from, and the end to measure on."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from trellis.text.corpora import Corpus
from trellis.text.files import Advance, ignore

SHARE = 0.1  # of the text is held out
MOST = 600_000  # characters: about 100,000 words, which measure a model well enough
FEWEST = 2_000  # characters in all: the tenth of less would measure nothing


@dataclass(frozen=True)
class Part:
    """The documents of a corpus before a place, or those after it; a document that lies on both sides is cut there."""

    corpus: Corpus
    place: int  # in characters, one a document for its end
    after: bool

    @property
    def name(self) -> str:
        """The corpus's name, and which part this is."""
        return f"{self.corpus.name}, {'its end' if self.after else 'all but its end'}"

    @property
    def size(self) -> int | None:
        """How far `advance` counts: the corpus is read to the end of this part."""
        return self.corpus.size

    @property
    def unit(self) -> str:
        """As of the corpus."""
        return self.corpus.unit

    def content_hash(self) -> str:
        """Hash the corpus and the place of the cut."""
        about = f"{self.corpus.content_hash()} {self.place} {self.after}"
        return hashlib.blake2b(about.encode(), digest_size=16).hexdigest()

    def read(self, advance: Advance = ignore) -> Iterator[str]:
        """Yield this part's documents."""
        begin = 0
        for document in self.corpus.read(advance):
            end = begin + len(document) + 1
            if end <= self.place:
                if not self.after:
                    yield document
            elif begin >= self.place:
                if not self.after:
                    return
                yield document
            else:
                here = self.place - begin
                yield document[here:] if self.after else document[:here]
            begin = end

    def __iter__(self) -> Iterator[str]:
        return self.read()


def held_out(corpus: Corpus) -> tuple[Corpus, Corpus | None]:
    """The part to learn from and the part to measure on: the last tenth, or what 100,000 words take if that is less.

    They part between two documents, or where the place lies in a very long one, between two words of it. A text of a
    few lines stays whole.
    """
    place = _place(_Hashed(corpus))
    return (corpus, None) if place is None else (Part(corpus, place, False), Part(corpus, place, True))


@dataclass(frozen=True)
class _Hashed:
    """A corpus that is known by its hash, so that it is looked through once."""

    corpus: Corpus

    def __hash__(self) -> int:
        return hash(self.corpus.content_hash())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Hashed) and self.corpus.content_hash() == other.corpus.content_hash()


@functools.lru_cache(maxsize=16)
def _place(text: _Hashed) -> int | None:
    total = sum(len(document) + 1 for document in text.corpus)
    if total < FEWEST:
        return None
    wanted = total - min(round(SHARE * total), MOST)
    begin = 0
    for document in text.corpus:
        end = begin + len(document) + 1
        if end > wanted:
            break
        begin = end
    return _boundary(document, begin, wanted, total)


def _boundary(document: str, begin: int, wanted: int, total: int) -> int:
    """The document's beginning or end, whichever is nearer, or a space in it if both are far or leave nothing."""
    end = begin + len(document) + 1
    far = (total - wanted) / 2
    places = [place for place in (begin, end) if 0 < place < total and abs(place - wanted) <= far]
    if places:
        return min(places, key=lambda place: abs(place - wanted))
    space = document.rfind(" ", 0, wanted - begin)
    return wanted if space <= 0 else begin + space + 1
