"""Sums of rows of several tables, a row of each for every token; where a token takes no row of a table, nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class _RowSums(torch.autograd.Function):
    """One pass a table, forward and back, where masks and sums of gathered rows would make several."""

    @staticmethod
    def forward(ctx: Any, index_N: tuple[Tensor, ...], *tables: Tensor) -> Tensor:
        ctx.index_N, ctx.sizes = index_N, [len(table) for table in tables]
        out_NS = _with_zeros(tables[0]).index_select(0, index_N[0])
        for table, places_N in zip(tables[1:], index_N[1:], strict=True):
            out_NS += _with_zeros(table).index_select(0, places_N)
        return out_NS

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NS: Tensor) -> tuple[Tensor | None, ...]:
        found = []
        for size, places_N, wanted in zip(ctx.sizes, ctx.index_N, ctx.needs_input_grad[1:], strict=True):
            grad_KS = grad_NS.new_zeros(size + 1, grad_NS.shape[1]) if wanted else None
            found.append(None if grad_KS is None else grad_KS.index_add_(0, places_N, grad_NS)[:size])
        return None, *found


def _with_zeros(table_KS: Tensor) -> Tensor:
    """The table with a row of zeros at its end."""
    return torch.cat([table_KS, table_KS.new_zeros(1, table_KS.shape[1])])


def row_sums(*rows: tuple[Tensor, Tensor]) -> Tensor:
    """Σ table[index] over pairs of a table, K×S, and an index, N: N×S; an index of −1 adds nothing."""
    index_N = tuple(torch.where(places_N < 0, len(table), places_N) for table, places_N in rows)
    out_NS: Tensor = _RowSums.apply(index_N, *(table for table, _ in rows))  # type: ignore[no-untyped-call]  # apply is untyped
    return out_NS
