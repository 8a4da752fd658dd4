"""Likelihood, filtering and smoothing of a dense HMM, with exact gradients.

Everything takes log-probabilities: `log_start_S`, `log_transition_SS` [from, to], and `log_emission_BTS`, the
log-probability of each observed token in each state (zeros where a token is missing). Rows may be ragged
(`lengths_B`), and may carry on from the belief that an earlier call ended with (`belief_BS`). A text repeats its words:
given `index_BT`, the emissions are a table of distinct columns N×S, of which each token takes the one it names.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trellis.errors import TrellisError
from trellis.inference.recursion import Evidence, Rows, Walk, own_columns, walk, walk_back
from trellis.inference.rescue import rescue, rescued_counts
from trellis.inference.transitions import Shared


class Forward(NamedTuple):
    """What one pass over a batch finds.

    log_prob_BT  log p(o_t | o_<t): zero past a row's end, −inf from an impossible token on
    belief_BTS   p(z_t | o_≤t): zero past a row's end
    final_BS     the belief after each row's last token, to carry on from
    """

    log_prob_BT: Tensor
    belief_BTS: Tensor
    final_BS: Tensor


class Smoothed(NamedTuple):
    """Expected counts given whole rows: the gradients of their log-likelihood by the log-probabilities.

    log_prob_BT    log p(o_t | o_<t)
    final_BS       the belief after each row's last token, to carry on from
    posterior_BTS  p(z_t | o_≤T): zero past a row's end
    start_S        Σ_b p(z_1 | o), over rows that begin at the start distribution
    transition_SS  Σ_b Σ_t p(z_t = i, z_t+1 = j | o), with the step from a carried belief
    """

    log_prob_BT: Tensor
    final_BS: Tensor
    posterior_BTS: Tensor
    start_S: Tensor
    transition_SS: Tensor

    def usage(self) -> Tensor:
        """The expected number of tokens that each state emitted, S, float64."""
        return self.posterior_BTS.double().sum((0, 1))

    def most_probable(self) -> tuple[Tensor, Tensor]:
        """The highest posterior at each token and the state that has it, both B×T."""
        probability_BT, state_BT = self.posterior_BTS.max(-1)
        return probability_BT, state_BT


class _Problem(NamedTuple):
    """The inputs of a pass, sorted longest row first."""

    log_start_S: Tensor
    log_transition_SS: Tensor
    log_columns_NS: Tensor
    index_TB: Tensor
    belief_BS: Tensor | None


def _solve(
    log_start_S: Tensor,
    log_transition_SS: Tensor,
    log_emission: Tensor,
    lengths_B: Tensor | None,
    belief_BS: Tensor | None,
    index_BT: Tensor | None,
) -> tuple[_Problem, Walk[Shared], list[int]]:
    """Walk the batch, and do again in log space the rows that underflowed."""
    if index_BT is None:
        log_emission, index_BT = own_columns(log_emission)
    rows = Rows.of(lengths_B, *index_BT.shape)
    problem = _Problem(
        log_start_S,
        log_transition_SS,
        log_emission,
        rows.sort(index_BT.T, 1).contiguous(),
        None if belief_BS is None else rows.sort(belief_BS),
    )
    evidence = Evidence.of(log_emission, problem.index_TB)
    transition = Shared(log_transition_SS.exp())
    if problem.belief_BS is None:
        first_BS = before_BS = log_start_S.exp().expand(index_BT.shape[0], -1)
    else:
        before_BS = problem.belief_BS
        first_BS = transition.push(before_BS, 0)
    done = walk(first_BS, transition, evidence, rows, before_BS)
    return problem, done, [row for row in done.underflowed() if rescue(*problem, done, row)]


def _counts(
    problem: _Problem, done: Walk[Shared], rescued: list[int], grad_log_prob_TB: Tensor, grad_final_BS: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients by log-start, log-transition, sorted log-emissions, and predicted first belief."""
    posterior_TBS, message_TBS = walk_back(done, grad_log_prob_TB, grad_final_BS)
    transition_SS = done.transition.gradient(done.belief_TBS[:-1], message_TBS[1:])
    first_BS = message_TBS[:1].sum(0)  # nothing if there are no tokens
    start_S = torch.zeros_like(problem.log_start_S)
    if problem.belief_BS is None:
        if grad_final_BS is not None:  # a row without tokens ends with what it began with
            first_BS[done.rows.begun() :] = grad_final_BS[done.rows.begun() :]
        start_S = first_BS.sum(0) * problem.log_start_S.exp()
    else:
        transition_SS.addmm_(problem.belief_BS.T, first_BS)
    transition_SS.mul_(done.transition.matrix_SS)
    for row in rescued:
        counts = rescued_counts(*problem, done.rows.length(row), row, grad_log_prob_TB[:, row])
        posterior_TBS[: done.rows.length(row), row] = counts.posterior_TS.to(posterior_TBS)
        start_S += counts.start_S.to(start_S)
        transition_SS += counts.transition.to(transition_SS)
    return start_S, transition_SS, posterior_TBS, first_BS


def forward(
    log_start_S: Tensor,
    log_transition_SS: Tensor,
    log_emission_BTS: Tensor,
    lengths_B: Tensor | None = None,
    belief_BS: Tensor | None = None,
    index_BT: Tensor | None = None,
) -> Forward:
    """Filter a batch: each token's log-probability and the belief after it."""
    with torch.no_grad():
        _, done, _ = _solve(log_start_S, log_transition_SS, log_emission_BTS, lengths_B, belief_BS, index_BT)
        unsort = done.rows.unsort
        return Forward(unsort(done.log_prob_TB, 1).T, unsort(done.belief_TBS, 1).transpose(0, 1), unsort(done.final_BS))


def smooth(
    log_start_S: Tensor,
    log_transition_SS: Tensor,
    log_emission_BTS: Tensor,
    lengths_B: Tensor | None = None,
    belief_BS: Tensor | None = None,
    index_BT: Tensor | None = None,
) -> Smoothed:
    """Posteriors over states given whole rows, and expected counts of starts and transitions."""
    with torch.no_grad():
        problem, done, rescued = _solve(
            log_start_S, log_transition_SS, log_emission_BTS, lengths_B, belief_BS, index_BT
        )
        log_prob_TB, unsort = done.log_prob_TB, done.rows.unsort
        # An impossible row has no posterior: it counts for nothing rather than up to where it broke.
        weight_TB = torch.isfinite(log_prob_TB.sum(0)).to(log_prob_TB).expand_as(log_prob_TB)
        start_S, transition_SS, posterior_TBS, _ = _counts(problem, done, rescued, weight_TB, None)
        # Rounding can leave a state that is next to impossible a little less than nothing, and no logarithm.
        for count in (start_S, transition_SS, posterior_TBS):
            count.clamp_min_(0.0)
        return Smoothed(
            unsort(log_prob_TB, 1).T,
            unsort(done.final_BS),
            unsort(posterior_TBS, 1).transpose(0, 1),
            start_S,
            transition_SS,
        )


class _LogProbs(torch.autograd.Function):
    """`forward` with a custom backward: autograd sees one step, not one a token."""

    @staticmethod
    def forward(
        ctx: Any,
        log_start_S: Tensor,
        log_transition_SS: Tensor,
        log_emission: Tensor,
        lengths_B: Tensor | None,
        belief_BS: Tensor | None,
        index_BT: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        problem, done, rescued = _solve(log_start_S, log_transition_SS, log_emission, lengths_B, belief_BS, index_BT)
        ctx.solved, ctx.shape = (problem, done, rescued), log_emission.shape
        # Clones: an output that its own backward holds would keep the whole pass alive for ever.
        return done.rows.unsort(done.log_prob_TB, 1).T.clone(), done.rows.unsort(done.final_BS).clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_log_prob_BT: Tensor, grad_final_BS: Tensor) -> tuple[Tensor | None, ...]:
        problem, done, rescued = ctx.solved
        if rescued and (ctx.needs_input_grad[4] or bool(grad_final_BS.any())):
            raise TrellisError("a sequence this improbable has no gradient through its beliefs: detach the state.")
        sort, unsort = done.rows.sort, done.rows.unsort
        start_S, transition_SS, posterior_TBS, message_BS = _counts(
            problem, done, rescued, sort(grad_log_prob_BT.T, 1), sort(grad_final_BS)
        )
        belief_BS = None
        if ctx.needs_input_grad[4]:
            belief_BS = done.transition.pull(message_BS, 0)
            belief_BS[done.rows.begun() :] = sort(grad_final_BS)[done.rows.begun() :]
            belief_BS = unsort(belief_BS)
        columns_NS = torch.zeros_like(problem.log_columns_NS)
        columns_NS.index_add_(0, problem.index_TB.flatten(), posterior_TBS.flatten(0, 1))
        return start_S, transition_SS, columns_NS.view(ctx.shape), None, belief_BS, None


def log_probs(
    log_start_S: Tensor,
    log_transition_SS: Tensor,
    log_emission_BTS: Tensor,
    lengths_B: Tensor | None = None,
    belief_BS: Tensor | None = None,
    index_BT: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Each token's log-probability given those before it (B×T), and the belief after the last (B×S).

    Differentiable in every tensor: the gradient of the summed log-probabilities by `log_transition_SS` is the
    expected number of transitions, by `log_emission_BTS` the posterior. Once: there are no second derivatives.
    """
    return _LogProbs.apply(log_start_S, log_transition_SS, log_emission_BTS, lengths_B, belief_BS, index_BT)  # type: ignore[no-any-return, no-untyped-call]  # apply is untyped
