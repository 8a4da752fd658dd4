"""Text sampled from a language model, as an id file: made out of core, batch by batch, and gone on with if killed.

What was sampled is kept by all that decides it but its length: who wants more of the same text goes on where it ends.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from trellis.distillation.drawing import PRECISIONS, Advance, Speaker, draw_texts, load_speaker
from trellis.distillation.streams import Stream
from trellis.distillation.teachers import Source, find_teacher
from trellis.distillation.workers import in_order
from trellis.errors import TrellisError
from trellis.folders import (
    BEST,
    clear_partial,
    default_cache,
    disk_trouble,
    one_at_a_time,
    whole_folder,
    write_atomically,
)
from trellis.json_files import read_json
from trellis.progress import Progress, counted
from trellis.settings import nearest
from trellis.text import IdFile
from trellis.text.ids import id_dtype

_FORMAT = 1  # raise it when the files, or what is drawn, change, so that old caches are not taken for new
_REMEDY = "set TRELLIS_CACHE to another folder"
_IDS, _DOCUMENTS, _STATE = "ids.bin", "documents.bin", "state.json"
SPLITS = ("train", "valid")  # each with random numbers of its own


@dataclass(frozen=True)
class SampleSettings:
    """How text is sampled from a language model."""

    tokens: int = 2_000_000  # at least so many, and the rest of the last text
    length: int = 256  # texts that have not ended by then are cut
    batch: int = 128  # texts drawn at once
    seed: int = 0
    temperature: float = 1.0  # below 1 the text is more predictable than the model's own
    precision: str = "float32"  # or bf16, faster where the processor has it

    def __post_init__(self) -> None:
        for name in ("tokens", "length", "batch"):
            if getattr(self, name) < 1:
                raise TrellisError(f"--{name} must be at least 1, not {getattr(self, name)}.")
        if self.seed < 0:
            raise TrellisError(f"--seed cannot be negative, as {self.seed} is.")
        if not self.temperature > 0:
            raise TrellisError(f"--temperature must be above 0, not {self.temperature}.")
        if self.precision not in PRECISIONS:
            raise TrellisError(f"there is no precision {self.precision!r}: {nearest(self.precision, PRECISIONS)}")


class _State(NamedTuple):
    """How far sampling has come: all that is in the files beyond this was cut off by a kill."""

    batches: int = 0
    tokens: int = 0
    documents: int = 0


def sample_text(
    name: str, settings: SampleSettings, split: str = "train", *, data_dir: str | None = None, quiet: bool = False
) -> IdFile:
    """Sample text from the causal model in a folder, unless that was done before, as ids of its own tokenizer.

    The same settings give the same bytes, however often the process was killed meanwhile and on however many threads,
    as every batch has a generator and a thread of its own. (Other processors round differently.)
    """
    work = _Work(find_teacher(name, settings.seed, data_dir), settings, SPLITS.index(split), quiet)
    folder = work.folder / f"{work.name}-{settings.tokens}"
    if found := IdFile.found(folder):
        return found
    with disk_trouble(work.folder, _REMEDY), one_at_a_time(work.folder):
        if not IdFile.found(folder):
            work.folder.mkdir(parents=True, exist_ok=True)
            clear_partial(work.folder)
            work.sample()
            with whole_folder(folder, _REMEDY) as partial:
                work.cut(partial)
    return IdFile.open(folder)


class _Work:
    """Sampling for one text: what decides it, and its folder in the cache."""

    def __init__(self, source: Source, settings: SampleSettings, split: int, quiet: bool) -> None:
        if source.seed is not None:
            raise TrellisError(f"{source.name} has learnt nothing that it could say: name a trained model's folder.")
        self.source, self.settings, self.split, self.quiet = source, settings, split, quiet
        told = asdict(replace(settings, tokens=1)) | {"split": split}
        identity = json.dumps([_FORMAT, source.hash(), told], sort_keys=True)
        self.folder = default_cache() / f"sampled-{hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()}"
        self._speaker: Speaker | Stream | None = None

    @property
    def name(self) -> str:
        """What people call the model: its folder's name or its file's, of the best model of a run the run's."""
        path = self.source.path.resolve()
        path = path.parent if path.name == BEST else path
        return path.stem if path.suffix == ".gguf" else path.name

    @property
    def speaker(self) -> Speaker | Stream:
        """The model, loaded once it is needed."""
        if self._speaker is None:
            self._speaker = load_speaker(self.source, self.settings.precision)
            longest = self._speaker.longest
            if longest is not None and longest < self.settings.length:
                raise TrellisError(
                    f"{self.source.name} reads at most {counted(longest, 'token')} at once: set --length {longest}."
                )
        return self._speaker

    def sample(self) -> None:
        """Add batches to the files until there are as many tokens as were asked for."""
        state, dtype = self._state(), id_dtype(self.speaker.tokenizer.vocab_size)
        for file, size in ((_IDS, state.tokens * dtype.itemsize), (_DOCUMENTS, state.documents * 8)):
            with (self.folder / file).open("ab") as content:
                content.truncate(size)
        what = f"sampling {SPLITS[self.split]} text"
        with (
            Progress(what, self.settings.tokens, unit="tok", done=state.tokens, quiet=self.quiet) as bar,
            closing(in_order(self._batch, state.batches, bar)) as batches,
        ):
            while state.tokens < self.settings.tokens:
                state = self._append(next(batches), state, dtype)

    def _batch(self, number: int, advance: Advance) -> list[NDArray[np.int64]]:
        """The texts of a batch, which depend on its number and not on what was drawn before."""
        entropy = np.random.SeedSequence([self.settings.seed, self.split, number])
        generator = torch.Generator().manual_seed(int(entropy.generate_state(1, np.uint64)[0]))
        batch, length, temperature = self.settings.batch, self.settings.length, self.settings.temperature
        return draw_texts(self.speaker, batch, length, temperature, generator, advance)

    def _append(self, texts: Sequence[NDArray[np.int64]], state: _State, dtype: np.dtype[Any]) -> _State:
        """Write a batch, and only once it is on the disk that it is there."""
        texts = [text for text in texts if len(text)]
        ends = state.tokens + np.cumsum([len(text) for text in texts], dtype="<i8")
        for file, array in ((_IDS, np.concatenate(texts).astype(dtype)), (_DOCUMENTS, ends)):
            with (self.folder / file).open("ab") as content:
                content.write(array.tobytes())
                content.flush()
                os.fsync(content.fileno())
        state = _State(state.batches + 1, int(ends[-1]), state.documents + len(texts))
        write_atomically(self.folder / _STATE, json.dumps(state._asdict()))
        return state

    def _state(self) -> _State:
        """How far an earlier process came; nowhere if its files are damaged."""
        try:
            state = _State(**read_json(self.folder / _STATE))
            itemsize = id_dtype(self.speaker.tokenizer.vocab_size).itemsize
            there = [(self.folder / file).stat().st_size for file in (_IDS, _DOCUMENTS)]
        except (OSError, ValueError, TypeError):
            return _State()
        if not all(type(number) is int and number >= 0 for number in state):
            return _State()
        return state if there[0] >= state.tokens * itemsize and there[1] >= state.documents * 8 else _State()

    def cut(self, folder: Path) -> None:
        """The first texts, up to the one that reaches the tokens asked for, as an id file with a tokenizer."""
        tokenizer = self.speaker.tokenizer
        ids = np.memmap(self.folder / _IDS, dtype=id_dtype(tokenizer.vocab_size), mode="r")
        ends: NDArray[np.int64] = np.memmap(self.folder / _DOCUMENTS, dtype="<i8", mode="r")
        ends = ends[: int(np.searchsorted(ends, self.settings.tokens)) + 1]
        IdFile.from_documents(folder, ids[: ends[-1]], ends, tokenizer, f"text of {self.name}")
        tokenizer.save(folder)
