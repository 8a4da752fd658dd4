"""Brown clustering as `trellis cluster` does it: of the Penn Treebank if it is at hand, else of the embedded corpus."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from bench.blocked_problem import BrownTask
from trellis.text import brown, open_corpus, prepare
from trellis.text.corpora import LOCAL
from trellis.text.sources import DataSettings, find_tokenizer


def corpus_in(folder: str | None) -> str:
    """The corpus to cluster, by what the data folder holds: nothing is ever downloaded for a benchmark."""
    there = folder is not None and (Path(folder) / LOCAL["ptb"].format(split="train")).exists()
    return "ptb" if there else "pydocs"


class Brown:
    """Tokenised beforehand; a step is the clustering."""

    def __init__(self, task: BrownTask, rows: int) -> None:
        folder = task.data_dir or os.environ.get("TRELLIS_DATA")
        self.task, self.corpus = task, corpus_in(folder)
        text = open_corpus(self.corpus, "train", folder)
        tokenizer = find_tokenizer(text, DataSettings(self.corpus, data_dir=folder), quiet=True)
        ids = prepare(text, tokenizer, quiet=True).ids[: task.tokens]
        self.types = tokenizer.vocab_size
        if task.tokens is not None:  # a short text has few types, and the others would take the time
            found, ids = np.unique(ids, return_inverse=True)
            self.types = len(found)
        self.ids = ids

    def step(self) -> None:
        """Cluster every type."""
        brown(self.ids, self.types, self.task.clusters, quiet=True)

    def facts(self) -> dict[str, Any]:
        """Which text it was."""
        return {"corpus": self.corpus, "tokens": len(self.ids), "types": self.types}
