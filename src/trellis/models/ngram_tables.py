"""Tables of counted n-grams, a set for each length: what Kneser–Ney says of a word and its block after a context.

A token of the text that was counted may be left out of its own counts, as it must be while a model learns that text.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trellis.models.ngram_counts import LAST_KEY, Order, discounts


class Explicit(NamedTuple):
    """What the n-grams of one length say of some words, each after its context, before shorter contexts are asked.

    word, block  of the word and of its block, the share that their counts have, but for discounts
    left         the share that discounts leave to shorter contexts: all of it, if the context was never seen
    total        the sum of the context's counts; zero if it was never seen
    """

    word: Tensor
    block: Tensor
    left: Tensor
    total: Tensor


class Length(NamedTuple):
    """The n-grams of one length. A last row of each table stands for what was never seen.

    key_N         sorted: number of the context · V + word
    seen_N        how often each was seen
    before_N      after how many different words
    discount_4    what is taken of a count of 0, 1, 2, and 3 or more
    total_C       of each context, the sum of its counts
    taken_C       the sum of their discounts
    block_key_D   sorted: number of the context · M + block
    block_total_D, block_taken_D  the same sums over the words of that block
    """

    key_N: Tensor
    seen_N: Tensor
    before_N: Tensor
    discount_4: Tensor
    total_C: Tensor
    taken_C: Tensor
    block_key_D: Tensor
    block_total_D: Tensor
    block_taken_D: Tensor

    @classmethod
    def of(cls, order: Order, contexts: int, block_V: NDArray[np.int64], blocks: int) -> Length:
        """Tables of the n-grams of one length, which have so many contexts."""
        vocab_size, count_N = len(block_V), order.counts()
        discount_4 = np.array([0.0, *discounts(count_N)])
        taken_N = discount_4[np.minimum(count_N, 3)]
        context_N, word_N = np.divmod(order.key_N, vocab_size)
        block_key_D, block_N = np.unique(context_N * blocks + block_V[word_N], return_inverse=True)
        tables = (
            np.append(order.key_N, LAST_KEY),
            np.append(order.seen_N, 0),
            np.append(order.before_N, 0),
            discount_4,
            np.bincount(context_N, count_N, minlength=contexts + 1),
            np.bincount(context_N, taken_N, minlength=contexts + 1),
            np.append(block_key_D, LAST_KEY),
            np.append(np.bincount(block_N, count_N), 0.0),
            np.append(np.bincount(block_N, taken_N), 0.0),
        )
        return cls(*(torch.from_numpy(table) for table in tables))

    def find(self, context: Tensor, word: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
        """The number of each n-gram, and whether there is one; NOTHING has no number as a context."""
        return _find(self.key_N, context, word, vocab_size)

    def after(
        self, context: Tensor, found: tuple[Tensor, Tensor], block: Tensor, blocks: int, gone: Tensor | None
    ) -> Explicit:
        """Of n-grams that `find` found, whose words are of these blocks.

        Without its own token each would have stood after `gone` words fewer; None leaves all counts whole.
        """
        counted, own = self._shares(*found, gone)
        taken_word = self._discount(counted - own)
        less = self._discount(counted) - taken_word
        at, there = _find(self.block_key_D, context, block, blocks)
        block_total, block_taken = self.block_total_D[at] * there, self.block_taken_D[at] * there
        total = self.total_C[context] - own
        known = total > 0
        whole = total.where(known, 1.0)
        return Explicit(
            (counted - own - taken_word) * known / whole,
            (block_total - own - (block_taken - less)) * known / whole,
            ((self.taken_C[context] - less) / whole).where(known, 1.0),
            total.where(known, 0.0),
        )

    def _shares(self, at: Tensor, hit: Tensor, gone: Tensor | None) -> tuple[Tensor, Tensor]:
        """The count of each n-gram, and what its own token adds to that, if `gone` of the words before go with it.

        What was never counted, as a word that the text does not have, takes nothing with it.
        """
        seen, before = self.seen_N[at] * hit, self.before_N[at] * hit
        counted = torch.where(before > 0, before, seen)
        if gone is None:
            return counted, torch.zeros_like(counted)
        before, seen = before - gone, (seen - 1).clamp_min(0)
        return counted, counted - torch.where(before > 0, before, seen)

    def _discount(self, counted: Tensor) -> Tensor:
        """What is taken of a count."""
        return self.discount_4[counted.clamp_max(3)]


def _find(key_N: Tensor, context: Tensor, item: Tensor, items: int) -> tuple[Tensor, Tensor]:
    wanted = context * items + item
    at = torch.searchsorted(key_N, wanted)
    return at, (key_N[at] == wanted) & (context >= 0)
