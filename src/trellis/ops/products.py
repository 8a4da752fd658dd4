"""Products with a transition matrix that every step shares: of many rows, and Σ before ⊗ after, its gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trellis.ops.library import both_structures, named, run, usable
from trellis.ops.precision import as_before, in_bf16

_COUNTS = both_structures("before_ND after_NC out_DC", "N D C bf16 threads")
_PRODUCTS = both_structures("rows_ND matrix_DC? transposed_CD? out_NC", "N D C bf16 threads")


def product(rows_ND: Tensor, matrix_DC: Tensor) -> Tensor:
    """rows · matrix, N×C; in bf16 where autocast asks for it."""
    dtype = rows_ND.dtype
    if dtype in _PRODUCTS and usable(rows_ND, matrix_DC, dtype=dtype):
        return _native(rows_ND, matrix_DC=matrix_DC)
    return (rows_ND @ matrix_DC).to(rows_ND)


def product_with_transpose(rows_ND: Tensor, matrix_CD: Tensor) -> Tensor:
    """rows · matrixᵀ, N×C; in bf16 where autocast asks for it."""
    dtype = rows_ND.dtype
    if dtype in _PRODUCTS and usable(rows_ND, matrix_CD, dtype=dtype):
        return _native(rows_ND, transposed_CD=matrix_CD)
    return (rows_ND @ matrix_CD.T).to(rows_ND)


def _native(rows_ND: Tensor, **matrix: Tensor) -> Tensor:
    asked = _PRODUCTS[rows_ND.dtype](rows_ND=rows_ND, **matrix, bf16=in_bf16(rows_ND.device))
    return run(named("product", rows_ND.dtype), asked, "out_NC")[0]


def counts(before_ND: Tensor, after_NC: Tensor) -> Tensor:
    """Σ before ⊗ after, D×C, as of beliefs before and messages after steps; in bf16 where autocast asks for it."""
    dtype = before_ND.dtype
    if dtype in _COUNTS and usable(before_ND, after_NC, dtype=dtype):
        asked = _COUNTS[dtype](before_ND=before_ND, after_NC=after_NC, bf16=in_bf16(before_ND.device))
        return run(named("counts", dtype), asked, "out_DC")[0]
    return (before_ND.T @ after_NC).to(before_ND)  # a product in half precision is kept in full


def inner(rows_NR: Tensor, columns_SR: Tensor) -> Tensor:
    """The inner products of rows of two tables, N×S, differentiable; in bf16 where autocast asks for it."""
    out: Tensor = _Inner.apply(rows_NR, columns_SR)  # type: ignore[no-untyped-call]  # apply is untyped
    return out


class _Inner(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows_NR: Tensor, columns_SR: Tensor) -> Tensor:
        ctx.bf16 = in_bf16(rows_NR.device)
        ctx.save_for_backward(rows_NR, columns_SR)
        return product_with_transpose(rows_NR, columns_SR)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NS: Tensor) -> tuple[Tensor, Tensor]:
        rows_NR, columns_SR = ctx.saved_tensors
        with as_before(grad_NS.device, ctx.bf16):
            return product(grad_NS, columns_SR), counts(grad_NS, rows_NR)
