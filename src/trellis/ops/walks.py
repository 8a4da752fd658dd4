"""The recursion through a batch, forward and back: step by step in PyTorch, or in one native call if one matrix is all.

Rows are sorted longest first, so that those still running at step t are the first `running[t]`. A step is whatever can
push a belief and pull a message.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from trellis.ops.evidence import Evidence, SummedEvidence
from trellis.ops.library import both_structures, named, run, usable
from trellis.ops.precision import in_bf16


class Limits(NamedTuple):
    """Where a walk stops being exact: src/native/dense.h has the same first two numbers.

    underflow        a step whose scale falls below it has lost digits: no message goes back from it
    largest_message  messages of states that carry no belief can grow without bound; beyond it they are noise times zero
    lowest_belief    a belief below it, before it is divided by the scale, may have lost digits; so may what it leads to
    """

    underflow: float
    largest_message: float
    lowest_belief: float


_SINGLE, _DOUBLE = Limits(1e-20, 1e30, 1e-28), Limits(1e-290, 1e290, 1e-288)
_WALKS = both_structures(
    "first_BS matrix_SS likelihood_NS log_peak_N log_columns_NS log_enter_KS index_TB:int enter_TB:int running_T:int "
    "belief_TBS scale_TB log_prob_TB final_BS grad_log_prob_TB grad_final_BS posterior_TBS message_TBS",
    "T B S N K bf16 threads",
)


def limits(dtype: torch.dtype) -> Limits:
    """The limits of numbers of this kind."""
    return _DOUBLE if dtype == torch.float64 else _SINGLE


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
    evidence: Evidence | SummedEvidence,
    running: list[int],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Beliefs T×B×S, scales and log-probabilities T×B, and final beliefs B×S, zeros for a row without tokens.

    `first_BS` is the belief about the first state before its token is seen, `matrix_SS` [from, to] that of all steps,
    if there is one.
    """
    dtype = first_BS.dtype
    if matrix_SS is not None and dtype in _WALKS and usable(first_BS, matrix_SS, evidence[0], dtype=dtype):
        final_BS = first_BS.new_zeros(first_BS.shape)
        asked = _WALKS[dtype](
            first_BS=first_BS, matrix_SS=matrix_SS, running_T=torch.tensor(running, dtype=torch.int64),
            final_BS=final_BS, bf16=in_bf16(first_BS.device), **evidence._asdict(),
        )  # fmt: skip
        belief_TBS, scale_TB, log_prob_TB = run(named("walk", dtype), asked, "belief_TBS", "scale_TB", "log_prob_TB")
        return belief_TBS, scale_TB, log_prob_TB, final_BS
    time, batch = evidence.index_TB.shape
    belief_TBS = first_BS.new_empty(time, *first_BS.shape)
    scale_TB, log_prob_TB = first_BS.new_ones(time, batch), first_BS.new_zeros(time, batch)
    predicted, final_BS = first_BS, torch.zeros_like(first_BS)
    tiny = torch.finfo(first_BS.dtype).tiny
    for t, (going_on, here) in enumerate(_ends(running)):
        if t:
            predicted = steps.push(belief_TBS[t - 1, :here], t)
        likelihood_BS, log_peak_B = evidence.at(t, here)
        belief = torch.mul(predicted[:here], likelihood_BS, out=belief_TBS[t, :here])
        scale = torch.sum(belief, -1, out=scale_TB[t, :here])
        belief.div_(scale.clamp_min(tiny).unsqueeze(-1))
        log_prob_TB[t, :here] = log_peak_B + scale.log()
        belief_TBS[t, here:] = 0.0
        final_BS[going_on:here] = belief[going_on:]
    return belief_TBS, scale_TB, log_prob_TB, final_BS


def walk_back(
    steps: Steps,
    matrix_SS: Tensor | None,
    evidence: Evidence | SummedEvidence,
    running: list[int],
    belief_TBS: Tensor,
    scale_TB: Tensor,
    grad_log_prob_TB: Tensor,
    grad_final_BS: Tensor,
) -> tuple[Tensor, Tensor]:
    """Gradients by the log-emissions and by the predicted beliefs, both T×B×S, of what `walk` returned.

    With L = Σ w_t log c_t, c_t the scale of u_t = predicted_t ⊙ likelihood_t, and g the gradient by the belief
    u_t / c_t, the chain rule gives ∂L/∂u_t = (w_t + g − ⟨g, belief_t⟩) / c_t. For w = 1 the numerator is the usual
    β_t and the first result the posterior. A scale below the limit sends no message back.
    """
    dtype = belief_TBS.dtype
    if matrix_SS is not None and dtype in _WALKS and usable(matrix_SS, belief_TBS, grad_log_prob_TB, dtype=dtype):
        asked = _WALKS[dtype](
            matrix_SS=matrix_SS, running_T=torch.tensor(running, dtype=torch.int64), belief_TBS=belief_TBS,
            scale_TB=scale_TB, grad_log_prob_TB=grad_log_prob_TB, grad_final_BS=grad_final_BS,
            bf16=in_bf16(belief_TBS.device), **evidence._asdict(),
        )  # fmt: skip
        posterior_TBS, message_TBS = run(named("walk_back", dtype), asked, "posterior_TBS", "message_TBS")
        return posterior_TBS, message_TBS
    posterior_TBS, message_TBS = torch.empty_like(belief_TBS), torch.empty_like(belief_TBS)
    underflow, most, _ = limits(dtype)
    inverse_scale_TB = torch.where(scale_TB < underflow, 0.0, 1.0 / scale_TB)
    ends, gradient = _ends(running), grad_final_BS[:0]
    for t in reversed(range(len(ends))):
        going_on, here = ends[t]
        if going_on < here:
            gradient = torch.cat([gradient, grad_final_BS[going_on:here]])
        belief, likelihood = belief_TBS[t, :here], evidence.at(t, here)[0]
        shift = grad_log_prob_TB[t, :here] - torch.linalg.vecdot(gradient, belief)
        outer = gradient + shift.unsqueeze(-1)
        torch.mul(outer, belief, out=posterior_TBS[t, :here])
        # The likelihood first: divided by a small scale, what it makes zero would be infinite and the product NaN.
        message = torch.mul(outer, likelihood, out=message_TBS[t, :here])
        message.mul_(inverse_scale_TB[t, :here].unsqueeze(-1)).clamp_(-most, most)
        posterior_TBS[t, here:] = 0.0
        message_TBS[t, here:] = 0.0
        if t:
            gradient = steps.pull(message, t)
    return posterior_TBS, message_TBS


def _ends(running: list[int]) -> list[tuple[int, int]]:
    """For each step (a, b): rows a to b end there, rows before a go on."""
    return list(zip([*running, 0][1:], running, strict=True))
