"""Likelihood, filtering and smoothing of a chain, with exact gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trellis.errors import TrellisError
from trellis.inference.brief import brief
from trellis.inference.chain import Chain, Entered, to_carry
from trellis.inference.recursion import Walk, walk, walk_back
from trellis.ops.evidence import SummedEvidence, summed_by_row
from trellis.ops.precision import at_most_zero, widened


class Filtered(NamedTuple):
    """What one pass over a chain finds.

    log_prob_BT  log p(o_t | o_<t): zero past a row's end, −inf from an impossible token on
    belief_BTS   p(z_t | o_≤t): zero past a row's end
    states_BTS   the states that these beliefs are about
    state        to carry on from
    """

    log_prob_BT: Tensor
    belief_BTS: Tensor
    states_BTS: Tensor
    state: Tensor

    def __repr__(self) -> str:
        return brief(self)


class Smoothed(NamedTuple):
    """Posteriors given whole rows: the gradients of their log-likelihood by the log-emissions.

    log_prob_BT    log p(o_t | o_<t)
    posterior_BTS  p(z_t | o_≤T): zero past a row's end, and in an impossible row
    states_BTS     the states that these posteriors are about
    state          to carry on from
    """

    log_prob_BT: Tensor
    posterior_BTS: Tensor
    states_BTS: Tensor
    state: Tensor

    def usage(self, states: int) -> Tensor:
        """The expected number of tokens that each of a model's states emitted, float64."""
        posterior_N = widened(self.posterior_BTS.flatten())
        return posterior_N.new_zeros(states).index_add_(0, self.states_BTS.flatten(), posterior_N)

    def most_probable(self) -> tuple[Tensor, Tensor]:
        """The highest posterior at each token and the state that has it, both B×T."""
        probability_BT1, place_BT1 = self.posterior_BTS.max(-1, keepdim=True)
        return probability_BT1.squeeze(-1), self.states_BTS.gather(2, place_BT1).squeeze(-1)

    def __repr__(self) -> str:
        return brief(self)


def _batch_first(done: Walk, found_TBS: Tensor) -> Tensor:
    return done.rows.unsort(found_TBS, 1).transpose(0, 1)


def _log_probs(chain: Chain, done: Walk) -> Tensor:
    """log p(o_t | o_<t), B×T: never above zero, where rounding may have put it."""
    log_prob_BT = _batch_first(done, done.log_prob_TB)
    if chain.ahead is not None:
        belief_BTS = _batch_first(done, done.belief_TBS)
        exact = {done.rows.callers(row): log_belief_TS for row, log_belief_TS in done.log_beliefs()}
        log_prob_BT = chain.ahead.log_probs(log_prob_BT, belief_BTS, exact)
    return log_prob_BT.clamp_max(0.0)


@torch.no_grad()
def filter(chain: Chain) -> Filtered:  # the name of the algorithm
    """Each token's log-probability and the belief after it."""
    done = walk(chain, *chain.walked())
    belief_BTS = _batch_first(done, done.belief_TBS)
    if chain.ahead is not None:
        exact = {done.rows.callers(row): log_belief_TS for row, log_belief_TS in done.log_beliefs()}
        belief_BTS = chain.ahead.beliefs(belief_BTS, exact)
    return Filtered(_log_probs(chain, done), belief_BTS, chain.states(), chain.carry(done.rows.unsort(done.final_BS)))


@torch.no_grad()
def carried_after(chain: Chain) -> tuple[Tensor, Tensor, Tensor]:
    """What would be carried on after each token, in each of its states, B×T×S; those states; and after the last one.

    These are the beliefs of `filter`, but logarithms of those too small for a probability.
    """
    done = walk(chain, *chain.walked(), every_token=True)
    belief_BTS = _batch_first(done, done.belief_TBS)
    exact = {done.rows.callers(row): log_belief_TS for row, log_belief_TS in done.log_beliefs()}
    if chain.ahead is not None:
        belief_BTS = chain.ahead.beliefs(belief_BTS, exact)
        exact = {row: chain.ahead.log_beliefs(row, log_belief_TS) for row, log_belief_TS in exact.items()}
    belief_BTS = belief_BTS.clone()
    for row, log_belief_TS in exact.items():
        belief_BTS[row, : len(log_belief_TS)] = to_carry(log_belief_TS, belief_BTS)
    return belief_BTS, chain.states(), chain.carry(done.rows.unsort(done.final_BS))


@torch.no_grad()
def smooth(chain: Chain) -> Smoothed:
    """Posteriors over states given whole rows."""
    done = walk(chain, *chain.walked())
    posterior_TBS = walk_back(done, possible(done.log_prob_TB), posterior_only=True).posterior_TBS
    # Rounding can leave a state that is next to impossible a little less than nothing, and no logarithm.
    posteriors = _log_probs(chain, done), _batch_first(done, posterior_TBS.clamp_min_(0.0))
    return Smoothed(*posteriors, chain.states(), chain.carry(done.rows.unsort(done.final_BS)))


def possible(log_prob_TB: Tensor) -> Tensor:
    """One at every token of a possible row; an impossible one counts for nothing, not up to where it broke."""
    return torch.isfinite(log_prob_TB.sum(0)).to(log_prob_TB).expand_as(log_prob_TB)


class _Score(torch.autograd.Function):
    """The walk with a backward of its own: autograd sees one step, not one a token."""

    @staticmethod
    def forward(
        ctx: Any,
        chain: Chain,
        index_BT: Tensor,
        entered: Entered | None,
        log_first_BS: Tensor,
        log_columns_NS: Tensor,
        log_enter_KS: Tensor | None,  # that of `entered`, which has its gradient here
        *tensors: Tensor,
    ) -> tuple[Tensor, Tensor]:
        ctx.done = walk(chain, log_columns_NS, index_BT, entered)
        ctx.columns, ctx.entered = len(log_columns_NS), None if log_enter_KS is None else len(log_enter_KS)
        ctx.whole_rows = chain.ahead is not None
        rows = ctx.done.rows
        # A clone: an output that its own backward holds would keep the whole pass alive for ever.
        return _log_probs(chain, ctx.done), rows.unsort(ctx.done.final_BS).clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_log_prob_BT: Tensor, grad_final_BS: Tensor) -> tuple[Tensor | None, ...]:
        done: Walk = ctx.done
        sort, unsort = done.rows.sort, done.rows.unsort
        if done.rescued and bool(sort(grad_final_BS)[list(done.rescued)].any()):
            raise TrellisError("a sequence this improbable has no gradient through its beliefs: detach the state.")
        if ctx.whole_rows and not bool((grad_log_prob_BT == grad_log_prob_BT[:, :1]).all()):
            raise TrellisError("states that remember words learn from whole rows: weigh rows, not single tokens.")
        found = walk_back(done, sort(grad_log_prob_BT.T, 1), sort(grad_final_BS))
        posterior_ES, evidence = found.posterior_TBS.flatten(0, 1), done.evidence
        columns_NS, enter_KS = _by_column(posterior_ES, evidence.index_TB.flatten(), ctx.columns), None
        if isinstance(evidence, SummedEvidence):
            enter_KS = summed_by_row(posterior_ES, evidence.enter_TB.flatten(), ctx.entered)
        return None, None, None, unsort(found.log_first_BS), columns_NS, enter_KS, *found.transition


def _by_column(posterior_ES: Tensor, index_E: Tensor, columns: int) -> Tensor:
    """The sum of the tokens of each column, N×S; where each token has its own, in their order, they are it."""
    own = len(index_E) == columns and torch.equal(index_E, torch.arange(columns, device=index_E.device))
    if own:
        return posterior_ES
    return posterior_ES.new_zeros(columns, posterior_ES.shape[1]).index_add_(0, index_E, posterior_ES)


def score(chain: Chain) -> tuple[Tensor, Tensor]:
    """log p(token | tokens before it), B×T, zero past a row's end; and the state to carry on from.

    Where a token's state is given, it is that of the token and the state. Differentiable, once, in every tensor of the
    chain: the gradient of the summed log-probabilities by the logarithms is the expected counts.
    """
    if chain.labels_BT is not None and (found := _path_score(chain, chain.labels_BT)) is not None:
        return found
    log_columns_NS, index_BT, entered = chain.walked()
    tables = chain.log_first_BS, log_columns_NS, None if entered is None else entered.log_enter_KS
    log_prob_BT, final_BS = _Score.apply(chain, index_BT, entered, *tables, *chain.transition.tensors)  # type: ignore[no-untyped-call]  # apply is untyped
    return log_prob_BT, chain.carry(final_BS)


def _path_score(chain: Chain, labels_BT: Tensor) -> tuple[Tensor, Tensor] | None:
    """The score of rows of which every state is given: nothing is summed, numbers are looked up; None of others.

    Also None where a number is zero: a walk can tell what is impossible from what float32 cannot hold.
    """
    batch, time, states = chain.shape
    lengths_B = chain.lengths()
    inside_BT = torch.arange(time, device=labels_BT.device) < lengths_B[:, None]
    if not bool(inside_BT.any()) or bool((inside_BT & (labels_BT < 0)).any()):
        return None
    state_BT = labels_BT.clamp_min(0)
    log_step_BT = chain.transition.log_at(state_BT[:, :-1], state_BT[:, 1:])
    if log_step_BT is None:
        return None
    log_first_B1 = chain.log_first_BS.gather(1, state_BT[:, :1])
    log_prob_BT = chain.log_columns_at(state_BT) + torch.cat([log_first_B1, log_step_BT], 1)
    log_prob_BT = log_prob_BT if chain.ahead is None else chain.ahead.log_probs_of(log_prob_BT, state_BT)
    log_prob_BT = torch.where(inside_BT, log_prob_BT, 0.0)
    log_prob_BT = at_most_zero(log_prob_BT)
    if bool((log_prob_BT == -torch.inf).any()):
        return None
    last_B1 = (lengths_B - 1).clamp_min(0)[:, None]
    final_BS = log_prob_BT.new_zeros(batch, states).scatter(1, state_BT.gather(1, last_B1), 1.0)
    final_BS = final_BS * (lengths_B > 0)[:, None]
    return log_prob_BT, chain.carry(final_BS)
