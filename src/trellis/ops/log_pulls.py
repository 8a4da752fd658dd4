"""Messages pulled back across transition matrices, in log space: log Σ_j p(j | k) exp(message[j])."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trellis.ops import steps
from trellis.ops.precision import as_before, in_bf16
from trellis.ops.products import counts, product, product_with_transpose
from trellis.ops.walks import limits


def log_pull(into_PJK: Tensor, pair_Q: Tensor, log_message_QJ: Tensor) -> Tensor:
    """Of each message, across the matrix [to, from] of its pair of blocks, Q×K; differentiable once.

    A sum that float32 cannot hold beside its largest message is as small as it can hold, and not −inf.
    """
    return _LogPull.apply(into_PJK, pair_Q, log_message_QJ)  # type: ignore[no-any-return, no-untyped-call]  # apply is untyped


def log_pull_exactly(log_total_QK: Tensor, log_message_QJ: Tensor, log_into: Callable[[Tensor], Tensor]) -> Tensor:
    """What `log_pull` gave, but sums that float32 cannot hold are made in log space, by some messages' log-matrices."""
    least_Q1 = log_message_QJ.detach().amax(1, keepdim=True) + math.log(limits(log_total_QK.dtype).lowest_belief)
    lost_N = (log_total_QK.detach() < least_Q1).any(1).nonzero().flatten()
    if len(lost_N) == 0:
        return log_total_QK
    exact_NK = (log_into(lost_N) + log_message_QJ[lost_N].unsqueeze(2)).logsumexp(1)
    return log_total_QK.index_copy(0, lost_N, exact_NK.to(log_total_QK))


class _LogPull(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, into_PJK: Tensor, pair_Q: Tensor, log_message_QJ: Tensor) -> Tensor:
        log_peak_Q1 = log_message_QJ.amax(1, keepdim=True)
        message_QJ = torch.sub(log_message_QJ, log_peak_Q1).exp_()
        pulled_QK = steps.pull(into_PJK, pair_Q, message_QJ).clamp_min_(torch.finfo(message_QJ.dtype).tiny)
        ctx.save_for_backward(into_PJK, pair_Q, message_QJ, pulled_QK)
        return pulled_QK.log().add_(log_peak_Q1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_QK: Tensor) -> tuple[Tensor | None, ...]:
        into_PJK, pair_Q, message_QJ, pulled_QK = ctx.saved_tensors
        weight_QK = grad_QK / pulled_QK
        grad_QJ = steps.push(into_PJK, pair_Q, weight_QK).mul_(message_QJ)
        return steps.outer(len(into_PJK), pair_Q, weight_QK, message_QJ), None, grad_QJ


def log_pull_shared(matrix_SS: Tensor, log_message_QS: Tensor) -> Tensor:
    """The same across one matrix [from, to] for all messages, Q×S; products are in bf16 where autocast asks for it."""
    return _LogPullShared.apply(matrix_SS, log_message_QS)  # type: ignore[no-any-return, no-untyped-call]  # apply is untyped


class _LogPullShared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix_SS: Tensor, log_message_QS: Tensor) -> Tensor:
        ctx.bf16 = in_bf16(matrix_SS.device)
        log_peak_Q1 = log_message_QS.amax(1, keepdim=True)
        message_QS = torch.sub(log_message_QS, log_peak_Q1).exp_()
        pulled_QS = product_with_transpose(message_QS, matrix_SS).clamp_min_(torch.finfo(message_QS.dtype).tiny)
        ctx.save_for_backward(matrix_SS, message_QS, pulled_QS)
        return pulled_QS.log().add_(log_peak_Q1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_QS: Tensor) -> tuple[Tensor, Tensor]:
        matrix_SS, message_QS, pulled_QS = ctx.saved_tensors
        weight_QS = grad_QS / pulled_QS
        with as_before(weight_QS.device, ctx.bf16):
            grad_SS, pushed_QS = counts(weight_QS, message_QS), product(weight_QS, matrix_SS)
        return grad_SS, pushed_QS.mul_(message_QS)
