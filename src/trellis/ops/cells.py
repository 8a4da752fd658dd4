"""Pairs of blocks whose logits are parameters: the transition matrices that a batch crosses, out of a table S×S.

Only the cells of the batch's pairs are read, and of a flat transition the rows of the from-states. On the way back the
table's gradient is made once, whole or as the rows of the from-states; nothing else is as large.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trellis.errors import TrellisError
from trellis.ops.distinct import Distinct
from trellis.ops.library import check
from trellis.ops.pairs import Pairs

CHUNK = 1 << 20  # cells handled at once: 4 MB of float32, and 8 MB of their places


class Cells(NamedTuple):
    """Which cells of the table a batch's pairs are.

    from_states   the distinct from-states, and where they stand in the from-lists, F×K
    to_GJ         the to-lists of states
    pairs         which from-list leads to which to-list
    kept_S        the states over which a row is normalised (flat); None: the to-list of the pair
    whole         whether the table's gradient is a whole table; if not, it is sparse: the rows of the from-states
    """

    from_states: Distinct
    to_GJ: Tensor
    pairs: Pairs
    kept_S: Tensor | None
    whole: bool

    def slices(self) -> Iterator[slice]:
        """The pairs, a chunk of cells at a time."""
        step = max(1, CHUNK // max(1, self.from_states.shape_NK[1] * self.to_GJ.shape[1]))
        for begin in range(0, len(self.pairs.from_P), step):
            yield slice(begin, begin + step)

    def places(self, row_FK: Tensor, states: int, here: slice) -> Tensor:
        """Where the cells of some pairs stand, [pair, to, from], in a table that has these rows for the from-states."""
        row_PK, to_PJ = row_FK[self.pairs.from_P[here]], self.to_GJ[self.pairs.to_P[here]]
        return row_PK.mul(states).unsqueeze(1) + to_PJ.unsqueeze(2)

    def rows(self, table_SS: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """The rows of the from-states, a chunk of cells at a time."""
        step = max(1, CHUNK // len(table_SS))
        for begin in range(0, len(self.from_states.states_U), step):
            here = slice(begin, begin + step)
            yield here, table_SS.index_select(0, self.from_states.states_U[here])

    def log_totals(self, table_SS: Tensor, kept_S: Tensor) -> Tensor:
        """The log of each from-state's total over the states kept, at its places: F×K."""
        parts = [rows.index_select(1, kept_S).logsumexp(1) for _, rows in self.rows(table_SS)]
        return self.from_states.spread(torch.cat([table_SS.new_empty(0), *parts]))

    def take_shares_(self, grad_rows: Tensor, row_U: Tensor, table_SS: Tensor, kept_S: Tensor, total_U: Tensor) -> None:
        """Take each from-state's total out of its row of a gradient, in shares by the softmax over the states kept."""
        log_kept_S = table_SS.new_full((len(table_SS),), -torch.inf).index_fill_(0, kept_S, 0.0)
        for here, rows in self.rows(table_SS):
            share = rows.add_(log_kept_S).softmax(1).mul_(total_U[here].unsqueeze(1))
            grad_rows.index_add_(0, row_U[here], share, alpha=-1)


class _ScalarPairs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table_SS: Tensor, scale_PK: Tensor, cells: Cells) -> Tensor:
        into_PJK = table_SS.new_empty(len(scale_PK), cells.to_GJ.shape[1], cells.from_states.shape_NK[1])
        state_FK = cells.from_states.spread(cells.from_states.states_U)
        shift_FK = None if cells.kept_S is None else cells.log_totals(table_SS, cells.kept_S)
        for here in cells.slices():
            logits = table_SS.take(cells.places(state_FK, len(table_SS), here))
            if shift_FK is None:
                torch.softmax(logits, 1, out=into_PJK[here])
            else:
                torch.sub(logits, shift_FK[cells.pairs.from_P[here]].unsqueeze(1), out=into_PJK[here]).exp_()
            into_PJK[here].mul_(scale_PK[here].unsqueeze(1))
        ctx.save_for_backward(table_SS, scale_PK, into_PJK)
        ctx.cells = cells
        return into_PJK

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_PJK: Tensor) -> tuple[Tensor | None, ...]:
        table_SS, scale_PK, into_PJK = ctx.saved_tensors
        cells: Cells = ctx.cells
        states_U, states = cells.from_states.states_U, len(table_SS)
        row_U = states_U if cells.whole else torch.arange(len(states_U), device=states_U.device)
        row_FK = cells.from_states.spread(row_U)
        grad_rows = table_SS.new_zeros(states if cells.whole else len(row_U), states)
        total_PK = torch.empty_like(scale_PK)
        for here in cells.slices():
            into, scale = into_PJK[here], scale_PK[here]
            count = torch.mul(grad_PJK[here], into)
            total = torch.sum(count, 1, out=total_PK[here])
            if cells.kept_S is None:  # subtract the mean under the softmax, which is into / scale
                count.sub_(into.mul(torch.where(scale > 0, total / scale, 0.0).unsqueeze(1)))
            grad_rows.view(-1).index_add_(0, cells.places(row_FK, states, here).flatten(), count.flatten())
        if cells.kept_S is not None:
            total_FK = total_PK.new_zeros(cells.from_states.shape_NK).index_add_(0, cells.pairs.from_P, total_PK)
            cells.take_shares_(grad_rows, row_U, table_SS, cells.kept_S, cells.from_states.collect(total_FK))
        grad_scale_PK = torch.where(scale_PK > 0, total_PK / scale_PK, 0.0)
        if not cells.whole:
            grad_rows = torch.sparse_coo_tensor(states_U[None], grad_rows, table_SS.shape, check_invariants=False)
        return grad_rows, grad_scale_PK, None


def scalar_pairs(table_SS: Tensor, scale_PK: Tensor, cells: Cells) -> Tensor:
    """Transition probabilities [pair, to, from] of each pair, P×J×K; differentiable once.

    Those of a from-state are the softmax over the pair's to-list, or over all states kept, times its scale.
    """
    from_size = cells.from_states.shape_NK[1]
    check(table_SS=table_SS, **cells.pairs._asdict(), scale_PK=scale_PK)
    if scale_PK.shape[1] != from_size:
        raise TrellisError(f"scale_PK has shape {tuple(scale_PK.shape)}, but from-lists have {from_size} states.")
    return _ScalarPairs.apply(table_SS, scale_PK, cells)  # type: ignore[no-any-return, no-untyped-call]  # apply is untyped
