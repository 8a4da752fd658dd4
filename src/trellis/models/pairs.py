"""Pairs of groups: the transition matrices that a batch crosses, from the embeddings of their states.

Logits are inner products of what leaves and what enters. Each distinct pair is computed once; pairs that leave the same
list of states share one large product. What is kept for the way back is the probabilities themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trellis import kernels
from trellis.models.columns import full_precision

CHUNK = 1 << 22  # logits held at once by a normaliser: 16 MB of float32


class Pairs(NamedTuple):
    """Which list of states each pair leaves and which it enters, sorted by the list it leaves."""

    leave_P: Tensor
    enter_P: Tensor

    def by_leaving(self, lists: int) -> Iterator[tuple[int, slice]]:
        """Each list that is left, and its pairs."""
        ends = torch.bincount(self.leave_P, minlength=lists).cumsum(0).tolist()
        for index, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
            if begin < end:
                yield index, slice(begin, end)


def _forward(
    leaving_NKR: Tensor, entering_GJR: Tensor, scale_PK: Tensor, shift_NK: Tensor | None, pairs: Pairs
) -> Tensor:
    """Probabilities of all pairs in PyTorch: one product for those that leave the same list."""
    (_, states, width), entered = leaving_NKR.shape, entering_GJR.shape[1]
    into_PJK = leaving_NKR.new_empty(len(pairs.leave_P), entered, states)
    for n, here in pairs.by_leaving(len(leaving_NKR)):
        entering_IR = entering_GJR.index_select(0, pairs.enter_P[here]).view(-1, width)
        into = into_PJK[here]
        torch.mm(entering_IR, leaving_NKR[n].T, out=into.view(-1, states))
        if shift_NK is None:
            into.sub_(into.amax(1, keepdim=True)).exp_().mul_((scale_PK[here] / into.sum(1)).unsqueeze(1))
        else:
            into.sub_(shift_NK[n]).exp_().mul_(scale_PK[here].unsqueeze(1))
    return into_PJK


def _backward(
    leaving_NKR: Tensor, entering_GJR: Tensor, scale_PK: Tensor, into_PJK: Tensor, grad_PJK: Tensor, pairs: Pairs,
    shifted: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients by what leaves and enters, and the sums over states entered of probability × gradient, P×K."""
    (_, states, width), entered = leaving_NKR.shape, entering_GJR.shape[1]
    grad_leaving, grad_entering = torch.zeros_like(leaving_NKR), torch.zeros_like(entering_GJR)
    total_PK = torch.empty_like(scale_PK)
    for n, here in pairs.by_leaving(len(leaving_NKR)):
        into, scale = into_PJK[here], scale_PK[here]
        count = torch.mul(grad_PJK[here], into)
        total = torch.sum(count, 1, out=total_PK[here])
        if not shifted:  # the softmax, not the scaled one, goes out of each row's gradient
            count.sub_(into.mul(torch.where(scale > 0, total / scale, 0.0).unsqueeze(1)))
        flat = count.view(-1, states)
        torch.mm(flat.T, entering_GJR.index_select(0, pairs.enter_P[here]).view(-1, width), out=grad_leaving[n])
        to_entering = torch.mm(flat, leaving_NKR[n]).to(grad_entering)  # in half precision, added up in full
        grad_entering.index_add_(0, pairs.enter_P[here], to_entering.view(-1, entered, width))
    return grad_leaving, grad_entering, total_PK


class _BilinearPairs(torch.autograd.Function):
    """exp(leaving · entering − shift), or with no shift its softmax over the list entered; times a scale a row."""

    @staticmethod
    def forward(
        ctx: Any,
        leaving_NKR: Tensor,
        entering_GJR: Tensor,
        scale_PK: Tensor,
        shift_NK: Tensor | None,
        pairs: Pairs,
        bf16: bool,
    ) -> Tensor:
        ctx.pairs, ctx.shifted, ctx.bf16 = pairs, shift_NK is not None, bf16
        ctx.native = None
        if kernels.usable(leaving_NKR, entering_GJR):
            ctx.native = kernels.Pairs.of(*pairs, len(leaving_NKR), len(entering_GJR))
            into_PJK = kernels.pair_forward(
                leaving_NKR, entering_GJR, ctx.native, scale_PK, shift_NK, bf16=ctx.bf16
            )  # fmt: skip
        else:
            into_PJK = _forward(leaving_NKR, entering_GJR, scale_PK, shift_NK, pairs)
        ctx.save_for_backward(leaving_NKR, entering_GJR, scale_PK, into_PJK)
        return into_PJK

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_PJK: Tensor) -> tuple[Tensor | None, ...]:
        leaving_NKR, entering_GJR, scale_PK, into_PJK = ctx.saved_tensors
        if ctx.native is not None:
            leaving, entering, total_PK = kernels.pair_backward(
                leaving_NKR, entering_GJR, ctx.native, scale_PK, into_PJK, grad_PJK,
                normalised=not ctx.shifted, bf16=ctx.bf16,
            )  # fmt: skip
        else:
            leaving, entering, total_PK = _backward(
                leaving_NKR, entering_GJR, scale_PK, into_PJK, grad_PJK, ctx.pairs, ctx.shifted
            )
        grad_scale_PK = torch.where(scale_PK > 0, total_PK / scale_PK, 0.0)
        grad_shift_NK = None
        if ctx.shifted:
            grad_shift_NK = total_PK.new_zeros(leaving_NKR.shape[:2]).index_add_(0, ctx.pairs.leave_P, -total_PK)
        return leaving, entering, grad_scale_PK, grad_shift_NK, None, None


def bilinear_pairs(
    leaving_NKR: Tensor, entering_GJR: Tensor, scale_PK: Tensor, shift_NK: Tensor | None, pairs: Pairs
) -> Tensor:
    """Transition probabilities [pair, to, from] of each pair.

    With no shift, a row is the softmax over the list entered, times the row's scale: the probability of entering that
    list at all. With a shift, the log of a row's total over everything, it is exp(logit − shift) times the scale.
    """
    return _BilinearPairs.apply(leaving_NKR, entering_GJR, scale_PK, shift_NK, pairs, kernels.in_bf16())  # type: ignore[no-any-return, no-untyped-call]  # apply is untyped


class _BilinearLogTotal(torch.autograd.Function):
    """log Σ_j exp(left · right_j), a slice of rows at a time."""

    @staticmethod
    def forward(ctx: Any, left_NR: Tensor, right_SR: Tensor) -> Tensor:
        rows = max(1, CHUNK // len(right_SR))
        with full_precision():
            log_total_N = torch.cat([torch.logsumexp(part @ right_SR.T, 1) for part in left_NR.split(rows)])
        ctx.save_for_backward(left_NR, right_SR, log_total_N)
        return log_total_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_N: Tensor) -> tuple[Tensor, Tensor]:
        left_NR, right_SR, log_total_N = ctx.saved_tensors
        grad_left, grad_right = torch.empty_like(left_NR), torch.zeros_like(right_SR)
        rows = max(1, CHUNK // len(right_SR))
        parts = (left_NR, grad_left, log_total_N, grad_N)
        with full_precision():
            for left, grad, log_total, weight in zip(*(part.split(rows) for part in parts), strict=True):
                share = torch.addmm(-log_total[:, None], left, right_SR.T).exp_().mul_(weight[:, None])
                torch.mm(share, right_SR, out=grad)
                grad_right.addmm_(share.T, left)
        return grad_left, grad_right


def bilinear_log_total(left_NR: Tensor, right_SR: Tensor) -> Tensor:
    """log Σ_j exp(left · right_j) of each row of `left_NR`, N; N × S logits never exist at once."""
    if kernels.usable(left_NR, right_SR):
        return kernels.log_totals(left_NR, right_SR, bf16=kernels.in_bf16())
    return _BilinearLogTotal.apply(left_NR, right_SR)  # type: ignore[no-any-return, no-untyped-call]  # apply is untyped
