"""Normalisers of groups of rows that are moved together: log Σ_v exp((row_k + moved_c) · column_v) for every mover c.

Of exponentials of the rows' logits and of the movers' one product is made, so that a mover costs a product with them
and not with the columns. A group goes by at a time, forward and again backward, so that no more is held.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trellis.ops.precision import full_precision
from trellis.ops.walks import limits


def moved_log_totals(rows_GKR: Tensor, columns_VR: Tensor, moved_CR: Tensor, group_C: Tensor) -> Tensor:
    """log Σ_v exp((row + moved) · column_v) of the rows of each mover's group, C×K; differentiable once.

    Movers with a sum that float32 cannot hold beside its largest terms are done again by themselves.
    """
    log_total_CK, lost_C = _MovedTotals.apply(rows_GKR, columns_VR, moved_CR, group_C)  # type: ignore[no-untyped-call]  # apply is untyped
    if not bool(lost_C.any()):
        return log_total_CK  # type: ignore[no-any-return]  # for the same reason
    lost_N = lost_C.nonzero().flatten()
    with full_precision(rows_GKR.device):
        logits = [(rows_GKR[group_C[c]] + moved_CR[c]) @ columns_VR.T for c in lost_N]
    exact_NK = torch.stack([logits_KV.logsumexp(1) for logits_KV in logits])
    return log_total_CK.index_copy(0, lost_N, exact_NK)  # type: ignore[no-any-return]  # for the same reason


class _MovedTotals(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows_GKR: Tensor, columns_VR: Tensor, moved_CR: Tensor, group_C: Tensor
    ) -> tuple[Tensor, Tensor]:
        log_total_CK = rows_GKR.new_empty(len(moved_CR), rows_GKR.shape[1])
        lost_C = torch.zeros_like(group_C, dtype=torch.bool)
        tiny, least = torch.finfo(rows_GKR.dtype).tiny, limits(rows_GKR.dtype).lowest_belief
        with full_precision(rows_GKR.device):
            for group, here_N in _groups(group_C):
                rows_KV, row_peak_K = _scaled(rows_GKR[group], columns_VR)
                moved_NV, moved_peak_N = _scaled(moved_CR[here_N], columns_VR)
                total_NK = moved_NV @ rows_KV.T
                lost_C[here_N] = (total_NK < least).any(1)
                log_NK = total_NK.clamp_min_(tiny).log_()
                log_total_CK[here_N] = log_NK.add_(row_peak_K).add_(moved_peak_N.unsqueeze(1))
        ctx.save_for_backward(rows_GKR, columns_VR, moved_CR, group_C, log_total_CK)
        ctx.mark_non_differentiable(lost_C)
        return log_total_CK, lost_C

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_CK: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        rows_GKR, columns_VR, moved_CR, group_C, log_total_CK = ctx.saved_tensors
        grad_GKR, grad_VR, grad_CR = map(torch.zeros_like, (rows_GKR, columns_VR, moved_CR))
        with full_precision(rows_GKR.device):
            for group, here_N in _groups(group_C):
                rows_KV, row_peak_K = _scaled(rows_GKR[group], columns_VR)
                moved_NV, moved_peak_N = _scaled(moved_CR[here_N], columns_VR)
                log_NK = log_total_CK[here_N] - row_peak_K - moved_peak_N.unsqueeze(1)
                weight_NK = grad_CK[here_N] * (-log_NK).exp_()
                count_KV = (weight_NK.T @ moved_NV).mul_(rows_KV)  # Σ over movers
                count_NV = (weight_NK @ rows_KV).mul_(moved_NV)  # Σ over rows
                grad_GKR[group] = count_KV @ columns_VR
                grad_CR[here_N] = count_NV @ columns_VR
                grad_VR.addmm_(count_KV.T, rows_GKR[group]).addmm_(count_NV.T, moved_CR[here_N])
        return grad_GKR, grad_VR, grad_CR, None


def _groups(group_C: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Each group that has movers, and which these are."""
    order_C = group_C.argsort(stable=True)
    groups_H, size_H = group_C.unique(return_counts=True)
    yield from zip(groups_H.cpu().tolist(), order_C.split(size_H.cpu().tolist()), strict=True)


def _scaled(rows_NR: Tensor, columns_VR: Tensor) -> tuple[Tensor, Tensor]:
    """Exponentials of the rows' logits, N×V, divided by the largest of each row, and the logarithm of that, N."""
    logits_NV = rows_NR @ columns_VR.T
    peak_N1 = logits_NV.amax(1, keepdim=True)
    return logits_NV.sub_(peak_N1).exp_(), peak_N1.squeeze(1)
