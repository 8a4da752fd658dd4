"""The recursion through a batch, forward and back: step by step in PyTorch, or in one native call if one matrix is all.

Rows are sorted longest first, so that those still running at step t are the first `running[t]`. A step is whatever can
push a belief and pull a message.
"""

from __future__ import annotations

import ctypes
from typing import Protocol

import torch
from torch import Tensor

from trellis.ops.library import call, check, fields, ready, usable
from trellis.ops.precision import in_bf16

# Backward messages of states that carry no belief can grow without bound; beyond this they are noise times zero.
LARGEST_MESSAGE = 1e30


class Steps(Protocol):
    """How a belief moves to a step, and a message back from it."""

    def push(self, belief_BS: Tensor, step: int) -> Tensor:
        """The belief of the first B rows one step on."""

    def pull(self, message_BS: Tensor, step: int) -> Tensor:
        """The transpose."""


def walk(
    steps: Steps,
    matrix_SS: Tensor | None,
    first_BS: Tensor,
    likelihood_NS: Tensor,
    log_peak_N: Tensor,
    index_TB: Tensor,
    running: list[int],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Beliefs T×B×S, scales and log-probabilities T×B, and final beliefs B×S, zeros for a row without tokens.

    `first_BS` is the belief about the first state before its token is seen, `matrix_SS` [from, to] that of all steps,
    if there is one; the token at [t, b] has row index[t, b] of the likelihoods, which are divided by exp(log_peak).
    """
    if matrix_SS is not None and usable(first_BS, matrix_SS, likelihood_NS):
        bf16, nothing_BS = in_bf16(first_BS.device), torch.zeros_like(first_BS)
        return _native_walk(first_BS, matrix_SS, likelihood_NS, log_peak_N, index_TB, running, nothing_BS, bf16=bf16)
    time, batch = index_TB.shape
    belief_TBS = first_BS.new_empty(time, *first_BS.shape)
    scale_TB, log_prob_TB = first_BS.new_ones(time, batch), first_BS.new_zeros(time, batch)
    predicted, final_BS = first_BS, torch.zeros_like(first_BS)
    tiny = torch.finfo(first_BS.dtype).tiny
    for t, (going_on, here) in enumerate(_ends(running)):
        if t:
            predicted = steps.push(belief_TBS[t - 1, :here], t)
        index_B = index_TB[t, :here]
        belief = torch.mul(predicted[:here], likelihood_NS.index_select(0, index_B), out=belief_TBS[t, :here])
        scale = torch.sum(belief, -1, out=scale_TB[t, :here])
        belief.div_(scale.clamp_min(tiny).unsqueeze(-1))
        log_prob_TB[t, :here] = log_peak_N[index_B] + scale.log()
        belief_TBS[t, here:] = 0.0
        final_BS[going_on:here] = belief[going_on:]
    return belief_TBS, scale_TB, log_prob_TB, final_BS


def walk_back(
    steps: Steps,
    matrix_SS: Tensor | None,
    likelihood_NS: Tensor,
    index_TB: Tensor,
    running: list[int],
    belief_TBS: Tensor,
    scale_TB: Tensor,
    grad_log_prob_TB: Tensor,
    grad_final_BS: Tensor,
    underflow: float,
) -> tuple[Tensor, Tensor]:
    """Gradients by the log-emissions and by the predicted beliefs, both T×B×S, of what `walk` returned.

    With L = Σ w_t log c_t, c_t the scale of u_t = predicted_t ⊙ likelihood_t, and g the gradient by the belief
    u_t / c_t, the chain rule gives ∂L/∂u_t = (w_t + g − ⟨g, belief_t⟩) / c_t. For w = 1 the numerator is the usual
    β_t and the first result the posterior. A scale below `underflow` sends no message back.
    """
    if matrix_SS is not None and usable(matrix_SS, belief_TBS, grad_log_prob_TB):
        return _native_walk_back(
            matrix_SS, likelihood_NS, index_TB, running, belief_TBS, scale_TB, grad_log_prob_TB, grad_final_BS,
            bf16=in_bf16(belief_TBS.device),
        )  # fmt: skip
    posterior_TBS, message_TBS = torch.empty_like(belief_TBS), torch.empty_like(belief_TBS)
    inverse_scale_TB = torch.where(scale_TB < underflow, 0.0, 1.0 / scale_TB)
    ends, gradient = _ends(running), grad_final_BS[:0]
    for t in reversed(range(len(ends))):
        going_on, here = ends[t]
        if going_on < here:
            gradient = torch.cat([gradient, grad_final_BS[going_on:here]])
        belief, likelihood = belief_TBS[t, :here], likelihood_NS.index_select(0, index_TB[t, :here])
        shift = grad_log_prob_TB[t, :here] - torch.linalg.vecdot(gradient, belief)
        outer = gradient + shift.unsqueeze(-1)
        torch.mul(outer, belief, out=posterior_TBS[t, :here])
        # The likelihood first: divided by a small scale, what it makes zero would be infinite and the product NaN.
        message = torch.mul(outer, likelihood, out=message_TBS[t, :here])
        message.mul_(inverse_scale_TB[t, :here].unsqueeze(-1)).clamp_(-LARGEST_MESSAGE, LARGEST_MESSAGE)
        posterior_TBS[t, here:] = 0.0
        message_TBS[t, here:] = 0.0
        if t:
            gradient = steps.pull(message, t)
    return posterior_TBS, message_TBS


def _ends(running: list[int]) -> list[tuple[int, int]]:
    """For each step (a, b): rows a to b end there, rows before a go on."""
    return list(zip([*running, 0][1:], running, strict=True))


class _WalkCall(ctypes.Structure):
    _fields_ = fields(
        "first transition likelihood log_peak index running belief scale log_prob final grad_log_prob grad_final "
        "posterior message",
        "T B S columns bf16 threads",
    )


def _native_walk(
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


def _native_walk_back(
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
