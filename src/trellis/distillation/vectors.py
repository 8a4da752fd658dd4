"""The vectors that clusters are learnt from: a teacher's states of tokens spread evenly over the text, on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trellis.distillation.reading import Reader
from trellis.folders import reserve
from trellis.progress import Progress


class Vectors(NamedTuple):
    """Vectors by block: those of block m are `values_NR[ends_M[m - 1] : ends_M[m]]`."""

    values_NR: NDArray[np.float32]
    ends_M: NDArray[np.int64]

    def of(self, block: int) -> NDArray[np.float32]:
        """The vectors of a block's words."""
        return self.values_NR[self.ends_M[block - 1] if block else 0 : self.ends_M[block]]


def collect(
    reader: Reader, block_V: NDArray[Any], blocks: int, wanted: int, seed: int, file: Path, quiet: bool
) -> Vectors:
    """Read `wanted` vectors' worth of windows; of each block keep at most its equal share, drawn from the seed."""
    windows = spread(reader.windows, -(-wanted // reader.window), seed)
    position_N = (windows[:, None] * reader.window + np.arange(reader.window)).ravel()
    position_N = position_N[position_N < len(reader.ids)]
    block_N = block_V[reader.ids[position_N]]
    kept_N, ends_M = _kept(block_N, blocks, wanted // blocks, seed)
    slot_of = np.full(len(position_N), -1, dtype=np.int64)
    slot_of[kept_N] = np.arange(len(kept_N))
    shape = (len(kept_N), reader.teacher.width)
    values_NR: NDArray[np.float32] = np.memmap(file, dtype=np.float32, mode="w+", shape=shape)
    reserve(file)
    done = 0
    with Progress("reading with the teacher", len(position_N), unit="tok", quiet=quiet) as bar:
        for position, states_NR in reader.states(windows):
            slot = slot_of[done : done + len(position)]
            values_NR[slot[slot >= 0]] = states_NR.float().numpy()[slot >= 0]
            done += len(position)
            bar.advance(len(position))
    return Vectors(values_NR, ends_M)


def spread(windows: int, wanted: int, seed: int) -> NDArray[np.int64]:
    """As many windows as are wanted, at equal distances; the seed decides where the first is."""
    wanted = min(windows, wanted)
    shift = np.random.default_rng(seed).random()
    return np.minimum(((np.arange(wanted) + shift) * windows / wanted).astype(np.int64), windows - 1)


def _kept(block_N: NDArray[Any], blocks: int, most: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which of the vectors to keep, block by block, and where each block ends among them."""
    shuffled_N = np.random.default_rng(seed).permutation(len(block_N))
    by_block_N = shuffled_N[np.argsort(block_N[shuffled_N], kind="stable")]
    count_M = np.bincount(block_N, minlength=blocks)
    rank_N = np.arange(len(block_N)) - np.repeat(np.cumsum(count_M) - count_M, count_M)
    return by_block_N[rank_N < most], np.cumsum(np.minimum(count_M, most))
