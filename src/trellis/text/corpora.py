"""Corpora by name or by path: something that yields documents and knows the hash of what it yields."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from trellis.errors import TrellisError
from trellis.progress import counted
from trellis.settings import nearest
from trellis.text.files import Advance, check_files, hash_files, ignore, read_documents
from trellis.text.hub import HUB, HubCorpus
from trellis.text.pydocs import pydocs

SPLITS = ("train", "valid", "test")

# Where each corpus lies in the data folder.
LOCAL = {
    "ptb": "ptb/ptb.{split}.txt",
    "wikitext-2": "wikitext-2/{split}.txt",
    "openmix": "openmix/{split}.jsonl.zst",
    "wikitext-103": "wikitext-103/{split}.txt",
    "slimpajama": "slimpajama/{split}.jsonl.zst",
}
NAMES = ("pydocs", *LOCAL)


class Corpus(Protocol):
    """Documents that can be read again and again, and a hash that changes when they do."""

    @property
    def name(self) -> str:
        """Say what people call it, for reports."""

    @property
    def size(self) -> int | None:
        """Tell how far `advance` will count in one reading, when that is known."""

    @property
    def unit(self) -> str:
        """Say what `advance` counts."""

    def content_hash(self) -> str:
        """Identify the documents, so that work done on them can be kept."""

    def read(self, advance: Advance = ...) -> Iterator[str]:
        """Yield every document in order, telling `advance` of the progress."""

    def __iter__(self) -> Iterator[str]: ...


@functools.lru_cache(maxsize=64)
def _hash_once(paths: tuple[Path, ...], marks: tuple[tuple[int, int], ...]) -> str:
    return hash_files(paths)


@dataclass(frozen=True)
class FileCorpus:
    """Documents in files; progress counts bytes on disk."""

    name: str
    paths: tuple[Path, ...]
    unit: ClassVar[str] = "B"

    @property
    def size(self) -> int:
        """Add up the bytes on disk."""
        return sum(path.stat().st_size for path in self.paths)

    def __repr__(self) -> str:
        return f"FileCorpus({self.name!r}, {counted(len(self.paths), 'file')})"

    def content_hash(self) -> str:
        """Hash the files' bytes, again only if one has changed since."""
        stats = (path.stat() for path in self.paths)
        return _hash_once(self.paths, tuple((stat.st_size, stat.st_mtime_ns) for stat in stats))

    def read(self, advance: Advance = ignore) -> Iterator[str]:
        """Stream the documents."""
        return read_documents(self.paths, advance)

    def __iter__(self) -> Iterator[str]:
        return self.read()


@dataclass(frozen=True)
class MemoryCorpus:
    """Documents already in memory; progress counts documents."""

    name: str
    documents: tuple[str, ...]
    unit: ClassVar[str] = "documents"

    @property
    def size(self) -> int:
        """Count the documents."""
        return len(self.documents)

    def __repr__(self) -> str:
        return f"MemoryCorpus({self.name!r}, {counted(len(self.documents), 'document')})"

    def content_hash(self) -> str:
        """Hash every document with its length, so that moving a boundary changes the hash."""
        digest = hashlib.blake2b(digest_size=16)
        for document in self.documents:
            data = document.encode()
            digest.update(len(data).to_bytes(8, "little") + data)
        return digest.hexdigest()

    def read(self, advance: Advance = ignore) -> Iterator[str]:
        """Yield the documents."""
        for document in self.documents:
            advance(1)
            yield document

    def __iter__(self) -> Iterator[str]:
        return iter(self.documents)


def open_corpus(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    split: str = "train",
    data_dir: str | os.PathLike[str] | None = None,
) -> Corpus:
    """Open a named corpus, files, or `-` for standard input; files are taken whole, whatever the split."""
    split = check_split(split)
    if isinstance(source, str) and source in NAMES:
        return _named(source, split, data_dir)
    sources = [source] if isinstance(source, str | os.PathLike) else list(source)
    if isinstance(source, str) and _looks_like_a_name(source):
        raise TrellisError(f"there is no corpus or file called {source!r}: {nearest(source, NAMES)}")
    label = ", ".join("standard input" if name == "-" else Path(name).name for name in sources)
    return FileCorpus(label, tuple(check_files(sources)))


def check_split(split: str) -> str:
    """Give a split its short name, or say which there are."""
    known = {**{name: name for name in SPLITS}, "validation": "valid"}
    if split not in known:
        raise TrellisError(f"There is no split {split!r}; use train, valid or test.")
    return known[split]


def _named(name: str, split: str, data_dir: str | os.PathLike[str] | None) -> Corpus:
    if name == "pydocs":
        return MemoryCorpus(name, pydocs(split))
    folder = data_dir if data_dir is not None else os.environ.get("TRELLIS_DATA") or None
    place = LOCAL[name].format(split=split)
    if folder is not None and (Path(folder) / place).exists():
        return FileCorpus(name, tuple(check_files([Path(folder) / place])))
    remedy = f"set TRELLIS_DATA to a folder that holds {place}"
    if folder is not None:
        remedy += f", which {folder} does not"
    if name not in HUB:
        raise TrellisError(f"To use {name}, {remedy}.")
    return HubCorpus(name, split, remedy)


def _looks_like_a_name(source: str) -> bool:
    return source != "-" and not Path(source).exists() and Path(source).name == source and "." not in source
