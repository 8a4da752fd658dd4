"""log Σ_v exp(row · column_v + bias_v) for every row: normalisers of bilinear logits, which never exist all at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trellis.ops.library import check, run, structure, usable
from trellis.ops.precision import full_precision, in_bf16

# The PyTorch twin handles so many columns and rows at once. Columns first: 1024 of them with 512 rows are 2 MB of
# float32, which stay in the cache; with the most rows they are 16 MB.
COLUMNS, ROWS = 1024, 4096

_TotalCall = structure("rows_NR columns_VR bias_V? log_total_N grad_N grad_NR grad_VR grad_V", "N V R bf16 threads")


def log_totals(rows_NR: Tensor, columns_VR: Tensor, bias_V: Tensor | None = None) -> Tensor:
    """log Σ_v exp(row · column_v + bias_v) of every row, N: −inf where every logit is; differentiable once."""
    return _LogTotals.apply(rows_NR, columns_VR, bias_V)  # type: ignore[no-any-return, no-untyped-call]  # apply is untyped


class _LogTotals(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows_NR: Tensor, columns_VR: Tensor, bias_V: Tensor | None) -> Tensor:
        ctx.bf16 = in_bf16(rows_NR.device)
        log_total_N = totals_forward(rows_NR, columns_VR, bias_V, bf16=ctx.bf16)
        ctx.save_for_backward(rows_NR, columns_VR, bias_V, log_total_N)
        return log_total_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_N: Tensor) -> tuple[Tensor | None, ...]:
        rows_NR, columns_VR, bias_V, log_total_N = ctx.saved_tensors
        return totals_backward(rows_NR, columns_VR, bias_V, log_total_N, grad_N, bf16=ctx.bf16)


def totals_forward(rows_NR: Tensor, columns_VR: Tensor, bias_V: Tensor | None = None, *, bf16: bool = False) -> Tensor:
    """The totals without their gradient; `bf16` allows native products in bf16, those of PyTorch are in full."""
    if usable(rows_NR, columns_VR, bias_V):
        asked = _TotalCall(rows_NR=rows_NR, columns_VR=columns_VR, bias_V=bias_V, bf16=bf16)
        return run("totals_forward", asked, "log_total_N")[0]
    check(rows_NR=rows_NR, columns_VR=columns_VR, bias_V=bias_V)
    with full_precision(rows_NR.device):
        return torch.cat([_torch_forward(rows, columns_VR, bias_V) for rows in rows_NR.split(ROWS)])


def totals_backward(
    rows_NR: Tensor, columns_VR: Tensor, bias_V: Tensor | None, log_total_N: Tensor, grad_N: Tensor, *,
    bf16: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Gradients by rows, columns and bias of Σ grad · log_total; a row whose total is −inf passes none on."""
    given = {
        "rows_NR": rows_NR,
        "columns_VR": columns_VR,
        "bias_V": bias_V,
        "log_total_N": log_total_N,
        "grad_N": grad_N,
    }
    if usable(rows_NR, columns_VR, bias_V):
        names = ["grad_NR", "grad_VR"] if bias_V is None else ["grad_NR", "grad_VR", "grad_V"]
        grad_NR, grad_VR, *grad_bias = run("totals_backward", _TotalCall(bf16=bf16, **given), *names)
        return grad_NR, grad_VR, grad_bias[0] if grad_bias else None
    check(**given)
    grad_NR, grad_VR = torch.empty_like(rows_NR), torch.zeros_like(columns_VR)
    grad_V = None if bias_V is None else torch.zeros_like(bias_V)
    finite_N = log_total_N.masked_fill(log_total_N == -torch.inf, 0.0)
    parts = (rows_NR.split(ROWS), grad_NR.split(ROWS), finite_N.split(ROWS), grad_N.split(ROWS))
    with full_precision(rows_NR.device):
        for rows, grad_rows, log_total, weight in zip(*parts, strict=True):
            _torch_backward_(rows, columns_VR, bias_V, log_total, weight, grad_rows.zero_(), grad_VR, grad_V)
    return grad_NR, grad_VR, grad_V


# The PyTorch twin, of some rows.


def _torch_forward(rows_NR: Tensor, columns_VR: Tensor, bias_V: Tensor | None) -> Tensor:
    slices = []
    for v in range(0, max(1, len(columns_VR)), COLUMNS):
        logits = columns_VR[v : v + COLUMNS] @ rows_NR.T
        if bias_V is not None:
            logits.add_(bias_V[v : v + COLUMNS, None])
        slices.append(torch.logsumexp(logits, 0))
    return torch.logsumexp(torch.stack(slices), 0)


def _torch_backward_(
    rows_NR: Tensor, columns_VR: Tensor, bias_V: Tensor | None, log_total_N: Tensor, grad_N: Tensor,
    grad_NR: Tensor, grad_VR: Tensor, grad_V: Tensor | None,
) -> None:  # fmt: skip
    """Add to the last three."""
    for v in range(0, len(columns_VR), COLUMNS):
        here = slice(v, v + COLUMNS)
        share = torch.addmm(-log_total_N, columns_VR[here], rows_NR.T)
        if bias_V is not None:
            share.add_(bias_V[here, None])
        share.exp_().mul_(grad_N)
        grad_VR[here].addmm_(share, rows_NR)
        grad_NR.addmm_(share.T, columns_VR[here])
        if grad_V is not None:
            grad_V[here].add_(share.sum(1))
