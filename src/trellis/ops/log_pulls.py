"""Messages pulled back across the matrices of pairs of blocks, in log space: log Σ_j matrix[j, k] exp(message[j])."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trellis.ops import steps


def log_pull(into_PJK: Tensor, pair_Q: Tensor, log_message_QJ: Tensor) -> Tensor:
    """Of each message, across the matrix [to, from] of its pair, Q×K; differentiable once.

    A sum that float32 cannot hold beside its largest message is as small as it can hold, and not −inf.
    """
    return _LogPull.apply(into_PJK, pair_Q, log_message_QJ)  # type: ignore[no-any-return, no-untyped-call]  # apply is untyped


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
