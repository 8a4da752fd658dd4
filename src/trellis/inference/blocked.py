"""Likelihood, filtering and smoothing where each token has a group of states to itself, with exact gradients.

A word is emitted by the K states of its group alone, so a belief holds K numbers, and a step from one token to the
next crosses the K×K matrix of their pair of groups. Everything else is as for a dense HMM: the same recursion, its rows
ragged, its emissions the columns of distinct words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trellis.errors import TrellisError
from trellis.inference import reference
from trellis.inference.recursion import Evidence, Rows, Walk, walk, walk_back
from trellis.inference.rescue import rescue, rescued_counts
from trellis.inference.transitions import Paired

# Pairs whose float64 logarithms are held at once: 32 MB of 256 states.
LOOKED_UP_AT_ONCE = 64


class Blocks(NamedTuple):
    """A batch of a blocked model, rows in the caller's order.

    first_BK       p(first state) among the states of the first token's group, before the token is seen; it need not
                   sum to one: the other groups have the rest
    into_PJK       p(next state | state) of each distinct pair of groups, [to, from]
    log_columns_NK log p(word | state) of each distinct word, in the states of its group
    pair_BT        the pair that leads to each token (of the first: anything; of padding: any pair)
    index_BT       the column that each token takes (padding: any column)
    lengths_B      how many tokens each row has; None if all are full
    log_into       the logarithms of some pairs' matrices, in float64, for rows too improbable for float32
    """

    first_BK: Tensor
    into_PJK: Tensor
    log_columns_NK: Tensor
    pair_BT: Tensor
    index_BT: Tensor
    lengths_B: Tensor | None
    log_into: Callable[[Tensor], Tensor]

    def lengths(self) -> Tensor:
        """How many tokens each row has, also if all are full."""
        batch, time = self.index_BT.shape
        full_B = torch.full((batch,), time, device=self.index_BT.device)
        return full_B if self.lengths_B is None else self.lengths_B

    def log_matrices(self) -> Tensor:
        """Logarithms of all pairs' matrices; what `into_PJK` has lost to underflow is looked up."""
        log_into_PJK = self.into_PJK.log()
        lost_PJK = self.into_PJK < torch.finfo(self.into_PJK.dtype).tiny
        for pairs in lost_PJK.flatten(1).any(1).nonzero().flatten().split(LOOKED_UP_AT_ONCE):
            log_into_PJK[pairs] = self.log_into(pairs).to(log_into_PJK)
        return log_into_PJK

    def log_steps(self, pair_T: Tensor) -> Tensor:
        """The transitions of one row in float64 as the reference takes them, T×K×K; to the first token none leads."""
        width = self.first_BK.shape[1]
        none_1KK = torch.zeros(1, width, width, dtype=torch.float64, device=self.first_BK.device)
        if len(pair_T) < 2:
            return none_1KK
        return torch.cat([none_1KK, self.log_into(pair_T[1:]).double().transpose(1, 2)])

    def row(self, row: int, length: int) -> reference.Sequence:
        """One row of this length as the reference takes it."""
        log_emission_TK = self.log_columns_NK[self.index_BT[row, :length]]
        return self.first_BK[row].log(), self.log_steps(self.pair_BT[row, :length]), log_emission_TK, None


class BlockedForward(NamedTuple):
    """What one pass finds: as `Forward`, but each belief is one over the states of its token's group."""

    log_prob_BT: Tensor
    belief_BTK: Tensor
    final_BK: Tensor


class BlockedSmoothed(NamedTuple):
    """Posteriors given whole rows, and expected counts of crossing each pair, [to, from]."""

    log_prob_BT: Tensor
    final_BK: Tensor
    posterior_BTK: Tensor
    into_PJK: Tensor


class _Problem(NamedTuple):
    """A row of a sorted batch, as `rescue` takes it."""

    log_start_K: Tensor
    log_transition_TKK: Tensor
    log_columns_NK: Tensor
    index_TB: Tensor
    belief_BK: None


def _row(blocks: Blocks, done: Walk[Paired], first_BK: Tensor, row: int) -> _Problem:
    """The problem of one row in log space; `first_BK` is sorted as the walk is."""
    pair_T = done.transition.pair_TB[: done.rows.length(row), row]
    return _Problem(first_BK[row].log(), blocks.log_steps(pair_T), blocks.log_columns_NK, done.evidence.index_TB, None)


def _solve(blocks: Blocks) -> tuple[Walk[Paired], Tensor, list[int]]:
    """Walk the batch and do again in log space the rows that underflowed; also its first beliefs, sorted."""
    rows = Rows.of(blocks.lengths_B, *blocks.index_BT.shape)
    evidence = Evidence.of(blocks.log_columns_NK, rows.sort(blocks.index_BT.T, 1).contiguous())
    transition = Paired(blocks.into_PJK, rows.sort(blocks.pair_BT.T, 1).contiguous())
    first_BK = rows.sort(blocks.first_BK)
    done = walk(first_BK, transition, evidence, rows, first_BK)
    return done, first_BK, [
        row for row in done.underflowed() if rescue(*_row(blocks, done, first_BK, row), done, row)
    ]  # fmt: skip


def _gradients(
    done: Walk[Paired], grad_log_prob_TB: Tensor, grad_final_BK: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by the first beliefs, by the pairs' matrices, and by the tokens' log-emissions, T×B×K.

    Rows that were rescued have none yet.
    """
    posterior_TBK, message_TBK = walk_back(done, grad_log_prob_TB, grad_final_BK)
    into_PJK = done.transition.gradient(done.belief_TBS[:-1], message_TBK[1:])
    first_BK = message_TBK[:1].sum(0)  # nothing if there are no tokens
    if grad_final_BK is not None:  # a row without tokens ends with what it began with
        first_BK[done.rows.begun() :] = grad_final_BK[done.rows.begun() :]
    return first_BK, into_PJK, posterior_TBK


class _Rescued(NamedTuple):
    """Expected counts of a row done in log space: of its first state, of each step [to, from], of each state."""

    row: int
    pair_T: Tensor
    start_K: Tensor
    into_TJK: Tensor
    posterior_TK: Tensor


def _rescued_counts(
    blocks: Blocks, done: Walk[Paired], first_BK: Tensor, rescued: list[int], grad_log_prob_TB: Tensor
) -> Iterator[_Rescued]:
    """The counts of each rescued row, times the gradient by its log-likelihood; `pair_T` are those it crossed."""
    for row in rescued:
        length = done.rows.length(row)
        counts = rescued_counts(*_row(blocks, done, first_BK, row), length, row, grad_log_prob_TB[:, row])
        pair_T = done.transition.pair_TB[1:length, row]
        yield _Rescued(row, pair_T, counts.start_S, counts.transition[1:].transpose(1, 2), counts.posterior_TS)


def _by_probability(count: Tensor, probability: Tensor) -> Tensor:
    """From a gradient by a logarithm to one by what it is the logarithm of; what float32 has as zero stays there."""
    positive = probability >= torch.finfo(probability.dtype).tiny
    return torch.where(positive, count.to(probability) / probability, 0.0)


@torch.no_grad()
def blocked_forward(blocks: Blocks) -> BlockedForward:
    """Filter a batch: each token's log-probability and the belief after it."""
    done, _, _ = _solve(blocks)
    unsort = done.rows.unsort
    return BlockedForward(
        unsort(done.log_prob_TB, 1).T, unsort(done.belief_TBS, 1).transpose(0, 1), unsort(done.final_BS)
    )


@torch.no_grad()
def blocked_smooth(blocks: Blocks) -> BlockedSmoothed:
    """Posteriors over states given whole rows, and expected counts of transitions."""
    done, first_BK, rescued = _solve(blocks)
    log_prob_TB, unsort = done.log_prob_TB, done.rows.unsort
    # An impossible row has no posterior: it counts for nothing rather than up to where it broke.
    weight_TB = torch.isfinite(log_prob_TB.sum(0)).to(log_prob_TB).expand_as(log_prob_TB)
    _, into_PJK, posterior_TBK = _gradients(done, weight_TB, None)
    into_PJK.mul_(blocks.into_PJK)
    for found in _rescued_counts(blocks, done, first_BK, rescued, weight_TB):
        posterior_TBK[: len(found.posterior_TK), found.row] = found.posterior_TK.to(posterior_TBK)
        into_PJK.index_add_(0, found.pair_T, found.into_TJK.to(into_PJK))
    # Rounding can leave a state that is next to impossible a little less than nothing, and no logarithm.
    return BlockedSmoothed(
        unsort(log_prob_TB, 1).T,
        unsort(done.final_BS),
        unsort(posterior_TBK, 1).transpose(0, 1).clamp_min(0.0),
        into_PJK.clamp_min_(0.0),
    )


class _LogProbs(torch.autograd.Function):
    """The recursion with a custom backward: autograd sees one step, not one a token."""

    @staticmethod
    def forward(
        ctx: Any, first_BK: Tensor, into_PJK: Tensor, log_columns_NK: Tensor, blocks: Blocks
    ) -> tuple[Tensor, Tensor]:
        blocks = blocks._replace(first_BK=first_BK, into_PJK=into_PJK, log_columns_NK=log_columns_NK)
        done, first_BK, rescued = _solve(blocks)
        ctx.solved = blocks, done, first_BK, rescued
        # Clones: an output that its own backward holds would keep the whole pass alive for ever.
        return done.rows.unsort(done.log_prob_TB, 1).T.clone(), done.rows.unsort(done.final_BS).clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_log_prob_BT: Tensor, grad_final_BK: Tensor) -> tuple[Tensor | None, ...]:
        blocks, done, first_BK, rescued = ctx.solved
        if rescued and bool(grad_final_BK.any()):
            raise TrellisError("a sequence this improbable has no gradient through its beliefs: detach the state.")
        sort, unsort = done.rows.sort, done.rows.unsort
        grad_log_prob_TB = sort(grad_log_prob_BT.T, 1)
        grad_first_BK, grad_into_PJK, posterior_TBK = _gradients(done, grad_log_prob_TB, sort(grad_final_BK))
        for found in _rescued_counts(blocks, done, first_BK, rescued, grad_log_prob_TB):
            posterior_TBK[: len(found.posterior_TK), found.row] = found.posterior_TK.to(posterior_TBK)
            grad_first_BK[found.row] = _by_probability(found.start_K, first_BK[found.row])
            grad_TJK = _by_probability(found.into_TJK, blocks.into_PJK[found.pair_T])
            grad_into_PJK.index_add_(0, found.pair_T, grad_TJK)
        columns_NK = torch.zeros_like(blocks.log_columns_NK)
        columns_NK.index_add_(0, done.evidence.index_TB.flatten(), posterior_TBK.flatten(0, 1))
        return unsort(grad_first_BK), grad_into_PJK, columns_NK, None


def blocked_log_probs(blocks: Blocks) -> tuple[Tensor, Tensor]:
    """Each token's log-probability given those before it (B×T), and the belief after the last (B×K).

    Differentiable, once, in `first_BK`, `into_PJK` and `log_columns_NK`.
    """
    detached = blocks._replace(
        first_BK=blocks.first_BK.detach(), into_PJK=blocks.into_PJK.detach(),
        log_columns_NK=blocks.log_columns_NK.detach(),
    )  # fmt: skip
    return _LogProbs.apply(blocks.first_BK, blocks.into_PJK, blocks.log_columns_NK, detached)  # type: ignore[no-any-return, no-untyped-call]  # apply is untyped
