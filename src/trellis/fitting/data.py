"""Three kinds of data: texts, lists of tokens and whole numbers; each knows its parts, its tokenizer and its ids.

All have a `kind`, what a sequence is; the `name` of the argument they came by; `running`, whether they are one text
and not samples each of which begins anew; `count`, the sequences; `held_out`, a part to learn from and a tenth to
measure on, None if there is too little; `tokenizer`, the one chosen or one made for them; `ids`, on disk, to learn
from; and `encoded`, the ids of each sequence without an end, to ask about.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from trellis.errors import InputError, TrellisError
from trellis.fitting.checking import Integers
from trellis.text import (
    Corpus,
    IdFile,
    IntegerTokenizer,
    MemoryCorpus,
    Tokenizer,
    WordTokenizer,
    load_tokenizer,
    prepare,
)
from trellis.text.held_out import MOST, SHARE, held_out
from trellis.text.sources import LEARNT, DataSettings, find_tokenizer, learn_tokenizer

MOST_TOKENS = 100_000  # held out: they measure a model well enough
FEW = 10  # sequences: of fewer, the end of each is held out, for a tenth of them would be none or too much


@dataclass(frozen=True)
class Texts:
    """Strings, or a corpus of documents."""

    kind: ClassVar[str] = "strings"
    name: str
    corpus: Corpus
    running: bool
    in_memory: bool = True

    @property
    def count(self) -> int:
        """Documents."""
        return len(self.corpus.documents) if isinstance(self.corpus, MemoryCorpus) else sum(1 for _ in self.corpus)

    def held_out(self, seed: int) -> tuple[Texts, Texts | None]:
        """Samples drawn at random, or the end of a text."""
        few = self.running or self.count < FEW
        learnt, measured = held_out(self.corpus) if few else self._samples(seed)
        if measured is None or not all(any(map(str.split, part)) for part in (learnt, measured)):
            return self, None
        return replace(self, corpus=learnt), replace(self, corpus=measured)

    def _samples(self, seed: int) -> tuple[Corpus, Corpus]:
        documents = tuple(self.corpus)
        both = _both(_drawn([len(document) + 1 for document in documents], MOST, seed), documents)
        learnt, measured = (MemoryCorpus(self.name, tuple(documents[at] for at in these)) for these in both)
        return learnt, measured

    def tokenizer(self, chosen: Any, told: DataSettings, quiet: bool) -> Tokenizer:
        """As chosen by name, folder or object; by default the text's words."""
        if not isinstance(chosen, str | os.PathLike | None):
            return _checked(chosen)
        told = told if chosen is None else replace(told, tokenizer=str(chosen))
        if self.in_memory and told.tokenizer in LEARNT:  # nothing of it is left in the cache
            return learn_tokenizer(self.corpus, told, quiet)
        return find_tokenizer(self.corpus, told, quiet)

    def ids(self, tokenizer: Tokenizer, folder: Path, quiet: bool) -> IdFile:
        """Tokenised into the folder; of files, into the cache, for the next time."""
        return prepare(self.corpus, tokenizer, folder if self.in_memory else None, quiet=quiet)

    def encoded(self, tokenizer: Tokenizer) -> list[Integers]:
        """Tokenised here."""
        return [np.array(ids, dtype=np.int64) for ids in tokenizer.encode_batch(list(self.corpus))]


class _Sequences:
    """Data that lies cut into sequences."""

    sequences: list[Any]

    @property
    def running(self) -> bool:
        """One sequence is a text."""
        return len(self.sequences) == 1

    @property
    def count(self) -> int:
        """Sequences."""
        return len(self.sequences)


@dataclass(frozen=True)
class Tokens(_Sequences):
    """Lists of tokens."""

    kind: ClassVar[str] = "tokens"
    name: str
    sequences: list[list[str]]

    def held_out(self, seed: int) -> tuple[Tokens, Tokens | None]:
        """Sequences drawn at random, or the ends of a few."""
        return _parted(self, self.sequences, seed)

    def tokenizer(self, chosen: Any, told: DataSettings, quiet: bool) -> Tokenizer:
        """A vocabulary of the tokens, or the one that was chosen."""
        if chosen is None or chosen == "words":
            return WordTokenizer.count(self.sequences, told.vocab_size, told.min_count)
        if isinstance(chosen, str) and chosen in (*LEARNT, "bytes"):
            raise InputError(
                f"tokenizer={chosen!r} cuts strings, but {self.name} holds lists of tokens: leave tokenizer out, or "
                "give strings."
            )
        return load_tokenizer(chosen) if isinstance(chosen, str | os.PathLike) else _checked(chosen)

    def ids(self, tokenizer: Tokenizer, folder: Path, quiet: bool) -> IdFile:
        """Looked up and written into the folder."""
        return IdFile.from_arrays(folder / self.name, self.encoded(tokenizer), tokenizer, self.name)

    def encoded(self, tokenizer: Tokenizer) -> list[Integers]:
        """Looked up; a token outside the vocabulary is `<unk>`, if that has one."""
        known = {token: _look_up(token, tokenizer) for token in {token for one in self.sequences for token in one}}
        return [np.array([known[token] for token in sequence], dtype=np.int64) for sequence in self.sequences]


@dataclass(frozen=True)
class Numbers(_Sequences):
    """Sequences of whole numbers, which are symbols already."""

    kind: ClassVar[str] = "integers"
    name: str
    sequences: list[Integers]
    symbols: int | None = None  # that there are, if these sequences are part of more

    def held_out(self, seed: int) -> tuple[Numbers, Numbers | None]:
        """Sequences drawn at random, or the ends of a few; both know all the symbols."""
        return _parted(replace(self, symbols=1 + self._largest()), self.sequences, seed)

    def tokenizer(self, chosen: Any, told: DataSettings, quiet: bool) -> Tokenizer:
        """The numbers from 0 to the largest, or as many as told."""
        if chosen not in (None, "integers"):
            if not isinstance(chosen, IntegerTokenizer):
                raise InputError(f"tokenizer does not fit, since {self.name} holds whole numbers: leave it out.")
            return chosen
        if told.vocab_size is None and all((one == self.sequences[0][0]).all() for one in self.sequences):
            raise InputError(
                f"{self.name} holds one symbol only, {self.sequences[0][0]}, from which nothing can be learnt: give "
                "more data, or vocab_size if other symbols are possible."
            )
        return IntegerTokenizer(told.vocab_size or self.symbols or 1 + self._largest())

    def ids(self, tokenizer: Tokenizer, folder: Path, quiet: bool) -> IdFile:
        """Written into the folder."""
        return IdFile.from_arrays(folder / self.name, self.encoded(tokenizer), tokenizer, self.name)

    def encoded(self, tokenizer: Tokenizer) -> list[Integers]:
        """As they are."""
        if self._largest() >= tokenizer.vocab_size:
            raise InputError(
                f"{self.name} holds the symbol {self._largest()}, but the model knows 0 to {tokenizer.vocab_size - 1}: "
                f"fit with vocab_size={1 + self._largest()}."
            )
        return self.sequences

    def _largest(self) -> int:
        return max(int(one.max()) for one in self.sequences)


Data = Texts | Tokens | Numbers
D = TypeVar("D", Tokens, Numbers)


def _parted(data: D, sequences: Sequence[Any], seed: int) -> tuple[D, D | None]:
    """Some sequences to learn from and the others; of a few, their beginnings and their ends."""
    lengths = [len(sequence) for sequence in sequences]
    if len(sequences) >= FEW:
        both = [[sequences[at] for at in these] for these in _both(_drawn(lengths, MOST_TOKENS, seed), sequences)]
    else:
        places = [length - min(round(SHARE * length), MOST_TOKENS // len(lengths)) for length in lengths]
        cuts = list(zip(sequences, places, strict=True))
        both = [[one[:place] for one, place in cuts], [one[place:] for one, place in cuts if place < len(one)]]
    learnt, measured = (replace(data, sequences=part) for part in both)
    return (learnt, measured) if measured.sequences else (data, None)


def _drawn(lengths: Sequence[int], most: int, seed: int) -> set[int]:
    """A tenth of the sequences, drawn at random, and no more tokens than `most`, but at least one."""
    order = np.random.default_rng(seed).permutation(len(lengths))[: max(1, round(SHARE * len(lengths)))]
    within = np.cumsum(np.asarray(lengths)[order]) <= most
    within[0] = True
    return set(order[within].tolist())


def _both(chosen: set[int], all_of_them: Sequence[Any]) -> tuple[list[int], list[int]]:
    """The places of those that were not chosen, and of those that were."""
    everything = range(len(all_of_them))
    return [at for at in everything if at not in chosen], [at for at in everything if at in chosen]


def _look_up(token: str, tokenizer: Tokenizer) -> int:
    try:
        return tokenizer.id(token)
    except TrellisError as error:
        if tokenizer.unk_id is None:
            raise InputError(str(error)) from error
        return tokenizer.unk_id


def _checked(tokenizer: Any) -> Tokenizer:
    if not all(hasattr(tokenizer, name) for name in ("encode_batch", "vocab_size", "eos_id", "fingerprint")):
        raise InputError(
            f"tokenizer is of type {type(tokenizer).__name__}: give a name ({', '.join(LEARNT)}, bytes), a tokenizer's "
            "folder, or what trellis.load_tokenizer gave."
        )
    found: Tokenizer = tokenizer
    return found
