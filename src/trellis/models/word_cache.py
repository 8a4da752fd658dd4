"""A cache of the last words (Kuhn & De Mori 1990), mixed into counted n-grams: what was said a little ago comes again.

With the last n words x_i before a token, and Kneser–Ney's q of the token given the nearest of them:

    r(w)  = Σ_i ω(m_i, a_i) [x_i = w] / Σ_i ω(m_i, a_i)
    q′(w) = (1 − λ) q(w) + λ r(w)

Here m_i is how many of the words just before x_i are those just before the token, up to three, and a_i the age of x_i,
rounded down to a power of two. The weights ω are learnt, and so is λ: a number for what n-grams know of the context and
the longest m_i. All this depends on the last n words and nothing else, so the model is an exact HMM over a state and n
words.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

LEVELS = 4  # no word before is the same, one, two, or three and more
FRESH_WEIGHTS, FRESH_AGE, FRESH_SHARE = (0.0, 4.0, 6.0, 7.5), -0.35, -1.5  # logarithms, the second a doubling; a logit
LARGEST_GRID = 1 << 23  # pairs of a token and a word of its cache that are looked at together


class Recent(NamedTuple):
    """What the caches before some tokens hold, counted by level and age: C cells.

    word_NC   the token's own word
    block_NC  words of its block
    all_NC    all words
    level_N   the highest level that there is
    """

    word_NC: Tensor
    block_NC: Tensor
    all_NC: Tensor
    level_N: Tensor


class WordCache(nn.Module):
    """The weights of a cache of the last words, and its share beside counted n-grams."""

    def __init__(self, size: int, kinds: int) -> None:
        super().__init__()
        self.size, self.ages = size, size.bit_length()
        fresh_LA = torch.tensor(FRESH_WEIGHTS)[:, None] + FRESH_AGE * torch.arange(self.ages)
        self.weights = nn.Parameter(fresh_LA)
        self.shares = nn.Parameter(torch.full((kinds * LEVELS,), FRESH_SHARE))

    @torch.no_grad()
    def before_tokens(self, before_BM: Tensor, ids_BT: Tensor, block_V: Tensor) -> Recent:
        """The caches before each token of rows, N being B×T; before the rows were these words, the newest first."""
        all_BN = torch.cat([before_BM[:, : self.size].flip(1), ids_BT], 1).int()  # compared in half the time
        step = max(1, LARGEST_GRID // max(1, len(all_BN) * self.size))
        parts = [
            self._before(all_BN[:, begin : begin + step + self.size], block_V)
            for begin in range(0, max(1, ids_BT.shape[1]), step)
        ]
        return Recent(*(torch.cat(counts, 1) for counts in zip(*parts, strict=True)))

    def _before(self, all_BN: Tensor, block_V: Tensor) -> Recent:
        """The same of rows whose first words are the whole cache of the first token."""
        past_BTW = all_BN.unfold(1, self.size, 1)[:, :-1]
        word_NC = self._counts(all_BN, past_BTW == all_BN[:, self.size :, None])
        block_BN = block_V[all_BN.clamp_min(0)].masked_fill(all_BN < 0, -1)
        in_block = block_BN.unfold(1, self.size, 1)[:, :-1] == block_BN[:, self.size :, None]
        newest_BT1 = all_BN[:, self.size - 1 : -1, None]
        after_the_same = torch.zeros_like(in_block)
        after_the_same[:, :, 1:] = (past_BTW[:, :, :-1] == newest_BT1) & (newest_BT1 >= 0)
        all_NC = self._counts(all_BN, after_the_same)
        words_BN = torch.nn.functional.pad((all_BN >= 0).cumsum(1), (1, 0))
        held_N1 = (words_BN[:, self.size : -1] - words_BN[:, : -1 - self.size]).flatten()[:, None]
        youngest_A = 1 << torch.arange(self.ages, device=all_BN.device)
        held_NA = (held_N1 - youngest_A + 1).clamp_min(0).minimum(youngest_A)
        matched_NA = all_NC.view(-1, LEVELS, self.ages).sum(1)
        all_NC[:, : self.ages] = held_NA - matched_NA
        found_NL = all_NC.view(-1, LEVELS, self.ages).sum(2) > 0
        level_N = (found_NL * torch.arange(LEVELS, device=all_BN.device)).amax(1)
        found = word_NC, self._counts(all_BN, in_block), all_NC, level_N
        return Recent(*(number_N.view(*in_block.shape[:2], *number_N.shape[1:]) for number_N in found))

    def _counts(self, all_BN: Tensor, chosen_BTW: Tensor) -> Tensor:
        """How many of the chosen words of each token's cache there are in each cell, N×C."""
        row_I, token_I, place_I = chosen_BTW.nonzero().unbind(1)
        number_I = row_I * chosen_BTW.shape[1] + token_I
        cell_I = self._cell(all_BN, row_I, token_I, place_I)
        tokens = chosen_BTW.shape[0] * chosen_BTW.shape[1]
        return torch.bincount(number_I * self._cells + cell_I, minlength=tokens * self._cells).view(tokens, self._cells)

    def _cell(self, all_BN: Tensor, row: Tensor, token: Tensor, place: Tensor) -> Tensor:
        """The level and age of words of caches: rows, tokens, and places within the cache, the oldest word first."""
        level, same = torch.zeros_like(place), torch.ones_like(place, dtype=torch.bool)
        for back in range(1, min(LEVELS, self.size)):
            theirs = all_BN[row, (token + place - back).clamp_min(0)]
            same = same & (place >= back) & (theirs == all_BN[row, token + self.size - back]) & (theirs >= 0)
            level = level + same
        age = (self.size - place).float().log2().long()
        return level * self.ages + age

    @property
    def _cells(self) -> int:
        return LEVELS * self.ages

    def _weight(self) -> Tensor:
        """ω of each cell, C, but for a factor."""
        return (self.weights - self.weights.detach().max()).exp().flatten()

    def kind(self, kind: Tensor, level: Tensor) -> Tensor:
        """What is known of a context by n-grams and by the cache, as one number."""
        return kind * LEVELS + level

    def mixed(self, prob: Tensor, recent_prob: Tensor, kind: Tensor, held: Tensor) -> Tensor:
        """q′ of q and r; where the cache holds nothing, q."""
        share = self.shares[kind].sigmoid() * held
        return (1 - share) * prob + share * recent_prob

    def of_tokens(self, recent: Recent) -> tuple[Tensor, Tensor, Tensor]:
        """r of each token's word and of its block, and whether the cache holds anything."""
        weight_C = self._weight()
        held = recent.all_NC.sum(-1) > 0
        total = (recent.all_NC.to(weight_C) @ weight_C).where(held, 1.0)
        word, block = (count.to(weight_C) @ weight_C / total for count in recent[:2])
        return word, block, held

    @torch.no_grad()
    def of_all_words(self, words_NM: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
        """r of every word after these last words, the newest first, N×V, and the highest level of each, N."""
        all_NW = words_NM[:, : self.size].flip(1)
        grid = torch.meshgrid(*(torch.arange(n, device=all_NW.device) for n in all_NW.shape), indexing="ij")
        cell_NW = self._cell(all_NW, grid[0], torch.zeros_like(grid[0]), grid[1])
        held_NW = all_NW >= 0
        weight_NW = self._weight()[cell_NW] * held_NW
        found_NV = weight_NW.new_zeros(len(all_NW), vocab_size).scatter_add_(1, all_NW.clamp_min(0), weight_NW)
        level_N = torch.where(held_NW, cell_NW // self.ages, 0).amax(1)
        return found_NV / weight_NW.sum(1, keepdim=True).where(held_NW.any(1, keepdim=True), 1.0), level_N
