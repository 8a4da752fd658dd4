"""The tasks of blocked models: a text that goes from block to block as real ones do, and clustering words."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

# How unevenly blocks follow each other: the spread of the logarithms by which the chances of a next block differ from
# the block's own frequency. At 128 blocks, 32 × 64 tokens then cross about 1,200 distinct pairs and 16 × 32 about 400,
# as in the Penn Treebank with Brown clusters; the number of pairs is what a batch of a blocked model costs.
UNEVENNESS = 1.9


@dataclass(frozen=True)
class BlockedProblem:
    """A size and a seed, from which each process draws the rest."""

    states: int = 1 << 15
    blocks: int = 128
    words: int = 10_000
    batch: int = 16  # sequences; with the length, as published
    length: int = 32  # tokens in each
    transition: Literal["hierarchical", "flat"] = "hierarchical"
    width: int = 256  # of the neural embeddings
    dropout: float = 0.5  # share of every block's states left out of a training step
    seed: int = 0

    @property
    def tokens(self) -> int:
        """How many tokens the batch holds."""
        return self.batch * self.length

    @property
    def kept(self) -> int:
        """States of a block that a training step keeps."""
        size = self.states // self.blocks
        return size - round(self.dropout * size)

    def toy(self) -> BlockedProblem:
        """The smallest of its kind."""
        return replace(self, states=16, blocks=4, words=12, batch=2, length=3, width=8)

    def described(self) -> dict[str, Any]:
        """The size for results, with the distinct pairs of blocks that the batch crosses."""
        return {**asdict(self), "pairs": len(self.pairs())}

    def _frequency(self) -> NDArray[np.float64]:
        """Of words: Zipf–Mandelbrot."""
        weight_V = 1.0 / (np.arange(self.words) + 2.7)
        found: NDArray[np.float64] = weight_V / weight_V.sum()
        return found

    def block_of_words(self) -> Ints:
        """Each word's block, V: dealt out from the most frequent on, so that blocks differ as words do."""
        found: Ints = np.arange(self.words) % self.blocks
        return found

    def ids(self, rows: int | None = None) -> Ints:
        """Words, batch × length or the first rows: a Markov chain of blocks, in each a word by its frequency."""
        draw = np.random.default_rng(self.seed)
        frequency_V, block_V = self._frequency(), self.block_of_words()
        mass_M = np.bincount(block_V, frequency_V).astype(np.float64)
        chance_MM = mass_M * np.exp(UNEVENNESS * draw.standard_normal((self.blocks, self.blocks)))
        chance_MM /= chance_MM.sum(1, keepdims=True)
        block_BT = np.empty((self.batch, self.length), np.int64)
        block_BT[:, 0] = draw.choice(self.blocks, self.batch, p=mass_M)
        for t in range(1, self.length):
            block_BT[:, t] = [draw.choice(self.blocks, p=chance_MM[block]) for block in block_BT[:, t - 1]]
        ids_BT = np.empty_like(block_BT)
        for block in np.unique(block_BT):
            words, here_BT = np.flatnonzero(block_V == block), block_BT == block
            chance = frequency_V[words] / frequency_V[words].sum()
            ids_BT[here_BT] = draw.choice(words, here_BT.sum(), p=chance)
        return ids_BT[:rows]

    def pairs(self) -> Ints:
        """The distinct pairs of blocks that neighbouring tokens make."""
        block_BT = self.block_of_words()[self.ids()]
        return np.unique(block_BT[:, :-1] * self.blocks + block_BT[:, 1:])

    def log_likelihoods(self) -> NDArray[np.float64]:
        """Each row's log-likelihood by Trellis's own PyTorch path in double precision, which its tests hold to brute
        force: of so many states there is no simpler answer."""
        from bench.contenders.trellis_blocked import exact_log_likelihoods  # imports torch

        return exact_log_likelihoods(self)


@dataclass(frozen=True)
class BrownTask:
    """Which text, and how many clusters."""

    clusters: int = 128
    data_dir: str | None = None  # where the Penn Treebank may lie; by default the environment's TRELLIS_DATA
    tokens: int | None = None  # the first ones alone; None takes the whole text
    batch: int = 1
    words: int = 0  # as many as the text has

    def toy(self) -> BrownTask:
        """The smallest of its kind."""
        return replace(self, clusters=2, tokens=50)

    def described(self) -> dict[str, Any]:
        """The sizes for results; a folder of this machine is none of them."""
        return {"clusters": self.clusters}
