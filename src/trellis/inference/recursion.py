"""The recursion: one walk forward through a batch, and one back, in scaled probability space.

A belief is pushed through the transition by a matrix product, multiplied by how well each state explains the next
token, and rescaled to sum to one; the logarithm of the scale is the token's log-probability. The way back is the
vector–Jacobian product of the way there. Nothing ever holds batch × time × states².
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from trellis import kernels
from trellis.errors import TrellisError
from trellis.inference.transitions import Crossed, Paired, Shared

Transition = TypeVar("Transition", bound=Shared | Paired | Crossed)

# A step whose scale falls below this has lost digits to underflow: the row is done again in log space.
UNDERFLOW = 1e-20
# Backward messages of states that carry no belief can grow without bound; beyond this they are noise times zero.
LARGEST_MESSAGE = 1e30


def check_lengths(lengths_B: Tensor | None, time: int) -> None:
    """Refuse a row that would go on past its last token."""
    if lengths_B is not None and len(lengths_B) and int(lengths_B.max()) > time:
        raise TrellisError(
            f"a length of {int(lengths_B.max())} is more than the {time} tokens of a row: mend lengths_B."
        )


class Rows(NamedTuple):
    """A ragged batch, longest row first, so that the rows still running at step t are the first `running[t]`."""

    order: Tensor | None
    running: list[int]

    @classmethod
    def of(cls, lengths_B: Tensor | None, batch: int, time: int) -> Rows:
        """The order of rows for these lengths; no order at all when every row is full."""
        check_lengths(lengths_B, time)
        if lengths_B is None or bool((lengths_B == time).all()):
            return cls(None, [batch] * time)
        running = (lengths_B[:, None] > torch.arange(time, device=lengths_B.device)).sum(0).tolist()
        return cls(lengths_B.argsort(descending=True, stable=True), running)

    def sort(self, tensor: Tensor, dim: int = 0) -> Tensor:
        """From the caller's order of rows to longest first."""
        return tensor if self.order is None else tensor.index_select(dim, self.order)

    def unsort(self, tensor: Tensor, dim: int = 0) -> Tensor:
        """From longest first back to the caller's order."""
        return tensor if self.order is None else tensor.index_select(dim, self.order.argsort())

    def ends(self) -> list[tuple[int, int]]:
        """For each step (a, b): rows a to b end there, rows before a go on."""
        return list(zip([*self.running, 0][1:], self.running, strict=True))

    def begun(self) -> int:
        """How many rows have tokens at all."""
        return self.running[0] if self.running else 0

    def length(self, row: int) -> int:
        """How many steps the row runs, counting in longest-first order."""
        return sum(running > row for running in self.running)


def own_columns(log_emission_BTS: Tensor) -> tuple[Tensor, Tensor]:
    """Emissions as a table where every token has a column of its own, and the column that each token takes."""
    batch, time, states = log_emission_BTS.shape
    index_BT = torch.arange(batch * time, device=log_emission_BTS.device).view(batch, time)
    return log_emission_BTS.reshape(batch * time, states), index_BT


class Evidence(NamedTuple):
    """How well each state explains each token: the columns of the distinct words, and which one each token takes.

    Exponentials are taken once a word, not once a token. `likelihood_NS` is divided by the best state's, so that only
    a belief can underflow; `log_peak_N` is the logarithm of what it was divided by.
    """

    likelihood_NS: Tensor
    log_peak_N: Tensor
    index_TB: Tensor

    @classmethod
    def of(cls, log_columns_NS: Tensor, index_TB: Tensor) -> Evidence:
        """Scale the columns; a word that no state emits keeps its zeros."""
        log_peak_N1 = log_columns_NS.amax(-1, keepdim=True)
        log_peak_N1 = torch.where(log_peak_N1 == -torch.inf, 0.0, log_peak_N1)
        return cls(torch.sub(log_columns_NS, log_peak_N1).exp_(), log_peak_N1.squeeze(-1), index_TB)

    def at(self, step: int, running: int) -> Tensor:
        """The likelihoods of the tokens of one step in the rows still running."""
        return self.likelihood_NS.index_select(0, self.index_TB[step, :running])


class Walk(NamedTuple, Generic[Transition]):
    """A finished forward pass, time-major and longest row first, with what the way back needs."""

    rows: Rows
    transition: Transition
    evidence: Evidence
    belief_TBS: Tensor
    scale_TB: Tensor
    log_prob_TB: Tensor
    final_BS: Tensor

    def underflowed(self) -> list[int]:
        """Rows with a scale too small to trust."""
        low_TB = self.scale_TB < UNDERFLOW
        return low_TB.any(0).nonzero().flatten().tolist() if bool(low_TB.any()) else []


def walk(
    first_BS: Tensor, transition: Transition, evidence: Evidence, rows: Rows, before_BS: Tensor
) -> Walk[Transition]:
    """Filter a batch whose rows are sorted longest first.

    `first_BS` is the belief about the first state before its token is seen; `before_BS` is what a row without tokens
    ends with.
    """
    torch.set_flush_denormal(True)  # denormals slow the products several-fold and are far below our resolution
    if isinstance(transition, Shared) and kernels.usable(first_BS, transition.matrix_SS, evidence.likelihood_NS):
        found = kernels.walk(first_BS, transition.matrix_SS, *evidence, rows.running, before_BS, bf16=kernels.in_bf16())
        return Walk(rows, transition, evidence, *found)
    time, batch = evidence.index_TB.shape
    belief_TBS = first_BS.new_empty(time, *first_BS.shape)
    scale_TB, log_prob_TB = first_BS.new_ones(time, batch), first_BS.new_zeros(time, batch)
    predicted, final_BS = first_BS, before_BS.clone()
    tiny = torch.finfo(first_BS.dtype).tiny
    for t, (going_on, running) in enumerate(rows.ends()):
        if t:
            predicted = transition.push(belief_TBS[t - 1, :running], t)
        belief = torch.mul(predicted[:running], evidence.at(t, running), out=belief_TBS[t, :running])
        scale = torch.sum(belief, -1, out=scale_TB[t, :running])
        belief.div_(scale.clamp_min(tiny).unsqueeze(-1))
        log_prob_TB[t, :running] = evidence.log_peak_N[evidence.index_TB[t, :running]] + scale.log()
        belief_TBS[t, running:] = 0.0
        final_BS[going_on:running] = belief[going_on:]
    return Walk(rows, transition, evidence, belief_TBS, scale_TB, log_prob_TB, final_BS)


def walk_back(
    done: Walk[Transition], grad_log_prob_TB: Tensor, grad_final_BS: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Gradients by the log-emissions and by the predicted beliefs, both T×B×S, of what `walk` returned.

    With L = Σ w_t log c_t, c_t the scale of u_t = predicted_t ⊙ likelihood_t, and g the gradient by the belief
    u_t / c_t, the chain rule gives ∂L/∂u_t = (w_t + g − ⟨g, belief_t⟩) / c_t. For w = 1 the numerator is the usual
    β_t and the first result the posterior.
    """
    grad_final_BS = torch.zeros_like(done.final_BS) if grad_final_BS is None else grad_final_BS
    transition = done.transition
    if isinstance(transition, Shared) and kernels.usable(transition.matrix_SS, done.belief_TBS, grad_log_prob_TB):
        return kernels.walk_back(
            transition.matrix_SS, done.evidence.likelihood_NS, done.evidence.index_TB, done.rows.running,
            done.belief_TBS, done.scale_TB, grad_log_prob_TB, grad_final_BS, bf16=kernels.in_bf16(),
        )  # fmt: skip
    posterior_TBS, message_TBS = torch.empty_like(done.belief_TBS), torch.empty_like(done.belief_TBS)
    inverse_scale_TB = torch.where(done.scale_TB < UNDERFLOW, 0.0, 1.0 / done.scale_TB)
    ends = done.rows.ends()
    gradient = grad_final_BS[:0]
    for t in reversed(range(len(ends))):
        going_on, running = ends[t]
        if going_on < running:
            gradient = torch.cat([gradient, grad_final_BS[going_on:running]])
        belief = done.belief_TBS[t, :running]
        shift = grad_log_prob_TB[t, :running] - torch.linalg.vecdot(gradient, belief)
        outer = gradient + shift.unsqueeze(-1)
        torch.mul(outer, belief, out=posterior_TBS[t, :running])
        # The likelihood first: divided by a small scale, what it makes zero would be infinite and the product NaN.
        message = torch.mul(outer, done.evidence.at(t, running), out=message_TBS[t, :running])
        message.mul_(inverse_scale_TB[t, :running].unsqueeze(-1)).clamp_(-LARGEST_MESSAGE, LARGEST_MESSAGE)
        posterior_TBS[t, running:] = 0.0
        message_TBS[t, running:] = 0.0
        if t:
            gradient = transition.pull(message, t)
    return posterior_TBS, message_TBS
