"""Transitions: how a belief moves one step, and how a message moves back.

A dense HMM has one matrix for all. Where each word belongs to a group of states, a step of a row leads from the group
of one word to the group of the next, and has the matrix of that pair; a pair that comes again in a batch is held once.
Where words are missing, a step may lead from any state to any, and matrices are made as they are crossed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from trellis import kernels

# Of matrices that are made as they are crossed: states left at once, and numbers made at once, 16 MB of float32.
LEFT_AT_ONCE, CROSSED_AT_ONCE = 512, 1 << 22


class Shared(NamedTuple):
    """One matrix [from, to] for every step of every row."""

    matrix_SS: Tensor

    def push(self, belief_BS: Tensor, step: int) -> Tensor:
        """The belief one step on: before the token of `step` is seen."""
        return (belief_BS @ self.matrix_SS).to(belief_BS)  # whose precision is not that of a product

    def pull(self, message_BS: Tensor, step: int) -> Tensor:
        """The transpose: from a gradient by what `push` gave to one by what it took."""
        return (message_BS @ self.matrix_SS.T).to(message_BS)

    def into(self, step: int, rows: Tensor) -> Tensor:
        """The matrix [to, from] of the rows' step, to broadcast over rows."""
        return self.matrix_SS.T

    def reaching(self, step: int, rows: Tensor, state_BN: Tensor) -> Tensor:
        """How every state leads to each of the given ones, N a row."""
        return self.matrix_SS.T[state_BN]

    def gradient(self, belief_TBS: Tensor, message_TBS: Tensor) -> Tensor:
        """Gradient by the matrix, from beliefs before each step and messages after it."""
        if kernels.usable(self.matrix_SS, belief_TBS, message_TBS):
            return kernels.counts(belief_TBS.flatten(0, 1), message_TBS.flatten(0, 1), bf16=kernels.in_bf16())
        # a product of half precision is counted in full
        return (belief_TBS.flatten(0, 1).T @ message_TBS.flatten(0, 1)).to(self.matrix_SS)


class Paired(NamedTuple):
    """A matrix [to, from] for each pair of groups, and the pair that each row crosses to reach each step.

    What it holds to reach step 0 is never looked at: there a row begins.
    """

    into_PJK: Tensor
    pair_TB: Tensor

    def push(self, belief_BK: Tensor, step: int) -> Tensor:
        """The belief one step on: before the token of `step` is seen."""
        if kernels.usable(self.into_PJK, belief_BK):
            return kernels.push(self.into_PJK, self.pair_TB[step, : len(belief_BK)], belief_BK)
        return torch.bmm(self._at(step, len(belief_BK)), belief_BK.unsqueeze(-1)).squeeze(-1)

    def pull(self, message_BJ: Tensor, step: int) -> Tensor:
        """The transpose: from a gradient by what `push` gave to one by what it took."""
        if kernels.usable(self.into_PJK, message_BJ):
            return kernels.pull(self.into_PJK, self.pair_TB[step, : len(message_BJ)], message_BJ)
        return torch.bmm(message_BJ.unsqueeze(1), self._at(step, len(message_BJ))).squeeze(1)

    def into(self, step: int, rows: Tensor) -> Tensor:
        """The matrices [to, from] of the rows' step, one a row."""
        return self.into_PJK.index_select(0, self.pair_TB[step].index_select(0, rows))

    def reaching(self, step: int, rows: Tensor, state_BN: Tensor) -> Tensor:
        """How every state of the group before leads to each of the given ones, N a row."""
        return self.into_PJK[self.pair_TB[step].index_select(0, rows)[:, None], state_BN]

    def gradient(self, belief_TBK: Tensor, message_TBJ: Tensor) -> Tensor:
        """Gradient by every pair's matrix, from beliefs before each step and messages after it."""
        if not len(self.into_PJK):  # rows of one token: what their padding names is no pair
            return torch.empty_like(self.into_PJK)
        if kernels.usable(self.into_PJK, belief_TBK, message_TBJ):
            pairs, pair_N = len(self.into_PJK), self.pair_TB[1:].flatten()
            return kernels.outer(pairs, pair_N, belief_TBK.flatten(0, 1), message_TBJ.flatten(0, 1))
        pair_N, order_N = self.pair_TB[1:].flatten().sort()
        counts = torch.bincount(pair_N, minlength=len(self.into_PJK)).tolist()
        beliefs = belief_TBK.flatten(0, 1).index_select(0, order_N).split(counts)
        messages = message_TBJ.flatten(0, 1).index_select(0, order_N).split(counts)
        grad_PJK = torch.empty_like(self.into_PJK)
        for grad_JK, belief_NK, message_NJ in zip(grad_PJK, beliefs, messages, strict=True):
            torch.mm(message_NJ.T, belief_NK, out=grad_JK)
        return grad_PJK

    def _at(self, step: int, running: int) -> Tensor:
        return self.into_PJK.index_select(0, self.pair_TB[step, :running])


class Crossed(NamedTuple):
    """The lists of states that each token of one row may have, L×K, and how the matrices between them are made.

    `matrix` gives that of the steps [to, from] out of N states into lists of M×J.
    """

    lists: list[Tensor]
    matrix: Callable[[Tensor, Tensor], Tensor]

    def crossings(self, step: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """On the way to `step`: some states that are left, some that are entered, and their matrix [to, from]."""
        leave_LK, enter_MJ = self.lists[step - 1], self.lists[step]
        if leave_LK.numel() == 0:  # a belief of nothing leads nowhere
            return
        parts = enter_MJ.split(max(1, CROSSED_AT_ONCE // (LEFT_AT_ONCE * enter_MJ.shape[1])))
        for leave_N in leave_LK.flatten().split(LEFT_AT_ONCE):
            for part_MJ in parts:
                yield leave_N, part_MJ.flatten(), self.matrix(leave_N, part_MJ)

    def push(self, belief_1S: Tensor, step: int) -> Tensor:
        """The belief one step on: before the token of `step` is seen."""
        pushed_1S = torch.zeros_like(belief_1S)
        for leave_N, enter_C, into_CN in self.crossings(step):
            pushed_1S[0, enter_C] += (into_CN @ belief_1S[0, leave_N]).to(belief_1S)
        return pushed_1S

    def pull(self, message_1S: Tensor, step: int) -> Tensor:
        """The transpose: from a gradient by what `push` gave to one by what it took."""
        pulled_1S = torch.zeros_like(message_1S)
        for leave_N, enter_C, into_CN in self.crossings(step):
            pulled_1S[0, leave_N] += (message_1S[0, enter_C] @ into_CN).to(message_1S)
        return pulled_1S
