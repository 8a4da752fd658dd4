"""The recursion of a dense HMM in native code: what `trellis.inference.recursion` does step by step, in one call."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from trellis.kernels.library import call, check, fields, ready


class _WalkCall(ctypes.Structure):
    _fields_ = fields(
        "first transition likelihood log_peak index running belief scale log_prob final grad_log_prob grad_final "
        "posterior message",
        "T B S columns bf16 threads",
    )


class _CountCall(ctypes.Structure):
    _fields_ = fields("before after out", "rows S bf16 threads")


def walk(
    first_BS: Tensor,
    transition_SS: Tensor,
    likelihood_NS: Tensor,
    log_peak_N: Tensor,
    index_TB: Tensor,
    running_T: list[int],
    before_BS: Tensor,
    *,
    bf16: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Beliefs T×B×S, scales and log-probabilities T×B, and final beliefs B×S of rows sorted longest first."""
    (T, B), S = index_TB.shape, transition_SS.shape[0]
    running = torch.tensor(running_T, dtype=torch.int64)
    inputs = [
        check(first_BS, (B, S), "first_BS"), check(transition_SS, (S, S), "transition_SS"),
        check(likelihood_NS, (len(likelihood_NS), S), "likelihood_NS"),
        check(log_peak_N, (len(likelihood_NS),), "log_peak_N"), ready(index_TB, torch.int64),
        check(running, (T,), "running_T", torch.int64),
    ]  # fmt: skip
    belief_TBS = first_BS.new_empty(T, B, S)
    scale_TB, log_prob_TB = first_BS.new_empty(T, B), first_BS.new_empty(T, B)
    final_BS = check(before_BS, (B, S), "before_BS").clone()
    outputs = [belief_TBS, scale_TB, log_prob_TB, final_BS]
    asked = _WalkCall(
        *(tensor.data_ptr() for tensor in inputs + outputs),
        T=T, B=B, S=S, columns=len(likelihood_NS), bf16=bf16, threads=torch.get_num_threads(),
    )  # fmt: skip
    call("walk", asked)
    return belief_TBS, scale_TB, log_prob_TB, final_BS


def walk_back(
    transition_SS: Tensor,
    likelihood_NS: Tensor,
    index_TB: Tensor,
    running_T: list[int],
    belief_TBS: Tensor,
    scale_TB: Tensor,
    grad_log_prob_TB: Tensor,
    grad_final_BS: Tensor,
    *,
    bf16: bool = False,
) -> tuple[Tensor, Tensor]:
    """Gradients by the log-emissions and by the predicted beliefs, both T×B×S, of what `walk` returned."""
    T, B, S = belief_TBS.shape
    inputs = {
        "transition": check(transition_SS, (S, S), "transition_SS"),
        "likelihood": check(likelihood_NS, (len(likelihood_NS), S), "likelihood_NS"),
        "index": check(index_TB, (T, B), "index_TB", torch.int64),
        "running": check(torch.tensor(running_T, dtype=torch.int64), (T,), "running_T", torch.int64),
        "belief": ready(belief_TBS),
        "scale": check(scale_TB, (T, B), "scale_TB"),
        "grad_log_prob": check(grad_log_prob_TB, (T, B), "grad_log_prob_TB"),
        "grad_final": check(grad_final_BS, (B, S), "grad_final_BS"),
        "posterior": belief_TBS.new_empty(T, B, S),
        "message": belief_TBS.new_empty(T, B, S),
    }
    asked = _WalkCall(
        **{name: tensor.data_ptr() for name, tensor in inputs.items()},
        T=T, B=B, S=S, columns=len(likelihood_NS), bf16=bf16, threads=torch.get_num_threads(),
    )  # fmt: skip
    call("walk_back", asked)
    return inputs["posterior"], inputs["message"]


def counts(before_NS: Tensor, after_NS: Tensor, *, bf16: bool = False) -> Tensor:
    """Σ before ⊗ after, S×S: the gradient by a transition matrix, from beliefs before and messages after steps."""
    before_NS = ready(before_NS)
    N, S = before_NS.shape
    after_NS, out_SS = check(after_NS, (N, S), "after_NS"), before_NS.new_empty(S, S)
    asked = _CountCall(
        before_NS.data_ptr(), after_NS.data_ptr(), out_SS.data_ptr(), N, S, bf16, torch.get_num_threads()
    )
    call("counts", asked)
    return out_SS
