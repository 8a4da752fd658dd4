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
from trellis.models.state_features import Listed, States


class Lists(NamedTuple):
    """The states a batch passes through.

    leave      lists of states that are left, N×K
    enter      lists of states that are entered, G×J
    block_G    the block that each list entered belongs to
    alive_GJ   which of the states entered dropout has left alive; None if all are
    pairs      which lists are left for which
    kept_S     all states alive in any group, over which a flat transition is normalised
    few        whether these are few beside other pairs of the batch, to whose gradient theirs will be added
    """

    leave: Listed
    enter: Listed
    block_G: Tensor
    alive_GJ: Tensor | None
    pairs: Pairs
    kept_S: Tensor
    few: bool = False

    def entering(self) -> tuple[Tensor, Pairs]:
        """How the states of the lists are entered, G×J×R, and the pairs; where pairs are few, so are these lists."""
        leave_P, enter_P = self.pairs
        if len(enter_P) >= len(self.enter.lists_NK):
            return self.enter.distinct.spread(self.enter.entering), self.pairs
        place_PJ = self.enter.distinct.places()[enter_P]
        entering_IR = self.enter.entering.index_select(0, place_PJ.flatten())
        own_P = torch.arange(len(enter_P), device=enter_P.device)
        return entering_IR.view(*place_PJ.shape, entering_IR.shape[1]), Pairs(leave_P, own_P)

    def to_blocks(self, log_block_UM: Tensor) -> Tensor:
        """p(the pair's block | state left), P×K, from log p(block | state) of the distinct states left."""
        log_block_NMK = self.leave.distinct.spread(log_block_UM).transpose(1, 2)
        return log_block_NMK[self.pairs.leave_P, self.block_G[self.pairs.enter_P]].exp()

    def unscaled(self, like: Tensor) -> Tensor:
        """The same where no block is drawn first: ones."""
        return like.new_ones(len(self.pairs.leave_P), self.leave.lists_NK.shape[1])

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
            return (leaving_NR @ self.block.T.to(leaving_NR) + self.block_bias.to(leaving_NR)).log_softmax(-1)

    def into(self, vectors: States, lists: Lists) -> Tensor:
        """Probabilities [pair, to, from] of the lists' pairs."""
        leaving_UR, left = lists.leave.leaving, lists.leave.distinct
        entering_GJR, pairs = lists.entering()
        log_block_UM, shift_NK = self._log_block(leaving_UR), None
        if log_block_UM is None:
            kept_SR = vectors.entering(vectors.look_up(lists.kept_S))
            shift_NK, scale_PK = left.spread(bilinear_log_total(leaving_UR, kept_SR)), lists.unscaled(leaving_UR)
        else:
            scale_PK = lists.to_blocks(log_block_UM)
        return lists.alive(bilinear_pairs(left.spread(leaving_UR), entering_GJR, scale_PK, shift_NK, pairs))

    @torch.no_grad()
    def log_into(self, vectors: States, lists: Lists, chosen_N: Tensor) -> Tensor:
        """The slow twin of `into`: logarithms of some pairs' probabilities in float64, [pair, to, from]."""
        left_L, leave = lists.pairs.leave_P[chosen_N].unique(return_inverse=True)
        enter = lists.pairs.enter_P[chosen_N]
        leaving_LKR = lists.leave.leaving[lists.leave.distinct.places()[left_L]].double()
        entering_NJR = lists.enter.entering[lists.enter.distinct.places()[enter]].double()
        logits_NKJ = leaving_LKR[leave] @ entering_NJR.transpose(1, 2)
        log_block_LKM = self._log_block(leaving_LKR)
        if log_block_LKM is None:
            everything_SR = vectors.entering(vectors.look_up(lists.kept_S)).double()
            log_total_LK = bilinear_log_total(leaving_LKR.flatten(0, 1), everything_SR).view(leaving_LKR.shape[:2])
            log_NKJ = logits_NKJ - log_total_LK[leave].unsqueeze(-1)
        else:
            log_NKJ = logits_NKJ.log_softmax(-1) + log_block_LKM[leave, :, lists.block_G[enter]].unsqueeze(-1)
        if lists.alive_GJ is not None:
            log_NKJ = log_NKJ.masked_fill(~lists.alive_GJ[enter].unsqueeze(1), -torch.inf)
        return log_NKJ.transpose(1, 2)

    def log_rows(self, vectors: States, states_N: Tensor, states: int) -> Tensor:
        """log p(next state | state) over all states, N×S."""
        everything_SR = vectors.entering(vectors.look_up(torch.arange(states, device=states_N.device)))
        leaving_NR = vectors.leaving(vectors.look_up(states_N))
        logits_NS = leaving_NR @ everything_SR.T
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
        left, kept_S = lists.leave.distinct, None
        if self.block is None:
            kept_S, scale_PK = lists.kept_S, lists.unscaled(self.table)
        else:
            scale_PK = lists.to_blocks(self.block.index_select(0, left.states_U).log_softmax(-1))
        cells = Cells(left, lists.enter.lists_NK, lists.pairs, kept_S, not lists.few)
        return lists.alive(scalar_pairs(self.table, scale_PK, cells))

    @torch.no_grad()
    def log_into(self, vectors: States, lists: Lists, chosen_N: Tensor) -> Tensor:
        """The slow twin of `into`: logarithms of some pairs' probabilities in float64, [pair, to, from]."""
        leave_N, enter_N = lists.pairs.leave_P[chosen_N], lists.pairs.enter_P[chosen_N]
        leave_NK, enter_GJ = lists.leave.lists_NK, lists.enter.lists_NK
        shape = (len(chosen_N), enter_GJ.shape[1], leave_NK.shape[1])
        log_NJK = self.table.new_empty(shape, dtype=torch.float64)
        for log_JK, leave, enter in zip(log_NJK, leave_N, enter_N, strict=True):
            rows_KS = self.table[leave_NK[leave]].double()
            logits_KJ = rows_KS[:, enter_GJ[enter]]
            if self.block is None:
                log_KJ = logits_KJ - rows_KS[:, lists.kept_S].logsumexp(1, keepdim=True)
            else:
                log_block_KM = self.block[leave_NK[leave]].double().log_softmax(1)
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
