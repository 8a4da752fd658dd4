"""Corpora streamed from the Hugging Face hub, for people with the network and the optional `hub` extra."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from trellis.errors import TrellisError
from trellis.text.files import Advance, ignore


@dataclass(frozen=True)
class HubSource:
    """Where the hub keeps a corpus."""

    repository: str
    config: str | None = None  # the hub's name for the variant
    column: str = "text"  # the column that holds a document
    revision: str = "main"  # branch; the commit it stands for is pinned when the corpus is opened


HUB = {
    # The repository is a loading script, which `datasets` no longer runs; the hub keeps a converted branch.
    "ptb": HubSource("ptb-text-only/ptb_text_only", "penn_treebank", "sentence", "refs/convert/parquet"),
    "wikitext-2": HubSource("Salesforce/wikitext", "wikitext-2-v1"),
    "wikitext-103": HubSource("Salesforce/wikitext", "wikitext-103-v1"),
    "slimpajama": HubSource("cerebras/SlimPajama-627B"),
}


@dataclass(frozen=True)
class HubCorpus:
    """Documents streamed from the hub at one pinned commit; progress counts documents."""

    name: str
    split: str
    remedy: str  # what to do instead, when the hub is out of reach
    unit: ClassVar[str] = "documents"
    size: ClassVar[None] = None  # the hub does not say

    def __repr__(self) -> str:
        return f"HubCorpus({self.name!r}, {self.split!r})"

    @cached_property
    def commit(self) -> str:
        """Pin the commit now, so that the hash stands for the very documents that are read."""
        source = HUB[self.name]
        _import("datasets", self)
        hub = _import("huggingface_hub", self)
        try:
            return str(hub.HfApi().dataset_info(source.repository, revision=source.revision).sha)
        except Exception as error:
            raise self._out_of_reach(error) from error

    def content_hash(self) -> str:
        """Hash what names the documents on the hub: repository, commit, variant and split."""
        source = HUB[self.name]
        identity = f"{source.repository} {self.commit} {source.config} {source.column} {self.split}"
        return hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()

    def read(self, advance: Advance = ignore) -> Iterator[str]:
        """Stream the documents; line ends that the hub keeps inside them are taken off."""
        for row in self._rows():
            advance(1)
            yield str(row[HUB[self.name].column]).rstrip("\n")

    def __iter__(self) -> Iterator[str]:
        return self.read()

    def _rows(self) -> Iterator[dict[str, Any]]:
        source = HUB[self.name]
        datasets, commit = _import("datasets", self), self.commit
        split = "validation" if self.split == "valid" else self.split
        try:
            yield from datasets.load_dataset(
                source.repository, source.config, split=split, streaming=True, revision=commit
            )
        except Exception as error:
            raise self._out_of_reach(error) from error

    def _out_of_reach(self, error: Exception) -> TrellisError:
        reason = type(error).__name__
        return TrellisError(f"The Hugging Face hub did not give {self.name} ({reason}); try again, or {self.remedy}.")


def _import(module: str, corpus: HubCorpus) -> Any:
    """Import late: `datasets` takes seconds, is optional, and nobody else here needs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise TrellisError(f'To fetch {corpus.name} run pip install "trellis-lm[hub]", or {corpus.remedy}.') from error
