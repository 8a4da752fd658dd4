"""Emission columns: log p(token | state) for the tokens of a batch alone.

A softmax over the vocabulary is needed only for its normaliser; the probabilities of words that are not in the batch
never matter. So the vocabulary goes by in slices that fit the processor's cache, forward and again backward, and
what is kept is one number a state.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trellis import kernels

SLICE = 1024  # words at a time; 1024 × 512 states of float32 are 2 MB


def full_precision() -> torch.autocast:
    """A context in which products are in float32 even where others are not: normalisers need all their digits."""
    return torch.autocast("cpu", enabled=False)


def _log_total(slices: list[Tensor]) -> Tensor:
    return torch.logsumexp(torch.stack(slices), 0)


class _ScalarColumns(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_VS: Tensor, ids_N: Tensor) -> Tensor:
        log_total_S = _log_total([torch.logsumexp(part, 0) for part in logits_VS.split(SLICE)])
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
    def forward(ctx: Any, words_VR: Tensor, states_SR: Tensor, ids_N: Tensor) -> Tensor:
        ctx.native, ctx.bf16 = kernels.usable(words_VR, states_SR), kernels.in_bf16()
        with full_precision():
            if ctx.native:
                log_total_S = kernels.totals_forward(states_SR, words_VR, bf16=ctx.bf16)
            else:
                log_total_S = _log_total([torch.logsumexp(part @ states_SR.T, 0) for part in words_VR.split(SLICE)])
            ctx.save_for_backward(words_VR, states_SR, ids_N, log_total_S)
            return torch.addmm(-log_total_S, words_VR.index_select(0, ids_N), states_SR.T)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NS: Tensor) -> tuple[Tensor, Tensor, None]:
        words_VR, states_SR, ids_N, log_total_S = ctx.saved_tensors
        less_S = -grad_NS.sum(0)
        with full_precision():
            if ctx.native:
                grad_SR, grad_VR, _ = kernels.totals_backward(
                    states_SR, words_VR, None, log_total_S, less_S, bf16=ctx.bf16
                )
            else:
                grad_SR, grad_VR = _of_normaliser(words_VR, states_SR, log_total_S, less_S)
            grad_SR.addmm_(grad_NS.T, words_VR.index_select(0, ids_N))
            return grad_VR.index_add_(0, ids_N, grad_NS @ states_SR), grad_SR, None


def _of_normaliser(words_VR: Tensor, states_SR: Tensor, log_total_S: Tensor, grad_S: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients by states and words of Σ grad · log_total, a slice of the vocabulary at a time."""
    grad_SR, grad_VR = torch.zeros_like(states_SR), torch.empty_like(words_VR)
    for grad, words in zip(grad_VR.split(SLICE), words_VR.split(SLICE), strict=True):
        logits = torch.addmm(-log_total_S, words, states_SR.T).exp_().mul_(grad_S)
        torch.mm(logits, states_SR, out=grad)
        grad_SR.addmm_(logits.T, words)
    return grad_SR, grad_VR


def scalar_columns(logits_VS: Tensor, ids_N: Tensor) -> Tensor:
    """log softmax of `logits_VS` over the vocabulary, at the words `ids_N`: N×S."""
    return _ScalarColumns.apply(logits_VS, ids_N)  # type: ignore[no-any-return, no-untyped-call]  # apply is untyped


def low_rank_columns(words_VR: Tensor, states_SR: Tensor, ids_N: Tensor) -> Tensor:
    """The same for logits = words · statesᵀ, of which the whole never exists."""
    return _LowRankColumns.apply(words_VR, states_SR, ids_N)  # type: ignore[no-any-return, no-untyped-call]  # apply is untyped
