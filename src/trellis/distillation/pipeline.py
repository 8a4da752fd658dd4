"""From a teacher and a text to labels; what was made before is found in the cache by all that decided it.

Clusters and labels lie apart: labels for more or fewer tokens use the same clusters, and the labels that there are.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trellis.distillation import codebook, labels
from trellis.distillation.codebook import Blocks, Codebook, Labeller
from trellis.distillation.labels import Labels
from trellis.distillation.reading import Reader
from trellis.distillation.settings import Distilled, DistillSettings
from trellis.distillation.teachers import Source, find_teacher
from trellis.errors import TrellisError
from trellis.folders import clear_partial, default_cache, disk_trouble, one_at_a_time, whole_folder
from trellis.text import IdFile, Tokenizer

if TYPE_CHECKING:
    from trellis.models.supports import Support

Made = TypeVar("Made", Codebook, Labels)

_FORMAT = 1  # raise it when the files, or what is computed, change, so that old caches are not taken for new
_REMEDY = "set TRELLIS_CACHE to another folder"
_OF_CLUSTERS = ("layer", "pca", "points", "iterations", "restarts", "seed")  # settings that decide the clusters


def distill(
    settings: DistillSettings,
    text: IdFile,
    tokenizer: Tokenizer,
    states: int,
    support: Support | None = None,
    *,
    data_dir: str | None = None,
    quiet: bool = False,
) -> Distilled:
    """Cluster a teacher's states of a text, and label the text's first `settings.tokens` tokens with the clusters.

    There are as many clusters as states; with a `support`, those of each block are of its words alone. The teacher is
    looked for in `data_dir`, by default TRELLIS_DATA, too. Processes that want the same wait for the first to make it.
    """
    source = find_teacher(settings.teacher, settings.seed, data_dir)
    blocks = Blocks.of(support, tokenizer.vocab_size, states)
    work = _Work(settings, text, tokenizer, source, blocks, quiet)
    found = work.codebook()
    made = work.labels(found)
    about = {**found.about, **made.about, "folder": str(work.label_folder)}
    return Distilled(settings, made.values, found.centroids_SR, found.head_VR, about)


@dataclass(frozen=True)
class _Work:
    """One distillation: what it is made from, and its folders in the cache."""

    settings: DistillSettings
    text: IdFile
    tokenizer: Tokenizer
    source: Source
    blocks: Blocks
    quiet: bool

    @cached_property
    def teacher_hash(self) -> str:
        """Which teacher it is."""
        return self.source.hash()

    @cached_property
    def reader(self) -> Reader:
        """The teacher before the text; loaded only if something is to be made."""
        return Reader(self.source.open(self.settings.layer), self.text.ids, self.tokenizer)

    @cached_property
    def key(self) -> str:
        """Names the clusters after all that decides them."""
        meta, blocks = self.text.meta, hashlib.blake2b(digest_size=16)
        for array in self.blocks:
            blocks.update(f"{array.shape}".encode() + array.tobytes())
        decided = [getattr(self.settings, name) for name in _OF_CLUSTERS]
        read = [meta.content_hash, meta.fingerprint, meta.tokens]
        identity = json.dumps([_FORMAT, self.teacher_hash, decided, blocks.hexdigest(), read])
        return hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()

    @property
    def tokens(self) -> int:
        """Tokens to label."""
        return min(self.settings.tokens, len(self.text))

    @property
    def label_folder(self) -> Path:
        """Where the labels lie."""
        return default_cache() / f"labels-{self.key}" / str(self.tokens)

    def codebook(self) -> Codebook:
        """The clusters, found or made."""
        folder = default_cache() / f"clusters-{self.key}"
        if found := Codebook.load(folder):  # before the lock, so that a cache without write permission serves too
            return self._checked(found, folder)
        with disk_trouble(folder, _REMEDY), one_at_a_time(folder):
            if Codebook.load(folder) is None:
                with whole_folder(folder, _REMEDY) as partial:
                    made = codebook.make(self.reader, self.blocks, self.settings, partial, self.quiet)
                    made._replace(about=self._origin() | made.about).save(partial)
        found = Codebook.load(folder)
        assert found is not None
        return self._checked(found, folder)

    def labels(self, found: Codebook) -> Labels:
        """The labels, found or made."""
        folder = self.label_folder
        if there := Labels.load(folder, len(self.text)):
            return self._checked(there, folder)
        with disk_trouble(folder, _REMEDY), one_at_a_time(folder.parent):
            if Labels.load(folder, len(self.text)) is None:
                folder.parent.mkdir(exist_ok=True)
                clear_partial(folder.parent)
                with whole_folder(folder, _REMEDY) as partial:
                    labels.write(
                        self.reader, Labeller(found, self.blocks), self.tokens, self.blocks.states_MK.size, partial,
                        self._origin(), before=self._before(), quiet=self.quiet,
                    )  # fmt: skip
        there = Labels.load(folder, len(self.text))
        assert there is not None
        return self._checked(there, folder)

    def _before(self) -> Labels | None:
        """The longest labels of these clusters, for another number of tokens."""
        folders = [one for one in self.label_folder.parent.iterdir() if one.name.isdecimal()]
        found = (Labels.load(one, len(self.text)) for one in sorted(folders, key=lambda one: -int(one.name)))
        return next((one for one in found if one is not None), None)

    def _origin(self) -> dict[str, Any]:
        return {"teacher": self.source.name, "teacher_hash": self.teacher_hash}

    def _checked(self, made: Made, folder: Path) -> Made:
        if made.about.get("teacher_hash") != self.teacher_hash:
            raise TrellisError(f"{folder} holds a cache from another teacher: delete it and distil again.")
        return made
