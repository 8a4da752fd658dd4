"""Corpora and tokenizers by the names people give them, and what a run's settings say of its texts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trellis.errors import TrellisError
from trellis.folders import default_cache, disk_trouble, one_at_a_time, places, whole_folder
from trellis.progress import Progress, waiting
from trellis.text.characters import ByteTokenizer, CharacterTokenizer
from trellis.text.corpora import NAMES, Corpus, FileCorpus, check_split
from trellis.text.files import is_array
from trellis.text.held_out import Part, held_out
from trellis.text.ids import IdFile
from trellis.text.integers import IntegerTokenizer
from trellis.text.prepared import as_ids, is_prepared, open_text
from trellis.text.subwords import SubwordTokenizer
from trellis.text.tokenizer import Tokenizer, load_tokenizer
from trellis.text.vocabulary import WordTokenizer

BPE_SIZE = 8192
MOST_TYPES = 1 << 24  # no text that people have has more, and a table of more would fill any memory
LEARNT = ("words", "bpe", "characters", "integers")  # tokenizers that are made from a text
NONE = "none"  # data.valid: learn from all of the text


@dataclass(frozen=True)
class DataSettings:
    """What text to learn from, and how it becomes tokens."""

    corpus: str | list[str] = "pydocs"  # a corpus by name, a file, several files, an id folder, or - for standard input
    valid: str | list[str] | None = None  # validation text, or none; by default a named corpus's own, and of files the
    # last tenth, which is then not learnt from
    test: str | list[str] | None = None  # test text, by the same rule
    data_dir: str | None = None  # where named corpora lie; by default the environment's TRELLIS_DATA
    tokenizer: str = "words"  # words (between spaces), bpe (learnt pieces), characters, bytes, integers (whole numbers
    # between spaces, and what a .npy file holds), or a tokenizer's folder
    vocab_size: int | None = None  # types to learn; by default all there are, or 8,192 pieces for bpe
    min_count: int | None = None  # words: rarer ones are <unk>; by default 1 if the text has <unk>, or less than
    # 2,000 words; else 2, of more than 300,000 words 3, of more than three million 5
    max_tokens: int | None = None  # stop after the document that reaches so many; by default take all
    valid_tokens: int | None = None  # validation text: the same limit
    labels: str | None = None  # a .npy file of one state a training token, −1 if unknown, for training.objective=joint

    def __post_init__(self) -> None:
        if not self.corpus:
            raise TrellisError("data.corpus names no text: give a corpus or a file.")
        for name in ("vocab_size", "min_count", "max_tokens", "valid_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise TrellisError(f"data.{name} must be at least 1, not {value}.")
        if self.vocab_size is not None and self.vocab_size > MOST_TYPES:
            raise TrellisError(f"data.vocab_size={self.vocab_size:,} is more than {MOST_TYPES:,}: set fewer types.")
        if self.vocab_size is not None and self.tokenizer not in LEARNT:
            raise TrellisError(
                f"data.vocab_size is for tokenizers learnt from the text: leave it out with {self.tokenizer}."
            )
        if self.min_count is not None and self.min_count > 1 and self.tokenizer != "words":
            raise TrellisError("data.min_count is for words: leave it out with another tokenizer.")


def open_sources(sources: Sequence[str], split: str, data_dir: str | None = None) -> Corpus:
    """A named corpus's split, or files."""
    return open_text(sources[0] if len(sources) == 1 else sources, split, data_dir)


def open_split(data: DataSettings, split: str, data_dir: str | None = None) -> Corpus | None:
    """The text of a split: as set, or a named corpus's own; None if there is none."""
    split = check_split(split)
    source = {"train": data.corpus, "valid": data.valid, "test": data.test}[split]
    if split == "valid" and source == NONE:
        return None
    if source is None and data.corpus in NAMES:
        source = data.corpus
    if split != "test" and source in (None, data.corpus) and _splits(data):
        return held_out(open_text(data.corpus, "train", data_dir or data.data_dir))[split == "valid"]
    return None if source is None else open_text(source, split, data_dir or data.data_dir)


def _splits(data: DataSettings) -> bool:
    """Whether the end of the text is held out for validation: of files for which none is named, nor labels given."""
    return data.valid is None and data.labels is None and data.corpus not in NAMES


class Texts(NamedTuple):
    """What a run learns from."""

    tokenizer: Tokenizer
    train: IdFile
    valid: IdFile | None
    labels: NDArray[Any] | None  # the states of the training tokens, where some are given


def prepare_texts(data: DataSettings, quiet: bool = False) -> Texts:
    """Open every text before any work starts, then find or learn the tokenizer, then tokenise."""
    corpus, valid = open_split(data, "train"), open_split(data, "valid")
    labels = None if data.labels is None else _read_labels(data.labels)
    assert corpus is not None
    tokenizer = find_tokenizer(corpus, data, quiet)
    ids = as_ids(corpus, tokenizer, data.max_tokens, quiet)
    measured = None if valid is None else as_ids(valid, tokenizer, data.valid_tokens, quiet)
    return Texts(tokenizer, ids, measured, labels)


def _read_labels(path: str) -> NDArray[Any]:
    try:
        labels: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError):
        raise TrellisError(f"{path} is not a NumPy file of whole numbers: write the labels with numpy.save.") from None
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise TrellisError(f"{path} holds {labels.dtype} of shape {labels.shape}: give one whole number a token.")
    return labels


def evaluation_ids(
    tokenizer: Tokenizer,
    sources: Sequence[str] | DataSettings,
    split: str,
    data_dir: str | None = None,
    quiet: bool = False,
) -> IdFile:
    """Text as a model's own tokens: a corpus, files, a folder of `trellis prepare`, or what a run's settings name."""
    if isinstance(sources, DataSettings):
        corpus = open_split(sources, split, data_dir)
        if corpus is None:
            raise TrellisError(f"the run was given no {split} text: name a corpus or files.")
    elif len(sources) == 1 and is_prepared(sources[0]):
        ids = IdFile.open(sources[0])
        if ids.meta.fingerprint != tokenizer.fingerprint():
            raise TrellisError(f"{sources[0]} was prepared with another tokenizer than the model's: give the text.")
        return ids
    else:
        corpus = open_sources(sources, split, data_dir)
    return as_ids(corpus, tokenizer, quiet=quiet)


def find_tokenizer(corpus: Corpus, data: DataSettings, quiet: bool = False) -> Tokenizer:
    """A tokenizer's folder as given or in the data folder; or one learnt from the corpus, once, and kept."""
    if data.tokenizer == "words" and _holds_arrays(corpus):
        data = replace(data, tokenizer="integers")
    if data.tokenizer == "bytes":
        return ByteTokenizer()
    if data.tokenizer == "integers" and isinstance(corpus, Part):
        corpus = corpus.corpus  # a symbol that occurs in the end alone is one of the symbols there are
    if data.tokenizer in LEARNT:
        return _learnt_before(corpus, data, quiet)
    looked_at = [Path(data.tokenizer) / "best", *places(data.tokenizer, data.data_dir)]
    for place in looked_at:
        if place.is_dir():
            return load_tokenizer(place)
    looked = " and ".join(map(str, looked_at))
    raise TrellisError(
        f"'{data.tokenizer}' is neither {', '.join(LEARNT)}, bytes nor a tokenizer's folder: looked at {looked}."
    )


def _holds_arrays(corpus: Corpus) -> bool:
    """Whether all of a text is NumPy files, whose words are whole numbers."""
    corpus = corpus.corpus if isinstance(corpus, Part) else corpus
    return isinstance(corpus, FileCorpus) and all(map(is_array, corpus.paths))


def _learnt_before(corpus: Corpus, data: DataSettings, quiet: bool) -> Tokenizer:
    """Processes that want the same one wait for the first to learn it."""
    told = [corpus.content_hash(), data.tokenizer, data.vocab_size, data.min_count, data.max_tokens]
    key = hashlib.blake2b(json.dumps(told).encode(), digest_size=16).hexdigest()
    folder = default_cache() / f"tokenizer-{key}"
    with disk_trouble(folder), one_at_a_time(folder):
        if folder.exists():
            with suppress(TrellisError):  # damaged: learnt anew
                return load_tokenizer(folder)
        tokenizer = learn_tokenizer(corpus, data, quiet)
        with whole_folder(folder) as temporary:
            tokenizer.save(temporary)
    return load_tokenizer(folder)


def learn_tokenizer(corpus: Corpus, data: DataSettings, quiet: bool = False) -> Tokenizer:
    """One of the kinds in `LEARNT`, learnt from a text."""
    if data.tokenizer == "integers" and data.vocab_size is not None:
        return IntegerTokenizer(data.vocab_size)
    documents = _shown(corpus, data, quiet)
    if data.tokenizer == "bpe":
        with ExitStack() as merging:
            if not quiet:
                documents = _followed(documents, lambda: merging.enter_context(waiting("joining letters to pieces")))
            return SubwordTokenizer.train_bpe(documents, data.vocab_size or BPE_SIZE)
    if data.tokenizer == "characters":
        return CharacterTokenizer.train(documents, data.vocab_size)
    if data.tokenizer == "integers":
        return IntegerTokenizer.train(documents, corpus.name)
    return WordTokenizer.train(documents, data.vocab_size, data.min_count)


def _shown(corpus: Corpus, data: DataSettings, quiet: bool) -> Iterator[str]:
    """The documents to learn from, with a bar for as long as they are read."""
    with Progress(f"learning {data.tokenizer} of {corpus.name}", corpus.size, unit=corpus.unit, quiet=quiet) as bar:
        yield from _first(corpus.read(bar.advance), data.max_tokens)


def _followed(documents: Iterator[str], then: Callable[[], object]) -> Iterator[str]:
    """The documents, and something done once the last was read: what a trainer does with them takes longer."""
    yield from documents
    then()


def _first(documents: Iterator[str], words: int | None) -> Iterator[str]:
    """Documents up to the one that reaches so many words, counting its end, as `prepare` counts tokens."""
    seen = 0
    for document in documents:
        yield document
        if words is not None and (seen := seen + len(document.split()) + 1) >= words:
            return
