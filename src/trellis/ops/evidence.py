"""Rows of tables, one for every token: their sums, where a token takes no row of a table nothing, and dot products."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from trellis.ops.overlapping_columns import SPARSE, Entries


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
        found = []
        for size, places_N, wanted in zip(ctx.sizes, ctx.index_N, ctx.needs_input_grad[1:], strict=True):
            grad_KS = grad_NS.new_zeros(size + 1, grad_NS.shape[1]) if wanted else None  # the last: of no row
            places_N = torch.where(places_N < 0, size, places_N)
            found.append(None if grad_KS is None else grad_KS.index_add_(0, places_N, grad_NS)[:size])
        return None, *found


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
