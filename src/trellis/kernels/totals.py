"""Normalisers of bilinear logits in native code, without ever holding the logits."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trellis.errors import TrellisError
from trellis.kernels.library import call, fields, ready


class _TotalCall(ctypes.Structure):
    _fields_ = fields(
        "rows columns bias log_total grad grad_rows grad_columns grad_bias",
        "N V R bf16 threads",
    )


def _total_call(
    rows_NR: Tensor, columns_VR: Tensor, bias_V: Tensor | None, log_total_N: Tensor, bf16: bool
) -> _TotalCall:
    return _TotalCall(
        rows=rows_NR.data_ptr(), columns=columns_VR.data_ptr(), bias=None if bias_V is None else bias_V.data_ptr(),
        log_total=log_total_N.data_ptr(), N=len(rows_NR), V=len(columns_VR), R=rows_NR.shape[1], bf16=bf16,
        threads=torch.get_num_threads(),
    )  # fmt: skip


def totals_forward(rows_NR: Tensor, columns_VR: Tensor, bias_V: Tensor | None = None, *, bf16: bool = False) -> Tensor:
    """log Σ_v exp(row · column_v + bias_v) for every row, N: −inf where every logit is."""
    if rows_NR.shape[1] != columns_VR.shape[1] or (bias_V is not None and bias_V.shape != columns_VR.shape[:1]):
        raise TrellisError(
            f"rows {tuple(rows_NR.shape)} and columns {tuple(columns_VR.shape)} share their width, "
            "and a bias has one number a column: mend the shapes."
        )
    rows_NR, columns_VR, bias_V = ready(rows_NR), ready(columns_VR), None if bias_V is None else ready(bias_V)
    log_total_N = rows_NR.new_empty(len(rows_NR))
    call("totals_forward", _total_call(rows_NR, columns_VR, bias_V, log_total_N, bf16))
    return log_total_N


def totals_backward(
    rows_NR: Tensor, columns_VR: Tensor, bias_V: Tensor | None, log_total_N: Tensor, grad_N: Tensor, *, bf16: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients by rows, columns and bias; a row of which every logit is −inf passes none on."""
    rows_NR, columns_VR, bias_V = ready(rows_NR), ready(columns_VR), None if bias_V is None else ready(bias_V)
    grad_N = ready(grad_N)
    grad_NR, grad_VR = torch.empty_like(rows_NR), torch.empty_like(columns_VR)
    grad_V = None if bias_V is None else torch.empty_like(bias_V)
    asked = _total_call(rows_NR, columns_VR, bias_V, log_total_N, bf16)
    asked.grad, asked.grad_rows, asked.grad_columns = grad_N.data_ptr(), grad_NR.data_ptr(), grad_VR.data_ptr()
    asked.grad_bias = None if grad_V is None else grad_V.data_ptr()
    call("totals_backward", asked)
    return grad_NR, grad_VR, grad_V


class _LogTotals(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows_NR: Tensor, columns_VR: Tensor, bias_V: Tensor | None, bf16: bool) -> Tensor:
        log_total_N = totals_forward(rows_NR, columns_VR, bias_V, bf16=bf16)
        ctx.save_for_backward(rows_NR, columns_VR, bias_V, log_total_N)
        ctx.bf16 = bf16
        return log_total_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_N: Tensor) -> tuple[Tensor | None, ...]:
        rows_NR, columns_VR, bias_V, log_total_N = ctx.saved_tensors
        return *totals_backward(rows_NR, columns_VR, bias_V, log_total_N, grad_N, bf16=ctx.bf16), None


def log_totals(rows_NR: Tensor, columns_VR: Tensor, bias_V: Tensor | None = None, *, bf16: bool = False) -> Tensor:
    """The same as `totals_forward`; differentiable, once, in all three."""
    return _LogTotals.apply(rows_NR, columns_VR, bias_V, bf16)  # type: ignore[no-any-return, no-untyped-call]  # apply is untyped
