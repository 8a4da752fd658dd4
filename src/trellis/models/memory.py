"""States that remember words: how a state is left depends on the words that it and those before it emitted.

    p(z′ | z, x) = T[z, z′] exp(c_x[z′]) / N(z, x),    c_x = entering · d_x,    N(z, x) = Σ_z′ T[z, z′] exp(c_x[z′])

with the plain transition T and a vector d_x a word; of several words their vectors are added. This is an exact HMM over
pairs of a state and its words, tied through vectors (a cloned HMM, Dedieu et al. 2019, with factored parameters). As
words are observed, a chain needs no pairs: a token is weighed by p(x_t | z) exp(c_x_t−1[z]) / N(z, x_t), and steps
cross T alone. The last token of a row is not divided by N: that belongs to the step after it.
"""

from __future__ import annotations

import math
from os import PathLike
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trellis.errors import TrellisError
from trellis.inference import Dense
from trellis.ops import walks
from trellis.ops.log_pulls import log_pull_shared
from trellis.ops.precision import widened
from trellis.ops.products import inner

if TYPE_CHECKING:
    from trellis.models.hmm_config import HMMConfig

NONE, MISSING = -1, -2  # in the place of a word: before a text begins, and of a word that was not seen
MODERATE = 1e12  # products of numbers that are neither larger nor smaller than its inverse keep their digits


def last_words(before_BM: Tensor, ids_BT: Tensor) -> Tensor:
    """The last M words before each token of rows and after the last, B×(T+1)×M, the newest first."""
    return torch.cat([before_BM.flip(1), ids_BT], 1).unfold(1, before_BM.shape[1], 1).flip(2)


class Contexts(NamedTuple):
    """What is remembered at each place of a batch.

    words_KM   the distinct contexts: the last M words, the newest first
    place_BT1  of each row, the context before its first token, and after each token
    """

    words_KM: Tensor
    place_BT1: Tensor

    @classmethod
    def of(cls, before_BM: Tensor, ids_BT: Tensor, vocab_size: int) -> Contexts:
        """Those of rows that begin after these words, the newest first."""
        base = torch.tensor([(vocab_size + 2) ** m for m in range(before_BM.shape[1])], device=ids_BT.device)
        words_BTM = last_words(before_BM, ids_BT)
        code_K, place_BT1 = ((words_BTM + 2) * base).sum(2).unique(return_inverse=True)
        words_KM = code_K[:, None] // base % (vocab_size + 2) - 2
        return cls(words_KM, place_BT1)


class Memory(nn.Module):
    """A vector for each word at each of the places that are remembered; of all words, or of the most frequent ones."""

    kept_W: Tensor | None  # the words that have a vector, ascending; None: all

    def __init__(self, config: HMMConfig) -> None:
        super().__init__()
        self.vocab_size, self.dropout = config.vocab_size, config.memory_dropout
        many = config.memory_words or config.vocab_size
        self.words = nn.Parameter(torch.zeros(config.memory, many, config.width))
        self.register_buffer("kept_W", torch.arange(many) if config.memory_words else None)

    def keep_frequent(self, ids: NDArray[np.integer]) -> None:
        """Have vectors for the words that are most frequent in a text; of those as frequent, for the first ones."""
        if self.kept_W is not None:
            most_V = np.argsort(-np.bincount(ids, minlength=self.vocab_size), kind="stable")
            self.kept_W.copy_(torch.from_numpy(np.sort(most_V[: len(self.kept_W)])))

    def check(self, tables: dict[str, Tensor], where: str | PathLike[str]) -> None:
        """Refuse words that are none of the vocabulary's."""
        kept_W = tables.get("kept_W")
        if kept_W is not None and not bool(
            ((kept_W >= 0) & (kept_W < self.vocab_size)).all() & (kept_W.diff() > 0).all()
        ):
            raise TrellisError(f"the remembered words in {where} are not this model's: restore its model.safetensors.")

    def contexts(self, before_BM: Tensor, ids_BT: Tensor, block_V: Tensor | None = None) -> Contexts:
        """What is remembered of rows that begin after these words, the newest first.

        Words without a vector are all the same, but for their blocks: one of them stands for all.
        """
        if self.kept_W is None:
            return Contexts.of(before_BM, ids_BT, self.vocab_size)
        standing_V = torch.arange(self.vocab_size, device=ids_BT.device)
        forgotten_N = (self._rows() < 0).nonzero().flatten()
        block_N = torch.zeros_like(forgotten_N) if block_V is None else block_V[forgotten_N]
        one_M = standing_V.scatter(0, block_N, forgotten_N)  # as many as there are words are enough for all blocks
        standing_V[forgotten_N] = one_M[block_N]
        before_BM, ids_BT = (
            torch.where(words < 0, words, standing_V[words.clamp_min(0)]) for words in (before_BM, ids_BT)
        )
        return Contexts.of(before_BM, ids_BT, self.vocab_size)

    def _rows(self) -> Tensor:
        """Of each word the row of its vector, V; −1 where it has none."""
        assert self.kept_W is not None
        places_W = torch.arange(len(self.kept_W), device=self.kept_W.device)
        return torch.full((self.vocab_size,), -1, device=self.kept_W.device).scatter(0, self.kept_W, places_W)

    def vectors(self, words_KM: Tensor) -> Tensor:
        """d_x of these contexts, K×R; while learning, as dropout leaves them."""
        sum_KR = self.whole_vectors(words_KM)
        return self._thinned(sum_KR) if self.training and self.dropout else sum_KR

    def whole_vectors(self, words_KM: Tensor) -> Tensor:
        """d_x of these contexts, K×R; a word that is not there adds nothing."""
        if self.kept_W is not None:
            words_KM = torch.where(words_KM < 0, words_KM, self._rows()[words_KM.clamp_min(0)])
        there_KM1 = (words_KM >= 0).unsqueeze(-1)
        chosen = [
            words_VR.index_select(0, words_K.clamp_min(0)) * there_K1
            for words_VR, words_K, there_K1 in zip(self.words, words_KM.T, there_KM1.unbind(1), strict=True)
        ]
        return torch.stack(chosen).sum(0) if len(chosen) > 1 else chosen[0]

    def _thinned(self, sum_KR: Tensor) -> Tensor:
        """Dropout, drawn by the processor's generator, so that a seed means the same on every device."""
        kept_KR = (torch.rand(sum_KR.shape) >= self.dropout).to(sum_KR)
        return sum_KR * kept_KR.div_(1 - self.dropout)

    def log_enter(self, entering_SR: Tensor, words_KM: Tensor) -> Tensor:
        """c_x[z′] of these contexts, K×S."""
        return inner(self.vectors(words_KM), entering_SR)


def log_totals(transition: Dense, log_enter_KS: Tensor) -> Tensor:
    """log N(z, x) of contexts, K×S: one product with the transition, and log space where that cannot hold it."""
    log_total_KS = log_pull_shared(transition.matrix_SS, log_enter_KS)
    least_K1 = log_enter_KS.detach().amax(1, keepdim=True) + math.log(walks.limits(log_enter_KS.dtype).lowest_belief)
    lost_K = (log_total_KS.detach() < least_K1).any(1)
    if not bool(lost_K.any()):
        return log_total_KS
    exact = [(transition.log_matrix_SS + log_enter_S).logsumexp(1) for log_enter_S in log_enter_KS[lost_K]]
    return log_total_KS.index_copy(0, lost_K.nonzero().flatten(), torch.stack(exact).to(log_total_KS))


def leaving(transition: Dense, log_emission_VS: Tensor, log_enter_VS: Tensor) -> tuple[Tensor, Tensor]:
    """p(x | z) / N(z, x) and exp(c_x[z′]) of every word, both V×S: the first times and the second divided by one factor
    a word, so that the second does not overflow.
    """
    peak_V1 = log_enter_VS.amax(1, keepdim=True)
    leave_VS = (log_emission_VS + peak_V1 - log_totals(transition, log_enter_VS)).exp()
    return leave_VS, (log_enter_VS - peak_V1).exp()


def log_gap_matrix(transition: Dense, log_emission_VS: Tensor, log_enter_VS: Tensor) -> Tensor:
    """log p(next state | state) where the word of the latter was not seen, S×S: the sum over all words.

    log T[z, z′] + log Σ_x p(x | z) exp(c_x[z′]) / N(z, x): a product, and log space where that cannot hold it.
    """
    leave_VS, enter_VS = leaving(transition, log_emission_VS, log_enter_VS)
    sum_SS = leave_VS.T @ enter_VS
    if bool(leave_VS.max() < MODERATE) and bool(sum_SS.min() > 1.0 / MODERATE):
        return transition.log_matrix_SS + sum_SS.log()
    log_leave_VS = widened(log_emission_VS - log_totals(transition, log_enter_VS))
    log_enter_VS = widened(log_enter_VS)
    exact = [(log_leave_V[:, None] + log_enter_VS).logsumexp(0) for log_leave_V in log_leave_VS.T]
    return (widened(transition.log_matrix_SS) + torch.stack(exact)).to(transition.log_matrix_SS)
