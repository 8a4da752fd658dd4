"""Baselines that count: a unigram and a bigram, with the same `score` as every model here.

Their state is the last token of each row, B×1, and −1 where a row has seen none: then, as with no state at all, the
next token is conditioned on nothing and the unigram answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trellis.errors import TrellisError
from trellis.models.asking import Texts
from trellis.models.scorer import MaybeTensor, check_ids
from trellis.ops.precision import at_most_zero
from trellis.text import IdFile

CHUNK = 1 << 24  # tokens counted at a time: 128 MB of pairs


@dataclass(frozen=True, eq=False)
class Unigram:
    """p(w) = (c(w) + 1) / (N + V): every word counted once more than it was seen."""

    log_prob_V: Tensor

    @classmethod
    def fit(cls, ids: IdFile | NDArray[Any], vocab_size: int) -> Unigram:
        """Count the words of a text."""
        count_V = np.ones(vocab_size, dtype=np.int64)
        for chunk in _chunks(ids, vocab_size):
            count_V += np.bincount(chunk, minlength=vocab_size)
        return cls(torch.from_numpy(np.log(count_V / count_V.sum())))

    def score(self, ids_BT: Tensor, state: MaybeTensor = None, lengths_B: MaybeTensor = None) -> tuple[Tensor, Tensor]:
        """log p(token), B×T, zero past a row's end; and the state to carry on from."""
        texts = Texts.of(ids_BT, state, lengths_B, (len(self.log_prob_V), 1), self.log_prob_V.device)
        _, state = _contexts(texts)
        return self.log_prob_V[texts.ids_BT].masked_fill(~texts.inside_BT, 0.0), state


@dataclass(frozen=True, eq=False)
class Bigram:
    """p(w | v) = max(c(v w) − D, 0) / c(v ·) + D · |{w': c(v w') > 0}| / c(v ·) · p(w).

    Absolute discounting, interpolated onto the unigram: D = n₁ / (n₁ + 2 n₂), where n₁ and n₂ pairs were seen once and
    twice. Where no pair was seen once that estimate is zero, which would forbid new pairs, and D is one half.
    """

    unigram: Unigram
    key_N: Tensor  # v · V + w of every pair seen, sorted, and last V², which no pair reaches
    kept_N: Tensor  # its first term: what the discount left; zero for the last
    left_U: Tensor  # what each context leaves to the unigram: one if it was never seen, and for the last, no context

    @classmethod
    def fit(cls, ids: IdFile | NDArray[Any], vocab_size: int) -> Bigram:
        """Count the words and the pairs of a text."""
        unigram = Unigram.fit(ids, vocab_size)
        key_N, count_N = _count_pairs(ids, vocab_size)
        once, twice = int((count_N == 1).sum()), int((count_N == 2).sum())
        discount = once / (once + 2 * twice) if once else 0.5
        context_N = key_N // vocab_size
        total_U = np.bincount(context_N, weights=count_N, minlength=vocab_size + 1)
        kinds_U = np.bincount(context_N, minlength=vocab_size + 1)
        left_U = np.where(total_U > 0, discount * kinds_U / np.maximum(total_U, 1), 1.0)
        kept_N = (count_N - discount) / total_U[context_N]
        tables = np.append(key_N, vocab_size**2), np.append(kept_N, 0.0), left_U
        return cls(unigram, *(torch.from_numpy(table) for table in tables))

    def score(self, ids_BT: Tensor, state: MaybeTensor = None, lengths_B: MaybeTensor = None) -> tuple[Tensor, Tensor]:
        """log p(token | token before it), B×T, zero past a row's end; and the state to carry on from."""
        vocab_size = len(self.unigram.log_prob_V)
        texts = Texts.of(ids_BT, state, lengths_B, (vocab_size, 1), self.key_N.device)
        ids_BT = texts.ids_BT
        context_BT, state = _contexts(texts)
        key_BT = context_BT * vocab_size + ids_BT  # with no context below zero, and so never found
        at_BT = torch.searchsorted(self.key_N, key_BT)
        kept_BT = torch.where(self.key_N[at_BT] == key_BT, self.kept_N[at_BT], 0.0)
        prob_BT = kept_BT + self.left_U[context_BT] * self.unigram.log_prob_V[ids_BT].exp()
        return at_most_zero(prob_BT.log()).masked_fill(~texts.inside_BT, 0.0), state


def _contexts(texts: Texts) -> tuple[Tensor, Tensor]:
    """The token before each, B×T, and the last token of each row, B×1."""
    all_BT = texts.whole()
    return all_BT[:, :-1], all_BT.gather(1, texts.lengths_B[:, None])


def _chunks(ids: IdFile | NDArray[Any], vocab_size: int, overlap: int = 0) -> Iterator[NDArray[np.int64]]:
    """The text in pieces that fit in memory, each with `overlap` tokens of the next, checked against the vocabulary."""
    array = ids.ids if isinstance(ids, IdFile) else ids
    if len(array) == 0:
        raise TrellisError("there are no tokens to count: give a corpus with text in it.")
    for begin in range(0, len(array), CHUNK):
        chunk = np.asarray(array[begin : begin + CHUNK + overlap], dtype=np.int64)
        check_ids(torch.from_numpy(chunk), vocab_size)
        yield chunk


def _count_pairs(ids: IdFile | NDArray[Any], vocab_size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct pairs of neighbours as v · V + w, sorted, and how often each was seen."""
    key_N = count_N = np.empty(0, dtype=np.int64)
    for chunk in _chunks(ids, vocab_size, overlap=1):
        new, new_count = np.unique(chunk[:-1] * vocab_size + chunk[1:], return_counts=True)
        old, old_count = key_N, count_N
        key_N = np.union1d(old, new)
        count_N = np.zeros(len(key_N), dtype=np.int64)
        count_N[np.searchsorted(key_N, old)] += old_count
        count_N[np.searchsorted(key_N, new)] += new_count
    return key_N, count_N
