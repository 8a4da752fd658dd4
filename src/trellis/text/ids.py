"""Tokenise a corpus once into memory-mapped files of ids, and find them again by what they were made from."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from trellis.errors import InputError, TrellisError
from trellis.folders import default_cache, disk_trouble, one_at_a_time, whole_folder
from trellis.json_files import read_json, write_json
from trellis.manifests import check_listed
from trellis.progress import Progress, counted, short_number
from trellis.text.corpora import Corpus
from trellis.text.files import ignore
from trellis.text.tokenizer import Tokenizer, refuse_id

_FORMAT = 1  # raise it when the files or the counting change, so that old caches are not taken for new
_REMEDY = "set TRELLIS_CACHE to another folder"
META_FILE = "meta.json"
_IDS, _DOCUMENTS = "ids.bin", "documents.bin"
_BATCH_CHARACTERS = 1 << 20  # text encoded at a time: bounds memory, and feeds every tokenizer thread


def id_dtype(vocab_size: int) -> np.dtype[Any]:
    """Choose two bytes an id where they suffice, four otherwise; always little-endian."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


@dataclass(frozen=True)
class IdMeta:
    """What is known of an id file besides its ids."""

    corpus: str  # name, for reports
    content_hash: str  # of the corpus
    fingerprint: str  # of the tokenizer
    vocab_size: int  # every id is smaller than this
    eos_id: int | None  # ends every document, when there is one
    tokens: int  # ids in the file, document ends included
    documents: int
    bytes: int  # of UTF-8 text, one more a document for the line end
    words: int  # between spaces, one more a document for its end
    unknown: int  # tokens outside the vocabulary
    format: int = _FORMAT

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of an id on disk."""
        return id_dtype(self.vocab_size)


class IdFile:
    """A tokenised corpus on disk: `ids`, the `documents`' end offsets, and `meta`."""

    def __init__(self, folder: Path, meta: IdMeta) -> None:
        self.folder, self.meta = folder, meta
        self.ids: NDArray[Any] = np.memmap(folder / _IDS, dtype=meta.dtype, mode="r")
        self.documents: NDArray[np.int64] = np.memmap(folder / _DOCUMENTS, dtype="<i8", mode="r")

    def __len__(self) -> int:
        return self.meta.tokens

    def __repr__(self) -> str:
        meta = self.meta
        return (
            f"IdFile({meta.corpus!r}, {counted(meta.tokens, 'token')} in {counted(meta.documents, 'document')}, "
            f"vocabulary of {meta.vocab_size:,})"
        )

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> IdFile:
        """Map a folder that `prepare` made, after checking that its files are whole."""
        path = Path(folder)
        meta = _read_meta(path)
        sizes = {_IDS: meta.tokens * meta.dtype.itemsize, _DOCUMENTS: meta.documents * 8}
        for name, size in sizes.items():
            file = path / name
            if not file.is_file() or file.stat().st_size != size:
                raise TrellisError(f"{file} is missing or cut short; delete {path} and prepare the corpus again.")
            check_listed(file)
        found = cls(path, meta)
        found._check()
        return found

    @classmethod
    def found(cls, folder: Path) -> IdFile | None:
        """Open what is there; absent and damaged are the same, for both are mended by making it anew."""
        try:
            return cls.open(folder)
        except TrellisError:
            return None

    def _check(self) -> None:
        """Refuse ids outside of the vocabulary and documents that do not follow each other, whoever wrote them."""
        if int(self.ids.max()) >= self.meta.vocab_size:
            raise _broken(self.folder / _IDS)
        ends = self.documents
        if int(ends[0]) < 0 or int(ends[-1]) != self.meta.tokens or bool((ends[1:] < ends[:-1]).any()):
            raise _broken(self.folder / _DOCUMENTS)

    def named(self, corpus: str) -> IdFile:
        """The same ids by the name that the corpus was asked for: another of the same text may have been the first."""
        return self if self.meta.corpus == corpus else IdFile(self.folder, replace(self.meta, corpus=corpus))

    @classmethod
    def from_arrays(
        cls,
        folder: str | os.PathLike[str],
        sequences: Sequence[NDArray[Any]],
        tokenizer: Tokenizer,
        name: str = "data",
    ) -> IdFile:
        """Write sequences of ids, each a document, into a new folder; `<eos>`, if there is one, is added to each.

        Words and bytes are counted as of a text that has each token between spaces.
        """
        dtype = id_dtype(tokenizer.vocab_size)
        end = np.array([] if tokenizer.eos_id is None else [tokenizer.eos_id], dtype=dtype)
        pieces = [np.append(_checked(ids, tokenizer).astype(dtype), end) for ids in sequences]
        lengths = np.array([len(piece) for piece in pieces], dtype=np.int64)
        if lengths.sum() == 0:
            raise TrellisError(f"{name} has no tokens; give sequences with some in them.")
        ids, ends = np.concatenate(pieces), np.cumsum(lengths, dtype="<i8")
        path = Path(folder)
        path.mkdir(parents=True)
        ids.tofile(path / _IDS)
        ends.tofile(path / _DOCUMENTS)
        write_json(path / META_FILE, asdict(_meta_of(ids, ends, tokenizer, name)))
        return cls.open(path)

    @classmethod
    def from_documents(
        cls, folder: str | os.PathLike[str], ids: NDArray[Any], ends: NDArray[Any], tokenizer: Tokenizer, name: str
    ) -> IdFile:
        """Write ids as they are, with documents that end at `ends`, into a folder that is there.

        Words and bytes are those of the decoded documents, without the token that ends them.
        """
        path = Path(folder)
        dtype = id_dtype(tokenizer.vocab_size)
        if len(ends) == 0 or ends[-1] != len(ids) or (np.diff(ends, prepend=0) < 0).any():
            raise TrellisError(f"the documents of {name} do not end where its ids do: give each one's end, in order.")
        np.asarray(ends, "<i8").tofile(path / _DOCUMENTS)
        words = length = 0
        with (path / _IDS).open("wb") as file:
            for document in np.split(ids, ends[:-1]):
                file.write(_checked(document, tokenizer).astype(dtype).tobytes())
                text = decoded(document, tokenizer)
                words, length = words + len(text.split()) + 1, length + len(text.encode()) + 1
        meta = replace(_meta_of(ids, np.asarray(ends, "<i8"), tokenizer, name), bytes=length, words=words)
        write_json(path / META_FILE, asdict(meta))
        return cls.open(path)

    @classmethod
    def joined(cls, folder: str | os.PathLike[str], texts: Sequence[IdFile], content_hash: str) -> IdFile:
        """Write texts of one tokenizer after one another into a folder that is there."""
        path, first = Path(folder), texts[0].meta
        starts = np.cumsum([0, *map(len, texts[:-1])])
        np.concatenate([text.ids for text in texts]).tofile(path / _IDS)
        ends = [text.documents + start for text, start in zip(texts, starts, strict=True)]
        np.concatenate(ends).astype("<i8").tofile(path / _DOCUMENTS)
        counted_ones = ("tokens", "documents", "bytes", "words", "unknown")
        totals = {name: sum(getattr(text.meta, name) for text in texts) for name in counted_ones}
        write_json(path / META_FILE, asdict(replace(first, content_hash=content_hash, **totals)))
        return cls.open(path)


def decoded(document: NDArray[Any], tokenizer: Tokenizer) -> str:
    """The text of a document's ids, without the token that ends it."""
    return tokenizer.decode(document[:-1] if len(document) and document[-1] == tokenizer.eos_id else document)


def _checked(ids: NDArray[Any], tokenizer: Tokenizer) -> NDArray[Any]:
    if len(ids) and not 0 <= ids.min() <= ids.max() < tokenizer.vocab_size:
        refuse_id(int(ids.min() if ids.min() < 0 else ids.max()), tokenizer.vocab_size)
    return ids


def _meta_of(ids: NDArray[Any], ends: NDArray[np.int64], tokenizer: Tokenizer, name: str) -> IdMeta:
    """What is to be known of some documents, as of a text that has each token between spaces."""
    types, counts = np.unique(ids, return_counts=True)
    spelt = [0 if number == tokenizer.eos_id else len(tokenizer.token(int(number)).encode()) for number in types]
    marks = 0 if tokenizer.eos_id is None else len(ends)
    content = hashlib.blake2b(ids.astype("<u4").tobytes() + ends.tobytes(), digest_size=16).hexdigest()
    return IdMeta(
        corpus=name,
        content_hash=content,
        fingerprint=tokenizer.fingerprint(),
        vocab_size=tokenizer.vocab_size,
        eos_id=tokenizer.eos_id,
        tokens=len(ids),
        documents=len(ends),
        bytes=int(np.dot(spelt, counts)) + len(ids) - marks,
        words=len(ids) - marks + len(ends),
        unknown=0 if tokenizer.unk_id is None else int(np.count_nonzero(ids == tokenizer.unk_id)),
    )


def prepare(
    corpus: Corpus,
    tokenizer: Tokenizer,
    cache_dir: str | os.PathLike[str] | None = None,
    *,
    max_tokens: int | None = None,
    quiet: bool = False,
) -> IdFile:
    """Give the corpus as ids, tokenising it unless that was done before.

    With `max_tokens` it stops after the document that reaches that many. Processes that want the same
    files at the same time wait for the first one to write them.
    """
    if not (hasattr(corpus, "content_hash") and hasattr(corpus, "read")):
        raise InputError(
            f"prepare reads a corpus, not {type(corpus).__name__}: give what open_corpus gives, or use trellis.fit, "
            "which takes data of any kind."
        )
    cache = Path(cache_dir) if cache_dir is not None else default_cache()
    writer = _Writer(corpus, tokenizer, max_tokens)
    folder = cache / writer.key()
    if found := IdFile.found(folder):  # before the lock, so that a cache without write permission serves too
        return found.named(corpus.name)
    with disk_trouble(cache, _REMEDY), one_at_a_time(folder):
        if not IdFile.found(folder):
            with whole_folder(folder, _REMEDY) as partial, writer.progress(quiet) as bar:
                write_json(partial / META_FILE, asdict(writer.write(partial, bar)))
    return IdFile.open(folder).named(corpus.name)


class _Writer:
    """Encodes batches of documents and keeps count, in constant memory."""

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer, max_tokens: int | None) -> None:
        if max_tokens is not None and max_tokens < 1:
            raise TrellisError(f"{max_tokens} tokens are none; set max_tokens to 1 or more.")
        self.corpus, self.tokenizer, self.max_tokens = corpus, tokenizer, max_tokens
        self.content_hash, self.fingerprint = corpus.content_hash(), tokenizer.fingerprint()
        self.tokens = self.documents = self.bytes = self.words = self.unknown = 0
        self.dtype = id_dtype(tokenizer.vocab_size)

    def key(self) -> str:
        """Name the folder after all that decides its contents."""
        identity = json.dumps([_FORMAT, self.content_hash, self.fingerprint, self.max_tokens])
        return hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()

    def progress(self, quiet: bool) -> Progress:
        """Measure the way by the limit where there is one, by the corpus otherwise."""
        corpus, limit = self.corpus, self.max_tokens
        total, unit = (corpus.size, corpus.unit) if limit is None else (limit, "tok")
        return Progress(f"tokenising {corpus.name}", total, unit=unit, quiet=quiet)

    def write(self, folder: Path, bar: Progress) -> IdMeta:
        """Write both files and say what is in them."""
        with (folder / _IDS).open("wb") as ids, (folder / _DOCUMENTS).open("wb") as ends:
            for texts in _batches(self.corpus.read(bar.advance if self.max_tokens is None else ignore)):
                before = self.tokens
                self._append(texts, ids, ends)
                counted = 0 if self.max_tokens is None else self.tokens - before
                bar.advance(counted, status=f"{short_number(self.tokens)} tokens")
                if self._full():
                    break
        if self.tokens == 0:
            raise TrellisError(f"{self.corpus.name} has no tokens; give text with words in it.")
        if self.corpus.content_hash() != self.content_hash:
            raise TrellisError(f"{self.corpus.name} changed while it was read; prepare it again.")
        return IdMeta(
            corpus=self.corpus.name,
            content_hash=self.content_hash,
            fingerprint=self.fingerprint,
            vocab_size=self.tokenizer.vocab_size,
            eos_id=self.tokenizer.eos_id,
            tokens=self.tokens,
            documents=self.documents,
            bytes=self.bytes,
            words=self.words,
            unknown=self.unknown,
        )

    def _append(self, texts: list[str], ids: BinaryIO, ends: BinaryIO) -> None:
        end = [] if self.tokenizer.eos_id is None else [self.tokenizer.eos_id]
        for text, encoded in zip(texts, self.tokenizer.encode_batch(texts), strict=True):
            if self._full():
                return
            encoded += end
            array = np.array(encoded, dtype=self.dtype)
            if self.tokenizer.unk_id is not None:
                self.unknown += int(np.count_nonzero(array == self.tokenizer.unk_id))
            self.tokens += len(encoded)
            self.documents += 1
            self.bytes += len(text.encode()) + 1
            self.words += len(text.split()) + 1
            ids.write(array.tobytes())
            ends.write(self.tokens.to_bytes(8, "little"))

    def _full(self) -> bool:
        return self.max_tokens is not None and self.tokens >= self.max_tokens


def _batches(documents: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document) + 1
        if characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _read_meta(folder: Path) -> IdMeta:
    path = folder / META_FILE
    if not path.is_file():
        raise TrellisError(f"{folder} holds no prepared ids; prepare the corpus first.")
    check_listed(path)
    try:
        found = read_json(path)
        meta = IdMeta(**{field.name: found[field.name] for field in fields(IdMeta)})
    except (ValueError, OSError, KeyError, TypeError) as error:
        raise _broken(path) from error
    if meta.format != _FORMAT:
        raise TrellisError(f"{folder} was made by another version of trellis; prepare the corpus again.")
    if not _is_sound(meta):
        raise _broken(path)
    return meta


def _is_sound(meta: IdMeta) -> bool:
    """Whether all that is said of some ids is of the type that it must be, and no number impossible."""
    words = (meta.corpus, meta.content_hash, meta.fingerprint)
    counts = (meta.vocab_size, meta.tokens, meta.documents, meta.bytes, meta.words, meta.unknown)
    sound = all(isinstance(word, str) for word in words) and all(type(n) is int and 0 <= n < 2**63 for n in counts)
    end = 0 if meta.eos_id is None else meta.eos_id
    return sound and meta.tokens > 0 < meta.documents and type(end) is int and 0 <= end < meta.vocab_size <= 2**32


def _broken(path: Path) -> TrellisError:
    return TrellisError(f"{path} is broken; delete {path.parent} and prepare the corpus again.")
