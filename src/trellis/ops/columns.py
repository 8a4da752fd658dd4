"""Emission columns: log p(token | state) for the tokens of a batch alone, where every state may emit every word.

A softmax over the vocabulary is needed only for its normaliser; the probabilities of words that are not in the batch
never matter. So the vocabulary goes by in slices that fit the processor's cache, forward and again backward, and
what is kept is one number a state.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trellis.ops.log_totals import totals_backward, totals_forward
from trellis.ops.precision import full_precision, in_bf16
from trellis.ops.products import counts, product, product_with_transpose

SLICE = 1024  # words at a time; 1024 × 512 states of float32 are 2 MB


class _ScalarColumns(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_VS: Tensor, ids_N: Tensor) -> Tensor:
        slices = [torch.logsumexp(part, 0) for part in logits_VS.split(SLICE)]
        log_total_S = torch.logsumexp(torch.stack(slices), 0)
        ctx.save_for_backward(logits_VS, ids_N, log_total_S)
        return logits_VS.index_select(0, ids_N).sub_(log_total_S)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NS: Tensor) -> tuple[Tensor, None]:
        logits_VS, ids_N, log_total_S = ctx.saved_tensors
        less_S = -grad_NS.sum(0)
        grad_VS = torch.empty_like(logits_VS)
        for grad, logits in zip(grad_VS.split(SLICE), logits_VS.split(SLICE), strict=True):
            torch.sub(logits, log_total_S, out=grad).exp_().mul_(less_S)
        return grad_VS.index_add_(0, ids_N, grad_NS), None


class _LowRankColumns(torch.autograd.Function):
    """The gradient by the words is made once: by the normaliser, to which that of the batch's own words is added."""

    @staticmethod
    def forward(ctx: Any, words_VR: Tensor, states_SR: Tensor, bias_V: Tensor | None, ids_N: Tensor) -> Tensor:
        ctx.bf16 = in_bf16(words_VR.device)
        log_total_S = totals_forward(states_SR, words_VR, bias_V, bf16=ctx.bf16)
        ctx.save_for_backward(words_VR, states_SR, bias_V, ids_N, log_total_S)
        with full_precision(words_VR.device):
            columns_NS = product_with_transpose(words_VR.index_select(0, ids_N), states_SR).sub_(log_total_S)
        return columns_NS if bias_V is None else columns_NS.add_(bias_V.index_select(0, ids_N).unsqueeze(1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NS: Tensor) -> tuple[Tensor | None, ...]:
        words_VR, states_SR, bias_V, ids_N, log_total_S = ctx.saved_tensors
        grad_SR, grad_VR, grad_V = totals_backward(
            states_SR, words_VR, bias_V, log_total_S, -grad_NS.sum(0), bf16=ctx.bf16
        )
        with full_precision(words_VR.device):
            grad_SR.add_(counts(grad_NS, words_VR.index_select(0, ids_N)))
            grad_VR.index_add_(0, ids_N, product(grad_NS, states_SR))
        if grad_V is not None:
            grad_V.index_add_(0, ids_N, grad_NS.sum(1))
        return grad_VR, grad_SR, grad_V, None


def scalar_columns(logits_VS: Tensor, ids_N: Tensor) -> Tensor:
    """log softmax of `logits_VS` over the vocabulary, at the words `ids_N`: N×S; differentiable once."""
    return _ScalarColumns.apply(logits_VS, ids_N)  # type: ignore[no-any-return, no-untyped-call]  # apply is untyped


def low_rank_columns(words_VR: Tensor, states_SR: Tensor, bias_V: Tensor | None, ids_N: Tensor) -> Tensor:
    """The same for logits = words · statesᵀ + bias, which never exist all at once."""
    return _LowRankColumns.apply(words_VR, states_SR, bias_V, ids_N)  # type: ignore[no-any-return, no-untyped-call]  # apply is untyped
