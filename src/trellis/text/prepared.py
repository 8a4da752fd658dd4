"""A folder of ids as a corpus: its ids as they are where the tokenizer is its own, its decoded text for any other."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np

from trellis.errors import TrellisError
from trellis.folders import default_cache, disk_trouble, one_at_a_time, whole_folder
from trellis.text.corpora import Corpus, open_corpus
from trellis.text.files import Advance, ignore
from trellis.text.ids import META_FILE, IdFile, decoded, prepare
from trellis.text.tokenizer import TOKENIZER_FILE, Tokenizer, load_tokenizer

_FORMAT = 1  # raise it when the cut changes, so that old caches are not taken for new
_REMEDY = "set TRELLIS_CACHE to another folder"


@dataclass(frozen=True)
class PreparedCorpus:
    """Documents that are ids already; their text needs the tokenizer beside them. Progress counts documents."""

    folder: Path
    unit: ClassVar[str] = "documents"

    @cached_property
    def ids(self) -> IdFile:
        """The id file."""
        return IdFile.open(self.folder)

    @property
    def name(self) -> str:
        """As the id file has it."""
        return self.ids.meta.corpus

    @property
    def size(self) -> int:
        """Count the documents."""
        return self.ids.meta.documents

    def content_hash(self) -> str:
        """Hash what the ids were made from, with what, and how many there are."""
        meta = self.ids.meta
        told = json.dumps([meta.content_hash, meta.fingerprint, meta.tokens])
        return hashlib.blake2b(told.encode(), digest_size=16).hexdigest()

    def read(self, advance: Advance = ignore) -> Iterator[str]:
        """Yield the text of every document."""
        if not (self.folder / TOKENIZER_FILE).is_file():
            raise TrellisError(
                f"{self.folder} was prepared with another tokenizer and does not say which: give the text itself."
            )
        tokenizer, begin = load_tokenizer(self.folder), 0
        for end in self.ids.documents:
            yield decoded(self.ids.ids[begin:end], tokenizer)
            advance(1)
            begin = int(end)

    def __iter__(self) -> Iterator[str]:
        return self.read()


def is_prepared(source: str | os.PathLike[str]) -> bool:
    """Whether this is a folder of ids."""
    return (Path(source) / META_FILE).is_file()


def open_text(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], split: str = "train", data_dir: str | None = None
) -> Corpus:
    """Open a folder of ids, or what `open_corpus` opens."""
    if isinstance(source, str | os.PathLike) and is_prepared(source):
        return PreparedCorpus(Path(source))
    return open_corpus(source, split, data_dir)


def as_ids(corpus: Corpus, tokenizer: Tokenizer, max_tokens: int | None = None, quiet: bool = False) -> IdFile:
    """The corpus as ids: those that it has, or those that `prepare` makes of its text."""
    if not isinstance(corpus, PreparedCorpus) or corpus.ids.meta.fingerprint != tokenizer.fingerprint():
        return prepare(corpus, tokenizer, max_tokens=max_tokens, quiet=quiet)
    if max_tokens is None or max_tokens >= corpus.ids.meta.tokens:
        return corpus.ids
    return _beginning(corpus, tokenizer, max_tokens)


def _beginning(corpus: PreparedCorpus, tokenizer: Tokenizer, tokens: int) -> IdFile:
    """Its first documents, up to the one that reaches so many tokens; made once and kept."""
    told = json.dumps([_FORMAT, "beginning", corpus.content_hash(), tokens])
    folder = default_cache() / hashlib.blake2b(told.encode(), digest_size=16).hexdigest()
    with disk_trouble(folder, _REMEDY), one_at_a_time(folder):
        if not IdFile.found(folder):
            ends = corpus.ids.documents[: int(np.searchsorted(corpus.ids.documents, tokens)) + 1]
            with whole_folder(folder, _REMEDY) as partial:
                IdFile.from_documents(partial, corpus.ids.ids[: ends[-1]], ends, tokenizer, corpus.name)
    return IdFile.open(folder)
