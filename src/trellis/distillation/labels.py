"""Labels on disk: the state of each token at the beginning of a text, −1 for the tokens after."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from trellis.distillation.codebook import Labeller
from trellis.distillation.reading import Reader
from trellis.errors import TrellisError
from trellis.folders import reserve
from trellis.json_files import read_object, write_json
from trellis.manifests import check_listed
from trellis.progress import Progress

_LABELS, _ABOUT = "labels.npy", "about.json"


class Labels(NamedTuple):
    """One state a token, on disk, and how they were made."""

    values: NDArray[np.int32]
    about: dict[str, Any]

    @classmethod
    def load(cls, folder: Path, tokens: int) -> Labels | None:
        """Map what `write` wrote for a text of so many tokens; None if it is absent or damaged."""
        try:
            for name in (_ABOUT, _LABELS):
                check_listed(folder / name)
            about = read_object(folder / _ABOUT)
            values = np.load(folder / _LABELS, mmap_mode="r", allow_pickle=False)
        except (TrellisError, OSError, ValueError, EOFError):
            return None
        return cls(values, about) if values.shape == (tokens,) and values.dtype == np.int32 else None


def write(
    reader: Reader, labeller: Labeller, count: int, states: int, folder: Path, about: dict[str, Any], *,
    before: Labels | None, quiet: bool,
) -> None:  # fmt: skip
    """Label the first `count` tokens; those that were labelled `before` are taken over."""
    began = time.monotonic()
    path = folder / _LABELS
    labels = np.lib.format.open_memmap(path, mode="w+", dtype=np.int32, shape=(len(reader.ids),))
    reserve(path)
    known = 0
    if before is not None:
        there = before.about["tokens"]
        known = count if there >= count else there // reader.window * reader.window
        labels[:known] = before.values[:known]
    windows = range(known // reader.window, -(-count // reader.window)) if known < count else range(0)
    with Progress("labelling", count, unit="tok", done=known, quiet=quiet) as bar:
        for position, states_NR in reader.states(windows):
            words_N = torch.from_numpy(reader.ids[position].astype(np.int64))
            labels[position] = labeller(states_NR, words_N).numpy()
            bar.advance(len(position))
    labels[count:] = -1
    labels.flush()
    seconds = time.monotonic() - began
    rate = (count - known) / seconds if known < count else None
    made = {"tokens": count, "label_seconds": seconds, "tokens_per_second": rate, **usage(labels[:count], states)}
    write_json(folder / _ABOUT, about | made)


def usage(labels: NDArray[np.int32], states: int) -> dict[str, Any]:
    """How many states are used, and the entropy of their use in bits."""
    count_S = np.bincount(labels[labels >= 0], minlength=states)
    share = count_S[count_S > 0] / max(1, count_S.sum())
    entropy = -float((share * np.log2(share)).sum()) + 0.0
    return {"used_states": len(share), "entropy_bits": entropy, "most_bits": math.log2(states)}
