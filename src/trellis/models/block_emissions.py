"""Emissions of blocked models: log p(word | state) of a batch's words, in the states of their groups."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trellis.models.block_columns import Spans, block_columns
from trellis.models.groups import Groups
from trellis.models.listed_columns import Meetings, listed_log_totals, listed_logits, normalise_by_state
from trellis.models.state_features import Listed


class BilinearEmission(nn.Module):
    """Logits are inner products of a word's vector and its states', and a bias a word."""

    def __init__(self, vocab_size: int, width: int, scale: float) -> None:
        super().__init__()
        self.words = nn.Parameter(torch.randn(vocab_size, width).mul_(scale))
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def columns(self, enter: Listed, groups: Groups, groups_G: Tensor, words_N: Tensor, states: int) -> Tensor:
        """log p(word | state) of distinct words in the lists entered, G×J, of their groups `groups_G`: N×J."""
        if len(groups.states_GK) == len(groups.group_V):  # every word has its own list, and lists may overlap
            place_NJ = enter.distinct.places()[torch.searchsorted(groups_G, groups.group_V[words_N])]
            return self._of_lists(enter, groups.states_GK[groups.group_V], place_NJ, words_N, states)
        spans, place_N = Spans.of(groups.group_V, groups_G, words_N)
        emitting_GJR = enter.distinct.spread(enter.emitting)
        return block_columns(emitting_GJR, self.words, self.bias, spans).index_select(0, place_N)

    def _of_lists(self, enter: Listed, lists_VK: Tensor, place_NJ: Tensor, words_N: Tensor, states: int) -> Tensor:
        """The same from the list of every word: the states entered, normalised over all words that meet them."""
        emitting_UR = enter.emitting
        words_NR, bias_N1 = self.words.index_select(0, words_N), self.bias.index_select(0, words_N).unsqueeze(1)
        logits_NJ = listed_logits(words_NR, emitting_UR, place_NJ) + bias_N1
        meetings = Meetings.among(lists_VK, enter.distinct.states_U, states)
        log_total_U = listed_log_totals(self.words, self.bias, emitting_UR, meetings)
        return logits_NJ - log_total_U.index_select(0, place_NJ.flatten()).view_as(place_NJ)


class ScalarEmission(nn.Module):
    """Logits are parameters themselves: one for each word in each state of its group."""

    def __init__(self, vocab_size: int, block_size: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(vocab_size, block_size))

    def columns(self, enter: Listed, groups: Groups, groups_G: Tensor, words_N: Tensor, states: int) -> Tensor:
        """log p(word | state) of distinct words in the lists entered, G×J, of their groups `groups_G`: N×J."""
        log_VK = normalise_by_state(self.table, groups.states_GK[groups.group_V], states)
        return log_VK.index_select(0, words_N).gather(1, _places(groups, words_N, groups_G, enter.lists_NK))


def _places(groups: Groups, words_N: Tensor, groups_G: Tensor, enter_GJ: Tensor) -> Tensor:
    """Where in each word's whole list the states entered stand, N×J."""
    group_N = groups.group_V[words_N]
    entered_NJ = enter_GJ[torch.searchsorted(groups_G, group_N)]
    return torch.searchsorted(groups.states_GK[group_N], entered_NJ)
