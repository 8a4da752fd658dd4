"""Rows of tables, one for every token: how well states explain it, sums where a token may take none, dot products."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from trellis.ops.overlapping_columns import SPARSE, Entries


class Evidence(NamedTuple):
    """How well each state explains each token: scaled columns of the distinct words, and which one a token takes.

    Exponentials are taken once a word, not once a token.
    """

    likelihood_NS: Tensor
    log_peak_N: Tensor
    index_TB: Tensor

    def of_rows(self, rows_N: Tensor) -> Evidence:
        """That of some rows."""
        return self._replace(index_TB=self.index_TB[:, rows_N].contiguous())

    def at(self, step: int, rows: int) -> tuple[Tensor, Tensor]:
        """Those of the first rows' tokens, divided by the best state's, B×S; and the logarithm of that, B."""
        index_B = self.index_TB[step, :rows]
        return self.likelihood_NS.index_select(0, index_B), self.log_peak_N[index_B]


class SummedEvidence(NamedTuple):
    """The same where it is the sum of a row of each of two tables, in logarithms; an `enter` of −1 adds nothing."""

    log_columns_NS: Tensor
    index_TB: Tensor
    log_enter_KS: Tensor
    enter_TB: Tensor

    def of_rows(self, rows_N: Tensor) -> SummedEvidence:
        """That of some rows."""
        index_TN, enter_TN = (index_TB[:, rows_N].contiguous() for index_TB in (self.index_TB, self.enter_TB))
        return self._replace(index_TB=index_TN, enter_TB=enter_TN)

    def at(self, step: int, rows: int) -> tuple[Tensor, Tensor]:
        """Those of the first rows' tokens, divided by the best state's, B×S; and the logarithm of that, B."""
        enter_B = self.enter_TB[step, :rows]
        log_more_BS = functional.embedding(enter_B.clamp_min(0), self.log_enter_KS)
        log_more_BS = torch.where((enter_B >= 0).unsqueeze(1), log_more_BS, 0.0)  # of no row not even −inf
        return scaled(self.log_columns_NS.index_select(0, self.index_TB[step, :rows]) + log_more_BS)


def scaled(log_columns_NS: Tensor) -> tuple[Tensor, Tensor]:
    """Likelihoods N×S, divided by the best state's, so that only a belief can underflow; and log of that, N.

    A word that no state emits keeps its zeros.
    """
    log_peak_N1 = log_columns_NS.amax(-1, keepdim=True)
    log_peak_N1 = torch.where(log_peak_N1 == -torch.inf, 0.0, log_peak_N1)
    return torch.sub(log_columns_NS, log_peak_N1).exp_(), log_peak_N1.squeeze(-1)


class _RowSums(torch.autograd.Function):
    """One pass a table, forward and back, where masks and sums of gathered rows would make several."""

    @staticmethod
    def forward(ctx: Any, index_N: tuple[Tensor, ...], *tables: Tensor) -> Tensor:
        ctx.index_N, ctx.sizes = index_N, [len(table) for table in tables]
        if 0 < sum(map(len, tables)) <= len(index_N[0]) and tables[0].device.type in SPARSE:
            return _sums_in_one_pass(index_N, tables)
        out_NS = _rows(tables[0], index_N[0])
        for table, places_N in zip(tables[1:], index_N[1:], strict=True):
            out_NS += _rows(table, places_N)
        return out_NS

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NS: Tensor) -> tuple[Tensor | None, ...]:
        asked = zip(ctx.sizes, ctx.index_N, ctx.needs_input_grad[1:], strict=True)
        return None, *(summed_by_row(grad_NS, places_N, size) if wanted else None for size, places_N, wanted in asked)


def _sums_in_one_pass(index_N: tuple[Tensor, ...], tables: tuple[Tensor, ...]) -> Tensor:
    """Of one table of all rows, of which the last is zero: it is smaller than the sums, which are written once."""
    none = sum(map(len, tables))
    joined_KS = torch.cat([*tables, tables[0].new_zeros(1, tables[0].shape[1])])
    columns, before = [], 0
    for table, places_N in zip(tables, index_N, strict=True):
        columns.append(torch.where(places_N < 0, none, places_N + before))
        before += len(table)
    return functional.embedding_bag(torch.stack(columns, 1), joined_KS, mode="sum")


def _rows(table_KS: Tensor, places_N: Tensor) -> Tensor:
    """These rows of a table, N×S; −1: zeros."""
    if len(table_KS) == 0:
        return table_KS.new_zeros(len(places_N), table_KS.shape[1])
    return table_KS.index_select(0, places_N.clamp_min(0)).index_fill_(0, (places_N < 0).nonzero().flatten(), 0.0)


def summed_by_row(values_NS: Tensor, places_N: Tensor, size: int) -> Tensor:
    """The sum of those of each place, size×S; −1 is no place."""
    found_KS = values_NS.new_zeros(size + 1, values_NS.shape[1])  # the last: of no place
    return found_KS.index_add_(0, torch.where(places_N < 0, size, places_N), values_NS)[:size]


def row_sums(*rows: tuple[Tensor, Tensor]) -> Tensor:
    """Σ table[index] over pairs of a table, K×S, and an index, N: N×S; an index of −1 adds nothing."""
    index_N = tuple(places_N for _, places_N in rows)
    out_NS: Tensor = _RowSums.apply(index_N, *(table for table, _ in rows))  # type: ignore[no-untyped-call]  # apply is untyped
    return out_NS


def row_dots(rows_NS: Tensor, table_KS: Tensor, places_N: Tensor) -> Tensor:
    """The dot product of each row with the row of the table that it names, N; no gradient."""
    return Entries(torch.arange(len(rows_NS) + 1, device=rows_NS.device), places_N, len(table_KS)).products(
        rows_NS, table_KS
    )
