"""How the states' vectors, or free numbers, become emissions: log p(word | state) of a batch's words.

A state's words are those whose block it is in, and it is normalised over them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from trellis.models.encoders import Vectors
from trellis.models.lists import Listed
from trellis.models.supports import Support
from trellis.ops.block_columns import Spans, block_columns
from trellis.ops.columns import low_rank_columns, scalar_columns
from trellis.ops.overlapping_columns import Entries, normalise_by_state, overlapping_log_totals, overlapping_logits

if TYPE_CHECKING:
    from trellis.models.hmm_config import HMMConfig


class EmissionPart(nn.Module):
    """log p(word | state), by words: where every state emits every word, and where each word has a block of states."""

    roles: ClassVar[tuple[str, ...]] = ()

    def columns(self, vectors: Vectors, states_S: Tensor, words_N: Tensor) -> Tensor:
        """log p(word | state) of these words in these states, N×S, each state normalised over the vocabulary."""
        raise NotImplementedError

    def block_columns(self, listed: Listed, support: Support, blocks_G: Tensor, words_N: Tensor, states: int) -> Tensor:
        """log p(word | state) of distinct words in the states listed, G×J, of their blocks `blocks_G`: N×J."""
        raise NotImplementedError


class LowRankEmission(EmissionPart):
    """Logits are inner products of a word's vector and its states', and if asked for a bias a word."""

    roles = ("emitting",)

    def __init__(self, config: HMMConfig, block_size: int) -> None:
        super().__init__()
        self.words = nn.Parameter(torch.randn(config.vocab_size, config.width).mul_(config.scale))
        self.bias = nn.Parameter(torch.zeros(config.vocab_size)) if config.bias else None

    def columns(self, vectors: Vectors, states_S: Tensor, words_N: Tensor) -> Tensor:
        """log p(word | state) of these words in these states, N×S, each state normalised over the vocabulary."""
        return low_rank_columns(self.words, vectors.vectors("emitting", vectors.encode(states_S)), self.bias, words_N)

    def block_columns(self, listed: Listed, support: Support, blocks_G: Tensor, words_N: Tensor, states: int) -> Tensor:
        """log p(word | state) of distinct words in the states listed, G×J, of their blocks `blocks_G`: N×J."""
        if len(support.states_MK) == len(support.block_V):  # every word has its own list, and lists may overlap
            place_NJ = listed.distinct.places()[torch.searchsorted(blocks_G, support.block_V[words_N])]
            return self._of_lists(listed, support.lists(), place_NJ, words_N, states)
        spans, place_N = Spans.of(support.block_V, blocks_G, words_N)
        emitting_GJR = listed.distinct.spread(listed.vectors("emitting"))
        return block_columns(emitting_GJR, self.words, self.bias, spans).index_select(0, place_N)

    def _of_lists(self, listed: Listed, lists_VK: Tensor, place_NJ: Tensor, words_N: Tensor, states: int) -> Tensor:
        """The same from the list of every word: the states listed, normalised over all words that have them."""
        bias_N = None if self.bias is None else self.bias.index_select(0, words_N)
        emitting_UR = listed.vectors("emitting")
        logits_NJ = overlapping_logits(self.words.index_select(0, words_N), emitting_UR, bias_N, place_NJ)
        entries = Entries.among(lists_VK, listed.distinct.states_U, states)
        log_total_U = overlapping_log_totals(self.words, emitting_UR, self.bias, entries)
        return logits_NJ - log_total_U.index_select(0, place_NJ.flatten()).view_as(place_NJ)


class ScalarEmission(EmissionPart):
    """Free logits: one for each word in each state of its block."""

    def __init__(self, config: HMMConfig, block_size: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(config.vocab_size, block_size))

    def columns(self, vectors: Vectors, states_S: Tensor, words_N: Tensor) -> Tensor:
        """log p(word | state) of these words in these states, N×S, each state normalised over the vocabulary."""
        whole = len(states_S) == self.table.shape[1]
        return scalar_columns(self.table if whole else self.table.index_select(1, states_S), words_N)

    def block_columns(self, listed: Listed, support: Support, blocks_G: Tensor, words_N: Tensor, states: int) -> Tensor:
        """log p(word | state) of distinct words in the states listed, G×J, of their blocks `blocks_G`: N×J."""
        log_VK = normalise_by_state(self.table, support.lists(), states)
        block_N = support.block_V[words_N]
        listed_NJ = listed.lists_NK[torch.searchsorted(blocks_G, block_N)]
        place_NJ = torch.searchsorted(support.states_MK[block_N], listed_NJ)
        return log_VK.index_select(0, words_N).gather(1, place_NJ)


EMISSIONS: dict[str, type[EmissionPart]] = {"scalar": ScalarEmission, "low_rank": LowRankEmission}
