"""Brown clustering: words in groups that predict their neighbours' groups well.

Liang's windowed algorithm (2005), exactly: words enter from the most to the least frequent; whenever there is one
cluster more than wanted, the two whose merger loses least of the mutual information between neighbouring clusters
become one. At the end the clusters go on merging to a single one: that is the tree. What each merger
would lose is kept in a table and mended as clusters change, so that a step costs clusters² operations, not clusters³.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trellis.errors import TrellisError
from trellis.progress import Progress

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class BrownTree(NamedTuple):
    """Which cluster each word is in, and each cluster's path from the root: shared beginnings mean late mergers."""

    cluster_V: Ints
    paths: tuple[str, ...]


class _Neighbours:
    """How often each word comes before and after each other, found by word."""

    def __init__(self, ids: NDArray[Any], vocab_size: int) -> None:
        stream = np.asarray(ids).astype(np.int64)
        self.total = float(len(stream) - 1)
        self.left_V = np.bincount(stream[:-1], minlength=vocab_size).astype(np.float64)
        self.right_V = np.bincount(stream[1:], minlength=vocab_size).astype(np.float64)
        keys, self.count = np.unique(stream[:-1] * vocab_size + stream[1:], return_counts=True)
        self.first, self.second = keys // vocab_size, keys % vocab_size
        words = np.arange(vocab_size + 1)
        self.ahead = np.searchsorted(self.first, words)
        self.by_second = np.argsort(self.second, kind="stable")
        self.behind = np.searchsorted(self.second[self.by_second], words)
        frequency_V = np.bincount(stream, minlength=vocab_size)
        self.order = np.lexsort((words[:-1], -frequency_V))

    def with_clusters(self, word: int, slot_V: Ints, slots: int) -> tuple[Floats, Floats]:
        """Counts of the word before and after the words of each slot; words not there yet have slot −1."""
        after = slice(self.ahead[word], self.ahead[word + 1])
        before = self.by_second[self.behind[word] : self.behind[word + 1]]
        return (
            _add_up(slot_V[self.second[after]], self.count[after], slots),
            _add_up(slot_V[self.first[before]], self.count[before], slots),
        )


def _add_up(slots_N: Ints, counts_N: Ints, slots: int) -> Floats:
    there = slots_N >= 0
    return np.bincount(slots_N[there], weights=counts_N[there], minlength=slots).astype(np.float64)


def information(pairs: Floats, left: Floats, right: Floats, total: float) -> Floats:
    """p(c, d) log (p(c, d) / (p(c) p(d))) from counts, elementwise; nothing where a pair never comes."""
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = pairs * np.log(pairs * total / (left * right))
    found: Floats = np.where(pairs > 0, terms, 0.0) / total
    return found


def _sums(values: Floats) -> Floats:
    found: Floats = values[:, None] + values[None, :]
    return found


class Window:
    """The clusters under way: counts of pairs between slots, and what merging any two of them would lose.

    `kept[i, j]` is the information that i and j as one cluster would have with every other slot, both ways round.
    """

    def __init__(self, slots: int, total: float) -> None:
        self.total = total
        self.used = np.zeros(slots, dtype=bool)
        self.pairs, self.kept = np.zeros((slots, slots)), np.zeros((slots, slots))
        self.left, self.right = np.zeros(slots), np.zeros(slots)

    def add(self, slot: int, ahead: Floats, behind: Floats, left: float, right: float) -> None:
        """Put a word into an empty slot: its counts before and after every slot, itself included."""
        self.pairs[slot], self.pairs[:, slot] = ahead, behind
        self.left[slot], self.right[slot], self.used[slot] = left, right, True
        self.kept += self._with(slot)
        self.kept[slot] = self.kept[:, slot] = self._kept_row(slot)

    def merge(self, a: int, b: int) -> None:
        """Make slots a and b one, in a."""
        self.kept -= self._with(a) + self._with(b)
        for counts in (self.pairs, self.pairs.T, self.left, self.right):
            counts[a] += counts[b]
            counts[b] = 0.0
        self.used[b] = False
        self.kept += self._with(a)
        self.kept[a] = self.kept[:, a] = self._kept_row(a)
        self.kept[b] = self.kept[:, b] = 0.0

    def cheapest(self) -> tuple[int, int]:
        """The two slots whose merger loses least; of equals, the first."""
        a, b = np.unravel_index(int(self.losses().argmin()), self.pairs.shape)
        return int(a), int(b)

    def losses(self) -> Floats:
        """The mutual information that merging i and j would lose, where i < j are both in use; infinite elsewhere."""
        here = information(self.pairs, self.left[:, None], self.right[None, :], self.total)
        alone = here.sum(0) + here.sum(1) - here.diagonal()
        inside = self.pairs + self.pairs.T + _sums(self.pairs.diagonal())
        itself = information(inside, _sums(self.left), _sums(self.right), self.total)
        loss = _sums(alone) - here - here.T - itself - self.kept
        allowed = np.triu(self.used[:, None] & self.used[None, :], 1)
        found: Floats = np.where(allowed, loss, np.inf)
        return found

    def _with(self, c: int) -> Floats:
        """For every i and j: their information as one with slot c, both ways round; none if c is one of them."""
        ahead = information(_sums(self.pairs[:, c]), _sums(self.left), self.right[c], self.total)
        behind = information(_sums(self.pairs[c]), self.left[c], _sums(self.right), self.total)
        both: Floats = ahead + behind
        both[c, :] = both[:, c] = 0.0
        return both

    def _kept_row(self, a: int) -> Floats:
        """`kept[a, j]` for every j, from scratch."""
        left, right = (self.left[a] + self.left)[:, None], (self.right[a] + self.right)[:, None]
        both = information(self.pairs[a] + self.pairs, left, self.right[None, :], self.total)
        both += information(self.pairs[:, a] + self.pairs.T, self.left[None, :], right, self.total)
        both[:, a] = 0.0
        np.fill_diagonal(both, 0.0)
        row: Floats = both.sum(1)
        return row


def brown(ids: NDArray[Any], vocab_size: int, clusters: int, quiet: bool = False) -> BrownTree:
    """Cluster every type of the vocabulary, those that never come included."""
    if not 2 <= clusters <= vocab_size:
        raise TrellisError(f"{vocab_size} types cannot make {clusters} clusters: ask for 2 to {vocab_size}.")
    if len(ids) < 2:
        raise TrellisError("clusters come from neighbouring words: give a text of at least two.")
    neighbours = _Neighbours(ids, vocab_size)
    window = Window(min(clusters + 1, vocab_size), neighbours.total)
    slot_V = np.full(vocab_size, -1, dtype=np.int64)
    free = list(reversed(range(len(window.used))))
    with Progress("clustering", vocab_size, unit="words", quiet=quiet) as bar:
        for word in neighbours.order:
            slot = slot_V[word] = free.pop()
            ahead, behind = neighbours.with_clusters(word, slot_V, len(window.used))
            window.add(slot, ahead, behind, neighbours.left_V[word], neighbours.right_V[word])
            if window.used.sum() > clusters:
                kept, gone = window.cheapest()
                window.merge(kept, gone)
                slot_V[slot_V == gone] = kept
                free.append(gone)
            bar.advance()
    return _tree(window, slot_V)


def _tree(window: Window, slot_V: Ints) -> BrownTree:
    """Merge the clusters on to one; paths are read off the mergers, 0 for the first of two and 1 for the other."""
    slots = np.flatnonzero(window.used)
    path = {int(slot): "" for slot in slots}
    under = {int(slot): [int(slot)] for slot in slots}
    while len(under) > 1:
        a, b = window.cheapest()
        window.merge(a, b)
        for bit, side in (("0", under[a]), ("1", under[b])):
            for slot in side:
                path[slot] = bit + path[slot]
        under[a] += under.pop(b)
    ordered = sorted(path, key=path.__getitem__)
    number = np.full(len(window.used), -1, dtype=np.int64)
    number[ordered] = np.arange(len(ordered))
    return BrownTree(number[slot_V], tuple(path[slot] for slot in ordered))
