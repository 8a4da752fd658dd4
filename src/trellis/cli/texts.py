"""Corpora, tokenizers and models by the names people give them."""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, cast

import torch
from torch import Tensor

from trellis.config import FILE, DataSettings, load
from trellis.errors import TrellisError
from trellis.folders import default_cache, disk_trouble, whole_folder
from trellis.models import HMM, storage
from trellis.models.blocked import BlockedHMM
from trellis.models.model import Model
from trellis.models.registry import load_model as load_any
from trellis.progress import Progress, short_number
from trellis.text import (
    Corpus,
    IdFile,
    SubwordTokenizer,
    Tokenizer,
    WordTokenizer,
    load_tokenizer,
    open_corpus,
    prepare,
)
from trellis.text.corpora import NAMES, check_split

BPE_SIZE = 8192


class Loaded(NamedTuple):
    """A saved model with the tokenizer it was trained with."""

    folder: Path
    model: Model
    tokenizer: Tokenizer

    def answering(self, *questions: str) -> HMM | BlockedHMM:
        """The model, if it is one of those that answer these questions as an HMM does."""
        if not all(hasattr(self.model, question) for question in questions):
            raise TrellisError(
                f"{self.folder} holds a model of kind {self.model.config.kind}, which cannot say this: give an HMM, or "
                "ask trellis evaluate or score."
            )
        return cast(HMM | BlockedHMM, self.model)


def load_model(name: str) -> Loaded:
    """Read a model and its tokenizer, refusing a pair that does not belong together."""
    folder = model_folder(name)
    model = load_any(folder)
    tokenizer = load_tokenizer(folder)
    told = storage.read_json(folder / "config.json").get("tokenizer")
    if tokenizer.vocab_size > model.config.vocab_size or told not in (None, tokenizer.fingerprint()):
        raise TrellisError(f"the tokenizer in {folder} is not the one its model was trained with: restore it.")
    return Loaded(folder, model.eval(), tokenizer)


@torch.no_grad()
def after_eos(loaded: Loaded) -> Tensor | None:
    """The state from which a new sentence begins in running text; None, the very start, if there is no `<eos>`."""
    if loaded.tokenizer.eos_id is None:
        return None
    log_prob_BT, state = loaded.model.score(torch.tensor([[loaded.tokenizer.eos_id]]))
    return state if float(log_prob_BT) > -torch.inf else None


def model_folder(name: str) -> Path:
    """A model's own folder; of a run it is the best model so far."""
    folder = Path(name)
    if not folder.exists():
        raise TrellisError(f"there is no model {folder}: give the folder of a run or of a saved model.")
    if (folder / "config.json").exists() or not folder.is_dir():
        return folder
    if (folder / "best").is_dir():
        return folder / "best"
    if (folder / FILE).exists():
        raise TrellisError(f"{folder} is a run without a model yet: train it further, or name a checkpoint.")
    return folder


def evaluation_ids(loaded: Loaded, sources: list[str], split: str, data_dir: str | None, quiet: bool = False) -> IdFile:
    """Text as the model's own tokens: a corpus, files, a folder of `trellis prepare`, or the run's own split."""
    if not sources:
        return prepare(_own_split(loaded.folder, split, data_dir), loaded.tokenizer, quiet=quiet)
    if len(sources) == 1 and (Path(sources[0]) / "meta.json").exists():
        ids = IdFile.open(sources[0])
        if ids.meta.fingerprint != loaded.tokenizer.fingerprint():
            raise TrellisError(f"{sources[0]} was prepared with another tokenizer than the model's: give the text.")
        return ids
    return prepare(open_sources(sources, split, data_dir), loaded.tokenizer, quiet=quiet)


def open_sources(sources: list[str], split: str, data_dir: str | None) -> Corpus:
    """A named corpus's split, or files."""
    return open_corpus(sources[0] if len(sources) == 1 else sources, split, data_dir)


def _own_split(folder: Path, split: str, data_dir: str | None) -> Corpus:
    config = folder.parent / FILE
    if not config.exists():
        raise TrellisError(f"{folder} does not lie in a run that says its text: name a corpus or files.")
    data = load(config).data
    found = open_split(data, split, data_dir or data.data_dir)
    if found is None:
        raise TrellisError(f"the run was given no {split} text: name a corpus or files.")
    return found


def open_split(data: DataSettings, split: str, data_dir: str | None) -> Corpus | None:
    """The text of a split: as set, or a named corpus's own; None if there is none."""
    split = check_split(split)
    source = {"train": data.corpus, "valid": data.valid, "test": data.test}[split]
    if source is None and data.corpus in NAMES:
        source = data.corpus
    return None if source is None else open_corpus(source, split, data_dir)


class Texts(NamedTuple):
    """What a run learns from."""

    tokenizer: Tokenizer
    train: IdFile
    valid: IdFile | None


def prepare_texts(data: DataSettings, quiet: bool) -> Texts:
    """Open every text before any work starts, then find or learn the tokenizer, then tokenise."""
    corpus, valid = open_split(data, "train", data.data_dir), open_split(data, "valid", data.data_dir)
    assert corpus is not None
    tokenizer = find_tokenizer(corpus, data, quiet)
    ids = prepare(corpus, tokenizer, max_tokens=data.max_tokens, quiet=quiet)
    return Texts(tokenizer, ids, None if valid is None else prepare(valid, tokenizer, quiet=quiet))


def find_tokenizer(corpus: Corpus, data: DataSettings, quiet: bool) -> Tokenizer:
    """A tokenizer's folder as given or in the data folder; or one learnt from the corpus, once, and kept."""
    if data.tokenizer in ("words", "bpe"):
        return _learnt_before(corpus, data, quiet)
    places = [Path(data.tokenizer) / "best", Path(data.tokenizer)]
    if folder := data.data_dir or os.environ.get("TRELLIS_DATA"):
        places.append(Path(folder) / data.tokenizer)
    for place in places:
        if place.is_dir():
            return load_tokenizer(place)
    looked = " and ".join(map(str, places))
    raise TrellisError(f"'{data.tokenizer}' is neither words, bpe nor a tokenizer's folder: looked at {looked}.")


def _learnt_before(corpus: Corpus, data: DataSettings, quiet: bool) -> Tokenizer:
    """Processes that want the same one wait for the first to learn it."""
    told = [corpus.content_hash(), data.tokenizer, data.vocab_size, data.min_count, data.max_tokens]
    key = hashlib.blake2b(json.dumps(told).encode(), digest_size=16).hexdigest()
    folder = default_cache() / f"tokenizer-{key}"
    with disk_trouble(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_name(f".{folder.name}.lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                tokenizer = _learn(corpus, data, quiet)
                with whole_folder(folder) as temporary:
                    tokenizer.save(temporary)
    return load_tokenizer(folder)


def _learn(corpus: Corpus, data: DataSettings, quiet: bool) -> Tokenizer:
    with Progress(f"learning {data.tokenizer} of {corpus.name}", corpus.size, unit=corpus.unit, quiet=quiet) as bar:
        documents = _first(corpus.read(bar.advance), data.max_tokens)
        if data.tokenizer == "bpe":
            return SubwordTokenizer.train_bpe(documents, data.vocab_size or BPE_SIZE)
        return WordTokenizer.train(documents, data.vocab_size, data.min_count)


def _first(documents: Iterator[str], words: int | None) -> Iterator[str]:
    """Documents up to the one that reaches so many words, counting its end, as `prepare` counts tokens."""
    if words is None:
        return documents
    seen = 0

    def wanted(document: str) -> bool:
        nonlocal seen
        before, seen = seen, seen + len(document.split()) + 1
        return before < words

    return itertools.takewhile(wanted, documents)


def about(ids: IdFile) -> str:
    """A text in a few words, for a line on the screen."""
    meta = ids.meta
    return f"{meta.corpus}: {short_number(meta.tokens)} tokens in {short_number(meta.documents)} documents"
