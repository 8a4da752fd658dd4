"""One row of a chain in float64 log space: for what scaled probabilities cannot hold.

A row comes here that lost, in float64 too, what it needed or may need yet (`lost.py`). Text under a trained model
hardly ever does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from trellis.inference.chain import Chain
from trellis.inference.draws import draw
from trellis.inference.transitions import Piece, Transition
from trellis.ops.precision import widened


class Row(NamedTuple):
    """A row of T tokens, its number in the batch of its transition, and what is known in logarithms."""

    transition: Transition
    number: int
    log_first_S: Tensor
    log_emission_TS: Tensor

    @property
    def length(self) -> int:
        """T."""
        return len(self.log_emission_TS)

    def pieces(self, step: int) -> Iterator[Piece]:
        """The matrices of logarithms that lead to `step`, in float64."""
        row_1 = torch.tensor([self.number], device=self.log_first_S.device)
        for piece in self.transition.pieces(step, row_1, log=True):
            matrix = piece.matrix if piece.matrix.dim() == 2 else piece.matrix[0]
            yield piece._replace(matrix=widened(matrix))


def row_of(chain: Chain, log_columns_NS: Tensor, index_BT: Tensor, number: int, length: int) -> Row:
    """A row of a chain, of which the columns were already asked for."""
    log_first_S = chain.log_first(number) if chain.log_first else widened(chain.log_first_BS[number])
    log_emission_TS = widened(log_columns_NS[index_BT[number, :length]])
    return Row(chain.transition, number, log_first_S.detach(), log_emission_TS.detach())


def filtered(row: Row) -> tuple[Tensor, Tensor]:
    """Log-probabilities T and logarithms of beliefs T×S; −inf from an impossible token on."""
    log_belief_TS = row.log_emission_TS.clone()
    log_prob_T, log_predicted_S = log_belief_TS.new_zeros(row.length), row.log_first_S
    for t, log_joint_S in enumerate(log_belief_TS):
        if t > 0:
            log_predicted_S = _push(row, log_belief_TS[t - 1], t)
        log_joint_S += log_predicted_S
        log_prob_T[t] = log_joint_S.logsumexp(0)
        if bool(log_prob_T[t] > -torch.inf):
            log_joint_S -= log_prob_T[t]
    return log_prob_T, log_belief_TS


def _push(row: Row, log_belief_S: Tensor, step: int) -> Tensor:
    log_pushed_S = torch.full_like(log_belief_S, -torch.inf)
    for piece in row.pieces(step):
        more_C = (piece.matrix + log_belief_S[piece.from_]).logsumexp(1)
        log_pushed_S[piece.to] = log_pushed_S[piece.to].logaddexp(more_C)
    return log_pushed_S


def _after(row: Row) -> Tensor:
    """log p(the tokens after this one | its state), T×S."""
    log_after_TS = torch.zeros_like(row.log_emission_TS)
    for t in reversed(range(1, row.length)):
        log_message_S = row.log_emission_TS[t] + log_after_TS[t]
        log_pulled_S = torch.full_like(log_message_S, -torch.inf)
        for piece in row.pieces(t):
            more_N = (piece.matrix + log_message_S[piece.to][:, None]).logsumexp(0)
            log_pulled_S[piece.from_] = log_pulled_S[piece.from_].logaddexp(more_N)
        log_after_TS[t - 1] = log_pulled_S
    return log_after_TS


class Counts(NamedTuple):
    """Expected counts of a row, times a weight: p(state at each token | row), and of each step.

    An impossible row counts for nothing.
    """

    row: Row
    weight: Tensor
    log_prob_T: Tensor
    log_belief_TS: Tensor
    log_after_TS: Tensor

    @property
    def possible(self) -> bool:
        """Whether the row can be at all."""
        return bool(torch.isfinite(self.log_prob_T.sum()))

    @property
    def posterior_TS(self) -> Tensor:
        """Expected visits of each state at each token."""
        if not self.possible:
            return torch.zeros_like(self.log_belief_TS)
        return (self.log_belief_TS + self.log_after_TS).softmax(1) * self.weight

    def steps(self) -> Iterator[tuple[int, Piece, Tensor]]:
        """Each step and piece of it, with the expected number of times it was taken, [to, from]."""
        for t in range(1, self.row.length if self.possible else 0):
            log_later_S = self.row.log_emission_TS[t] + self.log_after_TS[t] - self.log_prob_T[t:].sum()
            for piece in self.row.pieces(t):
                log_both_CN = self.log_belief_TS[t - 1][piece.from_] + piece.matrix + log_later_S[piece.to][:, None]
                yield t, piece, log_both_CN.exp() * self.weight


def counts(row: Row, weight: Tensor) -> Counts:
    """Expected counts of a row."""
    return Counts(row, weight, *filtered(row), _after(row))


def entropy(row: Row) -> Tensor:
    """H(z | o) = log p(o) − E[log p(z, o)], the expectation step by step; −inf of an impossible row."""
    found = counts(row, torch.ones_like(row.log_first_S[0]))
    if row.length == 0 or not found.possible:
        return found.log_prob_T.sum()
    posterior_TS = found.posterior_TS
    expected = _weighed(posterior_TS, row.log_emission_TS) + _weighed(posterior_TS[0], row.log_first_S)
    for _, piece, count_CN in found.steps():
        expected = expected + _weighed(count_CN, piece.matrix)
    return found.log_prob_T.sum() - expected


def _weighed(weight: Tensor, number: Tensor) -> Tensor:
    """Σ weight · number, without the terms of weight zero, whose number may be −inf."""
    return torch.where(weight > 0, weight * number, 0.0).sum()


def draw_paths(row: Row, samples: int, generator: torch.Generator | None) -> Tensor:
    """Independent state paths z ~ p(z | o) of a possible row, (samples, T)."""
    _, log_belief_TS = filtered(row)
    states_NT = torch.empty(samples, row.length, dtype=torch.int64, device=log_belief_TS.device)
    row_1 = torch.tensor([row.number], device=log_belief_TS.device)
    for t in reversed(range(row.length)):
        log_weight_NS = log_belief_TS[t].expand(samples, -1)
        if t + 1 < row.length:
            later_1N = states_NT[None, :, t + 1]
            log_weight_NS = log_weight_NS + widened(row.transition.towards(t + 1, row_1, later_1N, log=True)[0])
        states_NT[:, t] = draw(log_weight_NS.softmax(-1), generator)
    return states_NT
