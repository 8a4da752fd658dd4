"""Likelihood, filtering and smoothing where each token has a group of states to itself, with exact gradients.

A word is emitted by the K states of its group alone, so a belief holds K numbers, and a step from one token to the
next crosses the K×K matrix of their pair of groups. Everything else is as for a dense HMM: the same recursion, its rows
ragged, its emissions the columns of distinct words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trellis.errors import TrellisError
from trellis.inference.recursion import Evidence, Rows, Walk, walk, walk_back
from trellis.inference.rescue import rescue, rescued_counts
from trellis.inference.transitions import Paired


class Blocks(NamedTuple):
    """A batch of a blocked model, rows in the caller's order.

    first_BK       p(first state) among the states of the first token's group, before the token is seen; it need not
                   sum to one: the other groups have the rest
    into_PJK       p(next state | state) of each distinct pair of groups, [to, from]
    log_columns_NK log p(word | state) of each distinct word, in the states of its group
    pair_BT        the pair that leads to each token (of the first: anything)
    index_BT       the column that each token takes
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
    log_transition_TKK = blocks.log_into(pair_T).transpose(1, 2)
    return _Problem(first_BK[row].log(), log_transition_TKK, blocks.log_columns_NK, done.evidence.index_TB, None)


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


def _counts(
    blocks: Blocks,
    done: Walk[Paired],
    first_BK: Tensor,
    rescued: list[int],
    grad_log_prob_TB: Tensor,
    grad_final_BK: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by the first beliefs, by the pairs' matrices, and by the tokens' log-emissions, T×B×K."""
    posterior_TBK, message_TBK = walk_back(done, grad_log_prob_TB, grad_final_BK)
    into_PJK = done.transition.gradient(done.belief_TBS[:-1], message_TBK[1:])
    first_grad_BK = message_TBK[:1].sum(0)  # nothing if there are no tokens
    for row in rescued:
        length = done.rows.length(row)
        counts = rescued_counts(*_row(blocks, done, first_BK, row), length, row, grad_log_prob_TB[:, row])
        posterior_TBK[:length, row] = counts.posterior_TS.to(posterior_TBK)
        first_grad_BK[row] = _by_probability(counts.start_S, first_BK[row])
        for step, pair in enumerate(done.transition.pair_TB[1:length, row].tolist(), start=1):
            into_PJK[pair] += _by_probability(counts.transition[step].T, blocks.into_PJK[pair])
    return first_grad_BK, into_PJK, posterior_TBK


def _by_probability(count: Tensor, probability: Tensor) -> Tensor:
    """From a gradient by a logarithm to one by what it is the logarithm of; what float32 has as zero stays there."""
    return torch.where(probability > 0, count.to(probability) / probability, 0.0)


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
    _, into_PJK, posterior_TBK = _counts(blocks, done, first_BK, rescued, weight_TB, None)
    return BlockedSmoothed(
        unsort(log_prob_TB, 1).T,
        unsort(done.final_BS),
        unsort(posterior_TBK, 1).transpose(0, 1).clamp_min(0.0),
        into_PJK.mul_(blocks.into_PJK).clamp_min_(0.0),
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
        first_BK, into_PJK, posterior_TBK = _counts(
            blocks, done, first_BK, rescued, sort(grad_log_prob_BT.T, 1), sort(grad_final_BK)
        )
        columns_NK = torch.zeros_like(blocks.log_columns_NK)
        columns_NK.index_add_(0, done.evidence.index_TB.flatten(), posterior_TBK.flatten(0, 1))
        return unsort(first_BK), into_PJK, columns_NK, None


def blocked_log_probs(blocks: Blocks) -> tuple[Tensor, Tensor]:
    """Each token's log-probability given those before it (B×T), and the belief after the last (B×K).

    Differentiable, once, in `first_BK`, `into_PJK` and `log_columns_NK`.
    """
    detached = blocks._replace(
        first_BK=blocks.first_BK.detach(), into_PJK=blocks.into_PJK.detach(),
        log_columns_NK=blocks.log_columns_NK.detach(),
    )  # fmt: skip
    return _LogProbs.apply(blocks.first_BK, blocks.into_PJK, blocks.log_columns_NK, detached)  # type: ignore[no-any-return, no-untyped-call]  # apply is untyped
