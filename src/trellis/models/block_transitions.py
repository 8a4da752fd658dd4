"""Transitions of blocked models: from the states of one word's group to those of the next word's.

Flat: a softmax over all states. Hierarchical: the next block is drawn first, p(block | z), then a state within it,
p(z′ | block, z); as a word names its block, a step never looks at the others. Both are exact HMMs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from trellis.models.columns import full_precision
from trellis.models.pairs import Pairs, bilinear_log_total, bilinear_pairs
from trellis.models.scalar_pairs import Cells, scalar_pairs
from trellis.models.state_features import Distinct, States, in_lists


class Lists(NamedTuple):
    """The states a batch passes through, by their numbers.

    leave_NK   lists of states that are left
    enter_GJ   lists of states that are entered
    block_G    the block that each list entered belongs to
    alive_GJ   which of the states entered dropout has left alive; None if all are
    pairs      which lists are left for which
    kept_S     all states alive in any group, over which a flat transition is normalised
    few        whether these are few beside other pairs of the batch, to whose gradient theirs will be added
    """

    leave_NK: Tensor
    enter_GJ: Tensor
    block_G: Tensor
    alive_GJ: Tensor | None
    pairs: Pairs
    kept_S: Tensor
    few: bool = False

    def entered(self) -> Lists:
        """The same pairs, without lists that none of them enters; where pairs are few, lists are."""
        leave_P, enter_P = self.pairs
        if len(enter_P) >= len(self.enter_GJ):
            return self
        return self._replace(
            enter_GJ=self.enter_GJ[enter_P],
            block_G=self.block_G[enter_P],
            alive_GJ=None if self.alive_GJ is None else self.alive_GJ[enter_P],
            pairs=Pairs(leave_P, torch.arange(len(enter_P), device=enter_P.device)),
        )

    def to_blocks(self, left: Distinct, log_block_UM: Tensor) -> Tensor:
        """p(the pair's block | state left), P×K, from log p(block | state) of the distinct states left."""
        log_block_NMK = left.spread(log_block_UM).transpose(1, 2)
        return log_block_NMK[self.pairs.leave_P, self.block_G[self.pairs.enter_P]].exp()

    def alive(self, into_PJK: Tensor) -> Tensor:
        """The same probabilities, but none of entering a state that dropout has left out."""
        return into_PJK if self.alive_GJ is None else into_PJK * self.alive_GJ[self.pairs.enter_P].unsqueeze(-1)


class BilinearTransition(nn.Module):
    """Logits are inner products of the vectors of the states left and entered; `blocks` makes it hierarchical."""

    def __init__(self, width: int, blocks: int | None, scale: float) -> None:
        super().__init__()
        self.block = None if blocks is None else nn.Parameter(torch.randn(blocks, width).mul_(scale))
        self.block_bias = None if blocks is None else nn.Parameter(torch.zeros(blocks))

    def _log_block(self, leaving_NR: Tensor) -> Tensor | None:
        """log p(block | state), N×M; None if flat."""
        if self.block is None or self.block_bias is None:
            return None
        with full_precision():
            return (leaving_NR @ self.block.T + self.block_bias).log_softmax(-1)

    def into(self, vectors: States, lists: Lists) -> Tensor:
        """Probabilities [pair, to, from] of the lists' pairs."""
        lists, left = lists.entered(), Distinct.of(lists.leave_NK)
        leaving_UR = vectors.leaving(left.states_U)
        leaving_NKR, entering_GJR = left.spread(leaving_UR), in_lists(vectors.entering, lists.enter_GJ)
        log_block_UM, shift_NK = self._log_block(leaving_UR), None
        if log_block_UM is None:
            shift_NK = left.spread(bilinear_log_total(leaving_UR, vectors.entering(lists.kept_S)))
            scale_PK = leaving_NKR.new_ones(len(lists.pairs.leave_P), lists.leave_NK.shape[1])
        else:
            scale_PK = lists.to_blocks(left, log_block_UM)
        return lists.alive(bilinear_pairs(leaving_NKR, entering_GJR, scale_PK, shift_NK, lists.pairs))

    @torch.no_grad()
    def log_into(self, vectors: States, lists: Lists, chosen_N: Tensor) -> Tensor:
        """The slow twin of `into`: logarithms of some pairs' probabilities in float64, [pair, to, from]."""
        leave, enter = lists.pairs.leave_P[chosen_N], lists.pairs.enter_P[chosen_N]
        leaving_NKR = in_lists(vectors.leaving, lists.leave_NK[leave]).double()
        entering_NJR = in_lists(vectors.entering, lists.enter_GJ[enter]).double()
        logits_NKJ = leaving_NKR @ entering_NJR.transpose(1, 2)
        log_block_NKM = self._log_block(leaving_NKR.to(next(self.parameters(), leaving_NKR)))
        if log_block_NKM is None:
            everything_SR = vectors.entering(lists.kept_S).double()
            log_NKJ = logits_NKJ - (leaving_NKR @ everything_SR.T).logsumexp(-1, keepdim=True)
        else:
            step_NK = log_block_NKM.double().transpose(1, 2)[torch.arange(len(leave)), lists.block_G[enter]]
            log_NKJ = logits_NKJ.log_softmax(-1) + step_NK.unsqueeze(-1)
        if lists.alive_GJ is not None:
            log_NKJ = log_NKJ.masked_fill(~lists.alive_GJ[enter].unsqueeze(1), -torch.inf)
        return log_NKJ.transpose(1, 2)

    def log_rows(self, vectors: States, states_N: Tensor, states: int) -> Tensor:
        """log p(next state | state) over all states, N×S."""
        leaving_NR = vectors.leaving(states_N)
        logits_NS = leaving_NR @ vectors.entering(torch.arange(states, device=states_N.device)).T
        log_block_NM = self._log_block(leaving_NR)
        if log_block_NM is None:
            return logits_NS.log_softmax(-1)
        return _block_then_state(log_block_NM, logits_NS)


class ScalarTransition(nn.Module):
    """Logits are parameters themselves; with `blocks`, so are those of the next block."""

    def __init__(self, states: int, blocks: int | None) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(states, states))
        self.block = None if blocks is None else nn.Parameter(torch.randn(states, blocks))

    def into(self, vectors: States, lists: Lists) -> Tensor:
        """Probabilities [pair, to, from] of the lists' pairs."""
        lists, left = lists.entered(), Distinct.of(lists.leave_NK)
        if self.block is None:
            scale_PK = self.table.new_ones(len(lists.pairs.leave_P), lists.leave_NK.shape[1])
        else:
            scale_PK = lists.to_blocks(left, self.block.index_select(0, left.states_U).log_softmax(-1))
        kept_S = lists.kept_S if self.block is None else None
        into_PJK = scalar_pairs(self.table, scale_PK, Cells(left, lists.enter_GJ, lists.pairs, kept_S, not lists.few))
        return lists.alive(into_PJK)

    @torch.no_grad()
    def log_into(self, vectors: States, lists: Lists, chosen_N: Tensor) -> Tensor:
        """The slow twin of `into`: logarithms of some pairs' probabilities in float64, [pair, to, from]."""
        leave_N, enter_N = lists.pairs.leave_P[chosen_N], lists.pairs.enter_P[chosen_N]
        shape = (len(chosen_N), lists.enter_GJ.shape[1], lists.leave_NK.shape[1])
        log_NJK = self.table.new_empty(shape, dtype=torch.float64)
        for log_JK, leave, enter in zip(log_NJK, leave_N, enter_N, strict=True):
            rows_KS = self.table[lists.leave_NK[leave]].double()
            logits_KJ = rows_KS[:, lists.enter_GJ[enter]]
            if self.block is None:
                log_KJ = logits_KJ - rows_KS[:, lists.kept_S].logsumexp(1, keepdim=True)
            else:
                log_block_KM = self.block[lists.leave_NK[leave]].double().log_softmax(1)
                log_KJ = logits_KJ.log_softmax(1) + log_block_KM[:, lists.block_G[enter], None]
            log_JK.copy_(log_KJ.T)
        if lists.alive_GJ is not None:
            log_NJK.masked_fill_(~lists.alive_GJ[enter_N].unsqueeze(-1), -torch.inf)
        return log_NJK

    def log_rows(self, vectors: States, states_N: Tensor, states: int) -> Tensor:
        """log p(next state | state) over all states, N×S."""
        logits_NS = self.table.index_select(0, states_N)
        if self.block is None:
            return logits_NS.log_softmax(-1)
        return _block_then_state(self.block.index_select(0, states_N).log_softmax(-1), logits_NS)


def _block_then_state(log_block_NM: Tensor, logits_NS: Tensor) -> Tensor:
    """log p(block | z) + log p(state | block, z), N×S."""
    (rows, blocks), states = log_block_NM.shape, logits_NS.shape[1]
    within_NMK = logits_NS.view(rows, blocks, states // blocks).log_softmax(-1)
    return (within_NMK + log_block_NM.unsqueeze(-1)).flatten(1)
