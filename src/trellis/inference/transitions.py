"""Transitions: how a belief moves from a token to the next, and how a message moves back.

A new structure of transitions is a new class, here or elsewhere: `pieces` and `states` are all that it must have, and
every question is answered. It becomes fast with a `push` and a `pull` of its own, and learns with `tensors` and
`gradient`.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from trellis.errors import TrellisError
from trellis.ops import products, steps
from trellis.ops.precision import widened

# Of matrices made as they are crossed: states left at once, and numbers made at once, 16 MB of float32.
FROM_AT_ONCE, NUMBERS_AT_ONCE = 512, 1 << 22
# Pairs whose float64 logarithms are held at once: 32 MB of 256 states.
PAIRS_AT_ONCE = 64

Places = Tensor | slice


class Piece(NamedTuple):
    """Of one step: some of the rows asked for, some states left, some entered, and their matrix [to, from].

    The matrix is C×N, or rows×C×N if each row has its own.
    """

    rows: slice
    from_: Places
    to: Places
    matrix: Tensor


class Transition(ABC):
    """p(next state | state) at every step of every row.

    `step` counts tokens: step t leads from token t − 1 to token t. Rows are named by their numbers in the batch, or are
    its first ones. A matrix is [to, from].
    """

    states: int  # that a token may have
    tensors: tuple[Tensor, ...] = ()  # the differentiable tensors it is made of, in the order of `gradient`

    @abstractmethod
    def pieces(self, step: int, rows_B: Tensor, *, log: bool) -> Iterator[Piece]:
        """The matrices that these rows cross to reach `step`, as probabilities or as logarithms of these."""

    @property
    def least(self) -> float:
        """The logarithm of the least probability of all steps; −inf if there is none, or if it is not known."""
        return -math.inf

    @property
    def everywhere(self) -> bool:
        """Whether every state is known to lead to every other."""
        return self.least > -math.inf

    def sorted(self, order_B: Tensor) -> Transition:
        """The same with the rows in another order, or some of them."""
        return self

    def push(self, belief_BS: Tensor, step: int) -> Tensor:
        """The belief of the first B rows one step on: before the token of `step` is seen."""
        pushed_BS = torch.zeros_like(belief_BS)
        for rows, from_, to, matrix in self.pieces(step, _first_rows(belief_BS), log=False):
            pushed_BS[rows, to] += (matrix @ belief_BS[rows, from_].unsqueeze(-1)).squeeze(-1).to(belief_BS)
        return pushed_BS

    def pull(self, message_BS: Tensor, step: int) -> Tensor:
        """The transpose: from a gradient by what `push` gave to one by what it took."""
        pulled_BS = torch.zeros_like(message_BS)
        for rows, from_, to, matrix in self.pieces(step, _first_rows(message_BS), log=False):
            pulled_BS[rows, from_] += (message_BS[rows, to].unsqueeze(-2) @ matrix).squeeze(-2).to(message_BS)
        return pulled_BS

    def gradient(self, belief_TBS: Tensor, message_TBS: Tensor) -> tuple[Tensor, ...]:
        """Gradients by `tensors`, from beliefs before each step (1 to T) and messages after it."""
        return ()

    def add_counts_(self, gradient: tuple[Tensor, ...], step: int, row: int, piece: Piece, count_CN: Tensor) -> None:
        """Add to such gradients those of a row whose expected counts of a step were found in log space."""
        raise TrellisError("a sequence this improbable has no gradient with this transition: leave it out.")

    def add_exact_(
        self, gradient: tuple[Tensor, ...], exact: Transition, belief_TBS: Tensor, message_TBS: Tensor
    ) -> None:
        """Add to such gradients those of rows that were walked in float64, by the same steps `mapped` to it."""
        raise TrellisError("a sequence this improbable has no gradient with this transition: leave it out.")

    def mapped(self, function: Callable[[Tensor], Tensor]) -> Transition:
        """The same steps with other numbers in float64: a function of their logarithms."""
        return _Mapped(self, function)

    def towards(self, step: int, rows_B: Tensor, to_BN: Tensor, *, log: bool) -> Tensor:
        """How every state leads to each of the given ones, B×N×S (zero or −inf: not at all), for B rows."""
        found_BNS: Tensor | None = None
        for rows, from_, to, matrix in self.pieces(step, rows_B, log=log):
            if found_BNS is None:
                found_BNS = matrix.new_full((*to_BN.shape, self.states), -torch.inf if log else 0.0)
            to_C = to if isinstance(to, Tensor) else torch.arange(self.states, device=to_BN.device)[to]
            row_M, n_M, place_M = (to_BN[rows, :, None] == to_C).nonzero(as_tuple=True)
            picked_MN = matrix[place_M] if matrix.dim() == 2 else matrix[row_M, place_M]
            here_BNS = found_BNS[rows]
            from_N = from_ if isinstance(from_, Tensor) else torch.arange(self.states, device=to_BN.device)[from_]
            here_BNS[row_M[:, None], n_M[:, None], from_N] = picked_MN
        if found_BNS is None:
            return torch.full((*to_BN.shape, self.states), -torch.inf if log else 0.0, device=to_BN.device)
        return found_BNS

    def log_at(self, from_BT: Tensor, to_BT: Tensor) -> Tensor | None:
        """log p(to | from) of given states at steps 1 to T, B×T, differentiable; None if that takes a walk."""
        return None


def _first_rows(belief_BS: Tensor) -> Tensor:
    return torch.arange(len(belief_BS), device=belief_BS.device)


class _Mapped(Transition):
    """A transition with other numbers."""

    def __init__(self, transition: Transition, function: Callable[[Tensor], Tensor]) -> None:
        self.transition, self.function, self.states = transition, function, transition.states

    @override
    def pieces(self, step: int, rows_B: Tensor, *, log: bool) -> Iterator[Piece]:
        for piece in self.transition.pieces(step, rows_B, log=True):
            yield piece._replace(matrix=self.function(widened(piece.matrix)))

    @override
    def sorted(self, order_B: Tensor) -> Transition:
        return _Mapped(self.transition.sorted(order_B), self.function)

    @override
    def mapped(self, function: Callable[[Tensor], Tensor]) -> Transition:
        return self.transition.mapped(function)


class Dense(Transition):
    """One matrix [from, to] for every step of every row; its one tensor is the matrix of logarithms."""

    def __init__(self, log_matrix_SS: Tensor, matrix_SS: Tensor | None = None) -> None:
        self.log_matrix_SS, self.tensors, self.states = log_matrix_SS, (log_matrix_SS,), log_matrix_SS.shape[1]
        if matrix_SS is not None:
            self.matrix_SS = matrix_SS

    @functools.cached_property
    def matrix_SS(self) -> Tensor:
        """Probabilities [from, to]."""
        return self.log_matrix_SS.exp()

    @functools.cached_property
    def least(self) -> float:
        """The logarithm of the least probability of all steps."""
        return float(self.log_matrix_SS.detach().min())

    @functools.cached_property
    def _into_SS(self) -> tuple[Tensor, Tensor]:
        """[to, from], probabilities and logarithms: what leads to one state lies together, and is twice as fast."""
        return self.matrix_SS.detach().T.contiguous(), self.log_matrix_SS.detach().T.contiguous()

    @override
    def pieces(self, step: int, rows_B: Tensor, *, log: bool) -> Iterator[Piece]:
        yield Piece(slice(0, len(rows_B)), slice(None), slice(None), self._into_SS[log])

    @override
    def push(self, belief_BS: Tensor, step: int) -> Tensor:
        return (belief_BS @ self.matrix_SS).to(belief_BS)  # whose precision is not that of a product

    @override
    def pull(self, message_BS: Tensor, step: int) -> Tensor:
        return (message_BS @ self.matrix_SS.T).to(message_BS)

    def log_push(self, log_belief_S: Tensor) -> Tensor:
        """One belief one step on, in log space."""
        return (log_belief_S[:, None] + self.log_matrix_SS.detach().to(log_belief_S)).logsumexp(0)

    @override
    def gradient(self, belief_TBS: Tensor, message_TBS: Tensor) -> tuple[Tensor, ...]:
        counts_SS = products.counts(belief_TBS.flatten(0, 1), message_TBS.flatten(0, 1))
        return (counts_SS.to(self.matrix_SS).mul_(self.matrix_SS),)

    @override
    def add_counts_(self, gradient: tuple[Tensor, ...], step: int, row: int, piece: Piece, count_CN: Tensor) -> None:
        gradient[0].add_(count_CN.T.to(gradient[0]))

    @override
    def add_exact_(
        self, gradient: tuple[Tensor, ...], exact: Transition, belief_TBS: Tensor, message_TBS: Tensor
    ) -> None:
        gradient[0].add_(exact.gradient(belief_TBS, message_TBS)[0].to(gradient[0]))

    @override
    def mapped(self, function: Callable[[Tensor], Tensor]) -> Transition:
        log_matrix_SS = widened(self.log_matrix_SS.detach())
        return Dense(log_matrix_SS, function(log_matrix_SS))

    @override
    def towards(self, step: int, rows_B: Tensor, to_BN: Tensor, *, log: bool) -> Tensor:
        return self._into_SS[log][to_BN]

    @override
    def log_at(self, from_BT: Tensor, to_BT: Tensor) -> Tensor | None:
        return self.log_matrix_SS[from_BT, to_BT]


class BlockPairs(Transition):
    """A matrix [to, from] for each pair of blocks in the batch, and the pair that each row crosses to reach each token.

    What a row is said to cross to its first token is never looked at. `log_into` gives the logarithms of some pairs'
    matrices in float64, for probabilities that float32 cannot hold. `never_PJ` says which states are never entered.
    """

    def __init__(
        self,
        into_PJK: Tensor,
        pair_BT: Tensor,
        log_into: Callable[[Tensor], Tensor],
        never_PJ: Tensor | None = None,
    ) -> None:
        self.into_PJK, self.pair_BT, self.log_into, self.never_PJ = into_PJK, pair_BT, log_into, never_PJ
        self.tensors, self.states = (into_PJK,), into_PJK.shape[2]
        self.numbers_P: Tensor | None = None  # of those pairs of another transition that this one was mapped from

    @functools.cached_property
    def least(self) -> float:
        """The logarithm of the least probability of all steps into states that are entered at all."""
        if len(self.into_PJK) == 0:
            return 0.0
        least_PJ = self.into_PJK.detach().amin(2)
        least = float(least_PJ.min() if self.never_PJ is None else least_PJ.masked_fill(self.never_PJ, 1.0).min())
        if not least < torch.finfo(self.into_PJK.dtype).tiny:
            return math.log(least)
        log_least_PJ = self._log_into_PJK.amin(2)
        return float(
            log_least_PJ.min() if self.never_PJ is None else log_least_PJ.masked_fill(self.never_PJ, 0.0).min()
        )

    @property
    @override
    def everywhere(self) -> bool:
        return self.never_PJ is None and super().everywhere

    @functools.cached_property
    def _pair_TB(self) -> Tensor:
        return self.pair_BT.T.contiguous()

    @functools.cached_property
    def _log_into_PJK(self) -> Tensor:
        """Logarithms of all pairs' matrices; what was lost to underflow is looked up."""
        return self._log_of(self.into_PJK.detach().clone(), slice(None)).to(self.into_PJK)

    def _log_of(self, into_QJK: Tensor, pairs: slice | Tensor) -> Tensor:
        """Logarithms of matrices, which become these, and which are those of the given pairs."""
        lost_Q = (into_QJK < torch.finfo(self.into_PJK.dtype).tiny).flatten(1).any(1)
        numbers_P = torch.arange(len(self.into_PJK), device=lost_Q.device)[pairs]
        log_into_QJK = into_QJK.log_()
        for some_N in lost_Q.nonzero().flatten().split(PAIRS_AT_ONCE):
            log_into_QJK[some_N] = self.log_into(numbers_P[some_N]).to(log_into_QJK)
        return log_into_QJK

    @override
    def sorted(self, order_B: Tensor) -> Transition:
        return BlockPairs(self.into_PJK, self.pair_BT.index_select(0, order_B), self.log_into, self.never_PJ)

    @override
    def pieces(self, step: int, rows_B: Tensor, *, log: bool) -> Iterator[Piece]:
        matrices = self._log_into_PJK if log else self.into_PJK.detach()
        at_once = max(1, NUMBERS_AT_ONCE // max(1, matrices[0].numel())) if len(matrices) else 1
        for begin in range(0, len(rows_B), at_once):
            rows = slice(begin, begin + at_once)
            yield Piece(rows, slice(None), slice(None), matrices[self.pair_BT[rows_B[rows], step]])

    @override
    def push(self, belief_BS: Tensor, step: int) -> Tensor:
        return steps.push(self.into_PJK, self._pair_TB[step, : len(belief_BS)], belief_BS)

    @override
    def pull(self, message_BS: Tensor, step: int) -> Tensor:
        return steps.pull(self.into_PJK, self._pair_TB[step, : len(message_BS)], message_BS)

    @override
    def gradient(self, belief_TBS: Tensor, message_TBS: Tensor) -> tuple[Tensor, ...]:
        pair_N = self._pair_TB[1:].flatten()
        return (steps.outer(len(self.into_PJK), pair_N, belief_TBS.flatten(0, 1), message_TBS.flatten(0, 1)),)

    @override
    def add_counts_(self, gradient: tuple[Tensor, ...], step: int, row: int, piece: Piece, count_CN: Tensor) -> None:
        pair = self.pair_BT[row, step]
        gradient[0][pair] += _a_probability(count_CN, self.into_PJK[pair])

    @override
    def add_exact_(
        self, gradient: tuple[Tensor, ...], exact: Transition, belief_TBS: Tensor, message_TBS: Tensor
    ) -> None:
        assert isinstance(exact, BlockPairs)
        assert exact.numbers_P is not None
        count_QJK = exact.gradient(belief_TBS, message_TBS)[0].mul_(exact.into_PJK)
        gradient[0].index_add_(0, exact.numbers_P, _a_probability(count_QJK, self.into_PJK.detach()[exact.numbers_P]))

    @override
    def mapped(self, function: Callable[[Tensor], Tensor]) -> Transition:
        used_Q = self.pair_BT[:, 1:].unique()  # but for what padding names, which may be no pair
        used_Q = used_Q[(used_Q >= 0) & (used_Q < len(self.into_PJK))]
        log_into_QJK = self._log_of(widened(self.into_PJK.detach()[used_Q]), used_Q)
        pair_BT = torch.searchsorted(used_Q, self.pair_BT).clamp_max(max(0, len(used_Q) - 1))
        never_QJ = None if self.never_PJ is None else self.never_PJ[used_Q]
        found = BlockPairs(function(log_into_QJK), pair_BT, lambda some_N: self.log_into(used_Q[some_N]), never_QJ)
        found.numbers_P = used_Q
        return found

    @override
    def towards(self, step: int, rows_B: Tensor, to_BN: Tensor, *, log: bool) -> Tensor:
        matrices = self._log_into_PJK if log else self.into_PJK.detach()
        return matrices[self.pair_BT[rows_B, step][:, None], to_BN]

    @override
    def log_at(self, from_BT: Tensor, to_BT: Tensor) -> Tensor | None:
        if from_BT.shape[1] == 0 or len(self.into_PJK) == 0:  # what padding names is no pair
            return self.into_PJK.new_zeros(from_BT.shape)
        into_BT = self.into_PJK[self.pair_BT[:, 1:], to_BT, from_BT]
        there_BT = into_BT >= torch.finfo(into_BT.dtype).tiny  # a zero, of padding too, has no gradient, not NaN
        return into_BT.where(there_BT, 1.0).log().where(there_BT, -torch.inf)


def _a_probability(count: Tensor, into: Tensor) -> Tensor:
    """Expected counts as gradients by probabilities; what float32 has as zero has none, and stays there."""
    there = into >= torch.finfo(into.dtype).tiny
    return torch.where(there, count.to(into) / into, 0.0)


class Streamed(Transition):
    """Matrices between lists of states, made as they are crossed and let go: no pair of states is held.

    For texts with missing tokens: one that was seen has the states of its block, one that is missing may have any.
    `list_BT` names the row of `lists_GK` that a token's states are, and −1 says all, `all_MK`; `into` gives the matrix
    of the steps [to, from] from N states into lists M×J, and `log_into` its logarithm in float64.
    """

    def __init__(
        self,
        lists_GK: Tensor,
        list_BT: Tensor,
        all_MK: Tensor,
        into: Callable[[Tensor, Tensor], Tensor],
        log_into: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        self.lists_GK, self.list_BT, self.all_MK = lists_GK, list_BT, all_MK
        self.into, self.log_into, self.states = into, log_into, all_MK.numel()

    @override
    def sorted(self, order_B: Tensor) -> Transition:
        return Streamed(self.lists_GK, self.list_BT.index_select(0, order_B), self.all_MK, self.into, self.log_into)

    def lists(self, row: int, step: int) -> Tensor:
        """The states that the row's token of this step may have, in lists."""
        number = int(self.list_BT[row, step])
        return self.all_MK if number < 0 else self.lists_GK[number : number + 1]

    @override
    def pieces(self, step: int, rows_B: Tensor, *, log: bool) -> Iterator[Piece]:
        make = self.log_into if log else self.into
        for place, row in enumerate(rows_B.cpu().tolist()):
            leave_LK, enter_MJ = self.lists(row, step - 1), self.lists(row, step)
            for from_N, part_MJ in crossings(leave_LK, enter_MJ):
                yield Piece(slice(place, place + 1), from_N, part_MJ.flatten(), make(from_N, part_MJ))


def crossings(leave_LK: Tensor, enter_MJ: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Some states that are left and some lists that are entered at a time, until all are; none if none is left."""
    if leave_LK.numel() == 0:
        return
    parts = enter_MJ.split(max(1, NUMBERS_AT_ONCE // (FROM_AT_ONCE * enter_MJ.shape[1])))
    for from_N in leave_LK.flatten().split(FROM_AT_ONCE):
        for part_MJ in parts:
            yield from_N, part_MJ
